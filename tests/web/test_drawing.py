"""What the page writes, as text: cards, diffs, charts, the terminal, the Python."""

from xml.etree import ElementTree

import pytest

from envtorch.errors import CapacityReached, InvalidAction
from envtorch.web.cards import error_card, history, result_card, transcript
from envtorch.web.charts import bars, lines
from envtorch.web.comparison_tab import comparison, parted_at
from envtorch.web.diffs import Change, changes, line_diff
from envtorch.web.episodes import EpisodeEntry, Track, folded, total_reward
from envtorch.web.operations import duration

RESET = EpisodeEntry("reset", {"seed": 3}, {"position": 4})
STEP = EpisodeEntry("step", {"direction": "right"}, {"position": 5}, reward=-0.1, seconds=0.002)
LAST = EpisodeEntry("step", {"direction": "right"}, {"position": 8}, reward=1.0, done=True)


def test_changes_are_found_inside_objects() -> None:
    before = {"a": 1, "inner": {"x": 1, "y": 2}, "gone": True}
    after = {"a": 1, "inner": {"x": 9, "y": 2}, "new": [1]}
    assert list(changes(before, after)) == [
        Change("inner.x", "changed", 1, 9),
        Change("new", "added", after=[1]),
        Change("gone", "removed", before=True),
    ]


def test_texts_are_compared_by_line() -> None:
    assert line_diff("one\ntwo", "one\nthree") == [(" ", "one"), ("-", "two"), ("+", "three")]


def test_large_arrays_are_told_by_their_shape() -> None:
    assert folded({"screen": [[0] * 10] * 20}) == {"screen": "array of 20 × 10 numbers"}
    assert folded([1, 2, 3]) == [1, 2, 3]
    assert folded({"third": 1 / 3}) == {"third": 0.333333}


def test_a_result_says_reward_total_and_end() -> None:
    card = result_card([RESET, STEP, LAST])
    assert "<i>total</i> 0.9" in card
    assert "The episode is over" in card
    assert "position" in card
    assert total_reward([RESET, STEP, LAST]) == 0.9


def test_nothing_an_agent_writes_becomes_html() -> None:
    evil = "<script>alert(1)</script>"
    entry = EpisodeEntry("step", {"code": evil}, {evil: evil, "stdout": evil}, error=None)
    failed = EpisodeEntry("step", {"code": evil}, {}, error=evil)
    for drawn in (
        result_card([entry]),
        result_card([failed]),
        history([entry, failed]),
        transcript([entry, failed], "code"),
        error_card(InvalidAction(evil, errors=[{"loc": (evil,), "msg": evil}])),
        lines([(evil, [1.0])], label=evil),
        bars([(evil, 1.0)]),
        "".join(comparison(Track(evil, [entry]), Track("b", [failed]))),
    ):
        assert "<script" not in drawn
        assert "&lt;script" in drawn


def test_history_shows_what_each_call_changed_newest_first() -> None:
    drawn = history([RESET, STEP])
    assert drawn.index("direction") < drawn.index("seed")
    assert "<del>4</del> <ins>5</ins>" in drawn


def test_long_histories_are_cut_and_say_so() -> None:
    assert "and 11 older calls" in history([RESET, *[STEP] * 60])


def test_an_error_says_where_and_what_next() -> None:
    invalid = error_card(InvalidAction("bad", errors=[{"loc": ("home", "number"), "msg": "Field required"}]))
    assert "home.number" in invalid
    assert "Field required" in invalid
    assert "max_concurrent_envs" in error_card(CapacityReached.of(2, 2))


def test_a_terminal_has_prompts_output_and_errors() -> None:
    entry = EpisodeEntry("step", {"code": "x = 1\nx"}, {"stdout": "hi\n", "value": "1", "stderr": "oh"})
    drawn = transcript([RESET, entry], "code")
    assert "<b>&gt;&gt;&gt; </b>x = 1\n<b>... </b>x\n" in drawn.replace("<b>>>> </b>", "<b>&gt;&gt;&gt; </b>")
    assert drawn.index("hi") < drawn.index("et-value") < drawn.index("et-err")


def test_charts_are_well_formed_whatever_is_drawn() -> None:
    for values in ([0.0], [1.0, 2.0], [-1.0] * 70, [0.0, 0.0]):
        figure = ElementTree.fromstring(lines([("a", values), ("b", [])], label="R", x_label="step"))
        assert figure.find("svg") is not None
    assert "nothing yet" in lines([("a", [])], label="R")
    assert "None" in bars([])


def test_branches_are_compared_from_where_they_part() -> None:
    assert parted_at([RESET, STEP], [RESET, LAST]) == 1
    assert parted_at([RESET, STEP], [RESET]) == 1
    assert parted_at([RESET], [RESET]) is None
    above, left, right = comparison(Track("main", [RESET, STEP]), Track("fork 1", [RESET, LAST]))
    assert "share 1 calls" in above
    assert "-0.1 against 1" in above
    assert "main" in left
    assert "fork 1" in right


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "–"),
        (7.46e-5, "74.6 µs"),
        (0.00389, "3.89 ms"),
        (0.5, "500 ms"),
        (1.25, "1.25 s"),
        (75, "75 s"),
    ],
)
def test_a_duration_is_short_enough_for_its_card(seconds: float | None, told: str) -> None:
    assert duration(seconds) == told
