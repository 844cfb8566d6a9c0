"""Which of an agent's changes the tests of a task see. No I/O.

A file of the image is as it was, unless it is at or below a declared path. A file that the agent added is
seen where people keep data, and not where the programs of an image look for files by themselves. The process
that holds the layers applies this, and closes by itself every further folder of the image that has a `bin`.
"""

import posixpath
from collections.abc import Mapping

from envtorch.envs.terminal_env.harbor import HarborTask
from envtorch.envs.terminal_env.task_images import TaskImage

__all__ = ["closed_folders", "declared_paths", "open_folders"]

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
)
_DATA = ("/", "/var/www")
"""What is below them and belongs to no other folder of these lists is for data."""
_SEARCHED = ("PATH", "HOME", "LIB")
"""How variables end that name folders in which programs look for others, for modules or for settings."""


def declared_paths(task: HarborTask, image: TaskImage) -> list[str]:
    """The paths that are graded as the agent left them: artifacts, or the working directory. The root itself
    is not one of them: it is the whole machine (`grading = "agent"`)."""
    paths = [posixpath.normpath(path) for path in task.declared_paths] or [image.directory]
    return [path for path in paths if path != "/"]


def open_folders(task: HarborTask) -> list[str]:
    """Folders in which files that the agent added are seen. None where the task says what is graded."""
    return [] if task.grading == "artifacts" else list(_DATA)


def closed_folders(environment: Mapping[str, str]) -> list[str]:
    """Folders in which they are not: those of the system, and those that variables name."""
    named = [
        posixpath.normpath(path)
        for name, value in environment.items()
        if name.endswith(_SEARCHED)
        for path in value.split(":")
        if path.startswith("/")
    ]
    prefixes = [posixpath.dirname(path) if path.endswith(("/bin", "/sbin")) else path for path in named]
    return sorted({*_SYSTEM, *prefixes} - set(_DATA))
