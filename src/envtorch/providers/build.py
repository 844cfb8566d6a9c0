"""Building images: `envtorch-base`, and one for each environment on top of it.

The build context is made in memory and is the same, byte for byte, when nothing changed: the engine's
layer cache then has every layer already. EnvTorch itself goes in as a wheel made from the package that
is running, so that a checkout, an editable install and a release all build the same way.
"""

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.providers.engine import connect, follow_build, hanging_up, speaking_to_engine
from envtorch.providers.packaging import files_below, make_wheel, requirements, wheel_name

__all__ = ["BASE", "build_base", "build_environment", "make_wheel", "requirements"]

BASE = "envtorch-base:latest"
PYTHON_IMAGE = "python:3.11-slim"


def build_base(
    tag: str = BASE,
    *,
    python_image: str = PYTHON_IMAGE,
    build_args: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    engine: str | None = None,
) -> str:
    """Build the image that environments start from; its id."""
    files = {
        "Dockerfile": (resources.files("envtorch.providers") / "images" / "Dockerfile").read_bytes(),
        "requirements.txt": "".join(f"{line}\n" for line in requirements()).encode(),
        wheel_name(): make_wheel(),
    }
    arguments = {"PYTHON_IMAGE": python_image, **(build_args or {})}
    return _build(files, tag, arguments, on_line, engine)


def build_environment(
    environment: str,
    tag: str | None = None,
    *,
    base: str = BASE,
    build_args: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    engine: str | None = None,
) -> str:
    """Build an environment's image; its id.

    `environment` is the name of one that comes with EnvTorch (`"echo_env"`), or a directory with a
    `Dockerfile`, or with `server/Dockerfile` as OpenEnv lays it out. The tag is made of the name, with
    dashes, unless it is given: `echo-env:latest`. A `Dockerfile` may start `FROM` the build argument `BASE`.
    """
    directory = find_environment(environment)
    name = directory.name.replace("_", "-").lower()
    files = dict(files_below(directory))
    if "Dockerfile" not in files:
        files["Dockerfile"] = files["server/Dockerfile"]
    return _build(files, tag or f"{name}:latest", {"BASE": base, **(build_args or {})}, on_line, engine)


def find_environment(environment: str) -> Path:
    """The directory of an environment that has a Dockerfile."""
    bundled = Path(str(resources.files("envtorch"))) / "envs" / environment
    for directory in (Path(environment), bundled):
        if any((directory / name).is_file() for name in ("Dockerfile", "server/Dockerfile")):
            return directory.resolve()
    bundled_names = ", ".join(sorted(path.parent.name for path in bundled.parent.glob("*/Dockerfile")))
    raise ConfigurationError(
        f"{environment!r} is no environment with a Dockerfile, here or in EnvTorch",
        next_step=f"name a directory with a Dockerfile, or one of: {bundled_names}",
    )


def _context(files: Mapping[str, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def _build(
    files: Mapping[str, bytes],
    tag: str,
    build_args: Mapping[str, str],
    on_line: Callable[[str], None] | None,
    engine: str | None,
) -> str:
    client = connect(engine)
    try:
        with speaking_to_engine(f"building {tag}"), hanging_up(client):
            events: Iterator[dict[str, Any]] = client.api.build(
                fileobj=_context(files),
                custom_context=True,
                encoding=None,
                tag=tag,
                buildargs=dict(build_args),
                rm=True,
                forcerm=True,
                decode=True,
            )
            follow_build(events, tag, on_line)
            return str(client.images.get(tag).id)
    finally:
        client.close()
