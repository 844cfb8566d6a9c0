"""A real terminal for the tests: tmux, its screen captured as a person would see it."""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from tests.support import PATIENCE_S

SCREENS = Path(os.environ.get("ENVTORCH_SCREENS", "")) if os.environ.get("ENVTORCH_SCREENS") else None
"""Where captured screens are kept for people to look at, if anywhere."""


class Terminal:
    """A program on a screen of its own."""

    def __init__(self, command: Sequence[str], *, cwd: Path, columns: int = 110, rows: int = 34) -> None:
        self._name = f"envtorch-test-{uuid4().hex[:8]}"
        size = ["-x", str(columns), "-y", str(rows)]
        line = f"env -u COLUMNS -u LINES {shlex.join(command)}; echo exited with $?; sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", *size, "-c", str(cwd), line)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return done.stdout

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: `F5`, `Enter`, `Down`, `C-q`; anything else is typed as it is."""
        self._tmux("send-keys", *keys)

    def write(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def wait_for(self, *wanted: str, timeout_s: float = PATIENCE_S) -> str:
        """The screen, when everything that is wanted stands on it."""
        deadline = time.monotonic() + timeout_s
        while True:
            screen = self.screen
            if all(text in screen for text in wanted):
                return screen
            assert time.monotonic() < deadline, f"never on the screen: {wanted}\n{screen}"
            time.sleep(0.05)

    def keep(self, name: str) -> str:
        """The screen as it is now, kept for people to look at where they asked for it."""
        screen = self.screen
        if SCREENS is not None:
            SCREENS.mkdir(parents=True, exist_ok=True)
            (SCREENS / f"{name}.txt").write_text(screen)
        return screen

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tmux("kill-server")


@contextmanager
def terminal(command: Sequence[str], *, cwd: Path) -> Iterator[Terminal]:
    with Terminal(command, cwd=cwd) as opened:
        yield opened
