"""What each tool of the terminal environment does with a workspace."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envtorch.envs import file_answers
from envtorch.envs.terminal_env.models import TerminalObservation
from envtorch.errors import MissingExtra, OutOfResources, TimedOut, Unsupported
from envtorch.sandbox import CommandOutcome, CommandResult, Policy, Workspace
from envtorch.tools import ToolError, ToolErrorType

__all__ = ["ToolCalls"]

RESERVE_S = 1.0
"""What is kept of the caller's time, half of it at most, for interrupting a command and telling how it
went."""
_ROWS, _COLUMNS = 40, 120
_QUIET_S = 0.35
"""A program that has written nothing for so long is taken to wait; shorter, and editors lose keys after
escape."""
_FIRST_LOOK_S = 1.0
_SHORT_LOOK_S = 0.05
_ESCAPE_S = 0.15


class ToolCalls:
    """The tools on one workspace. What an agent does wrong is an observation with an `error`."""

    def __init__(self, workspace: Workspace, policy: Policy) -> None:
        self.workspace = workspace
        self._policy = policy
        self._screen: Any = None
        self._tools: Mapping[str, Callable[..., TerminalObservation]] = {
            "bash": self._bash,
            "send_keys": self._send_keys,
            "screen": self._show_screen,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "edit_file": self._edit_file,
            "list_files": self._list_files,
            "search": self._search,
            "view_image": self._view_image,
        }

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float | None) -> TerminalObservation:
        """What a tool answers. `timeout_s` is the caller's: a command ends before it."""
        given = dict(arguments)
        if name in ("bash", "send_keys"):
            given["caller_s"] = timeout_s
        try:
            return self._tools[name](**given)
        except (OSError, OutOfResources, TimedOut, Unsupported, MissingExtra, ValueError) as error:
            message = file_answers.error_sentence(error)
        return TerminalObservation(
            tool_name=name, error=ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=message)
        )

    def _limit(self, wanted_s: float | None, caller_s: float | None) -> float:
        """Seconds for a command: as asked, within the policy, and within the caller's deadline."""
        limits = [self._policy.timeout_s]
        limits += [] if wanted_s is None else [wanted_s]
        limits += [] if caller_s is None else [caller_s - min(RESERVE_S, caller_s / 2)]
        return min(limits)

    def _bash(
        self, *, command: str, timeout_s: float | None, terminal: bool, caller_s: float | None
    ) -> TerminalObservation:
        if terminal:
            return self._start_on_terminal(command, caller_s)
        limit = self._limit(timeout_s, caller_s)
        answer = self.workspace.run(command, timeout_s=limit)
        return _command_observation(answer, limit)

    def _start_on_terminal(self, command: str, caller_s: float | None) -> TerminalObservation:
        screen = self._ready_screen()
        answer = self.workspace.run_on_terminal(command, timeout_s=self._limit(_FIRST_LOOK_S, caller_s))
        text = screen.text()
        note = "" if answer.outcome is CommandOutcome.RUNNING else f"\n[ended with status {answer.exit_code}]"
        return _command_observation(answer, 0.0, result=text + note)

    def _send_keys(self, *, keys: str, wait_s: float, caller_s: float | None) -> TerminalObservation:
        from envtorch.envs.terminal_env.screens import encode_keys  # needs an extra

        screen = self._ready_screen()
        end = time.monotonic() + self._limit(None, caller_s)
        shell = self.workspace.shell
        if not shell.is_busy:
            self.workspace.run_on_terminal("PS1='$ ' bash --norc -i", timeout_s=_QUIET_S)
            shell = self.workspace.shell
        ended = None
        pieces = encode_keys(keys)
        typed = self._type(pieces, end)
        if shell.is_busy:
            left_s = max(_SHORT_LOOK_S, end - time.monotonic())
            ended = shell.watch_terminal(quiet_s=_QUIET_S, timeout_s=min(wait_s, left_s))
        text = screen.text()
        if typed < len(pieces):
            text += f"\n[the time was over: send the keys behind <esc> number {typed} with another call]"
        if ended is not None:
            self.workspace.note_end_of_program(ended)
            text += f"\n[the program ended with status {ended.status}]"
        return TerminalObservation(
            tool_name="send_keys",
            result=text,
            output=text,
            outcome="running" if ended is None else "ok" if ended.status == 0 else "error",
            exit_code=None if ended is None else ended.status,
            directory=shell.directory,
        )

    def _type(self, pieces: Sequence[bytes], end: float) -> int:
        """How many pieces were typed before `end`, each but the first after a pause."""
        for number, piece in enumerate(pieces):
            if number:
                if time.monotonic() + _ESCAPE_S > end:
                    return number
                time.sleep(_ESCAPE_S)
            self.workspace.shell.type_keys(piece)
        return len(pieces)

    def _show_screen(self) -> TerminalObservation:
        screen = self._ready_screen()
        shell = self.workspace.shell
        if shell.is_busy:
            ended = shell.watch_terminal(quiet_s=_SHORT_LOOK_S, timeout_s=0.2)
            if ended is not None:
                self.workspace.note_end_of_program(ended)
        else:
            shell.take_background(1024)
        text = screen.text()
        return TerminalObservation(tool_name="screen", result=text, output=text, directory=shell.directory)

    def _ready_screen(self) -> Any:
        from envtorch.envs.terminal_env.screens import TerminalScreen  # needs an extra

        if self._screen is None:
            self._screen = TerminalScreen(_ROWS, _COLUMNS)
        self.workspace.shell.on_terminal = self._screen.feed
        return self._screen

    def _read_file(self, *, path: str, first_line: int, last_line: int | None) -> TerminalObservation:
        data = self.workspace.read_file(path, limit=file_answers.READ_BYTES)
        limit = self._policy.output_bytes
        return self._answer(
            "read_file", file_answers.selected_lines(data, path, first_line, last_line, limit)
        )

    def _write_file(self, *, path: str, text: str) -> TerminalObservation:
        data = text.encode("utf-8", "surrogatepass")
        self.workspace.write_file(path, data)
        return self._answer("write_file", f"{path} was written: {len(data)} bytes.")

    def _edit_file(self, *, path: str, old: str, new: str) -> TerminalObservation:
        data = self.workspace.read_file(path, limit=file_answers.READ_BYTES)
        changed, line = file_answers.replace_once(data, path, old, new)
        self.workspace.write_file(path, changed)
        return self._answer("edit_file", f"{path} was changed at line {line}.")

    def _list_files(self, *, path: str, depth: int) -> TerminalObservation:
        found = self.workspace.list_files(path, depth=depth, limit=file_answers.MOST_LISTED)
        return self._answer("list_files", file_answers.listed_files(found.entries, complete=found.complete))

    def _search(self, *, pattern: str, path: str, glob: str) -> TerminalObservation:
        found, complete = self.workspace.search(pattern, path, glob=glob, limit=file_answers.MOST_FOUND)
        return self._answer("search", file_answers.found_lines(found, complete=complete))

    def _view_image(self, *, path: str) -> TerminalObservation:
        data = self.workspace.read_file(path, limit=file_answers.IMAGE_BYTES)
        answer = file_answers.image_answer(data, path)
        return TerminalObservation(tool_name="view_image", result=answer, output=answer.data)

    def _answer(self, name: str, text: str) -> TerminalObservation:
        return TerminalObservation(tool_name=name, result=text, output=text)


def _command_observation(
    answer: CommandResult, limit_s: float, *, result: str | None = None
) -> TerminalObservation:
    return TerminalObservation(
        tool_name="bash",
        result=_told(answer, limit_s) if result is None else result,
        output=answer.output,
        exit_code=answer.exit_code,
        outcome=answer.outcome.value,
        directory=answer.directory,
        left_out_bytes=answer.left_out_bytes,
        shell_ended=answer.shell_ended,
    )


def _told(answer: CommandResult, limit_s: float) -> str:
    """The text that an agent is shown: output, then what it must know about the end of the command."""
    notes = {
        CommandOutcome.ERROR: f"[exit code {answer.exit_code}]",
        CommandOutcome.TIMED_OUT: f"[interrupted after {limit_s:g} s]",
        CommandOutcome.SHELL_ENDED: f"[the shell ended with status {answer.exit_code}]",
        CommandOutcome.OUT_OF_MEMORY: "[out of memory]",
        CommandOutcome.OUT_OF_PROCESSES: "[out of processes]",
    }
    parts = [f"[background]\n{answer.background}"] if answer.background else []
    parts.append(answer.output)
    parts.append(notes.get(answer.outcome, ""))
    if answer.shell_ended:
        parts.append(
            f"[a new shell was started in {answer.directory}; variables and jobs of the last are gone]"
        )
    return "\n".join(part.rstrip("\n") for part in parts if part)
