"""`python -m envtorch.compat script.py ...`: run a script, or `-m module`, on EnvTorch."""

import runpy
import sys
from pathlib import Path

from envtorch.compat import activate


def main() -> None:
    arguments = sys.argv[1:]
    force = arguments[:1] == ["--force"]
    arguments = arguments[1:] if force else arguments
    if not arguments or (arguments[0] == "-m" and len(arguments) == 1):
        sys.exit("usage: python -m envtorch.compat [--force] (script.py | -m module) [argument ...]")
    activate(force=force)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
