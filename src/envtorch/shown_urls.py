"""URLs as people may see them: a password in one is for the server alone."""

import re

__all__ = ["shown_url"]

_CREDENTIALS = re.compile(r"(?<=://)[^\s'\"]*@")


def shown_url(text: str) -> str:
    """A URL, or a text with URLs in it, with `***` in place of user names and passwords.

    For all that is logged, shown, recorded or raised.
    """
    return _CREDENTIALS.sub("***@", text)
