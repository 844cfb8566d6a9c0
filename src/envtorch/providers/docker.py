"""Servers in containers, on Docker or Podman."""

import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from envtorch.errors import ConfigurationError
from envtorch.providers.engine import Progress, connect, fetch_image, speaking_to_engine
from envtorch.providers.exec_stream import ExecStream
from envtorch.providers.ownership import OWNER_LABEL, PROVIDER_LABEL, OwnerTag
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from envtorch.providers.provider_options import checked_environment, checked_port, read_options
from envtorch.providers.ready import exited
from envtorch.providers.sweeper import Swept, sweep_containers
from envtorch.providers.tunnel import Tunnel

# `engine`, imported above, tells in one sentence if the package is missing.
import docker  # isort: skip
from docker.errors import APIError, DockerException, NotFound  # isort: skip
from docker.models.containers import Container  # isort: skip

__all__ = ["DockerOptions", "LocalDockerProvider", "container_settings", "sweep_engine"]

STOP_GRACE_S = 3


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options of `LocalDockerProvider.start_container`."""

    memory: str | int | None = None
    """`"512m"`, `"2g"` or bytes; more than that and the server is killed. Swap is not added to it."""

    cpus: float | None = None
    pids: int | None = None
    """How many processes and threads there may be."""

    network: str = "bridge"
    """`"bridge"`, the name of a network of the engine, or `"none"`: no way in or out. The server is
    then reached through the engine itself, which needs a Python in the image."""

    read_only: bool = False
    """The root file system cannot be written; `/tmp` can, in memory."""

    tmpfs: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    """What of this machine is seen inside: `{"/data": "/data:ro"}`."""

    user: str | int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] | None = None
    """What to run instead of the image's own command."""

    container_port: int = 8000
    """The port that the server listens on, inside."""

    host: str = "127.0.0.1"
    """The address of this machine on which the port is published."""

    name: str | None = None
    pull: str = "missing"
    """`"missing"`, `"always"` or `"never"`."""

    pull_timeout_s: float = 600.0
    on_progress: Callable[[Progress], None] | None = None
    health_command: Sequence[str] | None = None
    """Lets the engine itself watch the server's health; `status().detail` tells what it found."""

    health_interval_s: float = 5.0
    drop_capabilities: bool = False
    no_new_privileges: bool = True
    security: Sequence[str] = ()
    """Further security options, as the engine spells them: `"seccomp=unconfined"`."""

    runtime: str | None = None
    """Another OCI runtime that the engine knows, such as gVisor's `runsc`."""


class LocalDockerProvider(ContainerProvider):
    """Runs an image on the container engine of this machine: Docker, or Podman's service.

    The engine is the one at `engine`, else the one `DOCKER_HOST` names, else the first local one that
    answers. The port is chosen by the engine and published on 127.0.0.1 only. Every container carries
    its owner's label, and a start removes containers whose owner is dead.
    """

    def __init__(self, engine: str | None = None) -> None:
        super().__init__()
        self._client = connect(engine)
        # A provider that is forgotten stops its server, which was adopted later, and then hangs up.
        weakref.finalize(self, self._client.close)

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        chosen = read_options(DockerOptions, options)
        settings = container_settings(image, chosen, checked_port(port), checked_environment(env_vars))
        self._refuse_second()
        sweep_containers(self._client)
        fetch_image(
            self._client,
            image,
            policy=chosen.pull,
            timeout_s=chosen.pull_timeout_s,
            on_progress=chosen.on_progress,
        )
        with speaking_to_engine(f"making a container of {image!r}"):
            container = self._client.containers.create(image, **settings)
        try:
            with speaking_to_engine(f"starting a container of {image!r}"):
                container.start()
                container.reload()
            server = DockerServer(container, self._route(container, chosen, port))
        except BaseException:
            _remove(container)
            raise
        return self._adopt(server)

    def _route(self, container: Container, chosen: DockerOptions, port: int | None) -> "Tunnel | str":
        """The way to the server: the address it is published at, or a tunnel through the engine."""
        client, identity, inside = self._client, str(container.id), chosen.container_port
        if chosen.network == "none" or _is_remote(client):
            return Tunnel(lambda: ExecStream(client, identity, inside), port=port)
        published = container.ports.get(f"{inside}/tcp")
        if not published:  # a container that ended at once has no ports any more
            raise exited(_status(container), DockerServer(container, ""))
        return f"http://{chosen.host}:{published[0]['HostPort']}"

    def close(self) -> None:
        super().close()
        self._client.close()


class DockerServer:
    """A running container and the way to it."""

    def __init__(self, container: Container, route: Tunnel | str) -> None:
        self._container = container
        self._route = route
        self._stopping = threading.Lock()
        self._stopped = False

    @property
    def base_url(self) -> str:
        return self._route if isinstance(self._route, str) else self._route.base_url

    @property
    def container_id(self) -> str:
        return str(self._container.id)

    def status(self) -> Status:
        if self._stopped:
            return Status(Phase.ABSENT)
        return _status(self._container)

    def logs(self, tail: int) -> str:
        return _logs(self._container, tail)

    def stop(self) -> None:
        with self._stopping:
            if self._stopped:
                return
            if isinstance(self._route, Tunnel):
                self._route.close()
            with suppress(NotFound, APIError):  # it may have ended by itself; it is removed either way
                self._container.stop(timeout=STOP_GRACE_S)
            with speaking_to_engine("removing a container"):
                _remove(self._container)
            self._stopped = True


def sweep_engine() -> list[Swept]:
    """Remove the containers of dead owners from the engine that answers."""
    client = connect()
    try:
        return sweep_containers(client)
    finally:
        client.close()


def container_settings(
    image: str, chosen: DockerOptions, port: int | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments for docker-py's `containers.create`."""
    for source, target in chosen.volumes.items():
        if not target.startswith("/"):
            raise ConfigurationError(f"the volume {source!r} needs an absolute place inside, not {target!r}")
    isolated = chosen.network == "none"
    security = [*(["no-new-privileges"] if chosen.no_new_privileges else []), *chosen.security]
    settings: dict[str, Any] = {
        "command": list(chosen.command) if chosen.command is not None else None,
        "name": chosen.name or _name(image),
        "environment": dict(environment),
        "labels": {
            **chosen.labels,
            OWNER_LABEL: str(OwnerTag.current()),
            PROVIDER_LABEL: "docker",
        },
        "ports": {} if isolated else {f"{chosen.container_port}/tcp": (chosen.host, port)},
        "network": None if isolated or chosen.network == "bridge" else chosen.network,
        "network_mode": "none" if isolated else None,
        "mem_limit": chosen.memory,
        "memswap_limit": chosen.memory,
        "nano_cpus": int(chosen.cpus * 1e9) if chosen.cpus is not None else None,
        "pids_limit": chosen.pids,
        "read_only": chosen.read_only,
        "tmpfs": {**({"/tmp": ""} if chosen.read_only else {}), **chosen.tmpfs} or None,  # noqa: S108
        "volumes": [f"{source}:{target}" for source, target in chosen.volumes.items()] or None,
        "user": chosen.user,
        "cap_drop": ["ALL"] if chosen.drop_capabilities else None,
        "security_opt": security or None,
        "runtime": chosen.runtime,
        "healthcheck": _health_check(chosen),
        "init": True,
        "detach": True,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _health_check(chosen: DockerOptions) -> dict[str, Any] | None:
    if chosen.health_command is None:
        return None
    nanoseconds = int(chosen.health_interval_s * 1e9)
    return {"test": ["CMD", *chosen.health_command], "interval": nanoseconds, "retries": 3}


def _name(image: str) -> str:
    stem = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return f"envtorch-{stem}-{secrets.token_hex(4)}"


def _is_remote(client: docker.DockerClient) -> bool:
    address = urlsplit(str(client.api.base_url))
    return address.scheme not in ("http+unix", "http+docker", "npipe", "unix") and address.hostname not in (
        "localhost",
        "127.0.0.1",
        "::1",
    )


def _status(container: Container) -> Status:
    try:
        container.reload()
    except NotFound:
        return Status(Phase.EXITED, detail="the container was removed by somebody else")
    except (DockerException, OSError) as error:  # whether the server is well, only the server can tell now
        return Status(Phase.RUNNING, detail=f"the engine does not answer: {error}")
    state: dict[str, Any] = container.attrs["State"]
    health = (state.get("Health") or {}).get("Status")
    if state.get("Running"):
        return Status(Phase.RUNNING, detail=f"health: {health}" if health else "")
    if state.get("Status") == "created":
        return Status(Phase.STARTING)
    reasons = ["out of memory"] if state.get("OOMKilled") else []
    reasons += [state["Error"]] if state.get("Error") else []
    return Status(Phase.EXITED, detail=", ".join(reasons), exit_code=state.get("ExitCode"))


def _logs(container: Container, tail: int) -> str:
    try:
        written: bytes = container.logs(tail=tail)
    except (DockerException, OSError):
        return ""  # the container, or the whole engine, is gone
    return written.decode(errors="replace").replace("\r\n", "\n")


def _remove(container: Container) -> None:
    with suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != 409:  # 409: somebody else is removing it already
                raise
