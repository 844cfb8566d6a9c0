"""What a server costs while nothing happens: bare, and with a thousand idle sessions."""

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.contenders import (
    CORES,
    HANDLER,
    INLINE,
    THEIRS,
    THEIRS_ASYNC,
    THREAD,
    Contender,
    serving,
    start,
)
from bench.measure import Column, Effort, Measure
from bench.proc import cpu_seconds, resident_mb, threads
from bench.records import Record

SETTLE_S = 1.0


class Idle(Measure):
    key = "idle"
    title = "A server at rest"
    size = "sessions"
    columns = (
        Column("bare_mb", "no session, MB"),
        Column("kb_per_session", "per session, kB"),
        Column("threads", "threads", 0),
        Column("idle_cpu", "CPU at rest, ms/s", 2),
    )
    notes = (
        "Memory is RSS: bare, after the first request; then what each open, reset and idle session adds. CPU "
        "at rest is what the process uses while all those sessions are open and say nothing."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (HANDLER, INLINE, THREAD, THEIRS, THEIRS_ASYNC)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        sessions = 200 if effort.is_quick else 1000
        place = (self.key, contender.key, sessions, round_number)
        with serving(contender) as server:
            time.sleep(SETTLE_S)
            bare = resident_mb(server.pid)
            command = [sys.executable, "-m", "bench.hold", str(server.port), str(sessions)]
            holder = start(command, CORES.load, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                assert holder.stdout is not None
                if holder.stdout.readline().strip() != "held":
                    yield Record(*place, errors=["the sessions could not be opened"])
                    return
                time.sleep(SETTLE_S)
                before = cpu_seconds(server.pid)
                time.sleep(effort.seconds * 2)
                yield Record(
                    *place,
                    values={
                        "bare_mb": bare,
                        "kb_per_session": (resident_mb(server.pid) - bare) * 1024 / sessions,
                        "threads": threads(server.pid),
                        "idle_cpu": (cpu_seconds(server.pid) - before) / (effort.seconds * 2) * 1e3,
                    },
                )
            finally:
                holder.communicate("", timeout=60)
