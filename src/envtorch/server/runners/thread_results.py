"""How a step that runs on a thread comes to its caller: through the loop, or past it."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

from envtorch.errors import Cancelled, EnvTorchError
from envtorch.protocol.wire import Reply

__all__ = ["Cancel", "Delivery", "Done", "Mailbox", "Pending", "post"]

Done = Callable[[Reply | None, EnvTorchError | None], None]
"""Whoever is told how a step ended: by its reply, or by an error."""
Cancel = Callable[[], bool]
"""Takes a step back; says whether there was still something to take back."""


class Delivery(Protocol):
    """Brings a reply to its caller from the thread where it was made; the loop hears of it afterwards."""

    def claim(self) -> bool:
        """The reply is there, and will be delivered; False when the step has been taken back."""

    def revoke(self) -> bool:
        """The step is taken back, and nothing will be delivered; False when it is too late."""

    def deliver(self, reply: Reply) -> None:
        """What was claimed, now. Never fails: a caller who is gone comes back and asks again."""


class Pending:
    """A step that runs, and who waits for it: only the first outcome counts."""

    __slots__ = ("_delivery", "_done")

    def __init__(self, done: Done, delivery: Delivery | None) -> None:
        self._done: Done | None = done
        self._delivery = delivery

    def end(self, mailbox: "Mailbox", reply: Reply | None, error: EnvTorchError | None) -> None:
        """On the thread: tell how it ended."""
        delivery = self._delivery
        if reply is not None and delivery is not None and delivery.claim():
            mailbox.leave(self, reply, error)  # before the caller can ask for more
            delivery.deliver(reply)
        else:
            mailbox.leave(self, reply, error)
        mailbox.announce()

    def settle(self, reply: Reply | None, error: EnvTorchError | None) -> None:
        """On the loop: tell whoever waits."""
        done, self._done = self._done, None
        if done is not None:
            done(reply, error)

    def cancel(self) -> bool:
        if self._done is None or (self._delivery is not None and not self._delivery.revoke()):
            return False
        self.settle(None, Cancelled("the request was taken back"))
        return True


class Mailbox:
    """What threads have to tell a loop: it is woken once for all that came in the meantime."""

    _of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = WeakKeyDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Mailbox":
        return cls._of_loop.setdefault(loop, cls(ref(loop)))

    def __init__(self, loop: "ref[asyncio.AbstractEventLoop]") -> None:
        self._loop = loop
        self._letters: deque[tuple[Pending, Reply | None, EnvTorchError | None]] = deque()
        self._is_announced = False

    def leave(self, pending: Pending, reply: Reply | None, error: EnvTorchError | None) -> None:
        """An outcome for the loop, which is not woken yet. Called from any thread, as is `announce`."""
        self._letters.append((pending, reply, error))

    def announce(self) -> None:
        """Wake the loop, unless it has looked meanwhile or will do so."""
        if self._letters and not self._is_announced:
            self._is_announced = True
            loop = self._loop()
            if loop is not None:
                post(loop, self._open)

    def _open(self) -> None:
        # Cleared before looking: what comes after the last look is announced again.
        self._is_announced = False
        self.look()

    def look(self) -> None:
        """Settle what has come. Called on the loop: what a caller asks next may depend on it."""
        while self._letters:
            pending, reply, error = self._letters.popleft()
            pending.settle(reply, error)


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Have a loop call something, from any thread."""
    with suppress(RuntimeError):  # the server's loop may be gone, and with it whoever waited
        loop.call_soon_threadsafe(call, *args)
