"""Starts the persistent shell of a session: bash on a terminal, beside it sockets for commands and reports.

Commands never pass through the terminal, and their ends are never read out of its output. Bash asks for each
command on a socket, in `PROMPT_COMMAND`, and reports status and directory of the last one on another. So a
program that reads from the terminal eats no command, and an interrupted command ends at the next report.

They are sockets because the kernel opens no socket through `/proc/PID/fd`, as it would a pipe: programs do
not inherit the two, and cannot open the copies that bash keeps while it runs a command. Behind each command
the owner sends a nonce, which bash reads only when the command has ended, and repeats in its report.
"""

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from . import users

REPORT, COMMAND, OUTPUT, STARTUP = 60, 61, 63, 9
"""Descriptors of the shell: where it reports, where it asks, what commands print to, what it reads first."""
_UNLOCK, _NUMBER = 0x40045431, 0x80045430

START_FILE = r"""
[ -f ~/.bashrc ] && . ~/.bashrc </dev/null >/dev/null 2>&1 9<&- 60>&- 61<&- 63>&-
"""
"""The agent's own start-up file, which may end the shell."""

LOOP = r"""
\builtin exec 9<&-
PS1= PS2= HISTCONTROL=
\builtin unset MAILCHECK TMOUT
\builtin shopt -s expand_aliases
\builtin set -o history +o histexpand
__et_owes=1 __et_nonce=
PROMPT_COMMAND='__et_status=$?
__et_again() { \builtin return $__et_status; }
while if [[ ${__et_owes-} ]]; then
        [[ ${__et_nonce-} ]] || IFS= \builtin read -r -d "" -u 61 __et_nonce
        \builtin printf "\0%s\0%s\0%s\0" "$__et_nonce" "$__et_status" "${PWD-}" >&60
        __et_owes= __et_nonce=
    fi
    IFS= \builtin read -r -d "" -u 61 __et_mode && IFS= \builtin read -r -d "" -u 61 __et_text
do
__et_owes=1
case $__et_mode in
*f) __et_text=$(<"$__et_text") __et_mode=${__et_mode%f} ;;
esac
case $__et_mode in
n) \builtin history -s -- "$__et_text"; __et_again
   \builtin eval "$__et_text" </dev/null >&63 2>&63 60>&- 61<&- 63>&-; __et_status=$? ;;
t) \builtin history -s -- "$__et_text"; __et_again
   \builtin eval "$__et_text" 60>&- 61<&- 63>&-; __et_status=$? ;;
q) \builtin eval "$__et_text" </dev/null >&63 2>/dev/null 60>&- 61<&- 63>&- ;;
*) __et_status=unreadable ;;
esac
\builtin jobs >/dev/null 2>&1
done
IFS= \builtin read -r -d "" -u 61 __et_nonce
\builtin printf "\0%s\0left\0\0" "$__et_nonce" >&60
__et_nonce=
__et_again'
"""
"""What bash reads instead of its own start-up files. Modes of a command: `n` with its output on a pipe, `t`
on the terminal itself, `q` for questions of the owner's, which leave no trace; with `f` the text is in a
file. One report is owed at the start, and one for each command: an interrupt between two adds none. A
command that was not read whole is not run, and its status is no number, which ends the shell. Functions and
aliases of the agent's may have the names of builtins, as `cd` often has: `\\builtin` means neither."""


@dataclass(frozen=True, slots=True)
class ShellEnds:
    """The owner's ends of a shell: its terminal, its reports, its commands, what commands print."""

    terminal: int
    reports: int
    commands: int
    output: int

    def all(self) -> Sequence[int]:
        return (self.terminal, self.reports, self.commands, self.output)

    def close(self) -> None:
        for descriptor in self.all():
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ShellPlan:
    """How a shell is to be started."""

    program: str
    directory: str
    environment: Mapping[str, str]
    rows: int
    columns: int
    start_file: bool = True
    """Whether ~/.bashrc is read."""
    user: str | None = None
    """Whom it runs as; None for root."""


def start(plan: ShellPlan, lock: Callable[[], None]) -> tuple[int, ShellEnds]:
    """Fork a shell on a terminal of its own. `lock` gives up every privilege, in the child. Raises `OSError`,
    and leaves nothing open, when the session has used up its processes or terminals.

    /dev belongs to the agent, which may replace /dev/ptmx; what is in /dev/pts is the kernel's.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as given:
        master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        ours.callback(os.close, master)
        fcntl.ioctl(master, _UNLOCK, struct.pack("i", 0))
        (number,) = struct.unpack("i", fcntl.ioctl(master, _NUMBER, bytes(4)))
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", plan.rows, plan.columns, 0, 0))
        reports, its_reports = _closed_by(ours, given, _socket_pair())
        commands, its_commands = _closed_by(ours, given, _socket_pair())
        output, its_output = _closed_by(ours, given, os.pipe())
        its_startup, startup = _closed_by(given, given, os.pipe())
        os.write(startup, ((START_FILE if plan.start_file else "") + LOOP).encode())
        process = os.fork()
        if process == 0:
            places = {REPORT: its_reports, COMMAND: its_commands, OUTPUT: its_output, STARTUP: its_startup}
            _become_shell(plan, number, places, lock)
        ours.pop_all()
    return process, ShellEnds(master, reports, commands, output)


def _closed_by(
    first: contextlib.ExitStack, second: contextlib.ExitStack, pair: tuple[int, int]
) -> tuple[int, int]:
    """Both descriptors of a pair, each closed with a stack of its own."""
    first.callback(os.close, pair[0])
    second.callback(os.close, pair[1])
    return pair


def _socket_pair() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def _become_shell(
    plan: ShellPlan, number: int, given: Mapping[int, int], lock: Callable[[], None]
) -> NoReturn:
    try:
        os.setsid()
        terminal = os.open(f"/dev/pts/{number}", os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        wanted = {0: terminal, 1: terminal, 2: terminal, **given}
        copies = {place: fcntl.fcntl(one, fcntl.F_DUPFD, 100) for place, one in wanted.items()}
        os.closerange(3, 100)
        for place, copy in copies.items():
            os.dup2(copy, place)
        os.closerange(100, 1 << 16)
        try:
            os.chdir(plan.directory)
        except OSError:
            os.chdir("/")  # it is gone; a shell in the root is better than none
        lock()
        environment = dict(plan.environment)
        if plan.user is not None:
            account = users.find(plan.user)
            for descriptor in (0, OUTPUT, STARTUP):  # it opens them by name, as /dev/stdout, say
                os.fchown(descriptor, account.user, account.group)
            users.become(account)
            environment |= {"HOME": account.home, "USER": account.name}
        words = ["bash", "--noediting", "--rcfile", f"/proc/self/fd/{STARTUP}", "-i"]
        os.execve(plan.program, words, environment)  # noqa: S606
    except OSError as error:
        os.write(2, f"{plan.program}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
