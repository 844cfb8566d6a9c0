"""What the sources of an image say of it, read as text: its Dockerfile, its `openenv.yaml`."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

__all__ = ["command_in", "missing_sources", "top_level_fields", "without_mounts"]

_FIELD = re.compile(r"""^(\w+)\s*:\s*["']?([^"'#]*?)["']?\s*(?:#.*)?$""")
_RUN = re.compile(r"\s*RUN\s", re.IGNORECASE)
_FLAGS = re.compile(r"(?P<head>\s*(?:RUN\s+)?)(?P<flags>(?:--[a-z]+=\S+\s+)*)(?P<rest>.*)", re.IGNORECASE)


def top_level_fields(manifest: str) -> dict[str, str]:
    """The fields of a manifest that are one line each. What cannot be understood is left out.

    Manifests in the wild hold anything, and some are not even YAML; a full parser would refuse them.
    """
    found = (_FIELD.match(line) for line in manifest.splitlines())
    return {match[1]: match[2].strip() for match in found if match and match[2].strip()}


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
