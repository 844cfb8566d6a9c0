"""The phases of a sandbox: one table, and every phase can be reached and left as it says."""

import asyncio
import contextlib

import pytest

from envtorch.errors import SessionLost
from envtorch.sandbox import AsyncSandbox, Policy, Sandbox
from envtorch.sandbox.sandbox_phases import MOVES, SandboxPhase


def test_every_phase_is_in_the_table_and_leads_to_the_end() -> None:
    assert set(MOVES) == set(SandboxPhase)
    for phase in SandboxPhase:
        seen = {phase}
        while (more := {after for one in seen for after in MOVES[one]} - seen) != set():
            seen |= more
        assert SandboxPhase.CLOSED in seen
    assert MOVES[SandboxPhase.CLOSED] == frozenset()


def test_a_sandbox_passes_through_its_phases(sandbox: Sandbox) -> None:
    core = sandbox._core
    seen = [core.phase]
    sandbox.expose("look", lambda: seen.append(core.phase))
    assert sandbox.run("look()").ok
    seen.append(core.phase)
    assert not sandbox.run("import os; os._exit(1)").alive
    seen.append(core.phase)
    with pytest.raises(SessionLost, match="lost its interpreter"):
        sandbox.run("1")
    sandbox.close()
    seen.append(core.phase)
    assert seen == [
        SandboxPhase.READY,
        SandboxPhase.CALLING,
        SandboxPhase.READY,
        SandboxPhase.LOST,
        SandboxPhase.CLOSED,
    ]


def test_a_cancelled_run_is_settled_before_the_next_request(policy: Policy) -> None:
    async def main() -> list[SandboxPhase]:
        async with AsyncSandbox(policy) as sandbox:
            begun = asyncio.Event()

            async def begin() -> None:
                begun.set()

            sandbox.expose("begin", begin)
            running = asyncio.ensure_future(sandbox.run("x = 1; begin()\nwhile True: pass"))
            await begun.wait()
            await asyncio.sleep(0.01)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            seen = [sandbox._core.phase]
            assert (await sandbox.run("x")).json() == 1
            return [*seen, sandbox._core.phase]

    assert asyncio.run(main()) == [SandboxPhase.SETTLING, SandboxPhase.READY]
