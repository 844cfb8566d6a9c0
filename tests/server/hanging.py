"""Environments that do not return from one of their methods, until a test lets them."""

import asyncio
import threading

from envtorch import Environment
from tests.server.environments import Count, Order, Report

released = threading.Event()
"""Lets every call that hangs in this process return. In an isolated process nobody sets it."""

HANG_S = 600.0


def hang() -> None:
    released.wait(HANG_S)


class HangsInStep(Environment[Order, Report, Count]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Report:
        return Report(said="reset")

    def step(self, action: Order) -> Report:
        if action.do == "hang":
            hang()
        return Report(said=action.do)

    @property
    def state(self) -> Count:
        return Count()


class HangsInClose(HangsInStep):
    def close(self) -> None:
        hang()


class HangsInInit(HangsInStep):
    def __init__(self) -> None:
        super().__init__()
        hang()


class HangsInExecutor(HangsInStep):
    """An async environment whose step waits for a thread of the loop's own executor."""

    async def reset(self, seed: int | None = None) -> Report:  # type: ignore[override]
        return Report(said="reset")

    async def step(self, action: Order) -> Report:  # type: ignore[override]
        if action.do == "hang":
            await asyncio.to_thread(hang)
        return Report(said=action.do)


class IgnoresCancel(HangsInStep):
    """An async environment whose step goes on when it is cancelled."""

    async def reset(self, seed: int | None = None) -> Report:  # type: ignore[override]
        return Report(said="reset")

    async def step(self, action: Order) -> Report:  # type: ignore[override]
        while action.do == "hang" and not released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return Report(said=action.do)
