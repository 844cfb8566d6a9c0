"""The files of an image, out of a container engine: as a tar stream, with how the image starts programs."""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from envtorch.errors import ConfigurationError
from envtorch.providers.engine import (
    Progress,
    connect,
    fetch_image,
    follow_build,
    hanging_up,
    speaking_to_engine,
)
from envtorch.providers.ownership import OWNER_LABEL, PROVIDER_LABEL, OwnerTag

__all__ = ["ExportedImage", "build_dockerfile", "export_image"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ExportedImage:
    """An image's files, and what its configuration says about starting programs."""

    archive: IO[bytes]
    image_id: str
    environment: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    user: str | None = None


@contextlib.contextmanager
def export_image(
    image: str,
    *,
    pull: str = "missing",
    timeout_s: float = 1800.0,
    on_progress: Callable[[Progress], None] | None = None,
    engine: str | None = None,
) -> Iterator[ExportedImage]:
    """The files of `image`, pulled if need be, for as long as the block lasts.

    Nothing of the image is run: a container is made, read and removed. Raises `EngineUnavailable`,
    `ImageUnavailable` or `ProviderFailed`.
    """
    client = connect(engine)
    try:
        fetch_image(client, image, policy=pull, timeout_s=timeout_s, on_progress=on_progress)
        with speaking_to_engine(f"reading the image {image!r}"), hanging_up(client):
            found = client.images.get(image)
            labels = {OWNER_LABEL: str(OwnerTag.current()), PROVIDER_LABEL: "rootfs"}
            container = client.containers.create(image, command=["true"], labels=labels)
            try:
                chunks: Any = container.export(chunk_size=_CHUNK)  # its stubs say `str`, and it is bytes
                archive = io.BufferedReader(_Chunks(chunks), _CHUNK)
                yield _described(archive, str(found.id), found.attrs.get("Config") or {})
            finally:
                container.remove(force=True)
    finally:
        client.close()


def _described(archive: IO[bytes], image_id: str, config: dict[str, Any]) -> ExportedImage:
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    return ExportedImage(
        archive,
        image_id,
        {name: value for name, _, value in pairs},
        config.get("WorkingDir") or None,
        config.get("User") or None,
    )


class _Chunks(io.RawIOBase):
    """The chunks of a stream as a file that can be read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        taken = self._left[: len(buffer)]
        buffer[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)


def build_dockerfile(
    folder: Path,
    tag: str,
    *,
    on_line: Callable[[str], None] | None = None,
    engine: str | None = None,
) -> str:
    """Build the `Dockerfile` of a folder, which is its context; the image's id.

    Raises `ConfigurationError` without a Dockerfile, `ProviderFailed` with the end of the build's output.
    """
    if not (folder / "Dockerfile").is_file():
        raise ConfigurationError(f"{folder} has no Dockerfile: name the directory that holds it")
    client = connect(engine)
    try:
        with speaking_to_engine(f"building {folder}"), hanging_up(client):
            events = client.api.build(path=str(folder), tag=tag, rm=True, forcerm=True, decode=True)
            follow_build(events, str(folder), on_line)
            return str(client.images.get(tag).id)
    finally:
        client.close()
