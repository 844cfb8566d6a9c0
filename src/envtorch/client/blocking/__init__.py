"""Clients that block."""
