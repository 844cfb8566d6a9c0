"""The frameworks that `make test-train` installs. Add a row here and a file `test_NAME.py` beside it."""

from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "TORCH", "Framework"]

TORCH = "torch==2.13.0"
"""Installed before all else: a package that only asks for `torch` may bring a build for another machine."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One virtual environment, `.venvs/train-NAME`, in which `tests/train/test_NAME.py` is run, and the files
    of its `further` subjects, `tests/train/test_NAME_SUBJECT.py`."""

    name: str
    distribution: str
    """The package whose version the table shows."""
    packages: tuple[str, ...]
    """What is installed beside EnvTorch and pytest."""
    example: str
    """The program in `examples` that shows it."""
    page: str
    """The page in `docs/train` that tells of it."""
    needs_torch: bool = True
    oldest_python: tuple[int, int] = (3, 11)
    further: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        return (TORCH, *self.packages) if self.needs_torch else self.packages

    @property
    def tests(self) -> tuple[str, ...]:
        names = (self.name, *(f"{self.name}_{subject}" for subject in self.further))
        return tuple(f"tests/train/test_{name}.py" for name in names)


FRAMEWORKS = (
    Framework(
        "trl",
        "trl",
        ("transformers>=5.13", "trl==1.16.0", "requests", "aiohttp", "matplotlib>=3.10", "tensorboard"),
        example="train_grpo",
        page="trl",
        further=("worker", "environments"),
    ),
    Framework(
        "verifiers",
        "verifiers",
        ("verifiers==0.4.0",),
        example="verifiers_evaluation",
        page="verifiers",
        needs_torch=False,
    ),
    Framework(
        "gymnasium",
        "gymnasium",
        ("gymnasium==1.4.0",),
        example="gymnasium_learning",
        page="gymnasium",
        needs_torch=False,
    ),
    Framework("rllib", "ray", ("ray[rllib]==2.60.0", "gymnasium"), example="rllib_ppo", page="gymnasium"),
    Framework(
        "torchrl",
        "torchrl",
        ("torchrl==0.14.1", "gymnasium"),
        example="torchrl_collector",
        page="gymnasium",
    ),
    Framework(
        "inspect",
        "inspect-ai",
        ("inspect-ai==0.3.285",),
        example="inspect_evaluation",
        page="inspect",
        needs_torch=False,
    ),
    Framework(
        "skyrl",
        "skyrl",
        ("skyrl==0.3.0", "skyrl-gym==0.4.0", "loguru", "aiohttp", "omegaconf", "hydra-core", "ray"),
        example="skyrl_groups",
        page="skyrl",
        oldest_python=(3, 12),
    ),
    Framework("verl", "verl", ("verl==0.9.1", "cachetools"), example="verl_agent_loop", page="verl"),
    Framework(
        "tinker", "tinker-cookbook", ("tinker-cookbook==0.5.8",), example="tinker_groups", page="tinker"
    ),
    Framework(
        "ors", "openreward", ("openreward==0.1.167",), example="ors_session", page="ors", needs_torch=False
    ),
)
