"""The names of servers behind one address."""

import re

__all__ = ["REPLICA_NAME"]

REPLICA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
"""The names that a server may have behind a proxy: those of pods are among them."""
