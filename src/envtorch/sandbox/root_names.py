"""What a prepared root may be called."""

import re

__all__ = ["HOST", "is_root_name"]

HOST = "host"
"""The machine's own root: no prepared one may have that name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}")


def is_root_name(name: str) -> bool:
    """Whether a prepared root may have that name: an image's name is one."""
    return _NAME.fullmatch(name) is not None and name != HOST and ".." not in name
