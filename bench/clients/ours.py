"""EnvTorch's blocking client: round trips (`step`, `pictures`), and sessions opened and reset (`open`)."""

from typing import Any

from bench.clients.timing import asked, repeat, tell
from bench.servers.environment import echo, pictures


def main() -> None:
    import envtorch

    job = asked()
    shows = job["what"] == "pictures"
    _, say, said = pictures(envtorch, as_lists=False) if shows else echo(envtorch, "thread")

    class EchoEnv(envtorch.EnvClient[say, said, envtorch.State]):  # type: ignore[valid-type]
        pass

    def open_one() -> Any:
        env = EchoEnv(job["url"], wire=job.get("wire", "json"))
        env.reset()
        return env

    if job["what"] == "open":
        tell(repeat(lambda: open_one().close(), job["seconds"], warm_up=5))
        return
    with open_one() as env:
        action = say(message="hello", size=job.get("size", 0))
        assert env.step(action).reward == 1.0
        tell(repeat(lambda: env.step(action), job["seconds"], warm_up=job.get("warm_up", 50)))


if __name__ == "__main__":
    main()
