"""Results as people read them: sections for the terminal, `results.md` and its plots for the tree.

`results.json` holds the records of the last run of each measurement; the rest is made from it, again with
`python -m bench.report`.
"""

import json
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import plots
from bench.contenders import BY_KEY
from bench.measure import Effort, Measure
from bench.promises import TOO_BUSY, promises_table
from bench.records import Record, Records, errors_of
from bench.registry import MEASURES
from bench.tables import measure_table

FOLDER = Path(__file__).parent
RAW = FOLDER / "results.json"
NAMES = {key: contender.name for key, contender in BY_KEY.items()}

HEAD = """# Results

Written by `make bench` and `make bench-scaling`. Figures are medians over the rounds of one run, `±` is half
the spread between the best and the worst round, and ratios are medians of the ratios within each round, in
which ours and theirs take turns. Of a run with errors no ratio is told. Times depend on the machine; ratios
count, and CPU time per step is what a busy machine moves least.
"""


def section(records: Records, measure: Measure) -> str:
    """A measurement: what it is, its table, and what went wrong."""
    parts = [f"\n## {measure.title}\n", f"{measure.notes}\n", measure_table(records, measure, NAMES), ""]
    mine = [record for record in records.all if record.measure == measure.key]
    remarks = [
        f"* {NAMES[record.contender]}, {record.size:,} {measure.size}: {remark}"
        for record in mine
        for remark in record.remarks
    ]
    errors = [f"* {error}" for error in errors_of(mine)]
    waited = max((record.values.get("waited", 0.0) for record in mine), default=0.0)
    if waited > TOO_BUSY:
        parts.append(
            f"**Not a quiet machine:** a caller waited for its core {waited:.0%} of the time. Here "
            "only CPU times and memory tell much.\n"
        )
    return "\n".join([*parts, *remarks, *errors])


def save(records: Records, effort: Effort, told: str) -> None:
    """Put these records in place of older ones of the same measurements, and write everything anew."""
    kept = load()
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    for key in records.measures():
        kept[key] = {
            "when": when,
            "machine": told,
            "rounds": effort.rounds,
            "seconds": effort.seconds,
            "records": [asdict(record) for record in records.all if record.measure == key],
        }
    RAW.write_text(json.dumps(kept, indent=1) + "\n")
    write(kept)


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RAW.read_text()) if RAW.exists() else {}
    return found


def write(kept: dict[str, Any]) -> None:
    """`results.md` and the plots, from what is kept."""
    records = Records([Record.from_json(each) for run in kept.values() for each in run["records"]])
    drawn = plots.draw(records, FOLDER, NAMES)
    flame = FOLDER / "flame.md"
    parts = [HEAD, f"{_machine()}\n", "## What was promised\n", promises_table(records), ""]
    for measure in MEASURES:
        if measure.key in kept:
            run = kept[measure.key]
            parts.append(section(records, measure))
            if measure.key in drawn:
                parts.append(f"\n![{measure.title}]({drawn[measure.key]})")
            parts.append(f"\n{run['when']}, {run['rounds']} rounds. {run['machine']}.")
    if flame.exists():
        parts.append("\n" + flame.read_text())
    (FOLDER / "results.md").write_text("\n".join(parts).rstrip() + "\n")


def _machine() -> str:
    names = ("picows", "uvloop", "uvicorn", "msgspec", "pydantic")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    model = next(
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return f"Python {platform.python_version()}, Linux {platform.release()}, {model}; {versions}."


if __name__ == "__main__":
    write(load())
