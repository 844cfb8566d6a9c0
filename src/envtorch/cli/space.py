"""What a Space is made of: an environment's files, EnvTorch as a wheel, and a lone Dockerfile."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from envtorch.errors import ConfigurationError
from envtorch.providers.packaging import files_below, make_wheel, requirements, wheel_name

__all__ = ["SpaceFiles", "dockerfile_for", "gather", "readme_for"]

SpaceFiles = Mapping[str, bytes]

PORT = 8000
SECRET_FILES = re.compile(r"(^|/)(\.env(\..*)?|.*\.pem|.*\.key|id_[a-z0-9]+|\.netrc|\.pypirc|credentials.*)$")
"""Names of files that hold secrets more often than not."""


def gather(environment: str, space: str) -> dict[str, bytes]:
    """Every file of the Space, by name. Raises `ConfigurationError` for what should not go."""
    directory = _directory_of(environment)
    files = dict(files_below(directory))
    secrets = sorted(name for name in files if SECRET_FILES.search(name))
    if secrets:
        raise ConfigurationError(
            f"{', '.join(secrets)} would go to the hub, and may hold secrets: move them out of {directory}, "
            "and set what the Space needs to know as its secrets, on its settings page"
        )
    own = files.get("Dockerfile") or files.get("server/Dockerfile")
    if own is None:
        raise ConfigurationError(f"{directory} has no Dockerfile: `envtorch new` shows what one looks like")
    title = directory.name.replace("_", " ").replace("-", " ").capitalize()
    return {
        **files,
        "Dockerfile": dockerfile_for(_text(own, "Dockerfile", directory)).encode(),
        "README.md": readme_for(_text(files.get("README.md", b""), "README.md", directory), title).encode(),
        "requirements.txt": "".join(f"{line}\n" for line in requirements()).encode(),
        wheel_name(): make_wheel(),
    }


def _text(data: bytes, name: str, directory: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the {name} of {directory} is no UTF-8: {error}") from error


def _directory_of(environment: str) -> Path:
    bundled = Path(str(resources.files("envtorch"))) / "envs" / environment
    for directory in (Path(environment), bundled):
        if directory.is_dir():
            return directory.resolve()
    names = ", ".join(sorted(path.parent.name for path in bundled.parent.glob("*/app.py")))
    raise ConfigurationError(
        f"{environment!r} is neither a directory nor a bundled environment",
        next_step=f"name a directory, or one of: {names}",
    )


def dockerfile_for(own: str) -> str:
    """The environment's Dockerfile, standing on its own: what its base image is made by comes first."""
    base = (resources.files("envtorch.providers") / "images" / "Dockerfile").read_text()
    rest = re.sub(r"(?m)^(ARG BASE=.*|FROM \$\{?BASE\}?.*)\n", "", own)
    if re.search(r"(?m)^FROM ", rest):
        return own  # it starts from an image of its own choice, and is taken at its word
    return f"{base.rstrip()}\n\n{rest.lstrip()}"


def readme_for(own: str, title: str) -> str:
    """The README with the header that the hub reads; one that is there already is kept."""
    if own.startswith("---\n"):
        return own
    header = f"---\ntitle: {title}\nsdk: docker\napp_port: {PORT}\ntags:\n  - envtorch\n  - openenv\n---\n\n"
    return header + own
