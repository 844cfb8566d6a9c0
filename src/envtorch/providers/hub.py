"""Where a Hugging Face Space is: its image and its sources."""

import re
from dataclasses import dataclass

from envtorch.errors import ConfigurationError

__all__ = ["Space"]

HOST = "huggingface.co"
REGISTRY = "registry.hf.space"


@dataclass(frozen=True, slots=True)
class Space:
    """One Space, named as on the hub: `"owner/name"`."""

    repo_id: str
    revision: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repo_id, flags=re.ASCII):
            raise ConfigurationError(f"{self.repo_id!r} is no Space: write it as 'owner/name'")
        if self.revision is not None and not re.fullmatch(r"[\w./-]+", self.revision, flags=re.ASCII):
            raise ConfigurationError(f"{self.revision!r} cannot be a revision of a Space")

    @property
    def subdomain(self) -> str:
        """The Space's name where only letters, digits and dashes may stand."""
        return re.sub(r"[^a-z0-9]", "-", self.repo_id.lower())

    @property
    def image(self) -> str:
        return f"{REGISTRY}/{self.subdomain}:{self.revision or 'latest'}"

    @property
    def repository(self) -> str:
        """The address of the sources, as uv and pip write it."""
        address = f"git+https://{HOST}/spaces/{self.repo_id}"
        return f"{address}@{self.revision}" if self.revision else address
