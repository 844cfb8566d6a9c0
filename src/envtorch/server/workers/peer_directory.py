"""The directory where workers reach each other: sockets that only this user can open."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envtorch.errors import ConfigurationError

__all__ = ["address_of", "listen_privately", "private_directory"]

PREFIX = "envtorch-workers-"


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that is this user's alone, and gone afterwards."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as made:
        yield Path(made)


def address_of(directory: Path | str, worker: int) -> str:
    return str(Path(directory) / str(worker))


def listen_privately(directory: Path, worker: int) -> socket.socket:
    """The socket of one worker. The master holds it open, so that a worker's successor inherits it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address_of(directory, worker))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"workers cannot meet in {directory} ({error}): name a shorter, writable directory in TMPDIR"
        ) from error
    listener.listen(1024)
    return listener


def _sweep(place: Path) -> None:
    """Remove what masters left behind that were killed: directories where nobody listens any more."""
    for directory in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_abandoned(directory):
                shutil.rmtree(directory)


def _is_abandoned(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address_of(directory, 0))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # not ours, or just being made
    return False
