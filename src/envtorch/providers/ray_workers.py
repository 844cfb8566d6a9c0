"""Processes on the nodes of a Ray cluster that each run one object: actors, which are awaited."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from envtorch.env import load_object
from envtorch.errors import ConfigurationError, ProviderFailed
from envtorch.extras import missing_extra
from envtorch.providers.provider_options import read_options

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError, RayTaskError
except ModuleNotFoundError as missing:
    raise missing_extra("ray", "drivers on Ray need its package") from missing

from envtorch.providers.ray_provider import RayOptions, require_cluster, sentence_of

__all__ = ["RayWorker", "RayWorkers"]

CALLS_AT_ONCE = 100_000
"""Calls wait for each other only where the object has them wait."""


class RayWorkers:
    """Where the drivers of `Rollouts(..., on="ray")` run: `on=RayWorkers(cpus=0.5)` says what each needs.

    The options are `cpus` (1), `memory_bytes`, `resources`, `labels`, `placement_group`, `bundle`,
    `runtime_env` and `placement_timeout_s`, as of `RayProvider`. It uses the cluster that this process is
    connected to, or connects to the one that Ray finds.
    """

    def __init__(self, **options: Any) -> None:
        self._options = read_options(RayOptions, options)
        if self._options.directory is not None:
            raise ConfigurationError("drivers have no directory: they run where Ray starts them")
        require_cluster()

    def pack(self, parts: Mapping[str, Any]) -> bytes:
        try:
            packed: bytes = cloudpickle.dumps(dict(parts))
        except Exception as error:  # whatever a caller's object raises when it is pickled
            culprit = next((name for name, part in parts.items() if not _is_picklable(part)), "a part")
            raise ConfigurationError(
                f"the {culprit} cannot be sent to another process: {sentence_of(error)}. Drivers need "
                "a policy that can be pickled: an OpenAIPolicy, an ActorPolicy, or a function or object "
                "without connections, locks and models in it"
            ) from error
        return packed

    async def start(self, path: str, *, near: str) -> "RayWorker":
        chosen = {**self._options.actor_options(), "max_concurrency": CALLS_AT_ONCE}
        node = _node_at(near)
        if node is not None and self._options.placement_group is None and not self._options.labels:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            chosen["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        try:
            actor = ray.remote(load_object(path)).options(**chosen).remote()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Ray refuses these options: {sentence_of(error)}") from error
        worker = RayWorker(actor, near)
        try:
            async with asyncio.timeout(self._options.placement_timeout_s):
                await worker.call("__ray_ready__")
        except TimeoutError:
            worker.kill()
            raise ConfigurationError(f"a driver cannot be placed: {self._options.no_room()}") from None
        except BaseException:
            worker.kill()
            raise
        return worker


class RayWorker:
    """One actor."""

    def __init__(self, actor: Any, near: str) -> None:
        self._actor = actor
        self._near = near
        self.is_lost = False

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns or raises; `ProviderFailed` when the actor is gone."""
        if not ray.is_initialized():
            self.is_lost = True
            raise ProviderFailed("this process has left the Ray cluster, and its drivers with it")
        try:
            answer = getattr(self._actor, method).remote(*arguments)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"this cannot be sent to a driver: {sentence_of(error)}. Tasks and `branch_when` are pickled"
            ) from error
        try:
            return await answer
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, BaseException) else error) from error
        except RayError as error:
            self.is_lost = True
            raise ProviderFailed(f"the driver near {self._near} is gone: {sentence_of(error)}") from error

    def kill(self) -> None:
        if ray.is_initialized():
            with suppress(RayError):  # it may be gone
                ray.kill(self._actor)


def _node_at(address: str) -> str | None:
    """The node with this address, if it is one of the cluster's."""
    with suppress(OSError):
        address = socket.gethostbyname(address)
    alive = (node for node in ray.nodes() if node["Alive"])
    return next((str(node["NodeID"]) for node in alive if node["NodeManagerAddress"] == address), None)


def _is_picklable(part: Any) -> bool:
    try:
        cloudpickle.dumps(part)
    except Exception:  # whatever a caller's object raises when it is pickled
        return False
    return True
