"""The sessions of a vector, on one socket: what is asked of them, and what arrives."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from envtorch.errors import EnvTorchError, TimedOut
from envtorch.protocol.channel import Arrived
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.formats import Format
from envtorch.protocol.reconnect import Late, Reconnecting, SocketFlow

__all__ = ["VectorSessions"]


class VectorSessions:
    """Sessions that live and die with their server."""

    def __init__(self, connection: Reconnecting) -> None:
        self._connection = connection

    def __len__(self) -> int:
        return len(self.channels)

    @property
    def channels(self) -> ClientChannels:
        return self._connection.channels

    @property
    def format(self) -> Format:
        return self._connection.format

    @property
    def owed(self) -> int:
        """How many sessions were asked something and have not answered."""
        return self.channels.owed

    def is_owed(self, place: int) -> bool:
        return self.channels.is_owed(place)

    def refusal(self, place: int) -> EnvTorchError | None:
        """Why a session can only be reset, as it is lost or closed; None when it takes every request."""
        return self.channels.refusal(place)

    def renew(self, place: int) -> None:
        """Put a new session in the place of a lost or closed one."""
        self.channels.renew(place)

    def ask_steps(
        self,
        places: Sequence[int],
        actions: Mapping[str, msgspec.Raw],
        one: Callable[[int], bytes],
        timeout_s: float | None,
    ) -> SocketFlow[None]:
        """Send a step for each of these sessions: `ClientChannels.steps` says how."""
        within = self._connection.within(timeout_s)
        yield from self._connection.send(self.channels.steps(places, actions, one, **within))

    def ask_each(
        self, kind: str, data: Mapping[int, bytes | None], timeout_s: float | None
    ) -> SocketFlow[None]:
        """Send a request of that kind to each of these sessions."""
        within = self._connection.within(timeout_s)
        yield from self._connection.send(self.channels.each(kind, data, **within))

    def arrivals(self) -> SocketFlow[list[Arrived]]:
        """Wait until something that is owed has arrived: see `Reconnecting.arrivals`."""
        return (yield from self._connection.arrivals())

    def interrupted(self) -> SocketFlow[None]:
        """A call was left anywhere on its way: see `Reconnecting.interrupted`."""
        yield from self._connection.interrupted()

    def attach(self, tokens: Sequence[str], origin: int, limit_s: float) -> SocketFlow[list[int]]:
        """Take copies of the session at `origin`, which exist on the server, all or none; their places."""
        first = len(self)
        try:
            places = [self.channels.add(token) for token in tokens]
            yield from self._attached(places, origin, limit_s)
            return places
        except BaseException as error:
            farewell = self._shorten(first)
            if not isinstance(error, GeneratorExit):
                yield from self._connection.tell(farewell)
            raise

    def _shorten(self, count: int) -> bytes | None:
        """Drop the places that were added last: see `ClientChannels.shorten`."""
        return self.channels.shorten(count)

    def _attached(self, places: Sequence[int], origin: int, limit_s: float) -> SocketFlow[None]:
        """Have the copies of the session at `origin` on the socket."""
        try:
            yield from self._connection.get_ready(self._connection.within(limit_s)["deadline"])
        except Late:
            raise TimedOut(f"the copies were not attached within {limit_s:g} s") from None
        for place in places:
            refusal = self.refusal(place)
            if refusal is not None:
                raise refusal

    def say_close(self, places: Sequence[int]) -> SocketFlow[list[int]]:
        """Ask the server to end these sessions. Those that it has: their replies are owed."""
        alive = set(self.channels.alive)
        asked = [place for place in places if place in alive]
        yield from self._connection.say_close(asked)
        return asked

    def closed(self, places: Sequence[int]) -> None:
        """These sessions were closed."""
        self.channels.closed(places)

    def close(self) -> SocketFlow[None]:
        """End every session, and the socket."""
        yield from self._connection.close()

    def farewell(self) -> bytes | None:
        """A frame that closes every session on the socket, whose replies nobody reads."""
        return self._connection.farewell()
