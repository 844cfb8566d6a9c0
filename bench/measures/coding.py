"""Episodes of code that runs where it can do no harm, beside OpenEnv's interpreter of Python in Python."""

import json
from collections.abc import Iterator

from bench.contenders import CODING, THEIR_CODING, Contender, run_json, serving
from bench.measure import Column, Effort, Measure
from bench.records import Record

AT_ONCE = 16
ACTIONS = [{"code": f"x = {number}\nprint(x + 1)"} for number in range(5)]


class CodingEpisodes(Measure):
    key = "coding"
    title = "Coding episodes"
    size = "at once"
    baseline = "openenv-coding"
    columns = (
        Column("episodes_per_s", "episodes/s", 1, is_better_high=True),
        Column("p50_ms", "p50, ms"),
        Column("p99_ms", "p99, ms"),
    )
    notes = (
        "Connect, reset, five steps that print a number, close; sixteen at once, on OpenEnv's wire, with one "
        "client for all. Ours runs CPython in a kernel sandbox per session, on both cores; OpenEnv's coding "
        "environment interprets Python in the server's own process, with no kernel boundary."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (CODING, THEIR_CODING)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        place = (self.key, contender.key, AT_ONCE, round_number)
        with serving(contender) as server:
            job = {
                "port": server.port,
                "seconds": max(effort.seconds * 2, 3.0),
                "at_once": AT_ONCE,
                "actions": ACTIONS,
            }
            try:
                told = run_json("bench.clients.episodes", json.dumps(job))
            except RuntimeError as error:
                yield Record(*place, errors=[str(error)])
                return
            yield Record(*place, values=json.loads(told))
