"""Clients that are awaited."""
