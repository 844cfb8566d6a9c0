"""`Workspace`: a session on a root file system of its own that an agent may change."""

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from envtorch.errors import ConfigurationError, EnvironmentFailed, SessionLost, Unsupported, WrongProcess

from .cgroups import Group
from .monitor import Excess, memory_limit, process_limit
from .network_access import PROXY_PORT, NetworkLog, ProxyProcess, proxy_process
from .persistent_shell import PersistentShell, ShellReport
from .policy import Policy
from .protections import Report, judge, workspace_layers
from .results import Completed
from .root_stores import RootStore, RunningProcess, root_store_for
from .session_shell import SessionShell
from .session_start import ROOT, SessionStart, other_than_root
from .shell_results import CommandResult, FoundLine, Listing
from .usage import Usage, measure, netlink_bytes
from .workspace_channel import WorkspaceChannel, told_as_failure
from .workspace_limits import rlimits_for
from .workspace_operations import decode_lines, decode_listing, operate, raise_reported
from .zygotes import owned_resources

__all__ = ["Workspace"]

logger = logging.getLogger(__name__)

_SHARED_MEMORY = 64 * 2**20
_LIST_BYTES = 16 * 2**20

_live: "weakref.WeakSet[Workspace]" = weakref.WeakSet()


class Workspace:
    """A persistent shell, programs and files on a copy-on-write root, behind namespaces of their own.

    Inside, the agent is root; outside, its files and processes belong to ids that nobody else has. There is
    no network but the session's own loopback. What it changes is kept in memory, at most `policy.disk_bytes`,
    and gone with it. Used by one thread at a time.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        user: str | None = None,
        layers: Sequence[str] = (),
        base: int | None = None,
        network_of: "Workspace | None" = None,
    ) -> None:
        """Start a session. Its shell and programs run as `user`, root by default, and begin in `directory`,
        /root by default; a prepared root may have other defaults, and variables.

        `layers` are those it stands on, the topmost first, and the lowest `base` of them an image; without
        any they are the root's own. `network_of` is another session whose network namespace it shares, and
        nothing else of it.
        """
        if policy.root is None:
            raise ConfigurationError("a Workspace needs a policy with a root: Policy(root='host')")
        self.policy = policy
        start = SessionStart.of(policy, policy.root, environment=environment, directory=directory, user=user)
        self._environment, self._directory, self._user = start.environment, start.directory, start.user
        self._store: RootStore = root_store_for(policy.root)
        self._name = f"session-{secrets.token_hex(6)}"
        self._owner = os.getpid()
        self._closed = False
        self._group: Group | None = None
        self._proxy: ProxyProcess | None = None
        self._layers = list(layers) or list(self._store.image)
        self._base = len(self._layers) if base is None else base
        self._channel = self._open(network_of, names_host=not layers)
        self._shell = SessionShell(
            self._channel,
            policy,
            directory=self._directory,
            environment=self._environment,
            user=self._user,
            put_file=self.write_file,
            counts=self._counts,
        )
        try:
            self._limit()
            self._refuse_if_weak()
            if policy.network and network_of is None:
                self._proxy = self._open_network()
        except BaseException:
            self.close()
            raise
        _live.add(self)

    # Life.

    def _open(self, network_of: "Workspace | None", *, names_host: bool) -> WorkspaceChannel:
        """Layers come from sessions, which have written the host's name to files that are the agent's now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = [theirs.fileno()]
        network = None if network_of is None else network_of._network()
        if network is not None:
            descriptors.append(network)
        is_counted = "memory" not in owned_resources().groups.unavailable
        rlimits = rlimits_for(self.policy, memory_is_counted=is_counted)
        settings = {
            "hostname": "sandbox",
            "names_host": names_host,
            "shared_memory_bytes": min(_SHARED_MEMORY, self.policy.disk_bytes),
            "own_network": network is None,
            "rlimits": {str(kind): limit for kind, limit in rlimits.items()},
        }
        request = {
            "op": "open",
            "session": self._name,
            "layers": self._layers,
            "base": self._base,
            "disk_bytes": self.policy.disk_bytes,
            "settings": settings,
        }
        channel = WorkspaceChannel(ours)
        try:
            _, watches = self._store.ask(request, descriptors)
            channel.watch = watches[0] if watches else None
            theirs.close()
            channel.await_ready()
        except BaseException:
            channel.close()
            self._forget(self._name)
            raise
        finally:
            theirs.close()
            if network is not None:
                os.close(network)
        return channel

    def _limit(self) -> None:
        """Put the init under a control group, before it has started anything, and have watched what the
        group does not count."""
        owned = owned_resources()
        self._group = owned.groups.create(
            memory_bytes=memory_limit(self.policy), processes=process_limit(self.policy)
        )
        process = self._channel.process()
        if self._group is not None and process is not None:
            self._group.add(process)
        owned.monitor.add(self)

    def close(self, *, keep_layers: bool = False) -> None:
        """End everything in the session. What others still stand on is kept for them; with `keep_layers` all
        of it is kept, until this process ends."""
        if self._closed:
            return
        self._require_own_process()
        self._closed = True
        self._shell.end()
        owned_resources().monitor.remove(self)
        self._channel.close()
        if self._proxy is not None:
            with contextlib.suppress(EnvironmentFailed):  # it has ended, and its connections with it
                self._proxy.close_session(self._name)
        if self._group is not None:
            self._group.remove()
        self._forget(self._name, keep=keep_layers)

    def _forget(self, name: str, *, keep: bool = False) -> None:
        with contextlib.suppress(EnvironmentFailed):  # the store has ended, and its layers with it
            self._store.ask({"op": "close", "session": name, "keep": keep})

    def disown(self) -> None:
        """In a forked child of the owner: close its copies of the descriptors, and end nothing."""
        self._closed = True
        self._channel.disown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def start_directory(self) -> str:
        """Where the shell begins."""
        return self._directory

    @property
    def busy_since(self) -> float | None:
        """When the present command began, by the monotonic clock."""
        return self._shell.busy_since

    @property
    def alive(self) -> bool:
        return not self._closed and not self._channel.is_gone()

    # Commands.

    def run(self, command: str, *, timeout_s: float | None = None) -> CommandResult:
        """Run a command in the persistent shell. Raises `Unsupported` while a program has the terminal."""
        self._require_open()
        return self._shell.run(command, "n", timeout_s)

    def run_on_terminal(self, command: str, *, timeout_s: float = 1.0) -> CommandResult:
        """Run a command on the terminal itself; it goes on when `timeout_s` is over."""
        self._require_open()
        return self._shell.run(command, "t", timeout_s)

    @property
    def shell(self) -> PersistentShell:
        """The persistent shell, started when first needed and after it has ended."""
        self._require_open()
        return self._shell.bash

    def note_end_of_program(self, report: ShellReport) -> None:
        """A program on the terminal has ended; with it, perhaps, the shell."""
        if report.ended:
            self._shell.end()

    def _counts(self) -> tuple[int, int]:
        if self._group is None:
            return 0, 0
        return self._group.oom_kills(), self._group.refused_processes()

    def execute(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> Completed:
        """Run a program beside the shell, with stdout and stderr apart, as the session's user or another."""
        if not command or not all(isinstance(word, str) and "\0" not in word for word in command):
            raise ValueError("a command is a sequence of at least one string, none with a NUL in it")
        what = {
            "kind": "execute",
            "command": list(command),
            "environment": {**self._environment, **(environment or {})},
            "directory": directory or self._directory,
            "user": other_than_root(user) if user else self._user,
        }
        limit = self.policy.timeout_s if timeout_s is None else timeout_s
        return self._operate(what, stdin=stdin, limit=self.policy.output_bytes, timeout_s=limit)

    # Files. Relative paths are below the shell's working directory.

    def read_file(self, path: str, *, limit: int = 16 * 2**20) -> bytes:
        """The bytes of a regular file. Raises `OSError`, as for a file of more than `limit` bytes."""
        done = self._operate({"kind": "read", "path": path, "limit": limit}, limit=2 * limit)
        raise_reported(done, path)
        return done.stdout

    def write_file(self, path: str, data: bytes, *, user: str | None = None) -> None:
        """Make or replace a file, and the directories above it, as the session's user or another."""
        what = {"kind": "write", "path": path, "user": other_than_root(user) if user else self._user}
        raise_reported(self._operate(what, stdin=data), path)

    def list_files(self, path: str = ".", *, depth: int = 1, limit: int = 1000) -> Listing:
        """What is in a directory, and `depth` levels below it."""
        what = {"kind": "list", "path": path, "depth": depth, "limit": limit, "tell_more": True}
        done = self._operate(what, limit=_LIST_BYTES)
        raise_reported(done, path)
        return decode_listing(done.stdout)

    def search(
        self, pattern: str, path: str = ".", *, glob: str = "", limit: int = 100
    ) -> tuple[list[FoundLine], bool]:
        """Lines below `path` that match a regular expression, and whether those are all."""
        what = {"kind": "search", "path": path, "pattern": pattern, "glob": glob, "limit": limit}
        done = self._operate(what, limit=_LIST_BYTES)
        raise_reported(done, path)
        return decode_lines(done.stdout)

    def _operate(
        self,
        what: dict[str, Any],
        *,
        stdin: bytes = b"",
        limit: int = 65536,
        timeout_s: float | None = None,
    ) -> Completed:
        self._require_open()
        request = {"directory": self._shell.directory, "user": self._user, **what}
        if what["kind"] == "write" and os.path.isabs(what["path"]):
            request["directory"] = "/"
        return operate(
            self._channel,
            request,
            stdin=stdin,
            limit=limit,
            timeout_s=self.policy.timeout_s if timeout_s is None else timeout_s,
        )

    # Copies.

    def processes(self) -> list[RunningProcess]:
        """The processes besides the shell: background jobs and daemons."""
        self._require_open()
        reply, _ = self._channel.ask({"op": "processes"})
        return reply.processes

    @told_as_failure("the session could not be copied")
    def fork(self, n: int = 1, *, drop_processes: bool = False) -> "list[Workspace]":
        """`n` sessions with the same files and the same shell: directory, variables, functions, options.

        Processes are not copied. With any besides the shell this is refused with their names, unless
        `drop_processes` says that the copies shall do without them; here they run on.
        """
        self._require_open()
        self._shell.idle()
        if (running := self.processes()) and not drop_processes:
            named = [f"{process.name} ({process.pid})" for process in running[:8]]
            raise Unsupported(
                f"a session with background processes cannot be copied exactly: {', '.join(named)}. End "
                "them, or have copies without them: Workspace.fork(drop_processes=True)",
                processes=named,
            )
        state = self._shell.saved_state()
        layers, copied = self._freeze_layers(running=bool(running))
        made: list[Workspace] = []
        try:
            for _ in range(n):
                made.append(self._twin(layers, state))
        except BaseException:
            for twin in made:
                twin.close()
            raise
        finally:
            if copied is not None:
                self._store.ask({"op": "close", "session": copied})
        return made

    def _twin(self, layers: Sequence[str], state: bytes) -> "Workspace":
        twin = Workspace(
            self.policy,
            environment=self._environment,
            directory=self._directory,
            user=self._user or ROOT,
            layers=layers,
            base=self._base,
        )
        try:
            twin.write_file("/dev/shm/.state", state)  # noqa: S108  of the session
            shell = twin._shell.start_without_file()  # the state holds what the file has done
            script = ". /dev/shm/.state 2>/dev/null; \\builtin command rm -f /dev/shm/.state"
            shell.run(script, mode="q", timeout_s=self.policy.timeout_s, limit=1024)
        except BaseException:
            twin.close()
            raise
        return twin

    def _freeze_layers(self, *, running: bool) -> tuple[list[str], str | None]:
        """What has been changed until now, as layers that do not change any more. The second is the name of a
        copy that was made because something was open for writing."""
        if not running:
            try:
                return self.stack(), None
            except OSError as error:
                if error.errno != 16:  # EBUSY: the shell itself has a file open for writing
                    raise
        return self.copy_layers()

    def copy_layers(self) -> tuple[list[str], str]:
        """The same by copying what was changed, while every process but the shell stands still. Whoever asks
        closes the copy, by its name, in the store."""
        name = f"copy-{secrets.token_hex(6)}"
        self._channel.ask({"op": "stop"})
        try:
            request = {
                "op": "copy",
                "session": self._name,
                "layer": name,
                "disk_bytes": self.policy.disk_bytes,
            }
            reply, _ = self._store.ask(request)
        except BaseException:
            self._forget(name)
            raise
        finally:
            self._channel.ask({"op": "continue"})
        return reply.layers, name

    def stack(self) -> list[str]:
        """Freeze the session's changes as a layer, and go on above it.

        Raises `OSError` (EBUSY) while anything is open for writing: the kernel makes sure of that. A session
        whose init does not answer is ended, with `SessionLost`: later copies could lack what it changed."""
        self._require_open()
        self._channel.ask_or_end({"op": "freeze"})
        trees: Sequence[int] = ()
        try:
            reply, trees = self._store.ask({"op": "stack", "session": self._name})
            self._channel.ask_or_end({"op": "reenter"}, trees)
        except BaseException:
            if self.alive:
                self._channel.ask_or_end({"op": "thaw"})
            raise
        finally:
            for tree in trees:
                os.close(tree)
        self._store.ask({"op": "stacked", "session": self._name, "layers": reply.layers})
        self._layers = reply.layers
        if (shell := self._shell.if_started) is not None:  # its directory is one of the old root
            shell.run('\\builtin cd -- "$PWD"', mode="q", timeout_s=self.policy.timeout_s, limit=1024)
        return reply.layers

    def end_processes(self) -> None:
        """End every process of the session, its shell and daemons too; the files stay."""
        self._shell.end()
        self._channel.ask({"op": "sweep"})

    def finish(self) -> list[str]:
        """End everything in the session, also when it has ended already; answers with its layers, which stay
        until it is closed. Nothing is written to its disk, which may be full."""
        self._require_open()
        self._shell.end()
        self._channel.close()
        reply, _ = self._store.ask({"op": "layers", "session": self._name})
        return reply.layers

    @property
    def store(self) -> RootStore:
        return self._store

    def _open_network(self) -> ProxyProcess:
        """Before anything runs inside: a listening socket there, on which the proxy accepts from here."""
        proxy = proxy_process()
        _, given = self._channel.ask({"op": "listen", "port": PROXY_PORT})
        try:
            proxy.open(self._name, given[0], self.policy)
        finally:
            os.close(given[0])
        return proxy

    def network_log(self) -> NetworkLog:
        """What was asked of the network: the last requests, and counts. Empty for a session without any."""
        self._require_open()
        return NetworkLog() if self._proxy is None else self._proxy.log(self._name)

    def _network(self) -> int:
        _, given = self._channel.ask({"op": "network"})
        return given[0]

    # Protection.

    def report(self) -> Report:
        """What this session is protected by."""
        return judge(workspace_layers(owned_resources().groups.unavailable), namespaces=True)

    def _refuse_if_weak(self) -> None:
        report = self.report()
        missing = [name for name in sorted(self.policy.require) if not report.protects(name)]
        if missing:
            reasons = "; ".join(f"{name}: {report.protections[name]}" for name in missing)
            raise ConfigurationError(f"this machine cannot protect what the policy requires: {reasons}")

    def measure_usage(self) -> Usage | None:
        """What the session uses of what no control group counts; None when it has ended."""
        init = None if self._closed else self._channel.process()
        if init is None:
            return None
        waiting = netlink_bytes(init)
        if not owned_resources().groups.unavailable:
            return Usage(0, 0, waiting, 0)
        usage = measure(init, [], own_mark=None, enough_bytes=memory_limit(self.policy))
        return dataclasses.replace(usage, memory_bytes=usage.memory_bytes + waiting)

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        """End every process, when they use too much together and no control group says so."""
        self._shell.excess = excess
        self._channel.tell({"op": "cull"})

    def _require_own_process(self) -> None:
        if self._owner != os.getpid():
            raise WrongProcess.of("workspace", self._owner)

    def _require_open(self) -> None:
        self._require_own_process()
        if self._closed:
            raise SessionLost("the workspace is closed")


def _disown_all() -> None:
    for workspace in list(_live):
        workspace.disown()
    _live.clear()


os.register_at_fork(after_in_child=_disown_all)
