"""What a terminal session costs, over the wire and under the full locks: `python -m bench.terminal [repeats
[image]]`.

Beside it, in the same run, a plain `subprocess`, and `docker run` and `docker exec` where an engine answers
and has an image of that name (`python:3.11-slim` by default).
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalEnv

IMAGE = sys.argv[2] if len(sys.argv) > 2 else "python:3.11-slim"


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def tell(what: str, found: list[float]) -> float:
    middle = statistics.median(found)
    print(f"{what:<52} p50 {middle:8.1f} ms   max {max(found):8.1f}   n {len(found)}", flush=True)
    return middle


def bench_sessions(repeats: int) -> dict[str, float]:
    told = {}
    with TerminalEnv.local() as env:
        env.reset()
        told["ready"] = tell(
            "session ready (reset and a first command)", milliseconds(lambda: begin(env), repeats)
        )
        told["builtin"] = tell(
            "command: a builtin", milliseconds(lambda: env.step(BashAction("true")), 10 * repeats)
        )
        told["program"] = tell(
            "command: a program", milliseconds(lambda: env.step(BashAction("/bin/true")), 5 * repeats)
        )
        for size, fill in (("empty", "true"), ("10 MB", "head -c 10M"), ("500 MB", "head -c 500M")):
            env.reset()
            if size != "empty":
                env.step(BashAction(f"{fill} /dev/urandom > /root/filled"))
            told[f"fork {size}"] = tell(
                f"fork and close, {size} changed", milliseconds(lambda: fork(env), repeats)
            )
        env.reset()
        env.step(BashAction("mkdir /root/many; cd /root/many; seq 20000 | xargs touch"))
        tell("fork and close, 20,000 files changed", milliseconds(lambda: fork(env), repeats))
        told["grade"] = tell("reset of a task, and its grade", milliseconds(lambda: grade(env), repeats))
    return told


def begin(env: TerminalEnv) -> None:
    env.reset()
    env.step(BashAction("true"))


def fork(env: TerminalEnv) -> None:
    for copy in env.fork(1):
        copy.close()


def grade(env: TerminalEnv) -> None:
    env.reset(task="clean-up-data")
    env.step(SubmitAction())


def bench_docker(repeats: int) -> dict[str, float]:
    docker = shutil.which("docker")
    has_image = (
        docker and subprocess.run([docker, "image", "inspect", IMAGE], capture_output=True).returncode == 0
    )
    if not docker or not has_image:
        print(f"docker: not measured, because no engine with {IMAGE} answers")
        return {}
    names: list[str] = []

    def start() -> None:
        run = [docker, "run", "-d", "--network", "none", IMAGE, "sleep", "600"]
        names.append(subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip())
        subprocess.run([docker, "exec", names[-1], "true"], check=True)

    try:
        ready = tell("docker run, and a first docker exec", milliseconds(start, min(repeats, 10)))
        command = [docker, "exec", names[-1], "true"]
        each = tell(
            "docker exec", milliseconds(lambda: subprocess.run(command, check=True), min(repeats, 20))
        )
    finally:
        subprocess.run([docker, "rm", "-f", *names], capture_output=True)
    return {"ready": ready, "program": each}


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    told = bench_sessions(repeats)
    plain = ["bash", "-c", "/bin/true"]
    tell(
        "plain subprocess: bash -c /bin/true",
        milliseconds(lambda: subprocess.run(plain, check=True), 5 * repeats),
    )
    for what, other in bench_docker(repeats).items():
        print(f"{what}: {other / told[what]:.0f} times as fast as docker")


if __name__ == "__main__":
    main()
