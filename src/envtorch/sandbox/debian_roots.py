"""A Debian root file system made by mmdebstrap or debootstrap, as a tar stream, without an engine."""

import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from envtorch.errors import ConfigurationError, ProviderFailed
from envtorch.settings import inherited_environment

__all__ = ["debian_archive"]

_ALWAYS = ("bash", "ca-certificates")
_LAST_LINES = 20


@contextlib.contextmanager
def debian_archive(
    packages: Sequence[str],
    *,
    suite: str,
    mirror: str | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Iterator[IO[bytes]]:
    """A minimal Debian with some packages, for as long as the block lasts.

    Without `mirror`, mmdebstrap is given the sources of this machine if those are of the same suite. Raises
    `ConfigurationError` when there is no tool for it, and `ProviderFailed` with what the tool said last.
    """
    for package in packages:
        if package.startswith("-") or "," in package or not package.strip():
            raise ConfigurationError(f"{package!r} is no name of a package")
    wanted = ",".join(dict.fromkeys([*_ALWAYS, *packages]))
    if shutil.which("mmdebstrap"):
        sources = [mirror] if mirror else _own_sources(suite)
        command = ["mmdebstrap", "--variant=minbase", f"--include={wanted}", suite, "-", *sources]
        with _output_of(command, on_line) as archive:
            yield archive
    elif shutil.which("debootstrap"):
        with tempfile.TemporaryDirectory(prefix="envtorch-debian-") as folder:
            made = ["debootstrap", "--variant=minbase", f"--include={wanted}", suite, folder]
            with _output_of([*made, *([mirror] if mirror else [])], on_line) as said:
                for line in said:
                    on_line(line.decode(errors="replace").rstrip())
            with _output_of(["tar", "-C", folder, "-c", "."], on_line) as archive:
                yield archive
    else:
        raise ConfigurationError(
            "a Debian root takes mmdebstrap or debootstrap: `apt-get install mmdebstrap`, or use "
            "`envtorch rootfs from-image` where there is a container engine, or `from-tar`"
        )


def _own_sources(suite: str) -> list[str]:
    """The files with this machine's package sources, when they are for that suite."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    found = [path for path in files if path.suffix in (".list", ".sources") and path.is_file()]
    with contextlib.suppress(OSError):
        if any(suite in path.read_text(errors="replace").split() for path in found):
            return [str(path) for path in found if path.read_text(errors="replace").strip()]
    return []


@contextlib.contextmanager
def _output_of(command: Sequence[str], on_line: Callable[[str], None]) -> Iterator[IO[bytes]]:
    """What a program writes; what it says on stderr goes to `on_line`, its failure is raised at the end."""
    said: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(  # noqa: S603
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=inherited_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=_listen, args=(process.stderr, said, on_line))
        listener.start()
        is_read = False
        try:
            yield process.stdout
            while process.stdout.read(1 << 20):  # padding behind the last entry
                pass
            is_read = True
        finally:
            if not is_read:
                process.stdout.close()  # it ends by itself when nobody reads what it writes
            status = process.wait()
            listener.join()
            if status and (is_read or status > 0):
                reason = next((line for line in reversed(said) if line.strip()), "it gave no reason")
                raise ProviderFailed(
                    f"{command[0]} failed with status {status}: {reason}", logs="\n".join(said)
                )


def _listen(stream: IO[bytes], said: "deque[str]", on_line: Callable[[str], None]) -> None:
    for line in stream:
        text = line.decode(errors="replace").rstrip()
        said.append(text)
        on_line(text)
