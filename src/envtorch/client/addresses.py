"""Where a client's session may be recovered: a list of addresses, or whoever places sessions on servers."""

import random
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

__all__ = ["Elsewhere", "elsewhere_of"]


@runtime_checkable
class Elsewhere(Protocol):
    """Gives a session that lost its server another one. A pool's lease is one."""

    def next_address(self, timeout_s: float) -> str:
        """The address to try next. Raises when there will be none within this time."""
        ...

    async def next_address_async(self, timeout_s: float) -> str:
        """`next_address`, awaited."""
        ...

    def for_copy(self) -> "Elsewhere":
        """The same for a copy of the session, which a fork has made on the same server."""
        ...

    def release(self) -> None:
        """The session has ended."""
        ...


class Rotation:
    """Addresses in turn, from a random one on, so that the clients of one server spread over the others."""

    def __init__(self, base_url: str, others: Sequence[str]) -> None:
        addresses = [address for address in others if address != base_url]
        start = random.randrange(len(addresses)) if addresses else 0  # noqa: S311, it only spreads load
        self._addresses = [*addresses[start:], *addresses[:start], base_url]
        self._moves = 0

    def next_address(self, timeout_s: float) -> str:
        address = self._addresses[self._moves % len(self._addresses)]
        self._moves += 1
        return address

    async def next_address_async(self, timeout_s: float) -> str:
        return self.next_address(timeout_s)

    def for_copy(self) -> Elsewhere:
        return Rotation(self._addresses[-1], self._addresses[:-1])

    def release(self) -> None: ...


def elsewhere_of(base_url: str, given: Sequence[str] | Elsewhere) -> Elsewhere:
    """What was given as `elsewhere`; a list is taken in turn, and the client's own address last."""
    return given if isinstance(given, Elsewhere) else Rotation(base_url, given)
