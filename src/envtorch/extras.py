"""How an extra is installed, for the errors and reports that miss one."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit

from envtorch.errors import MissingExtra

__all__ = ["install_command", "missing_extra"]


def missing_extra(extra: str, what: str) -> MissingExtra:
    """The error for a package that is not installed: `what` needs it, and the message says how to get it."""
    return MissingExtra(f"{what}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that adds an extra to EnvTorch as it was installed: from a directory, a URL or an index."""
    origin = _origin()
    url, directory = origin.get("url", ""), origin.get("dir_info")
    if directory is not None:
        place = unquote(urlsplit(url).path)
        return f"pip install {'--editable ' if directory.get('editable') else ''}'{place}[{extra}]'"
    if "vcs_info" in origin:
        version = origin["vcs_info"]
        return f"pip install 'envtorch[{extra}] @ {version['vcs']}+{url}@{version['commit_id']}'"
    return f"pip install 'envtorch[{extra}]{f' @ {url}' if url else ''}'"


def _origin() -> dict[str, Any]:
    """What the installer noted of where EnvTorch came from; empty for an index, or where it noted nothing."""
    try:
        noted = distribution("envtorch").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    return dict(json.loads(noted)) if noted else {}
