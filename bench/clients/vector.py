"""`VectorEnv`, one socket and `size` sessions, stepped all together again and again.

Every reward is added up and every observation is made: what came is read, not only counted. As `columns`,
actions are given as one list of messages, and what came is read as one, in MessagePack.
"""

import time
from typing import Any

from bench.clients.timing import asked, tell
from bench.servers.environment import echo
from bench.stats import percentile

WARM_UP = 5


def open_vector(url: str, width: int, wire: str) -> tuple[Any, list[Any]]:
    """The vector of environments, and the actions of one step. All that this file knows of its API."""
    import envtorch

    _, say, said = echo(envtorch, "inline")

    class EchoEnv(envtorch.EnvClient[say, said, envtorch.State]):  # type: ignore[valid-type]
        pass

    return EchoEnv.vector(url, width, wire=wire), [say(message="hello")] * width  # type: ignore[attr-defined]


def main() -> None:
    job = asked()
    vector, actions = open_vector(job["url"], job["size"], "msgpack" if job["columns"] else "json")
    rewards = 0.0

    said = ["hello"] * job["size"]

    def step() -> None:
        nonlocal rewards
        result = vector.step({"message": said} if job["columns"] else actions)
        rewards += sum(result.rewards)
        if job["columns"]:
            assert result.column("message") == said
        else:
            assert len(result.observations) == len(actions)

    with vector:
        vector.reset()
        for _ in range(WARM_UP):
            step()
        times: list[float] = []
        cpu, began = time.process_time(), time.perf_counter()
        before = began
        while before < began + job["seconds"]:
            step()
            after = time.perf_counter()
            times.append(after - before)
            before = after
        steps = len(times) * job["size"]
        if rewards != steps + WARM_UP * job["size"]:
            raise RuntimeError(f"{steps} steps brought a reward of {rewards}, not one each")
        tell(
            {
                "server_calls": steps + (WARM_UP + 1) * job["size"],
                "steps_per_s": steps / (before - began),
                "p50_ms": percentile(times, 0.5) * 1e3,
                "client_cpu_us": (time.process_time() - cpu) / steps * 1e6,
            }
        )


if __name__ == "__main__":
    main()
