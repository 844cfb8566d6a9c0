"""Which files that an agent added would hook into the programs of a verifier. No I/O.

A file that the image has is seen as it was. An addition is seen, since tests may need what an agent
installed, unless a program of the image would run or read it unasked: because of its name, or because it
shadows a program or a module of the image. A list of names is never complete:
`docs/guides/terminal-tasks.md` says what is left.
"""

import posixpath
import re
import sys
from collections.abc import Collection, Iterator, Sequence

__all__ = ["find_hooks", "shadowed_paths"]

_PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MODULES = re.compile(r"(?:/.*)?/lib(?:64)?/python3(?:\.\d+)?(?:/(?:dist|site)-packages)?/(?P<top>[^/]+)")
_NAMES = re.compile(
    r"/(sitecustomize|usercustomize)(\.py|\.pyc|/.*|\.so|\..*\.so)?$"
    r"|\._?pth$"
    r"|/python\d+\.zip$"
    r"|/apport_python_hook(\.py|\.pyc|/.*|\.so|\..*\.so)?$"
    r"|/(conftest\.py|pytest\.ini|\.pytest\.ini|tox\.ini|setup\.cfg|pyvenv\.cfg)$"
    r"|/\.(bashrc|bash_profile|bash_login|profile|inputrc|pdbrc|pythonrc\.py|gitconfig|curlrc|wgetrc|npmrc)$"
)
_PATHS = (
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
    "/etc/environment",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/bash.bashrc",
    "/etc/pip.conf",
    "/etc/gitconfig",
    "/etc/pytest.ini",
    "/root/.config",
    "/root/.pip",
    "/root/.local",
    "/lib64/ld-linux-x86-64.so.2",
)
_LIBRARIES = re.compile(r"^/(usr/)?(local/)?lib(64)?/(?:[^/]+/)?(?P<name>[^/]+\.so(\.[\d.]+)?)$")
_LIBRARY_FOLDERS = ("/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64")
_ARCHITECTURES = ("x86_64-linux-gnu", "aarch64-linux-gnu")


def shadowed_paths(path: str) -> Iterator[str]:
    """Paths that, if the image has any of them, an addition at `path` would stand in for."""
    folder, name = posixpath.split(path)
    if folder in _PROGRAMS:
        yield from (f"{other}/{name}" for other in _PROGRAMS if other != folder)
    if (library := _LIBRARIES.match(path)) is not None:
        for other in _LIBRARY_FOLDERS:
            yield f"{other}/{library['name']}"
            yield from (f"{other}/{machine}/{library['name']}" for machine in _ARCHITECTURES)
    if (module := _MODULES.match(path)) is not None:
        yield from _module_paths(module["top"])


def _module_paths(top: str) -> Iterator[str]:
    stem = top.split(".")[0]
    for folder in ("/usr/lib/python3/dist-packages", *_package_folders()):
        yield f"{folder}/{stem}"
        yield f"{folder}/{stem}.py"


def _package_folders() -> Iterator[str]:
    for minor in range(8, 16):
        for base in ("/usr/lib", "/usr/local/lib"):
            yield f"{base}/python3.{minor}"
            yield f"{base}/python3.{minor}/dist-packages"
            yield f"{base}/python3.{minor}/site-packages"


def find_hooks(added: Sequence[str], in_image: Collection[str]) -> list[str]:
    """Those of some additions that are hidden; `in_image` are paths that the image has."""
    return [path for path in added if _hooks_by_name(path) or _shadows(path, in_image)]


def _hooks_by_name(path: str) -> bool:
    if _NAMES.search(path):
        return True
    return any(path == hook or path.startswith(f"{hook}/") for hook in _PATHS)


def _shadows(path: str, in_image: Collection[str]) -> bool:
    module = _MODULES.match(path)
    if module is not None and module["top"].split(".")[0] in sys.stdlib_module_names:
        return True
    return any(other in in_image for other in shadowed_paths(path))
