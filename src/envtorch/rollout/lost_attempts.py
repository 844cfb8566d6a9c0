"""Attempts that the infrastructure has lost, and the time until the next one."""

import asyncio
import random

from envtorch.errors import EnvTorchError

__all__ = ["Lost", "pause"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

Lost = tuple[EnvTorchError, ...]
"""Why attempts were lost, the first one first."""


async def pause(lost: int) -> None:
    """Wait before the next attempt, longer with each one that was lost."""
    longest = min(FIRST_PAUSE_S * 2**lost, LONGEST_PAUSE_S)
    await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311, it only spreads retries
