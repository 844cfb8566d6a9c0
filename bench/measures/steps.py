"""Steps per second, server CPU per step and latency, at so many sessions."""

import json
from collections.abc import Iterator

from bench.contenders import (
    ASGI,
    ASYNC,
    ECHO,
    HANDLER,
    INLINE,
    PROCESS,
    THEIRS,
    THEIRS_ASYNC,
    THEIRS_BEST,
    THREAD,
    Contender,
    run_json,
    serving,
)
from bench.load import Load, Outcome
from bench.measure import Column, Effort, Measure
from bench.records import Record

MOST_PROCESSES = 64


class Steps(Measure):
    key = "steps"
    title = "Steps over /ws"
    size = "sessions"
    columns = (
        Column("steps_per_s", "steps/s", 0, is_better_high=True),
        Column("cpu_us", "server CPU, µs/step"),
        Column("p50_ms", "p50, ms", 2),
        Column("p99_ms", "p99, ms", 2),
    )

    in_quick = True
    notes = (
        "The echo environment on OpenEnv's wire; every session steps as soon as it is answered. The load "
        "generator has one core, the server the other (process isolation: both). Server CPU is user and "
        "system time from `/proc/PID/stat`, of all its processes. After each run every session is asked "
        "for its step count, which must be the number of answers it gave."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        if effort.is_quick:
            return (ECHO, HANDLER, INLINE, THREAD, THEIRS)
        return (ECHO, HANDLER, INLINE, ASYNC, THREAD, ASGI, PROCESS, THEIRS, THEIRS_ASYNC, THEIRS_BEST)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        with serving(contender) as server:
            for sessions in effort.sessions:
                if contender is PROCESS and sessions > MOST_PROCESSES:
                    continue
                load = Load(
                    port=server.port,
                    server_pid=server.pid,
                    sessions=sessions,
                    seconds=effort.seconds,
                    counts_steps=contender.counts_steps,
                    family=contender.is_family,
                )
                yield self._record(contender, round_number, load)

    def _record(self, contender: Contender, round_number: int, load: Load) -> Record:
        place = (self.key, contender.key, load.sessions, round_number)
        try:
            outcome = play(load)
        except (RuntimeError, TimeoutError) as error:
            return Record(*place, errors=[str(error)])
        if outcome.errors:
            return Record(*place, errors=outcome.errors)
        return Record(*place, values=values_of(outcome))


def play(load: Load) -> Outcome:
    """Run the load generator, in a process of its own."""
    return Outcome(**json.loads(run_json("bench.load", json.dumps(vars(load)))))


def values_of(outcome: Outcome) -> dict[str, float]:
    return {
        "steps_per_s": outcome.steps_per_s,
        "cpu_us": outcome.cpu_us_per_step,
        "p50_ms": outcome.p50_s * 1e3,
        "p99_ms": outcome.p99_s * 1e3,
        "waited": outcome.load_waited_s / outcome.seconds,
        "load_busy": outcome.load_cpu_s / outcome.seconds,
    }
