"""What `import openenv` gives besides its modules."""

from importlib import metadata

__all__ = ["__version__"]

SPOKEN = "0.10.0"
"""The version whose interface and wire are served here."""

__version__ = SPOKEN


def _load_package_version() -> str:
    """The version of the installed distribution, under either of its names."""
    for distribution in ("openenv", "openenv-core"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "0.0.0"
