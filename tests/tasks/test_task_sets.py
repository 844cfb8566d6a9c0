"""Sets of tasks: from any source, with ids that stay, and errors that say which line is wrong."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from envtorch.errors import ConfigurationError, InvalidAction
from envtorch.tasks import HubDataset, TaskEntry, TaskSet, source_named


class Sum(BaseModel):
    question: str
    answer: int


@dataclass
class Word:
    letters: str
    tags: list[str]


ROWS = [{"question": f"{n} + {n}", "answer": 2 * n} for n in range(7)]


def jsonl(path: Path, rows: list[Any] = ROWS) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def parquet(path: Path, rows: list[Any] = ROWS) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


SOURCES: dict[str, Callable[[Path], Any]] = {
    "list": lambda _: ROWS,
    "typed": lambda _: [Sum.model_validate(row) for row in ROWS],
    "generator": lambda _: generated,
    "jsonl": lambda path: jsonl(path / "tasks.jsonl"),
    "parquet": lambda path: parquet(path / "tasks.parquet"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_tasks_ids_and_hashes(kind: str, tmp_path: Path) -> None:
    tasks = TaskSet(Sum, {"train": SOURCES[kind](tmp_path)})
    expected = TaskSet(Sum, {"train": ROWS})
    assert len(tasks) == 7
    assert list(tasks.entries()) == list(expected.entries())
    assert [entry.id for entry in tasks.entries("train", 2, 4)] == ["train/2", "train/3"]
    assert tasks.entry("train/6").task == Sum(question="6 + 6", answer=12)
    assert_type(tasks.entry("train/6"), TaskEntry[Sum])


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("id", ["train/7", "train/-1", "train/03", "train/x", "other/0", "train"])
def test_an_id_that_is_not_there_is_refused_in_a_sentence(kind: str, id: str, tmp_path: Path) -> None:
    tasks = TaskSet(Sum, {"train": SOURCES[kind](tmp_path)})
    with pytest.raises(InvalidAction, match=r"there is no task|there is no split|is not the id"):
        tasks.entry(id)


def test_rows_with_an_id_keep_it_wherever_they_stand(tmp_path: Path) -> None:
    named = [{"id": f"q{n}", **row} for n, row in enumerate(ROWS)]
    before = TaskSet(Sum, {"test": jsonl(tmp_path / "a.jsonl", named)})
    after = TaskSet(Sum, {"test": jsonl(tmp_path / "b.jsonl", named[::-1])})
    assert before.entry("test/q3") == after.entry("test/q3")
    assert {entry.id for entry in after.entries()} == {f"test/q{n}" for n in range(7)}


def test_a_changed_task_has_another_hash() -> None:
    one, other = (TaskSet(Sum, [{"question": "1 + 1", "answer": n}]).entry("test/0") for n in (2, 3))
    assert one.hash != other.hash
    as_served = {"id": one.id, "hash": one.hash, "task": {}}
    with pytest.raises(InvalidAction, match="has changed since"):
        TaskSet(Sum, [{"question": "1 + 1", "answer": 3}]).find_task(as_served)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4), st.randoms())
def test_a_hash_does_not_depend_on_the_order_of_fields(fields: dict[str, Any], random: Any) -> None:
    mixed = list(fields.items())
    random.shuffle(mixed)
    hashes = [next(TaskSet(dict, [row]).entries()).hash for row in (fields, dict(mixed))]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", r"tasks.jsonl, line 3: this is not JSON"),
        ('{"question": "x"}', r"tasks.jsonl, line 3: this is not a task: answer: Field required"),
        ("[]", r"tasks.jsonl, line 3: this is not a task"),
        ('{"question": "x", "answer": "many"}', r"line 3: this is not a task: answer: .*integer"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, wrong: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n\n" + line + "\n")
    tasks = TaskSet(Sum, path)
    assert tasks.entry("test/0").task.answer == 0, "lines are read when they are needed"
    with pytest.raises(ConfigurationError, match=wrong):
        tasks.load()


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "tasks.jsonl", [{"id": "a", **ROWS[0]}, {"id": "b", **ROWS[1]}, {"id": "a", **ROWS[2]}]
    )
    with pytest.raises(ConfigurationError, match=r"two tasks have the id 'a': .*line 3, and .*line 1"):
        TaskSet(Sum, path).load()
    mixed = jsonl(tmp_path / "mixed.jsonl", [{"id": "a", **ROWS[0]}, ROWS[1]])
    with pytest.raises(ConfigurationError, match="line 2: this task has no `id`"):
        TaskSet(Sum, mixed).load()


def test_a_source_that_cannot_be_one_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        TaskSet(Sum, tmp_path / "absent.jsonl")
    with pytest.raises(ConfigurationError, match=r"ends in \.jsonl or \.parquet"):
        TaskSet(Sum, tmp_path / "tasks.csv")
    with pytest.raises(ConfigurationError, match="cannot come from a int"):
        TaskSet(Sum, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="without a slash"):
        TaskSet(Sum, {"a/b": ROWS})
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigurationError, match="not a Parquet file"):
        TaskSet(Sum, broken).load()


def test_a_function_is_read_only_as_far_as_needed() -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            read.append(1)
            yield {"question": "", "answer": len(read)}

    tasks = TaskSet(Sum, {"train": endless})
    assert not read
    assert tasks.get_task("train", 4)["task"]["answer"] == 5
    assert len(tasks.get_task_range("train", 2, 6)) == 4
    assert len(read) <= 7


def test_a_function_that_fails_once_is_called_again_for_the_rest() -> None:
    calls: list[int] = []

    def flaky() -> Iterator[dict[str, Any]]:
        calls.append(1)
        yield from ROWS[:3]
        if len(calls) < 3:
            raise OSError("the network is gone")
        yield from ROWS[3:]

    tasks = TaskSet(Sum, flaky)
    for _ in range(2):
        with pytest.raises(OSError, match="network is gone"):
            len(tasks)
        assert tasks.entry("test/2").task.answer == 4, "what was read is kept"
    assert [task.answer for task in tasks] == [2 * n for n in range(7)]
    assert tasks.num_tasks("test") == 7
    assert len(calls) == 3


@pytest.mark.parametrize("good", [0, 3])
def test_a_failed_iterator_that_is_given_again_is_not_the_end_of_the_set(good: int) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ROWS[:good]
        raise OSError("the network is gone")

    only = rows()
    tasks = TaskSet(Sum, lambda: only)
    with pytest.raises(OSError, match="network is gone"):
        len(tasks)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="return a new one from each call"):
            len(tasks)


def test_a_function_that_gives_fewer_tasks_after_an_error_is_refused() -> None:
    calls: list[int] = []

    def shrinking() -> Iterator[dict[str, Any]]:
        calls.append(1)
        if len(calls) == 1:
            yield from ROWS[:3]
            raise OSError("the network is gone")
        yield ROWS[0]

    tasks = TaskSet(Sum, shrinking)
    with pytest.raises(OSError, match="network is gone"):
        len(tasks)
    with pytest.raises(ConfigurationError, match=r"gave 1 tasks when it was called again .* at least 3"):
        len(tasks)


@pytest.mark.parametrize("kind", SOURCES)
def test_numbers_that_no_split_can_have_are_the_callers_mistake(kind: str, tmp_path: Path) -> None:
    tasks = TaskSet(Sum, {"train": SOURCES[kind](tmp_path)})
    for digits in (19, 20, 5000):
        with pytest.raises(
            InvalidAction, match=r"there is no task train/9+(\.\.\.)?: the split has 7"
        ) as refused:
            tasks.entry("train/" + "9" * digits)
        assert len(str(refused.value)) < 200
    for start, stop in ((10**30, None), (0, 10**30)):
        with pytest.raises(InvalidAction, match="start and stop are numbers from 0 to"):
            tasks.get_task_range("train", start, stop)
    with pytest.raises(IndexError):
        tasks.get_task("train", 10**30)
    assert tasks.get_task_range("train", 10**15) == []


def test_threads_may_read_a_set_together() -> None:
    tasks = TaskSet(Sum, {"train": generated})
    seen: list[list[int]] = []
    threads = [threading.Thread(target=lambda: seen.append([t.answer for t in tasks])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[2 * n for n in range(7)]] * 8


def test_a_dataset_is_loaded_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    jsonl(tmp_path / "test.jsonl")
    tasks = TaskSet(Sum, {"test": HubDataset(str(tmp_path))})
    assert [task.answer for task in tasks] == [2 * n for n in range(7)]
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        TaskSet(Sum, HubDataset(str(tmp_path / "absent"))).load()


def test_a_command_line_names_a_source(tmp_path: Path) -> None:
    assert source_named("hf:openai/gsm8k:main:train") == HubDataset("openai/gsm8k", "main", "train")
    assert source_named("hf:openai/gsm8k") == HubDataset("openai/gsm8k")
    assert source_named(str(jsonl(tmp_path / "tasks.jsonl"))) == str(tmp_path / "tasks.jsonl")
    with pytest.raises(ConfigurationError, match="names no dataset"):
        source_named("hf:a:b:c:d")


def test_dataclasses_and_dictionaries_are_tasks_too() -> None:
    rows = [{"letters": "abc", "tags": ["x"]}]
    assert TaskSet(Word, rows).entry("test/0").task == Word("abc", ["x"])
    assert TaskSet(dict, rows).entry("test/0").task == rows[0]
