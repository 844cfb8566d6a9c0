"""Many sessions on one socket, stepped together: `VectorEnv`, beside OpenEnv's best and a bare batch."""

import json
from collections.abc import Iterator

from bench.contenders import (
    BATCH,
    COLUMNS,
    INLINE,
    THEIRS_BEST,
    THEIRS_TOGETHER,
    THREAD,
    TOGETHER,
    Contender,
    run_json,
    serving,
)
from bench.load import Load
from bench.measure import Column, Effort, Measure
from bench.measures.steps import play, values_of
from bench.proc import cpu_seconds
from bench.records import Record

WIDTHS = (16, 64, 256)


class Batches(Measure):
    key = "batch"
    title = "Batched steps"
    size = "sessions"
    columns = (
        Column("steps_per_s", "steps/s", 0, is_better_high=True),
        Column("cpu_us", "server CPU, µs/step"),
        Column("client_cpu_us", "client CPU, µs/step"),
        Column("p50_ms", "p50 of a batch, ms", 2),
    )
    baseline = THEIRS_TOGETHER.key
    in_quick = True
    notes = (
        "`VectorEnv(n)` steps n sessions over one socket. OpenEnv has no such thing: its best is as many "
        "sockets as sessions, an async environment and uvloop, driven by our load generator. The limit is a "
        "bare picows server whose frames are lists, and a client that sends one prepared frame. The class "
        "with `step_many` is one class for both: it has `step`, `step_async` and `step_many`, of which "
        "OpenEnv calls `step_async`, and a `VectorEnv` has `step_many` called. It is stepped with action "
        "objects and read as observation objects, and once more with columns both ways in MessagePack, where "
        "it may pass the limit, which makes objects. Ratios are to OpenEnv on this class, whose `step_async` "
        "does less than the plain echo's. Inline and thread are the plain echo, whose author wrote only "
        "`step`: every step of it validates an action and builds an observation, as the limit does."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (BATCH, COLUMNS, TOGETHER, INLINE, THREAD, THEIRS_TOGETHER, THEIRS_BEST)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        with serving(contender) as server:
            for width in WIDTHS:
                place = (self.key, contender.key, width, round_number)
                try:
                    values = self._values(contender, server.port, server.pid, width, effort.seconds)
                except RuntimeError as error:
                    yield Record(*place, errors=[str(error)])
                else:
                    yield Record(*place, values=values)

    def _values(
        self, contender: Contender, port: int, pid: int, width: int, seconds: float
    ) -> dict[str, float]:
        if contender.is_theirs:
            outcome = play(Load(port=port, server_pid=pid, sessions=width, seconds=seconds))
            if outcome.errors:
                raise RuntimeError(outcome.errors[0])
            return {**values_of(outcome), "client_cpu_us": outcome.load_cpu_s / outcome.steps * 1e6}
        module = "bench.clients.batch" if contender is BATCH else "bench.clients.vector"
        job = {
            "url": f"http://127.0.0.1:{port}",
            "port": port,
            "size": width,
            "seconds": seconds,
            "columns": contender is COLUMNS,
        }
        before = cpu_seconds(pid)
        values: dict[str, float] = json.loads(run_json(module, json.dumps(job)))
        spent = cpu_seconds(pid) - before
        return {**values, "cpu_us": spent / values["server_calls"] * 1e6}
