"""Trajectories in a file: read as they were written, and gone on from after an interruption."""

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from envtorch.errors import ConfigurationError, SessionLost
from envtorch.rollout import (
    BlockingRollouts,
    Completion,
    Ending,
    JSONFormat,
    Prompt,
    Rollouts,
    RolloutSummary,
    Task,
    Trajectory,
    TrajectoryFile,
    TrajectoryGroup,
    score_by,
)
from envtorch.rubrics import Rubric
from tests.rollout.dials import LETTERS, RAISE, DialEnv, Player, Press, dials, scattered
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
    assert {json.loads(row["settings"])["client"] for row in rows} == {"DialEnv"}


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
        assert json.loads(row["settings"])["max_turns"] == 20
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


def test_a_file_is_read_once_however_many_runs_record_to_it(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    other = TrajectoryFile(file.path)
    counted = 0
    count = TrajectoryFile._count

    def noted(one: TrajectoryFile) -> None:
        nonlocal counted
        counted += 1
        count(one)

    monkeypatch.setattr(TrajectoryFile, "_count", noted)
    for _ in range(3):
        assert collect(server, file, Player(scattered)) == 0
    assert counted == 0, "nobody else has written to it"
    assert collect(server, other, Player(scattered)) == 0
    other.add(TrajectoryGroup(TASKS[0], tuple(t for t in file if t.task == TASKS[0])))
    assert list(file.unplayed([*TASKS, TASKS[0]])) == [TASKS[0]]
    assert collect(server, file, Player(scattered)) == 0
    assert counted == 1, "what another one has added is counted when a run begins"
    assert not list(file.unplayed([*TASKS, TASKS[0]]))


def test_a_group_that_a_run_lost_is_played_again_by_the_next_one(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    collect(server, file, Player(scattered))
    played = tuple(t for t in file if t.task == TASKS[0])
    lost = tuple(dataclasses.replace(t, ending=Ending.LOST) for t in played)
    file.add(TrajectoryGroup(TASKS[0], lost))
    assert len(list(file)) == 2 * len(TASKS) + 2
    assert collect(server, file, Player(scattered)) == 0
    assert len(list(file)) == 2 * len(TASKS), "the lost one is removed"


def test_what_is_no_completion_is_told_at_once(server: Running) -> None:
    async def words(prompts: Sequence[Prompt]) -> list[str]:
        return ["up"] * len(prompts)

    async def run() -> None:
        async with Rollouts(DialEnv, server.url, words) as rollouts:  # type: ignore[arg-type]
            async for _ in rollouts.groups(TASKS, size=2):
                pass

    with pytest.raises(TypeError, match="the policy gave str: it must give Completions"):
        asyncio.run(run())


def played(
    server: Running, file: TrajectoryFile, tasks: Sequence[Task], policy: Any = None, **options: Any
) -> list[str]:
    """The ids of the tasks that were played."""
    size = options.pop("size", 1)

    async def run() -> list[str]:
        async with Rollouts(DialEnv, server.url, policy or Player(scattered), **options) as rollouts:
            return [group.task.id async for group in rollouts.groups(tasks, size=size, record=file)]

    return asyncio.run(run())


def test_a_task_is_played_as_often_as_it_stands_in_the_list(server: Running, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    twins = [Task({"seed": 1}), Task({"seed": 1}), Task({"seed": 2}, id="a"), Task({"seed": 3}, id="a")]
    assert len(played(server, TrajectoryFile(path), twins, concurrency=1)) == 4
    assert played(server, TrajectoryFile(path), twins) == [], "they are all there"
    lines = path.read_text().splitlines(keepends=True)
    for missing in range(4):
        path.write_text("".join(lines[:missing] + lines[missing + 1 :]))
        again = played(server, TrajectoryFile(path), twins)
        assert again == [json.loads(lines[missing])["task"]["id"]]
        seeds = sorted(one.task.options["seed"] for one in TrajectoryFile(path))
        assert seeds == [1, 1, 2, 3]


def test_a_numpy_seed_is_recorded_and_found_again(server: Running, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "rollouts.jsonl"
    tasks = [Task({"seed": seed}) for seed in numpy.arange(3)]
    assert len(played(server, TrajectoryFile(path), tasks)) == 3
    assert played(server, TrajectoryFile(path), tasks) == []
    assert played(server, TrajectoryFile(path), [Task({"seed": 2})]) == [], "the number is the same"


class Sampled(Player):
    """A policy that tells what its completions depend on."""

    record_settings: ClassVar[dict[str, Any]] = {"model": "small", "temperature": 1.0}


class Anything(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return 1.0


class Warmer(Player):
    record_settings: ClassVar[dict[str, Any]] = {"model": "small", "temperature": 1.5}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_turns": 3}, "max_turns was 20 and is 3"),
        ({"size": 2}, "size was 1 and is 2"),
        ({"format": JSONFormat(Press, "Press.")}, "system was "),
        ({"template": LETTERS}, "template was None and is 'Letters'"),
        ({"step_timeout_s": 5.0}, "step_timeout_s was None and is 5.0"),
        ({"score": score_by(Anything())}, "score was None and is 'score_by Anything'"),
        (
            {"policy": Warmer(scattered)},
            "policy was 'Sampled' and is 'Warmer', temperature was 1.0 and is 1.5",
        ),
    ],
)
def test_a_record_is_not_continued_with_other_settings(
    server: Running, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "rollouts.jsonl"
    assert len(played(server, TrajectoryFile(path), TASKS[:2], Sampled(scattered))) == 2
    before = path.read_text()
    given = {"policy": Sampled(scattered), **change}
    with pytest.raises(ConfigurationError) as refused:
        played(server, TrajectoryFile(path), TASKS, **given)
    assert named in str(refused.value)
    assert "mixed=True" in refused.value.details["next_step"]
    assert path.read_text() == before
    assert len(played(server, TrajectoryFile(path), TASKS, Sampled(scattered))) == len(TASKS) - 2
    more = [Task({"seed": 77})]
    assert len(played(server, TrajectoryFile(path, mixed=True), more, **given)) == 1


def test_blocking_rollouts_name_their_own_policy(server: Running, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"

    def first(prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion('{"number": 1}') for _ in prompts]

    def second(prompts: Sequence[Prompt]) -> list[Completion]:
        return first(prompts)

    with BlockingRollouts(DialEnv, server.url, first, max_turns=1) as rollouts:
        assert len(list(rollouts.groups(TASKS[:1], size=1, record=TrajectoryFile(path)))) == 1
    with (
        BlockingRollouts(DialEnv, server.url, second, max_turns=1) as rollouts,
        pytest.raises(ConfigurationError, match=r"policy was .*first' and is .*second'"),
    ):
        list(rollouts.groups(TASKS, size=1, record=TrajectoryFile(path)))


def test_a_file_that_cannot_be_written_is_told_before_anything_is_played(
    server: Running, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    policy = Player(scattered)
    with pytest.raises(ConfigurationError, match=r"file/rollouts.jsonl cannot be written"):
        played(server, TrajectoryFile(tmp_path / "file" / "rollouts.jsonl"), TASKS, policy)
    assert not policy.sizes


@pytest.mark.parametrize("text", ["[1]\n", "not JSON\n", '{"id": 7}\n{"id": 8}\n', '{"ending": 1}\n'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"line 1 of .* is no trajectory"):
        TrajectoryFile(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.jsonl"]
    assert path.read_text() == text


# A file that is read while it is written, or afterwards.


def group_of(seed: int, *endings: Ending) -> TrajectoryGroup:
    task = Task.of(seed)
    members = [
        Trajectory(task, place, ending, blame=SessionLost("it is gone") if ending is Ending.LOST else None)
        for place, ending in enumerate(endings)
    ]
    return TrajectoryGroup(task, tuple(members))


def test_reading_a_file_shows_what_was_lost_and_changes_nothing(tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    file.add(group_of(1, *[Ending.DONE] * 7, Ending.LOST))
    file.add(group_of(2, Ending.DONE))
    assert len(file) == 1, "the other one is to be played again"
    written = file.path.read_bytes()
    read = TrajectoryFile(file.path)
    endings = RolloutSummary.of(read).endings
    assert (endings[Ending.DONE], endings[Ending.LOST]) == (8, 1)
    assert (len(read), Task.of(1) in read, Task.of(2) in read) == (1, False, True)
    assert file.path.read_bytes() == written


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    file.add(group_of(1, Ending.DONE))
    whole = file.path.read_text()
    file.path.write_text(whole + whole[:40])
    assert [read.task.id for read in TrajectoryFile(file.path)] == [Task.of(1).id]
    assert file.path.read_text() == whole + whole[:40]
    reopened = TrajectoryFile(file.path)
    reopened.add(group_of(2, Ending.DONE))
    assert [read.task.id for read in reopened] == [Task.of(1).id, Task.of(2).id]


def test_a_file_that_is_opened_while_a_run_writes_loses_no_group(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    file.add(group_of(77, Ending.LOST))
    seen: list[int] = []

    async def run() -> None:
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=2) as rollouts:
            async for _ in rollouts.groups(TASKS, size=1, record=TrajectoryFile(file.path, mixed=True)):
                seen.append(len(list(TrajectoryFile(file.path))))

    asyncio.run(run())
    assert seen == [1, 2, 3, 4, 5, 6]
    assert len(list(TrajectoryFile(file.path))) == len(TASKS)


def test_a_second_run_that_records_to_the_same_file_is_refused(server: Running, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    TrajectoryFile(path).add(group_of(77, Ending.LOST))
    waiting = TrajectoryFile(path, mixed=True)

    async def run() -> int:
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=2) as rollouts:
            first = rollouts.groups(TASKS, size=1, record=TrajectoryFile(path, mixed=True))
            await anext(first)
            with pytest.raises(ConfigurationError, match=r"another run adds to .*rollouts.jsonl"):
                await anext(rollouts.groups(TASKS, size=1, record=waiting))
            with pytest.raises(ConfigurationError, match="another run adds to"):
                waiting.add(group_of(78, Ending.DONE))
            await first.aclose()
            left = [group async for group in rollouts.groups(TASKS, size=1, record=waiting)]
            return len(left)

    assert asyncio.run(run()) < len(TASKS), "what the first run has added is not played again"
    assert len(list(waiting)) == len(waiting) == len(TASKS)


def test_rollouts_that_are_closed_hold_no_file_though_their_groups_were_left_early(
    server: Running, tmp_path: Path
) -> None:
    path = tmp_path / "rollouts.jsonl"
    left: list[Any] = []

    async def run() -> int:
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=2) as rollouts:
            left.append(rollouts.groups(TASKS, size=1, record=TrajectoryFile(path)))
            await anext(left[0])
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=2) as rollouts:
            return len([group async for group in rollouts.groups(TASKS, size=1, record=TrajectoryFile(path))])

    assert asyncio.run(run()) == len(TASKS) - 1


def test_one_file_may_be_recorded_to_by_two_loops_of_one_process(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")

    async def run() -> None:
        async with Rollouts(DialEnv, server.url, Player(scattered), concurrency=2) as rollouts:
            first = rollouts.groups(TASKS[:3], size=1, record=file)
            await anext(first)
            async for _ in rollouts.groups(TASKS[3:], size=1, record=file):
                pass
            async for _ in first:
                pass

    asyncio.run(run())
    assert len(file) == len(list(TrajectoryFile(file.path))) == len(TASKS)
