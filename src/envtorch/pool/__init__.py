"""Many sessions over several servers: `EnvPool` blocks, `AsyncEnvPool` awaits."""

from envtorch.pool.async_pool import AsyncEnvPool
from envtorch.pool.blocking_pool import EnvPool
from envtorch.pool.outcomes import Failed, Finished, Outcome
from envtorch.pool.replica_keeper import PoolStatus

__all__ = ["AsyncEnvPool", "EnvPool", "Failed", "Finished", "Outcome", "PoolStatus"]
