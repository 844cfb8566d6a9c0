"""OpenEnv's own scaling experiment: N sessions at once; each connects, resets, takes a step of a second."""

import json
from collections.abc import Iterator

from bench.contenders import ASYNC, THEIRS, THEIRS_ASYNC, THREAD, Contender, run_json, serving
from bench.crowd import CrowdOutcome
from bench.measure import Column, Effort, Measure
from bench.records import Record

SIZES = (1024, 2048, 4096, 8192, 16384)
MOST_THREADS = 4096
"""A blocking environment blocks a thread for each session; more threads than this tell of the kernel only."""


class Scaling(Measure):
    key = "scaling"
    title = "OpenEnv's scaling experiment"
    size = "sessions"
    columns = (
        Column("success", "succeeded, %", 2, is_better_high=True),
        Column("p50_s", "p50, s", 2),
        Column("p99_s", "p99, s", 2),
        Column("step_p99_s", "step p99, s", 2),
        Column("server_cpu_s", "server CPU, s", 1),
        Column("server_mb", "server, MB", 0),
        Column("threads", "threads", 0),
        Column("peak_sessions", "open at once", 0, is_better_high=True),
    )
    notes = (
        "All sessions start at once; each connects, resets, takes one step that waits for 1 s, and closes. A "
        "session succeeded if each call was answered within 120 s. The times are of whole sessions, "
        "connecting included. At most 1,024 handshakes are under way, so that fewer sessions than all may be "
        "open at once: the last column tells how many were. One server process on one core, the sessions "
        "all on the other. OpenEnv's scaling guide tells of 2,048 sessions on 8 cores and of 16,384 on 96."
    )
    is_usual = False
    together = False

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (ASYNC, THREAD, THEIRS_ASYNC, THEIRS)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        for sessions in effort.crowds or SIZES:
            if sessions > MOST_THREADS and contender in (THREAD, THEIRS):
                continue
            with serving(contender) as server:
                job = {
                    "port": server.port,
                    "server_pid": server.pid,
                    "sessions": sessions,
                    "together": self.together,
                }
                place = (self.key, contender.key, sessions, round_number)
                try:
                    told = json.loads(run_json("bench.crowd", json.dumps(job), timeout_s=900))
                except RuntimeError as error:
                    yield Record(*place, errors=[str(error)])
                    continue
                yield self._record(place, sessions, CrowdOutcome(**told))

    def _record(self, place: tuple[str, str, int, int], sessions: int, found: CrowdOutcome) -> Record:
        values = {
            "success": found.succeeded / sessions * 100,
            "step_p99_s": found.step_p99_s,
            "server_cpu_s": found.server_cpu_s,
            "server_mb": found.server_mb,
            "threads": found.peak_threads,
            "peak_sessions": found.peak_sessions,
            "wall_s": found.wall_s,
        }
        if found.succeeded:
            values |= {"p50_s": found.p50_s, "p99_s": found.p99_s}
        remarks = [f"{count} x {what}" for what, count in found.failures.items()]
        return Record(*place, values=values, remarks=remarks)


class Together(Scaling):
    key = "together"
    title = "The same, with all sessions open at once"
    notes = "As above, but nobody steps before everybody has connected and been reset."
    together = True
