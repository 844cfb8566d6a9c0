"""What a report counts, and that nothing a model says becomes part of the page."""

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.cli.eval import incomplete
from envtorch.errors import EndpointFailed, SessionLost
from envtorch.evaluation import EvalReport, report_page
from envtorch.rollout import Ending, Task, Trajectory, TurnRecord

TASKS = [Task({"seed": n}, id=f"t{n}") for n in range(4)]


def played(task: Task, member: int, reward: float | None, text: str = "hello") -> Trajectory:
    """A sample of one turn; without a reward it was lost."""
    messages = ({"role": "user", "content": "go"}, {"role": "assistant", "content": text})
    turns = (TurnRecord(reward, 0.5, 0.25, prompt_tokens=1000, said_tokens=10),)
    if reward is None:
        return Trajectory(task, member, Ending.LOST, messages, turns=turns, blame=SessionLost(text))
    return Trajectory(task, member, Ending.DONE, messages, turns=turns)


def rewards(*by_task: list[float | None]) -> list[Trajectory]:
    return [
        played(task, member, reward)
        for task, samples in zip(TASKS, by_task, strict=False)
        for member, reward in enumerate(samples)
    ]


def test_lost_samples_are_reported_and_do_not_count() -> None:
    report = EvalReport.of({"samples": 2}, TASKS, rewards([1, 1], [0, None], [None, None], [1, 0]))
    assert report.pass_at[1].value == (1 + 0 + 0.5) / 3
    assert report.pass_at[2].value == (1 + 1) / 2
    assert report.endings == {"done": 5, "lost: SessionLost": 3}
    assert [result.task.id for result in report.worst] == ["t1", "t3", "t2"]
    assert "3 samples were lost" in report_page(report)


def test_a_sample_passes_from_the_reward_that_is_asked_for() -> None:
    strict, lax = (
        EvalReport.of({"passes_at": bar}, TASKS, rewards([0.5, 0.4], [0.9, 1.0])) for bar in (1.0, 0.5)
    )
    assert (strict.pass_at[1].value, lax.pass_at[1].value) == (0.25, 0.75)


def test_cost_is_what_the_tokens_cost() -> None:
    prices = {"price_in": 2.0, "price_out": 100.0}
    report = EvalReport.of(prices, TASKS, rewards([1, 1], [1, 1]))
    assert report.cost == (4 * 1000 * 2.0 + 4 * 10 * 100.0) / 1_000_000
    assert EvalReport.of({}, TASKS, rewards([1])).cost is None


def test_the_order_in_which_samples_were_played_makes_no_difference() -> None:
    given_order = rewards([1, 0], [0, None], [1, 1])
    one, other = (EvalReport.of({}, TASKS, order) for order in (given_order, given_order[::-1]))
    assert json.dumps(one.told()) == json.dumps(other.told())
    assert report_page(one) == report_page(other)


def test_an_environment_without_rewards_is_named_as_the_reason() -> None:
    silent = [Trajectory(TASKS[0], 0, Ending.DONE, turns=(TurnRecord(None, 0.1, 0.1),))]
    assert "No reward was given" in report_page(EvalReport.of({}, TASKS, silent))


@pytest.mark.parametrize(
    "unplayed",
    [
        Trajectory(TASKS[0], 0, Ending.LOST, blame=SessionLost("gone")),
        Trajectory(TASKS[0], 0, Ending.POLICY, turns=(TurnRecord(None, 0.1, 0.1),)),
        Trajectory(TASKS[0], 0, Ending.ENVIRONMENT, turns=(TurnRecord(None, 0.1, 0.1),)),
    ],
)
def test_missing_rewards_are_no_reason_where_nothing_was_played_to_its_end(unplayed: Trajectory) -> None:
    report = EvalReport.of({}, TASKS, [unplayed])
    assert not report.lacks_rewards
    assert "No reward was given" not in report_page(report)


def test_missing_rewards_are_no_reason_where_samples_pass_without_any() -> None:
    silent = [Trajectory(TASKS[0], 0, Ending.DONE, turns=(TurnRecord(None, 0.1, 0.1),))]
    assert not EvalReport.of({"passes_at": 0.0}, TASKS, silent).lacks_rewards


def test_a_model_endpoint_that_fails_is_named_as_the_one_that_lost_samples() -> None:
    failed = EndpointFailed("the policy's endpoint failed 6 times: 500: no model")
    report = EvalReport.of({}, TASKS, [Trajectory(TASKS[0], 0, Ending.LOST, blame=failed)])
    assert report.endings == {"lost: EndpointFailed": 1}
    told = "the model's endpoint (the policy's endpoint failed 6 times: 500: no model)"
    assert incomplete(report).startswith(f"Incomplete: 1 of 1 samples were lost to {told}.")
    assert "or to the model&#x27;s endpoint" in report_page(report)
    lost = EvalReport.of({}, TASKS, [Trajectory(TASKS[0], 0, Ending.LOST, blame=SessionLost("gone"))])
    assert "lost to the infrastructure" in incomplete(lost)


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_with(text: str) -> str:
    task = Task({"seed": 1}, prompt=text, id=f"id {text}")
    samples = [played(task, 0, 1.0, text), played(task, 1, None, text), played(task, 2, 0.0, text)]
    tools: list[Any] = [{"id": text, "function": {"name": text, "arguments": text}}]
    called = ({"role": text, "content": None, "tool_calls": tools},)
    samples.append(Trajectory(task, 3, Ending.DONE, called, turns=(TurnRecord(0.5, 0.1, 0.1),)))
    settings = {"model": text, "target": text, "samples": 4}
    return report_page(EvalReport.of(settings, [task], samples))


ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre><iframe>",
    "<!--",
    "]]>",
    "&lt;",
]
PLAIN = Tags(page_with("plain"))


@given(
    st.sampled_from(ATTACKS),
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
)
def test_nothing_that_a_model_says_becomes_part_of_the_page(attack: str, noise: str) -> None:
    read = Tags(page_with(noise + attack))
    assert read.tags == PLAIN.tags
    assert read.attributes == PLAIN.attributes
    assert attack in "".join(read.text)
    assert "script" not in read.tags
