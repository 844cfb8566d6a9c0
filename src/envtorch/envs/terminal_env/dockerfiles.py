"""The part of the Dockerfile's language that task environments use, as a list of instructions."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envtorch.errors import ConfigurationError

__all__ = ["Instruction", "read_dockerfile"]

KNOWN = ("FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER")
IGNORED = (
    "EXPOSE",
    "CMD",
    "ENTRYPOINT",
    "LABEL",
    "MAINTAINER",
    "SHELL",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "VOLUME",
)
"""They say nothing about the files of the image."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `words` are the arguments; those of RUN are one word, as a shell reads it."""

    name: str
    words: tuple[str, ...]
    line: int


def read_dockerfile(text: str, where: str) -> list[Instruction]:
    """The instructions of a Dockerfile. Raises `ConfigurationError` with the line of what is not
    supported."""
    found: list[Instruction] = []
    variables: dict[str, str] = {}
    for line, (name, rest) in _lines(text):
        if name in IGNORED:
            continue
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise ConfigurationError(f"{where}, line {line}: {name} is not supported; these are: {known}")
        if name == "FROM" and any(one.name == "FROM" for one in found):
            raise ConfigurationError(f"{where}, line {line}: a second stage (FROM) is not supported")
        words = _words(name, rest, variables, f"{where}, line {line}")
        if name in ("ENV", "ARG"):
            variables |= _pairs(words)
        found.append(Instruction(name, words, line))
    return found


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


def _words(name: str, rest: str, variables: Mapping[str, str], where: str) -> tuple[str, ...]:
    if "<<" in rest and name in ("RUN", "COPY"):
        raise ConfigurationError(f"{where}: a here-document is not supported: put the text into a file")
    if name == "RUN":
        return (_run_command(rest),)
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if name in ("COPY", "ADD"):
        flags = [word for word in words if word.startswith("--")]
        if flags := [flag for flag in flags if not flag.startswith(("--chmod", "--chown"))]:
            raise ConfigurationError(f"{where}: {flags[0]} is not supported")
        words = [word for word in words if not word.startswith("--")]
        if len(words) < 2:
            raise ConfigurationError(f"{where}: {name} needs a source and a destination")
        if any(re.match(r"(https?|git|ftp)[:@]", word) for word in words[:-1]):
            raise ConfigurationError(f"{where}: {name} from an address is not supported: there is no network")
    return tuple(_expand(word, variables) for word in words)


def _run_command(rest: str) -> str:
    """The exec form becomes a quoted command; mounts of builders are left out."""
    if rest.startswith("["):
        try:
            return shlex.join(json.loads(rest))
        except (ValueError, TypeError):
            return rest
    return re.sub(r"^(--\S+\s+)+", "", rest)


def _expand(word: str, variables: Mapping[str, str]) -> str:
    def value(match: "re.Match[str]") -> str:
        return variables.get(match[1] or match[2], match[3] or "")

    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", value, word)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """`NAME=value ...`, or the older `NAME value`."""
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def environment_of(instruction: Instruction) -> dict[str, str]:
    """The variables that an ENV or ARG sets."""
    return _pairs(instruction.words)
