"""The attack suite: what an agent might try, as data.

Each attack is a snippet to run in a sandbox, with a predicate that says whether what came back shows it
contained. A snippet prints ESCAPED when it got somewhere and DENIED when it did not; one that is meant to be
killed or cut short says by `outcomes` what may become of it. The same list can be run against a `Sandbox`
directly, or through anything that serves one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from envtorch.sandbox import Outcome

from . import attacks_on_host, attacks_on_limits, attacks_on_processes, attacks_on_walls


class Seen(Protocol):
    """What an attack is judged by."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def stdout(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Target:
    """What there is to attack, outside the sandbox."""

    pid: int
    """The owner's process id."""
    secret_file: str
    """A file of the owner's that holds the secret."""
    port: int
    """A loopback port on which the owner listens."""
    socket_path: str
    """A unix socket on which the owner listens."""
    abstract_name: str
    """The same, abstract."""
    neighbour_home: str = "/home/agent"
    """Where the neighbour keeps its files; a neighbour with a private root has them at our own path."""
    mark: str = "left-behind"
    """What processes call themselves that are meant to stay when the sandbox has gone."""
    secret: str = "owner-secret-7f3a"
    """What must never appear in an answer. It is in the owner's environment, memory and files."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One thing an agent might try."""

    name: str
    group: str
    code: str
    contained: Callable[[Seen], bool]
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Contained when nothing escaped, no secret was seen, and the outcome is one of those expected."""

    secret: str
    outcomes: frozenset[Outcome] = field(default_factory=frozenset)

    def __call__(self, seen: Seen) -> bool:
        if "ESCAPED" in seen.stdout or self.secret in seen.stdout:
            return False
        if self.outcomes:
            return seen.outcome in self.outcomes
        return "DENIED" in seen.stdout  # it must have come to try: a snippet that fails early proves nothing


PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(function):
    try:
        result = function()
    except BaseException as error:
        print("DENIED", type(error).__name__, error)
    else:
        print("ESCAPED", repr(result)[:200])
def syscall(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
"""


def attacks(target: Target) -> list[Attack]:
    """Every attack, aimed at `target`."""
    found = []
    places = {
        "@PID@": str(target.pid),
        "@SECRET_FILE@": target.secret_file,
        "@PORT@": str(target.port),
        "@SOCKET@": target.socket_path,
        "@ABSTRACT@": target.abstract_name,
        "@NEIGHBOUR@": target.neighbour_home,
        "@MARK@": target.mark,
    }
    for module in (attacks_on_host, attacks_on_walls, attacks_on_limits, attacks_on_processes):
        for group, name, code, outcomes in module.SNIPPETS:
            for place, value in places.items():
                code = code.replace(place, value)
            expected = Expectation(target.secret, frozenset(outcomes))
            found.append(Attack(name, group, PRELUDE + code, expected))
    return found
