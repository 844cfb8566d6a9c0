"""Many sessions over several servers: `EnvPool` blocks, `AsyncEnvPool` awaits."""

from envtorch.pool.aio import AsyncEnvPool
from envtorch.pool.blocking import EnvPool
from envtorch.pool.keeper import PoolStatus
from envtorch.pool.outcomes import Failed, Finished, Outcome

__all__ = ["AsyncEnvPool", "EnvPool", "Failed", "Finished", "Outcome", "PoolStatus"]
