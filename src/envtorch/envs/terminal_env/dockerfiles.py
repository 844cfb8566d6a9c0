"""The part of the Dockerfile's language that task environments use, as a list of instructions."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envtorch.errors import ConfigurationError

__all__ = ["Instruction", "base_of", "environment_of", "read_dockerfile"]

KNOWN = ("FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER", "SHELL")
IGNORED = (
    "EXPOSE",
    "CMD",
    "ENTRYPOINT",
    "LABEL",
    "MAINTAINER",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "VOLUME",
)
"""They say nothing about the files of the image."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `words` are the arguments: those of RUN are one word for a shell, unless `is_exec`."""

    name: str
    words: tuple[str, ...]
    line: int
    flags: Mapping[str, str] = field(default_factory=dict)
    """Of COPY and ADD: `chown` and `chmod`."""
    is_exec: bool = False
    """RUN with a JSON list: a program and its arguments, and no shell."""


def base_of(text: str, where: str) -> str | None:
    """The image that a Dockerfile starts FROM."""
    found = [one for one in read_dockerfile(text, where) if one.name == "FROM"]
    return found[0].words[0] if found and found[0].words else None


def read_dockerfile(
    text: str, where: str, *, environment: Mapping[str, str] | None = None
) -> list[Instruction]:
    """The instructions of a Dockerfile. Raises `ConfigurationError` with the line of what is not supported.

    `environment` is what the image that it starts from sets.
    """
    found: list[Instruction] = []
    arguments: dict[str, str] = {}
    variables = dict(environment or {})
    for line, (name, rest) in _lines(text):
        if name in IGNORED:
            continue
        place = f"{where}, line {line}"
        if name not in KNOWN:
            raise _unsupported(place, f"{name} is not supported; these are: {', '.join(KNOWN)}")
        if name == "FROM" and any(one.name == "FROM" for one in found):
            raise _unsupported(place, "a second stage (FROM) is not supported")
        instruction = _read_one(name, rest, {**arguments, **variables}, line, place)
        if name == "ENV":
            variables |= environment_of(instruction)
        elif name == "ARG":
            arguments |= environment_of(instruction)
        found.append(instruction)
    return found


def _unsupported(place: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{place}: {what}. A container engine can build it: "
        "`envtorch rootfs from-dockerfile` with its directory"
    )


def _lines(text: str) -> list[tuple[int, tuple[str, str]]]:
    """Each instruction with the number of its first line; continued lines are joined."""
    found, pending, began = [], "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip().startswith("#") or (not pending and not raw.strip()):
            continue
        began = began or number
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1] + " "
            continue
        name, _, rest = (pending + raw).strip().partition(" ")
        found.append((began, (name.upper(), rest.strip())))
        pending, began = "", 0
    return found


def _read_one(name: str, rest: str, variables: Mapping[str, str], line: int, place: str) -> Instruction:
    if "<<" in rest and name in ("RUN", "COPY"):
        raise _unsupported(place, "a here-document is not supported")
    if name == "RUN":
        return _read_run(rest, line, place)
    words = _words(rest, place)
    flags: dict[str, str] = {}
    if name in ("COPY", "ADD", "FROM"):
        given = [word for word in words if word.startswith("--")]
        words = [word for word in words if not word.startswith("--")]
        allowed = ("--platform",) if name == "FROM" else ("--chown", "--chmod")
        for flag in given:
            key, _, value = flag.partition("=")
            if key not in allowed:
                raise _unsupported(place, f"{flag} is not supported")
            flags[key[2:]] = _expand(value, variables)
    if name in ("COPY", "ADD"):
        if len(words) < 2:
            raise ConfigurationError(f"{place}: {name} needs a source and a destination")
        if any(re.match(r"(https?|git|ftp)[:@]", word) for word in words[:-1]):
            raise _unsupported(place, f"{name} from an address is not supported: there is no network")
        if name == "ADD" and any(re.search(r"\.(tar|tgz|tar\.\w+)$", word) for word in words[:-1]):
            raise _unsupported(place, "ADD of an archive, which a builder would unpack, is not supported")
    elif not words:
        raise ConfigurationError(f"{place}: {name} needs an argument")
    return Instruction(name, tuple(_expand(word, variables) for word in words), line, flags)


def _words(rest: str, place: str) -> list[str]:
    try:
        found = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as error:
        raise ConfigurationError(f"{place}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ConfigurationError(f"{place}: a list of strings is expected, not {rest[:80]}")
    return found


def _read_run(rest: str, line: int, place: str) -> Instruction:
    """A cache mount only makes a builder faster; what other mounts bring would be missing."""
    command = rest
    while match := re.match(r"--(\S+)\s+", command):
        if not match[1].startswith(("mount=type=cache", "network=none", "network=default")):
            raise _unsupported(place, f"RUN --{match[1]} is not supported")
        command = command[match.end() :]
    if not command:
        raise ConfigurationError(f"{place}: RUN needs a command")
    if command.startswith("["):
        try:
            return Instruction("RUN", tuple(_words(command, place)), line, is_exec=True)
        except ConfigurationError:  # no JSON: a shell's own brackets, as a builder takes them
            pass
    return Instruction("RUN", (command,), line)


def _expand(word: str, variables: Mapping[str, str]) -> str:
    def value(match: "re.Match[str]") -> str:
        return variables.get(match[1] or match[2]) or match[3] or ""

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", value, word)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """`NAME=value ...`, or the older `NAME value`."""
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def environment_of(instruction: Instruction) -> dict[str, str]:
    """The variables that an ENV or ARG sets."""
    return _pairs(instruction.words)
