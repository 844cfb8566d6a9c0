"""The shell of a session on a writable root: started when first needed, and again when it has ended."""

import logging
import time
from collections.abc import Callable, Mapping

from envtorch.errors import EnvironmentFailed, Unsupported

from .monitor import Excess
from .persistent_shell import PersistentShell, StartFileFailed
from .policy import Policy
from .shell_results import CommandOutcome, CommandResult
from .workspace_channel import WorkspaceChannel
from .workspace_limits import outcome_of

__all__ = ["SessionShell"]

logger = logging.getLogger(__name__)

_PROGRAM = "/bin/bash"
_ROWS, _COLUMNS = 40, 120
_STATE_BYTES = 8 * 2**20
_SAVE = r"""\builtin printf 'cd -- %q\n' "$PWD"; \builtin umask -p; \builtin shopt -p
\builtin declare -p; \builtin declare -f; \builtin declare -Fx; \builtin trap -p
__et_options=$(\builtin set +o); \builtin printf '%s\n' "${__et_options//set /builtin set }"
for __et_name in "${!BASH_ALIASES[@]}"; do
\builtin printf '\\builtin alias -- %q=%q\n' "$__et_name" "${BASH_ALIASES[$__et_name]}"
done
if [[ -o errexit ]]; then \builtin printf '\\builtin set -o errexit\n'; fi"""
"""Prints a script that makes another shell like this one. Errexit is off in `$(...)`, so the shell itself is
asked for it; it is restored last, when nothing is left that could fail. The script calls no functions of the
agent's that have the names of builtins, but `declare` and `trap`."""


class SessionShell:
    """Runs commands in one bash after another. Used by one thread at a time."""

    def __init__(
        self,
        channel: WorkspaceChannel,
        policy: Policy,
        *,
        directory: str,
        environment: Mapping[str, str],
        user: str | None,
        put_file: Callable[[str, bytes], None],
        counts: Callable[[], tuple[int, int]],
    ) -> None:
        """`counts` tells how many processes the control group has killed and refused until now."""
        self._channel = channel
        self._policy = policy
        self._first_directory = directory
        self._plan = {
            "program": _PROGRAM,
            "directory": directory,
            "environment": dict(environment),
            "user": user,
            "rows": _ROWS,
            "columns": _COLUMNS,
        }
        self._put_file = put_file
        self._counts = counts
        self._bash: PersistentShell | None = None
        self.excess: Excess | None = None
        """The limit that the present command made the session exceed, where no control group tells."""
        self.busy_since: float | None = None

    @property
    def directory(self) -> str:
        """Where relative paths begin."""
        return self._first_directory if self._bash is None else self._bash.directory

    @property
    def bash(self) -> PersistentShell:
        """The living shell. One whose start-up file ends it is started without that file."""
        try:
            return self._start_file_read()
        except StartFileFailed as error:
            logger.info("a shell was started without its start-up file: %s", error)
            return self.start_without_file()

    @property
    def if_started(self) -> PersistentShell | None:
        return self._bash

    def _start_file_read(self) -> PersistentShell:
        if self._bash is None:
            self._bash = self._start(start_file=True)
        return self._bash

    def start_without_file(self) -> PersistentShell:
        """Start a shell that does not read ~/.bashrc."""
        self._bash = self._start(start_file=False)
        return self._bash

    def _start(self, *, start_file: bool) -> PersistentShell:
        plan = {**self._plan, "start_file": start_file}
        return PersistentShell(self._channel, plan, grace_s=self._policy.grace_s, put_file=self._put_file)

    def idle(self) -> PersistentShell:
        """The living shell. Raises `Unsupported` while a program has its terminal."""
        return _idle(self.bash)

    def run(self, command: str, mode: str, timeout_s: float | None) -> CommandResult:
        """Run a command: see `Workspace.run`."""
        try:
            shell = _idle(self._start_file_read())
        except StartFileFailed as error:
            self.start_without_file()
            return self._not_run(error)
        background = shell.take_background(self._policy.output_bytes).text()
        began = self.busy_since = time.monotonic()
        self.excess = None
        killed, refused = self._counts()
        limit = self._policy.timeout_s if timeout_s is None else timeout_s
        try:
            answer = shell.run(command, mode=mode, timeout_s=limit, limit=self._policy.output_bytes)
        except (BrokenPipeError, ConnectionError):  # the shell ended between two commands
            self.end()
            return self.run(command, mode, timeout_s)
        finally:
            self.busy_since = None
        report = answer.report
        if report is not None and report.ended:
            self.end()
        now_killed, now_refused = self._counts()
        outcome = outcome_of(
            answer, killed=now_killed > killed, refused=now_refused > refused, excess=self.excess
        )
        return CommandResult(
            outcome=outcome,
            output=answer.output.text(),
            exit_code=None if report is None else report.status,
            directory=shell.directory if report is None or not report.ended else self._first_directory,
            left_out_bytes=answer.output.left_out,
            shell_ended=report is not None and report.ended,
            background=background,
            duration_s=time.monotonic() - began,
        )

    def _not_run(self, error: StartFileFailed) -> CommandResult:
        return CommandResult(
            outcome=CommandOutcome.SHELL_ENDED,
            output=f"{error}: the command was not run. Commands that follow run in a shell without it.\n",
            exit_code=error.status,
            directory=self._first_directory,
            shell_ended=True,
        )

    def saved_state(self) -> bytes:
        """A script that makes another shell like this one. Raises `EnvironmentFailed` when it has none."""
        saved = self.idle().run(_SAVE, mode="q", timeout_s=self._policy.timeout_s, limit=_STATE_BYTES)
        if saved.report is None or saved.report.ended or saved.output.left_out:
            raise EnvironmentFailed("the state of the shell could not be read, so the session was not copied")
        return bytes(saved.output)

    def end(self) -> None:
        """End the shell; the next command starts another one."""
        if self._bash is not None:
            self._bash.close()
            self._bash = None


def _idle(shell: PersistentShell) -> PersistentShell:
    if shell.is_busy:
        raise Unsupported(
            "a program has the terminal: look at it with screen, answer or end it with send_keys"
        )
    return shell
