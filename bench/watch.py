"""What else the machine did while we measured: load, and time stolen by other machines."""

import os
import threading
from types import TracebackType
from typing import Self

from bench.proc import machine_time

EVERY_S = 2.0


class Watch:
    """Reads the load average now and then, from beginning to end of a run."""

    def __init__(self) -> None:
        self._loads: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.told = ""

    def __enter__(self) -> Self:
        self._before = machine_time()
        self._thread.start()
        return self

    def _look(self) -> None:
        while True:
            self._loads.append(os.getloadavg()[0])
            if self._over.wait(EVERY_S):
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        busy, stolen = machine_time().share_since(self._before)
        self.told = (
            f"{len(os.sched_getaffinity(0))} cores, {busy:.0%} busy and {stolen:.1%} stolen over the run; "
            f"load average {min(self._loads):.1f} to {max(self._loads):.1f} "
            "(about 2 is the bench itself; more is company)"
        )
