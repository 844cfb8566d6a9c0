"""What the project promised of its speed, and whether the records bear it out. No I/O."""

from dataclasses import dataclass

from bench.records import Failed, Records
from bench.tables import markdown, times

TOO_BUSY = 0.1
"""The share of time that a caller may have to wait for its core before times by the clock tell nothing."""


@dataclass(frozen=True)
class Promise:
    """`ours` over `theirs`, of one value at one size, at least or at most so much.

    With neither it is no promise: a figure to be seen beside one that is.
    """

    what: str
    measure: str
    ours: str
    theirs: str
    size: int
    value: str
    at_least: float | None = None
    at_most: float | None = None
    before: str = ""
    """The ratio that an earlier version reached."""

    @property
    def is_by_the_clock(self) -> bool:
        """Whether company on the machine moves it."""
        return self.value in ("steps_per_s", "p50_us", "episodes_per_s")

    def asked(self) -> str:
        if self.at_least is not None:
            return f"at least {times(self.at_least, is_better_high=True)}"
        if self.at_most is not None:
            return f"at most {times(self.at_most, is_better_high=False)}"
        return "no promise"

    def found(self, records: Records) -> tuple[str, str]:
        """The ratio, and whether the promise is kept."""
        try:
            ratio = records.ratio(self.measure, self.ours, self.theirs, self.size, self.value).median
        except Failed as why:
            return "", str(why)
        high = self.at_most is None
        if self.at_least is None and self.at_most is None:
            return times(ratio, is_better_high=high), "for information"
        is_kept = ratio >= self.at_least if self.at_least is not None else ratio <= (self.at_most or 0)
        verdict = "kept" if is_kept else "not kept"
        waited = records.waited(self.measure, (self.ours, self.theirs), self.size)
        if self.is_by_the_clock and waited > TOO_BUSY:
            verdict = "the machine was too busy to tell"
        return times(ratio, is_better_high=high), verdict


@dataclass(frozen=True)
class Successes:
    """So many per cent of so many sessions are served while all of them are open at once."""

    what: str
    contender: str
    size: int
    at_least: float
    before: str = ""

    def asked(self) -> str:
        return f"at least {self.at_least} %"

    def found(self, records: Records) -> tuple[str, str]:
        try:
            share = records.summary("together", self.contender, self.size, "success").low
        except Failed as why:
            return "", str(why)
        return f"{share:.2f} %", "kept" if share >= self.at_least else "not kept"


@dataclass(frozen=True)
class Bound:
    """A value of ours that is at most so much, whatever others take."""

    what: str
    measure: str
    contender: str
    size: int
    value: str
    unit: str
    at_most: float
    before: str = ""

    def asked(self) -> str:
        return f"at most {self.at_most:g} {self.unit}"

    def found(self, records: Records) -> tuple[str, str]:
        try:
            median = records.summary(self.measure, self.contender, self.size, self.value).median
        except Failed as why:
            return "", str(why)
        return f"{median:.2f} {self.unit}", "kept" if median <= self.at_most else "not kept"


PROMISES: tuple[Promise | Successes | Bound, ...] = (
    Promise(
        "CPU per step, 64 sessions, inline (`BLOCKING = False`)",
        "steps", "inline", "openenv", 64, "cpu_us", at_most=1 / 8, before="1/10.2",
    ),
    Promise(
        "CPU per step, 64 sessions, thread (the default)",
        "steps", "thread", "openenv", 64, "cpu_us", at_most=1 / 4, before="1/4.5",
    ),
    Promise(
        "CPU per step, 64 sessions, process isolation",
        "steps", "process", "openenv", 64, "cpu_us", at_most=1 / 2, before="1.0x",
    ),
    Promise(
        "Steps/s, 64 sessions, inline (`BLOCKING = False`)",
        "steps", "inline", "openenv", 64, "steps_per_s", at_least=8, before="10.1x",
    ),
    Promise(
        "Blocking client, p50, inline (`BLOCKING = False`)",
        "client", "inline", "openenv", 1, "p50_us", at_most=1 / 3.5, before="1/5.4, busy-waiting",
    ),
    Promise(
        "Blocking client, p50, thread (the default)",
        "client", "thread", "openenv", 1, "p50_us", at_most=1 / 2.5, before="1/5.5, busy-waiting",
    ),
    Promise(
        "Connect, reset and close, server CPU, thread (the default)",
        "open", "thread", "openenv", 1, "server_cpu_us", at_most=1 / 3, before="1/1.3",
    ),
    Promise(
        "One step over HTTP, server CPU, thread (the default)",
        "http", "thread", "openenv", 1, "server_cpu_us", at_most=1 / 4, before="1/1.7",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to OpenEnv's best: thread (the default)",
        "batch", "thread", "openenv-best", 256, "steps_per_s", at_least=2, before="1.2x",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to OpenEnv's best: one class with `step_many`, columns",
        "batch", "columns", "openenv-together", 256, "steps_per_s", at_least=40, before="43.0x",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to a bare batch: the same",
        "batch", "columns", "batch", 256, "steps_per_s", at_least=1 / 3, before="3.6x",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to OpenEnv's best: one class with `step_many`, objects in JSON",
        "batch", "together", "openenv-together", 256, "steps_per_s", before="22.0x",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to OpenEnv's best: one class with `step` only, inline",
        "batch", "inline", "openenv-best", 256, "steps_per_s", before="12.8x",
    ),
    Promise(
        "`VectorEnv(256)`, steps/s, to a bare batch: a class with `step` only, inline",
        "batch", "inline", "batch", 256, "steps_per_s", at_least=1 / 3, before="0.82x",
    ),
    Promise(
        "Coding episodes/s, 16 at once",
        "coding", "coding", "openenv-coding", 16, "episodes_per_s", at_least=4, before="1.9x",
    ),
    Bound("A sandbox: start to first result", "sandbox", "sandbox", 100, "start_ms", "ms", 3, before="2 ms"),
    Bound("A sandbox: one step", "sandbox", "sandbox", 100, "step_ms", "ms", 0.6, before="0.45 ms"),
    Bound("A sandbox: memory when idle", "sandbox", "sandbox", 100, "idle_mb", "MB", 2, before="1.3 MB"),
    Bound("A sandbox: fork at 32 MB", "sandbox", "sandbox", 100, "fork_ms", "ms", 8, before="5 ms"),
    Successes("16,384 sessions at once, async environment", "async", 16384, 99.9, before="100.00 %"),
    Successes("4,096 sessions at once, blocking environment", "thread", 4096, 99.9, before="100.00 %"),
    Promise(
        "Import of the client, CPU time",
        "import-client", "envtorch-import", "openenv-import", 1, "cpu_ms", at_most=1 / 10, before="1/15.2",
    ),
    Promise(
        "Import of the client, memory",
        "import-client", "envtorch-import", "openenv-import", 1, "mb", at_most=1 / 3, before="1/4.3",
    ),
    Promise(
        "Memory of a bare server",
        "idle", "thread", "openenv", 1000, "bare_mb", at_most=1 / 2.6, before="1/3.0",
    ),
)  # fmt: skip
"""`before` is what was measured with the tricks that are gone: docs/design has a note on what they cost."""


def promises_table(records: Records) -> str:
    rows = []
    for promise in PROMISES:
        measured, verdict = promise.found(records)
        rows.append([promise.what, promise.before, promise.asked(), measured, verdict])
    return markdown(["promise", "before", "asked", "measured", ""], rows)
