"""The log of a served environment, as its author reads it: tracebacks without frames of ours."""

import logging
from types import TracebackType

from envtorch.tracebacks import author_traceback

__all__ = ["log_author_frames_only"]


class AuthorFormatter(logging.Formatter):
    """Formats an exception as the frames that the environment's author wrote."""

    def formatException(  # noqa: N802, the name is logging's
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        reduced = author_traceback(ei[1]) if ei[1] is not None else ""
        return reduced or super().formatException(ei)


def log_author_frames_only() -> None:
    """Write EnvTorch's log to standard error. An error without frames of the author's is written whole."""
    handler = logging.StreamHandler()
    handler.setFormatter(AuthorFormatter("%(levelname)s: %(message)s"))
    log = logging.getLogger("envtorch")
    log.addHandler(handler)
    log.propagate = False
