"""A trajectory: every turn, sub-call, block and fork of a tree of agents, one JSON object per line."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from envtorch.envs.repl_env.events import Asked, Event, read_event, write_event
from envtorch.envs.repl_env.language_models import Completion, ModelFailed, Request
from envtorch.errors import EnvTorchError

__all__ = ["RecordedModel", "ReplayDiverged", "TrajectoryWriter", "read_trajectory"]


class ReplayDiverged(EnvTorchError):
    """The run no longer does what was recorded: something in it is not determined by its inputs."""


class TrajectoryWriter:
    """Writes events to a file as they happen; a run that is killed leaves all lines but the last whole."""

    def __init__(self, path: Path | str) -> None:
        self._file: BinaryIO = Path(path).open("wb")  # noqa: SIM115  closed by `close`
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._file.write(write_event(event) + b"\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_trajectory(path: Path | str) -> Iterator[Event]:
    """The events of a file, in order."""
    with Path(path).open("rb") as file:
        for line in file:
            yield read_event(line)


@dataclass(slots=True)
class RecordedModel:
    """A model that says what was recorded, to whoever asks what was recorded."""

    events: Iterable[Event]
    diverged: list[ReplayDiverged] = field(default_factory=list, init=False)
    """Where the run went another way. The code of an agent that asked may have gone on from the error."""
    _said: dict[tuple[str, int], Asked] = field(init=False)

    def __post_init__(self) -> None:
        self._said = {(e.node, e.number): e for e in self.events if isinstance(e, Asked)}

    async def complete(self, request: Request) -> Completion:
        """The recorded answer. Raises `ReplayDiverged` when the question is another one."""
        said = self._said.get((request.node, request.number))
        difference = _difference(request, said)
        if said is None or difference:
            where = f"question {request.number} of agent {request.node}"
            self.diverged.append(ReplayDiverged(f"{where} {difference}"))
            raise self.diverged[-1]
        if said.answer is None:
            raise ModelFailed(said.error or "no answer was recorded")
        return Completion(said.answer)

    async def close(self) -> None:
        pass


def _difference(request: Request, said: Asked | None) -> str:
    """How a question differs from the recorded one; empty when it does not."""
    if said is None:
        return "was never asked when this was recorded"
    for now, then in zip(reversed(request.messages), reversed(said.messages), strict=False):
        if dict(now) != dict(then):
            return f"was {then['content'][:200]!r}, and is {now['content'][:200]!r}"
    return ""
