"""Sessions of one socket that are asked together, again and again, in the same order."""

from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.protocol.host import EnvironmentHost
from envtorch.server.sessions.session import Session

__all__ = ["Lineup", "Lineups"]

REMEMBERED = 2
"""A vector asks all its sessions at once, or half of them and then the other half."""


class Lineup:
    """Sessions that are asked together, and what stays the same as long as they are."""

    __slots__ = ("channels", "environments", "hosts", "session_ids", "sessions", "step_many")

    def __init__(
        self, channels: list[int], sessions: Sequence[Session], hosts: Sequence[EnvironmentHost]
    ) -> None:
        self.channels, self.sessions, self.hosts = channels, sessions, hosts
        self.session_ids: Sequence[str] = [session.id for session in sessions]
        self.environments: Sequence[Any] = tuple(host.environment for host in hosts)
        is_one_class = len(set(map(type, self.environments))) == 1
        self.step_many = hosts[0].step_many if is_one_class else None
        """How they step together, where their author wrote that."""


class Lineups:
    """The line-ups of late, so that who is asked again in the same way is not lined up again."""

    def __init__(self) -> None:
        self._known: list[Lineup] = []

    def of(self, channels: list[int], held: Mapping[int, Session]) -> Lineup | None:
        """The sessions of these channels; None when one has none, or its steps are not taken with others'."""
        sessions = list(map(held.get, channels))
        for known in self._known:
            if known.sessions == sessions and known.channels == channels:
                return known
        joining = [session for session in sessions if session is not None]
        hosts = [session.joins for session in joining if session.joins is not None]
        if not hosts or len(hosts) != len(channels) or len(set(channels)) != len(channels):
            return None
        lineup = Lineup(channels, joining, hosts)
        self._known = [lineup, *self._known[: REMEMBERED - 1]]
        return lineup

    def forget(self) -> None:
        """One of the sessions goes: nothing here shall hold on to it."""
        self._known.clear()
