"""OpenEnv's import names, served by EnvTorch: code written for OpenEnv runs unmodified.

import envtorch.compat.openenv          # from here on `openenv`, `openenv_core` and `core` are ours
python -m envtorch.compat script.py     # the same, for a whole script
"""

import sys
from importlib.machinery import PathFinder

from envtorch.compat.finder import AliasFinder, AliasModule
from envtorch.compat.table import take_what_any_release_took

__all__ = ["activate", "activate_for_serving", "deactivate", "is_active"]

_installed: list[AliasFinder] = []


def is_active() -> bool:
    """Whether the old names lead to us."""
    return bool(_installed)


def activate(*, force: bool = False) -> bool:
    """Serve OpenEnv's names from EnvTorch; say whether they are now.

    Where the real package is installed it keeps its names, unless `force` is given. A module called
    `core` of somebody else's is always left alone.
    """
    if _installed:
        return True
    if not force and (_is_real("openenv") or "openenv" in sys.modules):
        return False
    ours = AliasFinder({"openenv", "openenv_core"})
    early = AliasFinder({"core"})
    # In front: a mere folder called `openenv` on the path would else pass for the package.
    sys.meta_path.insert(0, ours)
    sys.meta_path.append(early)
    _installed.extend((ours, early))
    return True


def activate_for_serving() -> bool:
    """`activate`, with server names that take what any release of OpenEnv took: `envtorch serve` uses it."""
    take_what_any_release_took()
    return activate()


def deactivate() -> None:
    """Give the names back. What was imported meanwhile stays usable."""
    for finder in _installed:
        sys.meta_path.remove(finder)
    _installed.clear()
    for name in [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]:
        del sys.modules[name]


def _is_real(package: str) -> bool:
    spec = PathFinder.find_spec(package)
    return spec is not None and spec.origin is not None
