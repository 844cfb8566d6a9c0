"""Lays out the repositories of a corpus at their commits, for `corpus.py` to serve.

    python tests/compat/checkouts.py corpus.json CHECKOUTS [--source "https://github.com/{owner}/{name}"]

    python tests/compat/checkouts.py --packages corpus.json    tells what the environments need of pip

`--source` may be a local copy. Files whose content a copy lacks (videos, mostly) are left out, and counted.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path, PurePosixPath

FOLDERS = {"huggingface/OpenEnv": "upstream"}
"""Where a repository goes, if not to `owner+name`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("--source", default="https://github.com/{owner}/{name}")
    parser.add_argument("--packages", action="store_true")
    options = parser.parse_args()
    if options.packages:
        wanted = {package for entry in json.loads(options.corpus.read_text()) for package in entry["pip"]}
        print("\n".join(sorted(wanted)))
        return
    for repo, commit in sorted(
        {(entry["repo"], entry["commit"]) for entry in json.loads(options.corpus.read_text())}
    ):
        owner, name = repo.split("/")
        target = options.checkouts / FOLDERS.get(repo, f"{owner}+{name}")
        if target.exists():
            print(f"{target}: there already")
            continue
        written, missing = lay_out(options.source.format(owner=owner, name=name), commit, target)
        print(f"{target}: {written} files" + (f", {missing} left out" if missing else ""))


def lay_out(source: str, commit: str, target: Path) -> tuple[int, int]:
    """Write the files of one commit; how many were written, and how many the source does not hold."""
    if Path(source).is_dir():
        return write_tree(source, commit, target)
    with tempfile.TemporaryDirectory() as clone:
        subprocess.run(["git", "clone", "--quiet", "--bare", source, clone], check=True)
        return write_tree(clone, commit, target)


def write_tree(repository: str, commit: str, target: Path) -> tuple[int, int]:
    listing = git(repository, "ls-tree", "-r", "-z", commit).decode()
    written = missing = 0
    for line in filter(None, listing.split("\0")):
        (mode, kind, blob), path = line.partition("\t")[0].split(), line.partition("\t")[2]
        # OpenEnv's own sources stay out: many of its tests would import them instead of the alias.
        if kind != "blob" or mode == "120000" or PurePosixPath(path).parts[:2] == ("src", "openenv"):
            continue
        shown = subprocess.run(["git", "-C", repository, "cat-file", "blob", blob], capture_output=True)
        if shown.returncode:
            missing += 1
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(shown.stdout)
        if mode == "100755":
            (target / path).chmod(0o755)
        written += 1
    return written, missing


def git(repository: str, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", repository, *arguments], check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
