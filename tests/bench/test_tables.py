"""From records to tables: what is compared, and what is refused."""

from collections.abc import Iterator

import pytest
from bench.contenders import Contender, Cores
from bench.measure import Column, Effort, Measure
from bench.records import Failed, Record, Records, errors_of
from bench.stats import Summary
from bench.tables import figure, markdown, measure_table, times


class Speed(Measure):
    """A measurement that was made elsewhere."""

    key = "speed"
    title = "Speed"
    size = "sessions"
    columns = (Column("rate", "steps/s", 0, is_better_high=True), Column("cost", "CPU, µs"))
    baseline = "theirs"
    notes = ""
    in_quick = True

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return ()

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        yield from ()


def records(*, errors: list[str] | None = None) -> Records:
    made = []
    for number, slow in enumerate((1, 2)):
        made.append(Record("speed", "ours", 64, number, {"rate": 800 / slow, "cost": 10.0 * slow}))
        made.append(Record("speed", "theirs", 64, number, {"rate": 100 / slow, "cost": 80.0 * slow}))
    if errors:
        made.append(Record("speed", "ours", 64, 2, errors=errors))
    return Records(made)


def test_medians_and_ratios_are_shown_beside_each_other() -> None:
    header, _, ours, theirs = measure_table(records(), Speed(), {"ours": "EnvTorch"}).splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        "sessions", "server", "steps/s", "to OpenEnv", "CPU, µs", "to OpenEnv",
    ]  # fmt: skip
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert cells == ["64", "EnvTorch", "600 ±33%", "8.0x", "15.0 ±33%", "1/8.0"]
    assert [cell.strip() for cell in theirs.split("|")[1:-1]][3::2] == ["", ""]


def test_no_ratio_is_told_of_a_run_with_errors() -> None:
    broken = records(errors=["a step was lost"])
    with pytest.raises(Failed, match="a step was lost"):
        broken.ratio("speed", "ours", "theirs", 64, "rate")
    with pytest.raises(Failed, match="a step was lost"):
        broken.ratio("speed", "theirs", "ours", 64, "rate")
    ours = measure_table(broken, Speed(), {}).splitlines()[2]
    assert [cell.strip() for cell in ours.split("|")[3:-1]] == ["failed", "", "failed", ""]
    assert errors_of(broken.all) == ["speed, ours, 64, round 3: a step was lost"]


def test_only_rounds_that_both_have_are_compared() -> None:
    made = [*records().all, Record("speed", "ours", 64, 2, {"rate": 1.0, "cost": 1.0})]
    assert Records(made).ratio("speed", "ours", "theirs", 64, "rate") == Summary(8.0, 8.0, 8.0, 2)
    with pytest.raises(Failed, match="not measured"):
        records().summary("speed", "ours", 16, "rate")


def test_figures_and_ratios_read_at_a_glance() -> None:
    assert figure(Summary(1234.5, 1000.0, 1500.0, 3), 0) == "1,234 ±20%"
    assert figure(Summary(2.5, 2.5, 2.5, 1), 2) == "2.50"
    assert times(8.12, is_better_high=True) == "8.1x"
    assert times(0.5, is_better_high=True) == "0.5x"
    assert times(0.125, is_better_high=False) == "1/8.0"
    assert times(2.0, is_better_high=False) == "2.0x"


def test_a_table_is_aligned_in_its_source_too() -> None:
    assert markdown(["who", "n"], [["a", "1"], ["bcd", "10"]]).splitlines() == [
        "| who |   n |",
        "| --- | --: |",
        "| a   |   1 |",
        "| bcd |  10 |",
    ]


def test_load_and_server_have_cores_of_their_own_where_there_are_two() -> None:
    assert Cores.of({3, 5, 7}) == Cores(frozenset({3}), frozenset({5}))
    assert Cores.of({0}) == Cores(frozenset({0}), frozenset({0}))
