"""An owner that stays at one stage of a container's start, to be killed there.

python -m tests.providers.doomed_owner STAGE IMAGE
"""

import sys
import threading
from typing import Any, NoReturn

from docker.models.containers import Container

from envtorch.providers.docker import LocalDockerProvider
from envtorch.testing import PROBE_COMMAND


def stay(stage: str, *args: Any, **kwargs: Any) -> NoReturn:
    print(stage, flush=True)
    threading.Event().wait()
    raise AssertionError("nobody killed this process")


def main(stage: str, image: str) -> None:
    options: dict[str, Any] = {"command": PROBE_COMMAND}
    if stage == "pulling":
        options |= {"on_progress": lambda progress: stay(stage)}
    if stage == "created":
        Container.start = lambda self, **kwargs: stay(stage)  # type: ignore[method-assign]
    if stage == "stopping":
        Container.stop = lambda self, **kwargs: stay(stage)  # type: ignore[method-assign]
    provider = LocalDockerProvider()
    provider.start_container(image, **options)
    if stage == "started":
        stay(stage)
    provider.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
