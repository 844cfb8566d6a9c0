"""A caller that stops waiting for a slot leaves none taken, whenever its withdrawal arrives."""

import asyncio
import socket
import sys

from envtorch.server.sessions.slots import Names
from envtorch.server.workers.session_register import Register
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.worker_messages import Granted, MessageLine, Note, Take, Withdraw
from envtorch.server.workers.worker_process import WorkerChild
from tests.support import PATIENCE_S


class LateWithdrawal(MessageLine):
    """Has a withdrawal arrive in the very turn of the loop in which the slot is granted."""

    def __init__(self, line: MessageLine, names: Names) -> None:
        super().__init__(line._reader, line._writer)
        self._names = names
        self.child: WorkerChild | None = None
        self.granted = asyncio.Event()

    def send(self, note: Note) -> None:
        super().send(note)
        assert isinstance(note, Granted)
        assert self.child is not None
        asyncio.get_running_loop().call_soon(self.child._heed, Withdraw(note.call, [self._names]))
        self.granted.set()


def test_a_withdrawal_that_meets_its_grant_frees_the_slot() -> None:
    async def main() -> None:
        register, page = Register(1), Page.new(1)
        first, second = Names.new(), Names.new()
        await register.take(1, first, 0)
        here, there = socket.socketpair()
        hatch, far_hatch = socket.socketpair()
        with there, far_hatch:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
            line = LateWithdrawal(await MessageLine.over(here), second)
            line.child = child = WorkerChild(0, process, line, hatch, page, register)
            child._heed(Take(1, second, PATIENCE_S))
            await asyncio.sleep(0)
            assert register.slots.waiting == 1
            register.free(1, first)
            await line.granted.wait()
            await asyncio.sleep(0)
            assert register.find(second.id) is None
            assert register.slots.taken == 0
            there.close()
            await child.ended()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
