"""Import this first, and `openenv`, `openenv_core` and the early `core` are served by EnvTorch."""

from envtorch.compat import activate

__all__: list[str] = []

activate()
