"""`envtorch new`: an environment to start from, which already passes its own tests."""

import keyword
import re
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from envtorch.cli.task_command import new_task
from envtorch.errors import ConfigurationError

__all__ = ["ProjectNames", "new", "write_project"]

TEMPLATE = "my_game"
"""The template is a project of its own, that runs as it is; only its name is changed."""

TAKEN = frozenset({"envtorch", "openenv", "test", "tests", "server", "app", "src"})


def new(
    name: Annotated[
        str, typer.Argument(help="The environment's name, also that of its directory and package.")
    ],
    directory: Annotated[
        Path | None, typer.Option("--in", help="Where to make it; here by default.", file_okay=False)
    ] = None,
    task: Annotated[
        bool, typer.Option("--task", help="Make a task for terminal_env instead, in Harbor's format.")
    ] = False,
) -> None:
    """Make a new environment: models, environment, client, app, tests, Dockerfile and CI, ready to run."""
    if task:
        new_task(name, directory or Path())
        return
    names = ProjectNames.of(name)
    project = (directory or Path()) / name
    written = write_project(project, names)
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[green]{project}[/green] is an environment of {len(written)} files. What to do with it:\n"
    )
    steps = (
        (f"cd {project}", ""),
        ("make test", "tests, strict types and style"),
        ("envtorch check .", "every promise that a trainer counts on"),
        ("envtorch play .", "try it yourself, in the terminal"),
        ("envtorch serve .", "serve it on http://127.0.0.1:8000"),
        ("envtorch build .", "a container image"),
    )
    for command, meaning in steps:
        console.print(f"  [bold]{command:<20}[/bold] [dim]{meaning}[/dim]")
    console.print(f"\nThe rules of the game are in [bold]{names.package}/environment.py[/bold].")


class ProjectNames:
    """What a new environment's parts are called."""

    def __init__(self, project: str, package: str, prefix: str) -> None:
        self.project = project
        self.package = package
        self.prefix = prefix
        """What its classes begin with: `Wordle` in `WordleAction`."""

    @classmethod
    def of(cls, name: str) -> "ProjectNames":
        """The names that follow from a name. Raises `ConfigurationError`, and says what would do."""
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*", name):
            raise ConfigurationError(
                f"{name!r} cannot be a name: use letters, digits, - and _, and begin with a letter",
                next_step=f"envtorch new {_possible_name(name)}",
            )
        package = name.replace("-", "_").lower()
        if keyword.iskeyword(package) or package in TAKEN or package in sys.stdlib_module_names:
            raise ConfigurationError(
                f"{name!r} is taken by Python or EnvTorch itself", next_step=f"envtorch new {package}_env"
            )
        words = package.removesuffix("_env").split("_")
        return cls(package.replace("_", "-"), package, "".join(word.capitalize() for word in words))

    def put_into(self, text: str) -> str:
        """A text of the template, with these names."""
        title = self.project.replace("-", " ").capitalize()
        for old, new_name in (
            ("MyGame", self.prefix),
            (TEMPLATE, self.package),
            ("my-game", self.project),
            ("My game", title),
        ):
            text = text.replace(old, new_name)
        return text


def _possible_name(name: str) -> str:
    """A name that can be used, as close to the given one as can be."""
    words = re.findall(r"[A-Za-z0-9]+", name.lower())
    possible = re.sub(r"^[0-9_]+", "", "_".join(words))
    return possible if len(possible) > 1 else "my_game"


def write_project(project: Path, names: ProjectNames) -> list[Path]:
    """Write the files of a new environment. Raises `ConfigurationError` if the place is taken."""
    if project.exists() and (not project.is_dir() or any(project.iterdir())):
        raise ConfigurationError(
            f"{project} is there already", next_step="choose another name, or remove it first"
        )
    files = dict(_files_of(resources.files("envtorch.cli") / "template"))
    written = []
    for place, text in files.items():
        path = project / names.put_into(place)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(names.put_into(text), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}",
                next_step="choose a directory that you may write to: envtorch new NAME --in DIR",
            ) from error
        written.append(path)
    return written


def _files_of(place: Traversable, above: str = "") -> list[tuple[str, str]]:
    """Every file of the template, by its path in the project.

    Some have another name here, so that tools that work on EnvTorch itself do not take them for theirs.
    """
    found: list[tuple[str, str]] = []
    for entry in sorted(place.iterdir(), key=lambda entry: entry.name):
        name = above + re.sub(r"^dot-", ".", entry.name).removesuffix(".in")
        if entry.is_dir():
            if entry.name != "__pycache__" and not entry.name.endswith("_cache"):
                found += _files_of(entry, f"{name}/")
        elif not entry.name.endswith(".pyc"):
            found.append((name, entry.read_text(encoding="utf-8")))
    return found
