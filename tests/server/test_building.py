"""Environments are built off the loop, and a crowd that arrives at once does not bring a crowd of threads."""

import asyncio
import threading

from envtorch.server import HTTPEnvServer
from envtorch.server.sessions.registry import MOST_BUILDERS
from tests.server.environments import AsyncObedient
from tests.support import PATIENCE_S

CROWD = 4 * MOST_BUILDERS


class SlowToBuild(AsyncObedient):
    """Its constructor blocks until as many others are being built as can be."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    full_house = threading.Barrier(MOST_BUILDERS)
    building = 0
    most = 0
    lock = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        with cls.lock:
            cls.building += 1
            cls.most = max(cls.most, cls.building)
        cls.full_house.wait(PATIENCE_S)
        with cls.lock:
            cls.building -= 1


def test_so_many_environments_of_the_loop_are_built_at_once_and_no_more() -> None:
    async def main() -> None:
        sessions = HTTPEnvServer(SlowToBuild, max_concurrent_envs=CROWD).sessions
        await asyncio.gather(*(sessions.open(held=False) for _ in range(CROWD)))
        assert sessions.active == CROWD
        await sessions.close()

    asyncio.run(main())
    assert SlowToBuild.most == MOST_BUILDERS
