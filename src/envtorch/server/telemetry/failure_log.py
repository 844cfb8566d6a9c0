"""Logs the failures of environments, each under an id that its client is told, too."""

import logging
import secrets

from envtorch.errors import EnvironmentFailed

__all__ = ["log_failure"]

logger = logging.getLogger(__name__)


def log_failure(error: EnvironmentFailed, session_id: str, request_id: int | str | None = None) -> None:
    """Log an error in full, with its traceback, and give it the id that the client finds in its details."""
    if "error_id" in error.details:  # the failure of several sessions is logged once
        return
    error.details["error_id"] = error_id = secrets.token_hex(6)
    logger.warning(
        "session %s: %s [error %s]",
        session_id[:8],
        error,
        error_id,
        exc_info=error.__cause__ or error,
        extra={"session_id": session_id, "request_id": request_id, "error_id": error_id},
    )
