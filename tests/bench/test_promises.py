"""Whether what was promised is told as kept, not kept, or not measured."""

from bench.promises import PROMISES, Bound, Promise, Successes, promises_table
from bench.records import Record, Records

FASTER = Promise("rate", "steps", "inline", "openenv", 64, "steps_per_s", at_least=8)
CHEAPER = Promise("cost", "steps", "inline", "openenv", 64, "cpu_us", at_most=1 / 8)


def steps(rate: float, cpu: float) -> Records:
    return Records(
        [
            Record("steps", "inline", 64, 0, {"steps_per_s": rate, "cpu_us": cpu}),
            Record("steps", "openenv", 64, 0, {"steps_per_s": 100.0, "cpu_us": 160.0}),
        ]
    )


def test_a_promise_is_kept_or_not() -> None:
    assert FASTER.found(steps(900, 10)) == ("9.0x", "kept")
    assert FASTER.found(steps(700, 10)) == ("7.0x", "not kept")
    assert CHEAPER.found(steps(900, 20)) == ("1/8.0", "kept")
    assert CHEAPER.found(steps(900, 40)) == ("1/4.0", "not kept")
    assert (FASTER.asked(), CHEAPER.asked()) == ("at least 8.0x", "at most 1/8.0")


def test_a_figure_of_which_nothing_was_promised_is_told_and_not_judged() -> None:
    seen = Promise("rate", "steps", "inline", "openenv", 64, "steps_per_s")
    assert seen.asked() == "no promise"
    assert seen.found(steps(700, 10)) == ("7.0x", "for information")
    assert seen.found(Records([])) == ("", "not measured")


def test_a_promise_that_was_not_measured_or_failed_is_not_kept() -> None:
    assert FASTER.found(Records([])) == ("", "not measured")
    broken = Records([*steps(900, 10).all, Record("steps", "inline", 64, 1, errors=["a step was lost"])])
    assert FASTER.found(broken) == ("", "a step was lost")


def test_times_by_the_clock_are_not_judged_on_a_busy_machine() -> None:
    busy = [Record(r.measure, r.contender, 64, 0, {**r.values, "waited": 0.4}) for r in steps(900, 10).all]
    assert FASTER.found(Records(busy)) == ("9.0x", "the machine was too busy to tell")
    assert CHEAPER.found(Records(busy)) == ("1/16.0", "kept")


def test_successes_are_counted_in_the_worst_round() -> None:
    promise = Successes("sessions", "async", 16384, 99.9)
    records = Records(
        [Record("together", "async", 16384, n, {"success": s}) for n, s in enumerate((100, 99.5))]
    )
    assert promise.found(records) == ("99.50 %", "not kept")


def test_every_promise_has_a_row() -> None:
    assert len(promises_table(Records([])).splitlines()) == len(PROMISES) + 2


def test_a_bound_is_kept_up_to_its_value() -> None:
    bound = Bound("start", "sandbox", "sandbox", 100, "start_ms", "ms", 3.0, before="2 ms")
    assert bound.asked() == "at most 3 ms"
    for value, verdict in ((2.5, "kept"), (3.0, "kept"), (3.2, "not kept")):
        records = Records([Record("sandbox", "sandbox", 100, 0, {"start_ms": value})])
        assert bound.found(records) == (f"{value:.2f} ms", verdict)
    assert bound.found(Records([])) == ("", "not measured")


def test_every_row_of_the_table_of_figures_is_a_promise() -> None:
    rows = {(one.measure, one.value) for one in PROMISES if not isinstance(one, Successes)}
    assert rows >= {
        ("steps", "cpu_us"),
        ("steps", "steps_per_s"),
        ("client", "p50_us"),
        ("idle", "bare_mb"),
        ("open", "server_cpu_us"),
        ("http", "server_cpu_us"),
        ("batch", "steps_per_s"),
        ("coding", "episodes_per_s"),
        ("sandbox", "start_ms"),
        ("sandbox", "step_ms"),
        ("sandbox", "idle_mb"),
        ("sandbox", "fork_ms"),
    }
    assert all(one.before for one in PROMISES), "the older value stands beside what is asked"
