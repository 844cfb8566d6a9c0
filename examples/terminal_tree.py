"""Search a terminal task by forking at every command: twelve branches, and the best leaf solves it.

    python examples/terminal_tree.py [terminal_tree.svg]

The "policy" is a list of things to try, some of them wrong: what a language model would sample. Every
command runs in a fork of the session, so that each branch has files and a shell of its own. The leaves are
graded, the best one wins, and the tree is drawn. Needs a machine that can have writable roots
(`envtorch doctor`).
"""

import html
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalEnv

TASK = "clean-up-data"
FIELDS = "awk -F, -v OFS=,"
TRIES = [
    {
        "strip spaces": r"tail -n +2 people.csv | sed 's/^ *//; s/ *$//; s/ *, */,/g' > rows",
        "keep spaces": "tail -n +2 people.csv > rows",
    },
    {
        "lower case": f"{FIELDS} '{{ $2 = tolower($2); print }}' rows > cased",
        "case as it is": "cp rows cased",
    },
    {
        "first of an email": f"{FIELDS} '!seen[$2]++' cased > kept",
        "last of an email": f"tac cased | {FIELDS} '!seen[$2]++' > kept",
        "all of an email": "cp cased kept",
    },
]
"""What is tried at each level: the name of a command in the picture, and the command."""
FINISH = rf"""(echo name,email,age
{FIELDS} '$2 ~ /^[^@]+@[^@]+$/ && $3 ~ /^ *[0-9]+ *$/ && $3 + 0 <= 150' kept | sort -t, -k2,2) > clean.csv"""


@dataclass
class Node:
    """A session after a command. Its session is closed once it has been forked or graded."""

    env: TerminalEnv
    name: str
    children: "list[Node]" = field(default_factory=list)
    reward: float = 0.0
    """The best reward of the leaves below."""
    fork_s: float = 0.0

    def walk(self) -> "Iterator[Node]":
        yield self
        for child in self.children:
            yield from child.walk()

    def best_path(self) -> "list[Node]":
        if not self.children:
            return [self]
        return [self, *max(self.children, key=lambda child: child.reward).best_path()]


def search(node: Node, levels: list[dict[str, str]]) -> None:
    """Try each command of the first level in a fork of the node's session, and go on from there."""
    if not levels:
        node.env.step(BashAction(FINISH))
        node.reward = node.env.step(SubmitAction()).reward or 0.0
        node.env.close()
        return
    tries, *rest = levels
    began = time.perf_counter()
    copies = node.env.fork(len(tries))
    node.fork_s = (time.perf_counter() - began) / len(tries)
    node.env.close()
    for copy, (name, command) in zip(copies, tries.items(), strict=True):
        child = Node(copy, name)
        node.children.append(child)
        child.env.step(BashAction(command))
        search(child, rest)
    node.reward = max(child.reward for child in node.children)


ROW, COLUMN, RADIUS, MARGIN = 34, 200, 7, 28
STYLE = """svg { background: #ffffff }
text { font: 13px sans-serif; fill: #333333; paint-order: stroke; stroke: #ffffff; stroke-width: 5 }
path { fill: none; stroke: #c4c4c4; stroke-width: 1.5 } path.best { stroke: #2a7d46; stroke-width: 3 }
circle { fill: #ffffff; stroke: #8a8a8a; stroke-width: 1.5 } circle.best { fill: #2a7d46; stroke: #2a7d46 }
.best { font-weight: bold }"""


def draw(root: Node) -> str:
    """The tree as an SVG picture: one row for each leaf, and the path to the best one marked."""
    best = {id(node) for node in root.best_path()}
    leaves = [node for node in root.walk() if not node.children]
    rows = {id(leaf): MARGIN + 24 + ROW * number for number, leaf in enumerate(leaves)}
    lines: list[str] = []
    dots: list[str] = []

    def place(node: Node, depth: int) -> tuple[float, float]:
        x = MARGIN + COLUMN * depth
        below = [(place(child, depth + 1), child) for child in node.children]
        y = rows[id(node)] if not below else sum(at[1] for at, _ in below) / len(below)
        for (to_x, to_y), child in below:
            mark = ' class="best"' if id(child) in best else ""
            middle = (x + to_x) / 2
            lines.append(f'<path{mark} d="M{x} {y} C{middle} {y} {middle} {to_y} {to_x} {to_y}"/>')
        mark = ' class="best"' if id(node) in best else ""
        dots.append(f'<circle{mark} cx="{x}" cy="{y}" r="{RADIUS}"/>')
        told = node.name if node.children else f"{node.name}: {node.reward:g}"
        dots.append(f'<text{mark} x="{x + 12}" y="{y - 10}">{html.escape(told)}</text>')
        return x, y

    place(root, 0)
    width, height = MARGIN + COLUMN * len(TRIES) + 180, MARGIN + 24 + ROW * len(leaves)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n<style>{STYLE}</style>'
    )
    told = f"{TASK}: a fork at every command, {len(leaves)} branches, reward of each"
    return "\n".join([head, f'<text x="{MARGIN}" y="20">{told}</text>', *lines, *dots, "</svg>\n"])


def main() -> None:
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "terminal_tree.svg")
    root = Node(TerminalEnv.local(), "reset")
    root.env.reset(task=TASK)
    search(root, TRIES)
    nodes = list(root.walk())
    forks = [node.fork_s for node in nodes if node.children]
    leaves = [node for node in nodes if not node.children]
    picture.write_text(draw(root))
    print(f"{len(nodes) - 1} forks of {statistics.median(forks) * 1000:.0f} ms each; drawn in {picture}")
    path = " / ".join(node.name for node in root.best_path()[1:])
    print(f"{len(leaves)} leaves; the best one scores {root.reward:g}: {path}")


if __name__ == "__main__":
    main()
