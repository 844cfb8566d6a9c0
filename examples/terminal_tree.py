"""Search a terminal task by forking at every command: twelve branches, and the best leaf solves it.

    python examples/terminal_tree.py

The "policy" is a list of things to try, some of them wrong: what a language model would sample. Every
command is tried in a fork of the session, so that each branch has files and a shell of its own; leaves are
graded, and the best one wins. Needs a machine that can have writable roots (`envtorch doctor`).
"""

from dataclasses import dataclass

from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalEnv

TASK = "clean-up-data"
READ = "import csv; rows = [[v.strip() for v in r] for r in list(csv.reader(open('people.csv')))[1:]]"
LEVELS = [
    [f"python3 - <<'E'\n{READ}\nE", "cp people.csv clean.csv"],
    ["lower=yes", "lower=no"],
    ["first=yes", "first=no", "first=maybe"],
]
WRITE = f"""python3 - "$lower" "$first" <<'E'
import sys
{READ}
lower, first = (word == 'yes' for word in sys.argv[1:])
kept = {{}}
for name, email, age in rows:
    email = email.lower() if lower else email
    parts = email.split('@')
    if len(parts) == 2 and all(parts) and age.isdigit() and int(age) <= 150 and not (first and email in kept):
        kept[email] = (name, email, age)
with open('clean.csv', 'w') as file:
    for row in [('name', 'email', 'age'), *(kept[email] for email in sorted(kept))]:
        print(*row, sep=',', file=file)
E"""


@dataclass
class Branch:
    """A session, and the commands that led to it."""

    env: TerminalEnv
    path: tuple[str, ...]


def grow(branch: Branch, commands: list[str]) -> list[Branch]:
    """A fork for each command, which is run there."""
    grown = []
    for copy, command in zip(branch.env.fork(len(commands)), commands, strict=True):
        copy.step(BashAction(command))
        grown.append(Branch(copy, (*branch.path, command.splitlines()[0][:24])))
    branch.env.close()
    return grown


def main() -> None:
    root = TerminalEnv.local()
    root.reset(task=TASK)
    leaves = [Branch(root, ())]
    for commands in LEVELS:
        leaves = [grown for branch in leaves for grown in grow(branch, commands)]
    scores = {}
    for leaf in leaves:
        with leaf.env as env:
            if not leaf.path[0].startswith("cp"):
                env.step(BashAction(WRITE))
            scores[leaf.path] = env.step(SubmitAction()).reward or 0.0
    for path, score in scores.items():
        print(f"{score:.0f}  {' / '.join(path)}")
    best = max(scores, key=lambda path: scores[path])
    print(f"\n{len(scores)} leaves; the best one scores {scores[best]:g}: {' / '.join(best)}")


if __name__ == "__main__":
    main()
