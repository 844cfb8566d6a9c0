"""Trajectories in a file: read as they were written, and gone on from after an interruption."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envtorch.rollout import Prompt, Rollouts, Task, Trajectory, TrajectoryFile
from tests.rollout.dials import LETTERS, RAISE, DialEnv, Player, dials, scattered
from tests.support import Running

TASKS = [Task({"seed": seed}) for seed in range(6)]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def collect(server: Running, file: TrajectoryFile, policy: Player, stop_after: int | None = None) -> int:
    """How many groups were played."""

    async def run() -> int:
        count = 0
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS, concurrency=8) as rollouts:
            async for _ in rollouts.groups(TASKS, size=2, record=file):
                count += 1
                if count == stop_after:
                    break
        return count

    return asyncio.run(run())


def comparable(trajectories: Sequence[Trajectory]) -> list[tuple[object, ...]]:
    rows = [(t.task.id, t.member, t.messages, t.tokens, t.reward, t.cause) for t in trajectories]
    return sorted(rows, key=repr)


def test_trajectories_are_read_as_they_were_written(server: Running, tmp_path: Path) -> None:
    def choose(prompt: Prompt) -> int:
        return RAISE if "game 3" in prompt.messages[1]["content"] else scattered(prompt)

    file = TrajectoryFile(tmp_path / "runs" / "rollouts.jsonl")
    played: list[Trajectory] = []

    async def run() -> None:
        async with Rollouts(DialEnv, server.url, Player(choose), template=LETTERS) as rollouts:
            async for group in rollouts.groups(TASKS, size=2, record=file):
                played.extend(group)

    asyncio.run(run())
    read = list(TrajectoryFile(file.path))
    assert read[0].turns == played[0].turns
    assert comparable(read) == comparable(played)
    assert {t.cause for t in read} >= {"environment: EnvironmentFailed"}


def test_a_run_that_was_interrupted_goes_on_where_it_was(server: Running, tmp_path: Path) -> None:
    whole = TrajectoryFile(tmp_path / "whole.jsonl")
    assert collect(server, whole, Player(scattered)) == len(TASKS)
    broken = TrajectoryFile(tmp_path / "broken.jsonl")
    assert collect(server, broken, Player(scattered), stop_after=2) == 2
    resumed = TrajectoryFile(broken.path)
    assert collect(server, resumed, Player(scattered)) == len(TASKS) - 2
    assert comparable(list(resumed)) == comparable(list(whole))
    assert len(resumed) == len(TASKS)


@pytest.mark.parametrize("cut", [1, 100, 1000])
def test_a_group_that_was_half_written_is_played_again(server: Running, tmp_path: Path, cut: int) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    before = comparable(list(file))
    os.truncate(file.path, file.path.stat().st_size - cut)
    resumed = TrajectoryFile(file.path)
    assert len(resumed) < len(TASKS)
    collect(server, resumed, Player(scattered))
    assert comparable(list(resumed)) == before


def test_datasets_loads_the_file(server: Running, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    rows = datasets.load_dataset("json", data_files=str(file.path), split="train", cache_dir=str(tmp_path))
    assert len(rows) == 2 * len(TASKS)
    assert all(len(row["ids"]) == len(row["mask"]) == len(row["logprobs"]) for row in rows)
    assert json.loads(file.path.read_text().splitlines()[0])["group_size"] == 2


def test_parquet_has_the_same_trajectories_and_datasets_loads_it(server: Running, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from envtorch.rollout.trajectory_parquet import export_trajectories

    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    path = export_trajectories(file)
    assert path == tmp_path / "rollouts.parquet"
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path))
    assert len(rows) == 2 * len(TASKS)
    for row, played in zip(rows, file, strict=True):
        assert row["task_id"] == played.task.id
        assert json.loads(row["options"]) == played.task.options
        assert (tuple(row["ids"]), tuple(row["mask"])) == (played.tokens.ids, played.tokens.mask)
        assert [message["content"] for message in row["messages"]] == [m["content"] for m in played.messages]
        assert (row["reward"], row["ending"]) == (played.reward, str(played.ending))
        assert [turn["reward"] for turn in row["turns"]] == [turn.reward for turn in played.turns]


def test_groups_that_were_lost_are_played_again(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    rows = [json.loads(line) for line in file.path.read_text().splitlines()]
    rows[3]["ending"] = "lost"
    file.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    resumed = TrajectoryFile(file.path)
    assert len(resumed) == len(TASKS) - 1
    assert collect(server, resumed, Player(scattered)) == 1
    assert {t.task.id for t in resumed} == {task.id for task in TASKS}
    assert not [t for t in resumed if t.ending == "lost"]
    assert len(list(resumed)) == 2 * len(TASKS)


def test_what_is_no_completion_is_told_at_once(server: Running) -> None:
    async def words(prompts: Sequence[Prompt]) -> list[str]:
        return ["up"] * len(prompts)

    async def run() -> None:
        async with Rollouts(DialEnv, server.url, words) as rollouts:  # type: ignore[arg-type]
            async for _ in rollouts.groups(TASKS, size=2):
                pass

    with pytest.raises(TypeError, match="the policy gave str: it must give Completions"):
        asyncio.run(run())
