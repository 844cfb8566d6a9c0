"""Servers on the nodes of a Ray cluster, each a child process of an actor."""

import atexit
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from envtorch.errors import ConfigurationError, EngineUnavailable, ProviderFailed
from envtorch.extras import missing_extra
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from envtorch.providers.provider_options import checked_environment, checked_port, read_options
from envtorch.providers.replica_host import ReplicaHost, status_of
from envtorch.settings import ray_address

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
except ModuleNotFoundError as missing:
    raise missing_extra("ray", "Ray's clusters need its package") from missing

__all__ = ["RayOptions", "RayProvider", "require_cluster", "sentence_of"]

ANSWER_S = 10.0
"""How long an actor that lives may take to say how its server is."""
STOP_S = 30.0
LOOK_S = 0.5
"""How often a start that waits for a node looks whether it was stopped meanwhile."""
_CONNECTING = threading.Lock()
CALLS_AT_ONCE = 4
"""An actor answers what its server's status is while it starts or stops it."""


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The options of `RayProvider.start_container`."""

    cpus: float = 1.0
    """How many CPUs of a node are reserved for the server: an account that Ray keeps, not a limit."""

    memory_bytes: int | None = None
    """How much memory is reserved, in the same account."""

    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources that the node has to have."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the node has to have, in the form of Ray's `label_selector`."""

    strategy: Literal["SPREAD", "DEFAULT"] = "SPREAD"
    """SPREAD puts replicas on different nodes as far as possible, DEFAULT fills nodes up."""

    placement_group: Any = None
    """A group of yours, instead of a strategy; it is not removed."""

    bundle: int = -1
    """Which bundle of the group; -1 for any."""

    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's `runtime_env` for the actor: `pip`, archives by their URI, ... The server imports what the actor
    can, and gets its `env_vars`. A directory of this machine is sent by `ray.init(runtime_env=...)` only."""

    directory: str | None = None
    """Where the server runs on the node; by default where Ray starts the actor, the `working_dir`."""

    placement_timeout_s: float = 120.0
    """How long to wait for a node with these resources; autoscaling may have to add one."""

    def __post_init__(self) -> None:
        if self.strategy not in ("SPREAD", "DEFAULT"):
            raise ConfigurationError(f"strategy is 'SPREAD' or 'DEFAULT', not {self.strategy!r}")
        if self.cpus < 0 or self.placement_timeout_s <= 0:
            raise ConfigurationError("cpus is 0 or more, and placement_timeout_s more than 0")

    def no_room(self) -> str:
        """What to say when there was no node in time."""
        needs = {"CPU": self.cpus, **self.resources, **self.labels}
        free = ray.available_resources()
        left = {name: free.get(name, 0.0) for name in ("CPU", *self.resources)}
        return (
            f"no node had room for {needs} within {self.placement_timeout_s:g} s; "
            f"free in the cluster: {left}. Ask for less, or add nodes"
        )

    def actor_options(self) -> dict[str, Any]:
        """The same, as an actor's own options. An actor is never restarted: whoever holds the provider
        decides about a successor, which has another address."""
        chosen: dict[str, Any] = {
            "num_cpus": self.cpus,
            "max_restarts": 0,
            "max_concurrency": CALLS_AT_ONCE,
            "scheduling_strategy": self.strategy,
        }
        if self.memory_bytes is not None:
            chosen["memory"] = self.memory_bytes
        if self.resources:
            chosen["resources"] = dict(self.resources)
        if self.labels:
            chosen["label_selector"] = dict(self.labels)
        if self.runtime_env:
            chosen["runtime_env"] = dict(self.runtime_env)
        if self.placement_group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            chosen["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self.placement_group, placement_group_bundle_index=self.bundle
            )
        return chosen


class RayProvider(ContainerProvider):
    """Runs an ASGI application on a node of a Ray cluster.

    The "image" is the application's name, as for `ProcessProvider`: `start_container("my_package.app:app")`.
    Nodes need EnvTorch and the environment's code, or get them by `runtime_env`. Clients connect to the node
    itself: steps do not pass through Ray.

    It uses the cluster that this process is connected to, and connects to the one that is found by Ray
    itself (`RAY_ADDRESS`, or one on this machine) if it is not. It never starts a cluster.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_stopped = threading.Event()

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """Start a server on a node with room; its address. `port` is the port on that node."""
        chosen = read_options(RayOptions, options)
        environment = checked_environment({**chosen.runtime_env.get("env_vars", {}), **(env_vars or {})})
        port = checked_port(port)
        if not all(image.partition(":")):
            raise ConfigurationError(
                f"{image!r} names no application: write it as 'package.module:attribute'"
            )
        self._refuse_second()
        require_cluster()
        self._is_stopped.clear()
        try:
            actor = ray.remote(ReplicaHost).options(**chosen.actor_options()).remote()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Ray refuses these options: {sentence_of(error)}") from error
        try:
            host = self._placed(actor, chosen)
            own = {} if chosen.directory is None else {"directory": chosen.directory}
            url: str = _ask(actor.start.remote(image, port, environment, host, own), ANSWER_S * 6)
        except BaseException:
            ray.kill(actor)
            raise
        return self._adopt(RayServer(actor, url))

    def stop_container(self) -> None:
        self._is_stopped.set()
        super().stop_container()

    def _placed(self, actor: Any, options: RayOptions) -> str:
        """Wait until the actor runs; the address of its node."""
        where = actor.address.remote()
        deadline = time.monotonic() + options.placement_timeout_s
        while not ray.wait([where], timeout=LOOK_S)[0]:
            if self._is_stopped.is_set():
                raise ProviderFailed("the start was stopped while it waited for a node")
            if time.monotonic() >= deadline:
                raise ProviderFailed(options.no_room())
        host: str = _ask(where, ANSWER_S)
        return host


def require_cluster() -> None:
    """Be connected to a cluster. Raises `EngineUnavailable` when there is none."""
    with _CONNECTING:  # the replicas of a pool are started on threads, and Ray connects a process once
        if ray.is_initialized():
            return
        try:
            _require_answer(ray_address())
            ray.init(address="auto", log_to_driver=False)
        except (OSError, RayError, RuntimeError, ValueError) as error:
            raise EngineUnavailable(
                f"there is no Ray cluster: {sentence_of(error)}. Start one (`ray start --head`), or call "
                "ray.init(address=...) first"
            ) from error


def _require_answer(address: str | None) -> None:
    """See that something listens where `RAY_ADDRESS` says: Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "://" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
        except OSError as error:
            raise ConnectionError(f"nothing answers at {address} (RAY_ADDRESS): {error}") from error


def _ask(answer: Any, timeout_s: float) -> Any:
    """What an actor's method gives. An error of ours is raised as itself, any other as `ProviderFailed`."""
    try:
        return ray.get(answer, timeout=timeout_s)
    except RayTaskError as error:
        cause: BaseException = error.cause
        raise cause from None
    except GetTimeoutError as error:
        raise ProviderFailed(f"Ray did not answer within {timeout_s:g} s") from error
    except RayError as error:
        raise ProviderFailed(f"the actor of the server is gone: {sentence_of(error)}") from error


def sentence_of(error: Exception) -> str:
    """The first line of what Ray says, which may be a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class RayServer:
    """A server that was started on a node."""

    def __init__(self, actor: Any, base_url: str) -> None:
        self.base_url = base_url
        self._actor = actor
        self._stopping = threading.Lock()
        self._is_stopped = False
        self._last_words = ""
        atexit.register(self.stop)  # before Ray's own, which was registered earlier

    def status(self) -> Status:
        """As the actor tells; a node that is dead is noticed by Ray, and by clients through their sockets."""
        if self._is_stopped:
            return Status(Phase.ABSENT)
        if not ray.is_initialized():
            return Status(Phase.EXITED, "this process has left the Ray cluster")
        try:
            return status_of(ray.get(self._actor.status.remote(), timeout=ANSWER_S))
        except GetTimeoutError:
            return Status(Phase.RUNNING, f"its actor did not answer within {ANSWER_S:g} s")
        except RayActorError as error:
            return Status(Phase.EXITED, sentence_of(error))

    def logs(self, tail: int) -> str:
        if not self._is_stopped and ray.is_initialized():
            with suppress(RayError):  # then what was read last is all that is left
                self._last_words = ray.get(self._actor.logs.remote(tail), timeout=ANSWER_S)
        return self._last_words

    def stop(self) -> None:
        with self._stopping:
            if self._is_stopped:
                return
            if ray.is_initialized():
                with suppress(RayError):  # the actor may be gone, and its server with it
                    self._last_words = ray.get(self._actor.stop.remote(), timeout=STOP_S)
                ray.kill(self._actor)
            self._is_stopped = True
            atexit.unregister(self.stop)
