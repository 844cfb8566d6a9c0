"""One worker: the whole server, with the sessions of its peers within reach."""

import asyncio
import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.routing import Mount

from envtorch.env import Environment, load_object
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.server.app import HTTPEnvServer, create_app
from envtorch.server.security.gate import AccessGate
from envtorch.server.security.keys import Keys
from envtorch.server.serve import DrainingServer, spare_the_collector, uvicorn_config
from envtorch.server.workers.http_forwarding import Relay
from envtorch.server.workers.peers import WorkerPeers
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.shared_slots import SharedSlots
from envtorch.server.workers.worker_messages import (
    MessageLine,
    WorkerPlan,
    WorkerReady,
    WorkerUnfit,
    receive_plan,
)
from envtorch.settings import Settings

__all__ = ["WorkerServer", "application", "main"]

logger = logging.getLogger(__name__)


def main(line: int, hatch: int, private: int, page: int) -> None:
    """The life of a worker process, from descriptors that the master has given it."""
    for descriptor in (line, hatch, private, page):
        os.set_inheritable(descriptor, False)
    to_master = socket.socket(fileno=line)
    plan = receive_plan(to_master)
    _end_with(plan.master)
    try:
        hands = WorkerResources(to_master, socket.socket(fileno=hatch), Page(page, plan.worker + 1))
        worker = assemble(_load(plan), plan, hands)
    except EnvTorchError as error:
        asyncio.run(_say(to_master, WorkerUnfit.of(error)))
        sys.exit(1)
    spare_the_collector()
    worker.run(sockets=[socket.socket(fileno=private)])
    if worker.failure is not None:
        sys.exit(1)


def _end_with(master: int) -> None:
    if sys.platform == "linux":
        importlib.import_module("envtorch.server.runners.process.process_spawning").die_with_parent(master)


async def _say(end: socket.socket, note: WorkerUnfit) -> None:
    line = await MessageLine.over(end)
    line.send(note)
    line.close()
    await asyncio.sleep(0)


def application(target: str) -> Any:
    """The application that `"module:name"` names; an environment becomes one."""
    found = load_object(target)
    if isinstance(found, type) and issubclass(found, Environment):
        return create_app(found)
    return found


def _load(plan: WorkerPlan) -> Any:
    app = load_object(plan.loader)(plan.target)
    if plan.isolation is not None:
        _require_server(app, plan, "isolated").isolate(plan.isolation, preludes=plan.preludes)
    if plan.sessions is not None:
        _require_server(app, plan, "counted").make_room(plan.sessions)
    if plan.record is not None:
        _require_server(app, plan, "recorded").record(plan.record, required=plan.record_required)
    return app


def _require_server(app: Any, plan: WorkerPlan, what: str) -> HTTPEnvServer:
    server = env_server(app)
    if server is None:
        raise ConfigurationError(f"{plan.target} is no application of ours, so its sessions cannot be {what}")
    return server


def env_server(app: Any) -> HTTPEnvServer | None:
    """The environment's server in an application, or in what is mounted there; None when there is none."""
    found = {id(server): server for server in _env_servers(app)}
    if len(found) > 1:
        raise ConfigurationError(
            f"workers share the sessions of one environment, and this application serves {len(found)}: "
            "serve each of them by itself, or all with one worker"
        )
    return next(iter(found.values()), None)


def _env_servers(app: Any) -> Iterator[HTTPEnvServer]:
    found = getattr(getattr(app, "state", None), "env_server", None)
    if isinstance(found, HTTPEnvServer):
        yield found
    for route in getattr(app, "routes", ()):
        if isinstance(route, Mount):
            yield from _env_servers(route.app)


class WorkerResources:
    """What the master gave a worker to work with."""

    def __init__(self, line: socket.socket, hatch: socket.socket, page: Page) -> None:
        self.line = line
        self.hatch = hatch
        self.page = page


def assemble(app: Any, plan: WorkerPlan, hands: WorkerResources) -> "WorkerServer":
    """The server of one worker around its application."""
    server = env_server(app)
    if server is not None:
        server.bound(locked=plan.token_file is not None, exposed=plan.is_exposed)
    is_locked = plan.token_file is not None or (server is not None and server.is_locked)
    if plan.worker == 0 and plan.is_exposed and not is_locked:
        logger.warning(
            "this server is open to everybody who can reach it: set ENVTORCH_TOKEN or --token-file"
        )
    if plan.token_file is not None:
        has_page = Settings.from_environ().web_interface
        app = AccessGate(app, keys=Keys(file=Path(plan.token_file)), has_page=has_page)
    slots = SharedSlots(plan.worker, server.sessions.capacity if server else 0, hands.page)
    if server is not None:
        peers = WorkerPeers(plan, hands.page, slots, server.sessions)
        server.sessions.slots = slots
        server.sessions.peers = peers
        app = Relay(app, server, peers)
    return WorkerServer(uvicorn_config(app, **plan.options), server, slots, plan, hands)


class WorkerServer(DrainingServer):
    """A server whose connections come from the master, already accepted."""

    def __init__(
        self,
        config: Any,
        server: HTTPEnvServer | None,
        slots: SharedSlots,
        plan: WorkerPlan,
        hands: WorkerResources,
    ) -> None:
        sessions = server.sessions if server else None
        super().__init__(
            config, sessions, finish_s=plan.finish_s, drain_s=plan.drain_s, on_ready=lambda: None
        )
        self._server = server
        self._slots = slots
        self._line = hands.line
        self._hatch = hands.hatch
        self._numbers = hands.page.worker(plan.worker)
        self._adopting: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.failure is not None:
            await _say(self._line, WorkerUnfit.of(self.failure))
            return
        self._hatch.setblocking(False)
        asyncio.get_running_loop().add_reader(self._hatch, self._take)
        is_shared = self._server is not None and self._server.sessions.factory.is_shared
        await self._slots.open(self._line, WorkerReady(self._slots.capacity or None, is_shared))

    async def on_tick(self, counter: int) -> bool:
        self._numbers.connections = len(self.server_state.connections)
        return await super().on_tick(counter)

    async def take_no_more(self) -> None:
        """Have the master give connections to others. Those under way are cut: their clients come back."""
        asyncio.get_running_loop().remove_reader(self._hatch)
        self._hatch.close()
        if self._adopting:
            await asyncio.wait(self._adopting)

    def _take(self) -> None:
        """Take what the master hands over."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._hatch, 1, 1)
            except BlockingIOError:
                return
            if not data:  # the master is gone; the line says so too
                asyncio.get_running_loop().remove_reader(self._hatch)
                return
            for descriptor in descriptors:
                task = asyncio.get_running_loop().create_task(self._adopt(descriptor))
                self._adopting.add(task)
                task.add_done_callback(self._adopting.discard)
            self._numbers.received += 1
            self._numbers.connections = len(self.server_state.connections) + len(self._adopting)

    async def _adopt(self, descriptor: int) -> None:
        connection = socket.socket(fileno=descriptor)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self.config.ssl
            )
        except OSError as error:
            logger.info("a connection ended before it began: %s", error)
            connection.close()

    def _protocol(self) -> asyncio.Protocol:
        """uvicorn's protocol for one connection, as its own listener would make it."""
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
