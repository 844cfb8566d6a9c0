"""How the zygote comes to be: our modules are imported twice, the second time side by side.

The first time, all that they import is made, and they lie wherever there is room between it. Then they are
let go, the gaps in the heap are filled, and they are made again from the code that is known by now: what the
sandboxes use of ours then lies on few pages.
"""

import marshal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

clear_type_cache = getattr(sys, "_clear_type_cache", lambda: None)
_PACKAGE = __package__ or "guest"


class Again(SourceFileLoader):
    """Loads a module of ours, from its file the first time."""

    known: dict[str, bytes] = {}

    def get_code(self, name: str) -> CodeType | None:
        if name not in self.known:
            self.known[name] = marshal.dumps(super().get_code(name))
        code: CodeType | None = marshal.loads(self.known[name])  # noqa: S302  our own, of a moment ago
        return code


class Finder:
    """Has our modules loaded by `Again`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith(f"{_PACKAGE}."):
            return None
        file = f"{path[0]}/{name.rpartition('.')[2]}.py"
        return spec_from_file_location(name, file, loader=Again(name, file))


def main(descriptor: int) -> None:
    """Read the settings and preload, then be the zygote until the owner goes away."""
    sys.meta_path.insert(0, Finder)
    settings = import_module(f"{_PACKAGE}.zygote").prepare(descriptor)
    if settings is None:
        return
    package = sys.modules[_PACKAGE]
    for name in [name for name in sys.modules if name.startswith(f"{_PACKAGE}.") and name != __name__]:
        delattr(package, name.rpartition(".")[2])
        del sys.modules[name]
    clear_type_cache()  # it holds names
    import_module(f"{_PACKAGE}.settling").fill_holes()
    zygote = import_module(f"{_PACKAGE}.zygote")
    sys.meta_path.remove(Finder)
    Again.known.clear()
    zygote.main(descriptor, settings)
