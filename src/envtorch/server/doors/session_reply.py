"""What a client of the extended wire is told about a session that it has opened or attached."""

from typing import Any

from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Reply
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.settings import ServerMode

__all__ = ["session_reply"]

SUPPORTS = ("cancel", "batch", "channels", "steps", "columns")


def session_reply(
    session: Session, sessions: Sessions, mode: ServerMode, format: Format, max_bytes: int
) -> Reply:
    """The reply to `session` and `attach`, from a server that takes messages of up to `max_bytes`."""
    told: dict[str, Any] = {
        "session_id": session.id,
        "token": session.token,
        "grace_s": session.unheld_s,
        "last_id": session.ledger.newest,
        "supports": _supported(session, sessions, mode),
        "max_message_bytes": max_bytes,
    }
    if sessions.spec.deterministic is not None:
        told["deterministic"] = sessions.spec.deterministic
    if sessions.replica is not None:
        told["replica"] = sessions.replica
    return Reply("session", format.write(told), format)


def _supported(session: Session, sessions: Sessions, mode: ServerMode) -> list[str]:
    """What may be asked of a session here. Whether its environment can be copied, only a copy tells."""
    can_fork = mode is ServerMode.SIMULATION and not sessions.factory.is_shared
    told = [*SUPPORTS, "fork"] if can_fork else list(SUPPORTS)
    told += ["seed"] if sessions.spec.takes_seed else []
    told += ["together"] if session.runner.steps_together is not None else []
    return [*told, "isolation"] if sessions.is_isolated else told
