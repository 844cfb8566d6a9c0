"""The frameworks that `make test-train` installs. Add a row here and a file `test_NAME.py` beside it."""

from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "TORCH", "Framework"]

TORCH = "torch==2.13.0"
"""Installed before all else: a package that only asks for `torch` may bring a build for another machine."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One virtual environment, `.venvs/train-NAME`, in which `tests/train/test_NAME.py` is run."""

    name: str
    distribution: str
    """The package whose version the table shows."""
    packages: tuple[str, ...]
    """What is installed beside EnvTorch and pytest."""
    needs_torch: bool = True
    oldest_python: tuple[int, int] = (3, 11)

    @property
    def requirements(self) -> tuple[str, ...]:
        return (TORCH, *self.packages) if self.needs_torch else self.packages


FRAMEWORKS = (
    Framework("trl", "trl", ("transformers>=5.13", "trl==1.16.0", "requests", "matplotlib>=3.10")),
    Framework("gymnasium", "gymnasium", ("gymnasium==1.4.0",), needs_torch=False),
    Framework("rllib", "ray", ("ray[rllib]==2.60.0", "gymnasium")),
    Framework("inspect", "inspect-ai", ("inspect-ai==0.3.285",), needs_torch=False),
    Framework("verifiers", "verifiers", ("verifiers==0.4.0",), needs_torch=False),
    Framework("ors", "openreward", ("openreward==0.1.167",), needs_torch=False),
    Framework("tinker", "tinker-cookbook", ("tinker-cookbook==0.5.8",)),
    Framework("verl", "verl", ("verl==0.9.1", "cachetools")),
    Framework(
        "skyrl",
        "skyrl",
        ("skyrl==0.3.0", "skyrl-gym==0.4.0", "loguru", "aiohttp", "omegaconf", "hydra-core", "ray"),
    ),
    Framework("torchrl", "torchrl", ("torchrl==0.14.1", "gymnasium")),
)
