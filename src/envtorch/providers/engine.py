"""A connection to a container engine, Docker or Podman: errors made into sentences, images fetched."""

import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from envtorch.errors import (
    ConfigurationError,
    EngineUnavailable,
    ImageUnavailable,
    PortTaken,
    ProviderFailed,
)
from envtorch.extras import missing_extra
from envtorch.settings import engine_addresses

try:
    import docker
    import requests
    from docker.errors import APIError, DockerException, ImageNotFound
    from docker.utils import kwargs_from_env
except ModuleNotFoundError as missing:
    raise missing_extra("docker", f"containers need {missing.name!r}") from missing

__all__ = ["Progress", "connect", "fetch_image", "follow_build", "hanging_up", "speaking_to_engine"]

CONNECT_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the pull of one layer of an image has come."""

    image: str
    layer: str
    status: str
    current: int = 0
    total: int = 0


def connect(address: str | None = None) -> docker.DockerClient:
    """A client of the engine at `address`, of the one the environment names, or of a local one.

    Raises `EngineUnavailable`, which tells where it looked.
    """
    tried: list[str] = []
    named = kwargs_from_env()  # with the certificates that belong to the address
    for found in [address] if address else engine_addresses():
        arguments = named if not address and "base_url" in named else {"base_url": found}
        try:
            _knock(found)
            return docker.DockerClient(**arguments, version="auto", timeout=CONNECT_TIMEOUT_S)
        except (DockerException, requests.exceptions.RequestException, OSError, ValueError) as error:
            tried.append(f"{found} ({_reason(error)})")
    raise EngineUnavailable(
        f"no container engine answers at {', '.join(tried)}: start Docker or Podman, or set DOCKER_HOST"
    )


def _knock(address: str) -> None:
    """Raise `OSError` if nobody listens on a local address: a sentence better than docker-py's own."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(CONNECT_TIMEOUT_S)
            door.connect(address.removeprefix("unix://"))


@contextmanager
def speaking_to_engine(doing: str) -> Iterator[None]:
    """Whatever the engine refuses in this block is a `ProviderFailed` with one sentence."""
    try:
        yield
    except APIError as error:
        reason = _reason(error)
        if "address already in use" in reason or "port is already allocated" in reason:
            raise PortTaken(f"{doing} failed, because the port is taken: {reason}") from error
        raise ProviderFailed(f"{doing} failed: {reason}") from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineUnavailable(f"{doing} failed, because the engine is gone: {_reason(error)}") from error


@contextmanager
def hanging_up(client: docker.DockerClient) -> Iterator[None]:
    """Close what the engine answers in this block: docker-py leaves half-read streams open."""
    answers: list[Any] = []
    hooks: list[Any] = client.api.hooks["response"]

    def keep(response: Any, *args: Any, **kwargs: Any) -> None:
        answers.append(response)

    hooks.append(keep)
    try:
        yield
    finally:
        hooks.remove(keep)
        for response in answers:
            response.close()


def fetch_image(
    client: docker.DockerClient,
    image: str,
    *,
    policy: str,
    timeout_s: float,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make sure that the engine has `image`: `policy` is "missing", "always" or "never".

    Raises `ImageUnavailable`, with the registry's or the engine's own reason.
    """
    if policy not in ("missing", "always", "never"):
        raise ConfigurationError(f"pull={policy!r}: it is 'missing', 'always' or 'never'")
    if policy != "always" and _has_image(client, image):
        return
    if policy == "never":
        raise ImageUnavailable(f"the engine has no image {image!r}, and pull='never'")
    deadline = clock() + timeout_s
    events = _pull(client, image)
    try:
        for event in events:
            if "error" in event:
                raise ImageUnavailable(_pull_failed(image, str(event["error"])))
            if on_progress is not None:
                on_progress(_progress(image, event))
            if clock() > deadline:
                raise ImageUnavailable(f"the image {image!r} was not pulled within {timeout_s:g} s")
    except (APIError, DockerException, requests.exceptions.RequestException) as error:
        raise ImageUnavailable(_pull_failed(image, _reason(error))) from error
    finally:
        events.close()


def _has_image(client: docker.DockerClient, image: str) -> bool:
    with speaking_to_engine(f"looking for the image {image!r}"):
        try:
            client.images.get(image)
        except ImageNotFound:
            return False
    return True


def _pull(client: docker.DockerClient, image: str) -> Generator[dict[str, Any], None, None]:
    name, _, tag = image.rpartition(":")
    if not name or "/" in tag:  # no tag at all: the colon, if any, is the registry's port
        name, tag = image, "latest"
    if "@" in image:
        name, tag = image, ""
    with hanging_up(client):
        stream: Any = client.api.pull(name, tag=tag or None, stream=True, decode=True)
        yield from stream


def _pull_failed(image: str, reason: str) -> str:
    sentence = f"the image {image!r} is not here and could not be pulled"
    if "no space left on device" in reason:
        return f"{sentence}, because the engine's disk is full: {reason}"
    if "connection refused" in reason:
        return f"{sentence}, because its registry refused the connection: {reason}"
    if any(word in reason for word in ("denied", "unauthorized", "authentication required")):
        return f"{sentence}, because its registry wants credentials (docker login): {reason}"
    return f"{sentence}: {reason}"


def _progress(image: str, event: dict[str, Any]) -> Progress:
    detail = event.get("progressDetail") or {}
    return Progress(
        image=image,
        layer=str(event.get("id", "")),
        status=str(event.get("status", "")),
        current=int(detail.get("current") or 0),
        total=int(detail.get("total") or 0),
    )


def _reason(error: BaseException) -> str:
    """The innermost explanation, on one line."""
    explanation = getattr(error, "explanation", None) or getattr(error, "strerror", None) or error
    return " ".join(str(explanation).split()) or type(error).__name__


def follow_build(events: Iterable[dict[str, Any]], what: str, on_line: Callable[[str], None] | None) -> None:
    """Read what an engine tells while it builds. Raises `ProviderFailed` when the build fails."""
    lines: list[str] = []
    for event in events:
        for line in str(event.get("stream", "")).splitlines():
            lines.append(line)
            if on_line is not None:
                on_line(line)
        if "error" in event:
            reason = " ".join(str(event["error"]).split())
            raise ProviderFailed(f"building {what} failed: {reason}", logs="\n".join(lines[-20:]))
