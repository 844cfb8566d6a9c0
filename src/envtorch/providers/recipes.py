"""What the sources of an image say of it: its Dockerfile, its `openenv.yaml`."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from envtorch.errors import ConfigurationError

__all__ = ["command_in", "missing_sources", "top_level_fields", "without_mounts"]

_RUN = re.compile(r"\s*RUN\s", re.IGNORECASE)
_FLAGS = re.compile(r"(?P<head>\s*(?:RUN\s+)?)(?P<flags>(?:--[a-z]+=\S+\s+)*)(?P<rest>.*)", re.IGNORECASE)


def top_level_fields(manifest: str, *, place: str) -> dict[str, str]:
    """The fields of a manifest that have one value, as texts: what is below others is left out.

    Raises `ConfigurationError` when the text is not YAML; `place` is where it was read.
    """
    try:
        # Makes texts, lists and dictionaries only: `version: 0.10` stays what its author wrote.
        read = yaml.load(manifest, Loader=yaml.BaseLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{place} is not YAML: {_problem(error)}",
            next_step="put values with a colon, a quote or a number sign in them between quotes",
        ) from error
    fields = read.items() if isinstance(read, dict) else ()
    return {name: value.strip() for name, value in fields if isinstance(value, str) and value.strip()}


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', '')}"
    return str(error).partition("\n")[0]


def command_in(dockerfile: str) -> str | None:
    """The command of the last `CMD`, as a shell takes it; None if there is none."""
    command = None
    for name, rest in _instructions(dockerfile):
        if name == "CMD":
            command = rest
    if not command:
        return None
    try:
        words = json.loads(command)
    except ValueError:
        return command  # the shell form, which needs no translation
    return shlex.join(str(word) for word in words) if isinstance(words, list) else command


def missing_sources(dockerfile: str, context: Path) -> list[str]:
    """What is copied into the image and is not in the directory it is built from."""
    missing = []
    for name, rest in _instructions(dockerfile):
        if name not in ("COPY", "ADD") or rest.startswith("[") or "--from=" in rest:
            continue
        words = [word for word in rest.split() if not word.startswith("--")]
        for source in words[:-1]:
            if not ("://" in source or "$" in source or _is_in(context, source)):
                missing.append(source)
    return missing


def _is_in(context: Path, source: str) -> bool:
    relative = source.removeprefix("./").strip("/")
    return relative in ("", ".") or any(context.glob(relative))


def without_mounts(dockerfile: str) -> str:
    """The same without `RUN --mount=...`, which only BuildKit understands. Mounts are caches, mostly."""
    lines = []
    in_flags = continued = False
    for line in dockerfile.splitlines(keepends=True):
        if not continued:
            in_flags = _RUN.match(line) is not None
        continued = line.rstrip().endswith("\\")
        if in_flags and (parts := _FLAGS.match(line)):
            kept = re.sub(r"--mount=\S+\s+", "", parts["flags"], flags=re.IGNORECASE)
            ending = line[parts.end() :]
            in_flags = parts["rest"].strip() in ("", "\\")
            line = f"{parts['head']}{kept}{parts['rest']}{ending}"
        lines.append(line)
    return "".join(lines)


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Each instruction's name, in capitals, and the rest of it, with continued lines joined."""
    lines = (line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\s*\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), rest.strip()
