"""Sessions of other servers behind the same address: what this one can say about them, which is nothing.

A server that is asked for a session of another replica was asked by mistake: by a proxy that did not reach
that replica, or that does not route by name. Only a proxy that saw the replica's port refuse a connection
knows that its sessions are gone, and says so in a header.
"""

from starlette.datastructures import Headers

from envtorch.errors import EnvTorchError, SessionElsewhere
from envtorch.server.sessions.slots import REPLICA_MARK

__all__ = ["GONE_HEADER", "REPLICA_HEADER", "elsewhere", "missing", "replica_of", "require_here"]

REPLICA_HEADER = "EnvTorch-Replica"
"""In a WebSocket's handshake: the replica that has the sessions which will be attached."""

GONE_HEADER = "EnvTorch-Replica-Gone"
"""In a request that a proxy passes on: the replica at whose address nothing listens any more."""


def replica_of(name: str) -> str | None:
    """The replica that an id or token begins with; None when it begins with none."""
    replica, mark, _ = name.partition(REPLICA_MARK)
    return replica if mark and replica else None


def elsewhere(
    replica: str | None, own: str | None, headers: Headers | None = None
) -> SessionElsewhere | None:
    """The refusal of a request for a session of `replica`, if that is another server than `own`, and not
    known to be gone."""
    if replica is None or own is None or replica == own:
        return None
    if headers is not None and headers.get(GONE_HEADER) == replica:
        return None
    return SessionElsewhere(
        f"the session is on the replica {replica[:63]!r}, and this is {own!r}: try again, until the proxy "
        "reaches that one",
        replica=replica[:63],
    )


def missing(name: str, own: str | None, headers: Headers | None, gone: EnvTorchError) -> EnvTorchError:
    """Why there is no session of this id or token here: `gone`, unless it is another replica's."""
    return elsewhere(replica_of(name), own, headers) or gone


def require_here(name: str, own: str | None, headers: Headers) -> None:
    """Refuse what would be done about a session that is not here, though it may live on another replica.
    Raises `SessionElsewhere`."""
    refusal = elsewhere(replica_of(name), own, headers)
    if refusal is not None:
        raise refusal
