"""The server's side of its processes: started when first needed, and again when they are gone."""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from envtorch.env import EnvSpec, load_object
from envtorch.errors import ConfigurationError, EnvTorchError, FactoryFailed
from envtorch.server.runners.process.process_messages import (
    Died,
    Kill,
    Plan,
    Unfit,
    ZygoteReady,
    pack,
    read_note,
)
from envtorch.server.runners.process.process_runner import ProcessRunner, welcome
from envtorch.server.sessions.environment_factory import Factory
from envtorch.settings import environment_for_processes

__all__ = ["ProcessLauncher"]

logger = logging.getLogger(__name__)

TRIES = 5
"""How often to ask for a process when a zygote dies with the request in its hand."""

UNCLAIMED = 1024
"""How many deaths to remember of processes that nobody has asked after yet."""

_POLL_S = 0.005
"""How often to look whether the supervisor has ended."""

_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from envtorch.server.runners.process.process_supervisor import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)


class SupervisorProcess:
    """A running supervisor, and the two sockets to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: socket.socket, spawning: socket.socket):
        self._process = process
        self._lifeline = lifeline
        self._spawning = spawning
        loop = asyncio.get_running_loop()
        self._warm: asyncio.Future[None] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[int | None]] = {}
        self._unclaimed: dict[int, int] = {}
        self.is_gone = False
        self._listening = loop.create_task(self._listen())

    @classmethod
    async def start(cls, plan: Plan) -> "SupervisorProcess":
        """Start one, and wait until its zygote has loaded everything. Raises `FactoryFailed`."""
        lifeline, their_lifeline = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawning, zygotes_spawning = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_lifeline, zygotes_spawning:
            descriptors = (their_lifeline.fileno(), zygotes_spawning.fileno())
            process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-c", _START, "\n".join(sys.path), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env=environment_for_processes(),
            )
        lifeline.setblocking(False)
        lifeline.send(pack(plan))
        supervisor = cls(process, lifeline, spawning)
        try:
            await asyncio.shield(supervisor._warm)
        except BaseException:
            await supervisor.close()
            raise
        return supervisor

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(self._lifeline, 1 << 16):
                note = read_note(packet)
                if isinstance(note, Died):
                    self._bury(note)
                elif self._warm.done():
                    logger.warning("the zygote died, and is replaced; its sessions live on")
                elif isinstance(note, ZygoteReady):
                    self._warm.set_result(None)
                else:
                    self._warm.set_exception(unfit(note))
        except OSError:
            pass  # as good as the end of it
        self._lost()

    def _bury(self, note: Died) -> None:
        waiting = self._waiting.pop(note.process, None)
        if waiting is None:
            self._unclaimed[note.process] = note.status
            if len(self._unclaimed) > UNCLAIMED:
                del self._unclaimed[next(iter(self._unclaimed))]
        elif not waiting.done():
            waiting.set_result(note.status)

    def _lost(self) -> None:
        self.is_gone = True
        if not self._warm.done():
            self._warm.set_exception(unfit(Unfit("its supervisor ended")))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    def expect(self, process: int) -> "asyncio.Future[int | None]":
        """How the process ended; None when nobody can tell any more."""
        death: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if process in self._unclaimed:
            death.set_result(self._unclaimed.pop(process))
        elif self.is_gone:
            death.set_result(None)
        else:
            self._waiting[process] = death
        return death

    def kill(self, process: int) -> None:
        with suppress(OSError):  # then it is dead already, with its supervisor
            self._lifeline.send(pack(Kill(process)))

    async def spawn(self) -> ProcessRunner:
        """A new environment in a new process. Raises `EOFError` when the zygote died over it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._spawning, [b"spawn"], [theirs.fileno()])
        return await welcome(self, ours)

    async def close(self) -> None:
        """End the supervisor, and with it every process that it keeps."""
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        self._lost()
        if self._warm.done() and not self._warm.cancelled():
            self._warm.exception()
        self._lifeline.close()
        self._spawning.close()
        # Not waited for in a thread: none can be started while Python ends.
        while self._process.poll() is None:  # noqa: ASYNC110, a process sets no event
            await asyncio.sleep(_POLL_S)


class ProcessLauncher:
    """Makes environments, each in a process of its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._supervisor: SupervisorProcess | None = None
        self._turn = asyncio.Lock()

    @classmethod
    def of(
        cls, factory: Factory, spec: EnvSpec[Any, Any, Any], *, preludes: Sequence[str] = ()
    ) -> "ProcessLauncher":
        """For the environments of `factory`. Raises `ConfigurationError` for what has no name."""
        if not sys.platform.startswith("linux"):
            raise ConfigurationError("isolation='process' needs Linux")
        if factory.is_shared:
            raise ConfigurationError(
                "isolation='process' gives every session an environment of its own: pass the class or a "
                "factory, not an instance"
            )
        first = spec.reset_observation
        return cls(
            Plan(
                source=name_of(factory.make),
                action=name_of(spec.action),
                observation=name_of(spec.observation),
                state=name_of(spec.state),
                reset_observation=name_of(first) if first else None,
                name=spec.name,
                requires_reset=spec.requires_reset,
                preludes=list(preludes),
            )
        )

    async def build(self) -> ProcessRunner:
        """An environment in a process of its own. Raises `FactoryFailed` when it cannot be built."""
        for _ in range(TRIES):
            supervisor = await self._living()
            with suppress(EOFError, OSError):  # the zygote died over it: its successor is asked
                return await supervisor.spawn()
        raise FactoryFailed(
            f"Environment factory '{self._plan.name}' failed to create instance.",
            factory_name=self._plan.name,
            reason="no process could be started for it",
        )

    async def _living(self) -> SupervisorProcess:
        async with self._turn:
            if self._supervisor is not None and self._supervisor.is_gone:
                await self._supervisor.close()
                self._supervisor = None
            if self._supervisor is None:
                self._supervisor = await SupervisorProcess.start(self._plan)
            return self._supervisor

    @property
    def supervisor_process(self) -> int | None:
        """The process that keeps all others; None before there is one."""
        return self._supervisor._process.pid if self._supervisor is not None else None

    async def close(self) -> None:
        async with self._turn:
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()


def unfit(note: Unfit) -> EnvTorchError:
    return FactoryFailed(
        "The environment's module cannot be loaded in a process of its own.", reason=note.message
    )


def name_of(found: Any) -> str:
    """`"module:name"` of a class or function. Raises `ConfigurationError` when it has none that works."""
    name = f"{getattr(found, '__module__', None)}:{getattr(found, '__qualname__', None)}"
    module = name.partition(":")[0]
    try:
        if module != "__main__" and load_object(name) is found:
            return name
    except (ConfigurationError, ImportError):
        pass
    raise ConfigurationError(
        f"isolation='process' loads {found!r} in another process by its name, and {name!r} is not one: "
        "use a class or function at the top of a module that can be imported"
    )
