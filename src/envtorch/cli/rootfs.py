"""`envtorch rootfs`: root file systems for sessions, prepared once and shared by all of them."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
import typer

from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.sandbox.prepared_roots import PreparedRoot
    from envtorch.sandbox.root_unpacking import Unpacked

__all__ = ["rootfs"]

rootfs = typer.Typer(
    name="rootfs", help="Root file systems for sessions: prepare, list, remove.", no_args_is_help=True
)

Name = Annotated[str | None, typer.Option("--name", help="What sessions name it by: Policy(root=NAME).")]
_EVERY_S = 1.0


@rootfs.command("from-image")
def from_image(
    image: Annotated[str, typer.Argument(help="An image that the engine has, or can pull.")],
    name: Name = None,
    pull: Annotated[str, typer.Option(help="missing, always or never.")] = "missing",
) -> None:
    """Prepare a root from an image of a container engine (Docker or Podman)."""
    _add_image(name or image, image, source=f"image {image}", pull=pull)


@rootfs.command("from-dockerfile")
def from_dockerfile(
    directory: Annotated[
        Path, typer.Argument(help="Where the Dockerfile is: `environment` of a task in Harbor's format.")
    ],
    name: Name = None,
) -> None:
    """Build a Dockerfile with the container engine, and prepare a root from it.

    Without --name the root is named after the contents of the directory, and `terminal_env` uses it for
    every task whose `environment` has these contents.
    """
    from envtorch.providers.image_export import build_dockerfile
    from envtorch.sandbox.prepared_roots import name_for_dockerfile

    if not (directory / "Dockerfile").is_file():
        raise ConfigurationError(f"{directory} has no Dockerfile: name the directory that holds it")
    named = name_for_dockerfile(directory)
    image = build_dockerfile(directory, f"envtorch-root:{named.rpartition(':')[2]}", on_line=_show)
    _add_image(name or named, image, source=f"Dockerfile of {directory}", pull="never")


@rootfs.command("from-tar")
def from_tar(
    file: Annotated[str, typer.Argument(help="A tar archive, compressed or not; - for the standard input.")],
    name: Annotated[str, typer.Option("--name", help="What sessions name it by: Policy(root=NAME).")],
    workdir: Annotated[str | None, typer.Option(help="Where sessions begin.")] = None,
    user: Annotated[str | None, typer.Option(help="Whom sessions run as; root by default.")] = None,
) -> None:
    """Prepare a root from an archive of a root file system: of `docker export` or mmdebstrap, say."""
    with _opened(file) as archive:
        _add(name, archive, source=f"archive {file}", directory=workdir, user=user)


@rootfs.command("debian")
def debian(
    packages: Annotated[list[str] | None, typer.Argument(help="Packages besides a minimal system.")] = None,
    name: Annotated[str, typer.Option("--name", help="What sessions name it by.")] = "debian",
    suite: Annotated[str, typer.Option(help="The release of Debian.")] = "bookworm",
    mirror: Annotated[
        str | None, typer.Option(help="Where packages come from; by default as this machine has it.")
    ] = None,
) -> None:
    """Prepare a minimal Debian with some packages, by mmdebstrap or debootstrap: no engine is needed."""
    from envtorch.sandbox.debian_roots import debian_archive

    chosen = packages or []
    with debian_archive(chosen, suite=suite, mirror=mirror, on_line=_show) as archive:
        _add(name, archive, source=" ".join([f"debian {suite}", *chosen]))


@rootfs.command("list")
def list_roots(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Print the prepared roots: name, digest, size and source."""
    from envtorch.sandbox.prepared_roots import RootCache

    cache = RootCache()
    found = cache.all()
    if as_json:
        rows = [{**msgspec.to_builtins(root), "path": cache.path(root)} for root in found]
        typer.echo(json.dumps(rows))
        return
    width = max((len(root.name) for root in found), default=0)
    for root in found:
        typer.echo(f"{root.name:<{width}}  {root.digest[:12]}  {_megabytes(root.size):>8}  {root.source}")
    if not found:
        typer.echo("no root has been prepared: `envtorch rootfs --help` says how", err=True)


@rootfs.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Names of prepared roots.")],
) -> None:
    """Remove prepared roots. One that sessions are running on is refused."""
    from envtorch.sandbox.prepared_roots import RootCache

    for name in names:
        RootCache().remove(name)
        typer.echo(f"removed {name}")


def _add_image(name: str, image: str, *, source: str, pull: str) -> None:
    from envtorch.providers.image_export import export_image

    with export_image(image, pull=pull, on_progress=lambda step: _show(f"{step.layer} {step.status}")) as out:
        _add(
            name,
            out.archive,
            source=source,
            environment=out.environment,
            directory=out.directory,
            user=out.user,
        )


def _add(
    name: str,
    archive: IO[bytes],
    *,
    source: str,
    environment: dict[str, str] | None = None,
    directory: str | None = None,
    user: str | None = None,
) -> None:
    from envtorch.sandbox.prepared_roots import RootCache

    root = RootCache().add(
        name,
        archive,
        source=source,
        environment=environment,
        directory=directory,
        user=user,
        on_progress=_reporter(),
    )
    _tell(root)


def _tell(root: "PreparedRoot") -> None:
    _show(f"{root.files} files, {_megabytes(root.size)}, digest {root.digest}")
    typer.echo(root.name)


def _reporter() -> "Callable[[Unpacked], None]":
    """Tells once a second how far the unpacking is."""
    last = time.monotonic()

    def report(progress: "Unpacked") -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            last = time.monotonic()
            _show(f"unpacked {progress.files} files, {_megabytes(progress.size)}")

    return report


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = open(file, "rb")  # noqa: SIM115  closed below; only the opening is explained
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    with opened:
        yield opened


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


def _show(line: str) -> None:
    typer.echo(line, err=True)
