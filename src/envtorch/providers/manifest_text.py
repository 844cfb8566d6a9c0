"""Manifests as YAML, in which every reader takes a text for a text."""

import re
from collections.abc import Iterable
from typing import Any

import yaml

__all__ = ["manifest_text", "manifests_text"]


def manifest_text(manifest: Any) -> str:
    """One document. Keys keep their order, and texts of several lines are written as such."""
    return manifests_text([manifest])


def manifests_text(manifests: Iterable[Any]) -> str:
    """Several documents in one file."""
    written: str = yaml.dump_all(manifests, Dumper=ManifestDumper, sort_keys=False, width=float("inf"))
    return written


class ManifestDumper(yaml.SafeDumper):
    """PyYAML's own, which also quotes texts that only others, as `kubectl`, take for numbers or booleans."""

    def ignore_aliases(self, data: Any) -> bool:
        """Values that stand twice are written twice: people read manifests."""
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


ManifestDumper.add_representer(str, ManifestDumper.represent_text)
ManifestDumper.add_implicit_resolver(  # `1e3` and `0129`, which are numbers in Go
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\.?[0-9]"), list("-+.0123456789")
)
ManifestDumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
