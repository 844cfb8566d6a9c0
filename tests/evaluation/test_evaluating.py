"""Evaluations: played, interrupted, gone on with."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envtorch.errors import ConfigurationError
from envtorch.evaluation import (
    EvalReport,
    Evaluation,
    EvaluationSettings,
    seeded_tasks,
    served_tasks,
    tasks_in,
)
from envtorch.rollout import Rollouts, TrajectoryGroup
from envtorch.server import create_app
from tests.rollout.dials import DialEnv, Player, dials, scattered
from tests.support import Running, running
from tests.tasks.test_served_tasks import Sums

SETTINGS = EvaluationSettings("dials", "scattered", samples=2, passes_at=0.5, max_turns=6)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


class Interrupted(Exception):
    pass


def play(server: Running, directory: Path, *, stop_after: int | None = None, tasks: int = 6) -> EvalReport:
    groups: list[TrajectoryGroup] = []

    def note(group: TrajectoryGroup) -> None:
        groups.append(group)
        if len(groups) == stop_after:
            raise Interrupted

    async def run() -> EvalReport:
        evaluation = Evaluation(directory, SETTINGS, seeded_tasks(tasks))
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=6, max_turns=6) as rollouts:
            return await evaluation.run(rollouts, on_group=note)

    return asyncio.run(run())


def without_time(directory: Path) -> tuple[Any, str]:
    told = json.loads((directory / "report.json").read_text())
    del told["time"]
    page = (directory / "report.html").read_text()
    return told, re.sub(r'<div class="card"><span>time</span>.*?</div>', "", page)


def test_an_evaluation_that_was_interrupted_goes_on_and_reports_the_same(
    server: Running, tmp_path: Path
) -> None:
    whole = play(server, tmp_path / "whole")
    with pytest.raises(Interrupted):
        play(server, tmp_path / "broken", stop_after=2)
    assert not (tmp_path / "broken" / "report.json").exists()
    resumed = play(server, tmp_path / "broken")
    assert without_time(tmp_path / "broken") == without_time(tmp_path / "whole")
    assert resumed.pass_at == whole.pass_at
    assert 0 < whole.pass_at[1].value < 1, "the game can be won and lost"
    assert len((tmp_path / "broken" / "runs.jsonl").read_text().splitlines()) == 2


def test_one_that_is_over_plays_nothing_again_and_more_tasks_are_added(
    server: Running, tmp_path: Path
) -> None:
    play(server, tmp_path)
    before = (tmp_path / "trajectories.jsonl").read_text()
    play(server, tmp_path)
    assert (tmp_path / "trajectories.jsonl").read_text() == before
    assert len(play(server, tmp_path, tasks=8).tasks) == 8
    assert (tmp_path / "trajectories.jsonl").read_text().startswith(before)


def test_results_of_other_settings_are_not_mixed(server: Running, tmp_path: Path) -> None:
    play(server, tmp_path)
    other = EvaluationSettings("dials", "other", samples=3, max_turns=6)
    with pytest.raises(ConfigurationError, match="other settings: model, samples"):
        Evaluation(tmp_path, other, seeded_tasks(6))
    hurried = EvaluationSettings("dials", "scattered", samples=2, max_turns=6, step_timeout_s=1.0)
    with pytest.raises(ConfigurationError, match="other settings: step_timeout_s"):
        Evaluation(tmp_path, hurried, seeded_tasks(6))
    changed = seeded_tasks(6)
    changed[2] = type(changed[2])({"seed": 99}, id="seed-2")
    with pytest.raises(ConfigurationError, match="the task seed-2"):
        Evaluation(tmp_path, SETTINGS, changed)
    play(server, tmp_path, tasks=2)
    with pytest.raises(ConfigurationError, match="the task seed-2"):
        Evaluation(tmp_path, SETTINGS, changed)
    bar = EvaluationSettings("dials", "scattered", samples=2, passes_at=1.0, max_turns=6)
    assert Evaluation(tmp_path, bar, seeded_tasks(6)).done == 6, "the bar may be moved afterwards"


def test_a_report_shows_what_was_lost_and_leaves_it_to_be_played_again(
    server: Running, tmp_path: Path
) -> None:
    play(server, tmp_path)
    path = tmp_path / "trajectories.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["ending"] = "lost"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = path.read_text()
    opened = Evaluation(tmp_path, SETTINGS, seeded_tasks(6))
    assert (opened.done, opened.report().lost) == (5, 1)
    assert path.read_text() == before
    assert play(server, tmp_path).lost == 0


def test_tasks_come_from_the_server_from_a_file_or_from_seeds(server: Running, tmp_path: Path) -> None:
    with running(create_app(Sums, env_name="sums")) as sums:
        preferred = served_tasks(sums.url)
        assert preferred is not None
        assert [task.id for task in preferred] == ["test/hard"]
        chosen = served_tasks(sums.url, split="train", limit=3)
        assert chosen is not None
        assert [task.id for task in chosen] == ["train/0", "train/1", "train/2"]
        with pytest.raises(ConfigurationError, match="no split 'dev'; there is train, test"):
            served_tasks(sums.url, split="dev")
    assert served_tasks(server.url) is None
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        '{"prompt": "Add.", "options": {"seed": 1}, "data": {"answer": 3}}\n{"id": "b", "promt": ""}\n'
    )
    (first,) = tasks_in(str(file), 1)
    assert (first.id, first.prompt, first.data) == ("test/0", "Add.", {"answer": 3})
    with pytest.raises(ConfigurationError, match=r"line 2: .*promt: Extra inputs"):
        tasks_in(str(file))
    with pytest.raises(ConfigurationError, match="two tasks have the id"):
        Evaluation(tmp_path / "x", SETTINGS, [*seeded_tasks(2), *seeded_tasks(1)])
    with pytest.raises(ConfigurationError, match="no task to play"):
        Evaluation(tmp_path / "x", SETTINGS, [])
