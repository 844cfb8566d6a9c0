"""What one sandbox costs, by itself."""

import json
from collections.abc import Iterator

from bench.contenders import SANDBOX, Contender, run_json
from bench.measure import Column, Effort, Measure
from bench.records import Record


class SandboxCosts(Measure):
    key = "sandbox"
    title = "A sandbox"
    size = "live"
    baseline = SANDBOX.key
    columns = (
        Column("start_ms", "start to first result, ms", 2),
        Column("step_ms", "step, ms", 2),
        Column("fork_ms", "fork at 32 MB, ms", 1),
        Column("idle_mb", "idle, MB", 2),
    )
    notes = (
        "Medians of one sandbox at a time, now and then, in the owner's process. Idle memory is the "
        "proportional set size of each of so many, and is seen only by root. `python bench/sandbox.py` "
        "measures more, beside bubblewrap and plain processes."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (SANDBOX,)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        live = 100
        place = (self.key, contender.key, live, round_number)
        job = {"rounds": 10 if effort.is_quick else 40, "live": live}
        try:
            told = run_json("bench.clients.sandboxes", json.dumps(job))
        except RuntimeError as error:
            yield Record(*place, errors=[str(error)])
            return
        yield Record(*place, values=json.loads(told))
