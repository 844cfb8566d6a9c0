"""Tests of the terminal environment."""
