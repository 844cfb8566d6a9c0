"""The log of a served environment, as its author reads it: tracebacks without frames of ours."""

import logging
import sys
from types import TracebackType

from envtorch.errors import EnvTorchError
from envtorch.tracebacks import author_traceback

__all__ = ["log_author_frames_only"]


class AuthorFormatter(logging.Formatter):
    """Formats an exception as the frames that the environment's author wrote."""

    def formatException(  # noqa: N802, the name is logging's
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        reduced = author_traceback(ei[1]) if ei[1] is not None else ""
        if not reduced and isinstance(ei[1], EnvTorchError):
            return ""  # an error of EnvTorch itself: the message has said it all
        return reduced or super().formatException(ei)


def log_author_frames_only() -> None:
    """Write the logs of EnvTorch and of FastMCP, if it is loaded, to standard error in one form.

    An error without frames of the author's is written whole, unless it is one of EnvTorch's own.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(AuthorFormatter("%(levelname)s: %(message)s"))
    for name in ("envtorch", *(["fastmcp"] if "fastmcp" in sys.modules else [])):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
