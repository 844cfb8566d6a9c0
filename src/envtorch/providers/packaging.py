"""The EnvTorch that is running, as a wheel: for images, and for machines without an index."""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

__all__ = ["files_below", "make_wheel", "requirements", "wheel_name"]

DISTRIBUTION = "envtorch"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip file can tell: files carry no other, or no build would be like the last."""

LEFT_BY_TOOLS = frozenset(
    {"__pycache__", ".git", ".venv", ".wheels", ".mypy_cache", ".pytest_cache", ".ruff_cache", "recordings"}
)
"""Directories that are in no wheel, no image and no Space."""


def requirements() -> list[str]:
    """What EnvTorch needs, extras left out."""
    return sorted(line for line in metadata.requires(DISTRIBUTION) or () if "extra ==" not in line)


def wheel_name() -> str:
    return f"{DISTRIBUTION}-{metadata.version(DISTRIBUTION)}-py3-none-any.whl"


def make_wheel() -> bytes:
    """A wheel of the package that is running."""
    information = f"{DISTRIBUTION}-{metadata.version(DISTRIBUTION)}.dist-info"
    distribution = metadata.distribution(DISTRIBUTION)
    package = Path(str(resources.files(DISTRIBUTION)))
    files = {f"{DISTRIBUTION}/{name}": content for name, content in files_below(package)}
    for name in ("METADATA", "entry_points.txt"):
        files[f"{information}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{information}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: envtorch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(member, content)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def files_below(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, by its path from here, without what tools leave lying about."""
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if path.is_file() and LEFT_BY_TOOLS.isdisjoint(parts):
            yield "/".join(parts), path.read_bytes()
