"""The master's register: a session is opened once, found wherever it lives, and its slot is freed once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import CapacityReached
from envtorch.server.sessions.remote_sessions import HeldByPeer
from envtorch.server.sessions.slots import Names
from envtorch.server.workers.session_register import REMEMBERED, Register


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_session_is_found_by_both_its_names() -> None:
    async def main() -> None:
        register, names = Register(2), Names.new()
        await register.take(1, names, 0)
        assert [register.find(name) for name in names] == [1, 1]
        register.free(1, names)
        register.free(1, names)
        assert [register.find(name) for name in names] == [None, None]
        assert register.slots.taken == 0

    run(main())


def test_a_token_is_one_workers() -> None:
    async def main() -> None:
        register = Register(2)
        await register.take(0, Names.new("the-token"), 0)
        with pytest.raises(HeldByPeer) as elsewhere:
            await register.take(1, Names.new("the-token"), 0)
        assert elsewhere.value.worker == 0
        assert register.slots.taken == 1

    run(main())


def test_who_waits_is_found_and_forgotten_when_it_gives_up() -> None:
    async def main() -> None:
        register, names = Register(1), Names.new()
        await register.take(0, Names.new(), 0)
        waiting = asyncio.ensure_future(register.take(1, names, 30))
        await asyncio.sleep(0)
        assert register.find(names.token) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert register.find(names.token) is None
        assert (register.slots.taken, register.slots.waiting) == (1, 0)

    run(main())


def test_what_was_lost_is_known_and_its_slots_are_free() -> None:
    async def main() -> None:
        register = Register(3)
        mine, yours = Names.new(), Names.new()
        await register.take(0, mine, 0)
        await register.take_together(1, [yours, Names.new()])
        with pytest.raises(CapacityReached):
            await register.take(0, Names.new(), 0)
        assert register.lose(1, "its worker ended by SIGKILL") == 2
        assert register.fate(yours.token) == register.fate(yours.id) == "its worker ended by SIGKILL"
        assert (register.fate(mine.token), register.slots.taken) == (None, 1)
        await register.take(0, Names.new(yours.token), 0)
        assert (register.find(yours.token), register.fate(yours.token)) == (0, None)

    run(main())


def test_memory_of_the_lost_is_bounded() -> None:
    async def main() -> None:
        register = Register(REMEMBERED)
        many = [Names.new() for _ in range(REMEMBERED)]
        await register.take_together(0, many)
        register.lose(0, "gone")
        assert sum(register.fate(names.token) is not None for names in many) <= REMEMBERED

    run(main())


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "free", "lose"]), st.integers(0, 2), st.integers(0, 5)),
        max_size=60,
    )
)
def test_slots_and_entries_never_part(acts: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        register = Register(4)
        live: dict[str, tuple[int, Names]] = {}
        for act, worker, number in acts:
            token = f"token-{number}"
            if act == "take" and live.get(token, (-1,))[0] == worker:
                continue  # a worker knows its own sessions, and does not ask
            if act == "take":
                names = Names.new(token)
                try:
                    await register.take(worker, names, 0)
                except HeldByPeer as elsewhere:
                    assert live[token][0] == elsewhere.worker != worker
                except CapacityReached:
                    assert len(live) == 4
                else:
                    assert token not in live
                    live[token] = (worker, names)
            elif act == "free" and token in live:
                register.free(*live.pop(token))
            elif act == "lose":
                lost = [token for token, (owner, _) in live.items() if owner == worker]
                assert register.lose(worker, "gone") == len(lost)
                for token in lost:
                    del live[token]
            assert register.slots.taken == len(live)
            assert sum(register.held_by(worker) for worker in range(3)) == len(live)

    run(main())
