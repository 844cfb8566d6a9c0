"""What rollouts have played, here or by a driver in another process, and what the two tell each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from envtorch.errors import EnvTorchError
from envtorch.rollout.lost_attempts import Lost
from envtorch.rollout.rollout_trees import RolloutTree, TreeNode
from envtorch.rollout.trajectories import Ending, Task, Trajectory, TrajectoryGroup
from envtorch.rollout.transcripts import Transcript
from envtorch.rollout.turn_taking import Over

__all__ = [
    "Answer",
    "Assignment",
    "DriverEvent",
    "GroupOrder",
    "OrderResult",
    "PlaceLeft",
    "PlaceMoved",
    "PlaceWanted",
    "RolloutOrder",
    "TreeOrder",
]


class RolloutOrder(Protocol):
    """One thing to play."""

    @property
    def task(self) -> Task: ...

    @property
    def seats(self) -> int:
        """How many sessions it has open at once, at most."""

    def given_up(self, lost: Lost, error: EnvTorchError) -> Any:
        """Its result when every attempt was lost, the last one with this error."""


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """A task, to be played `size` times from the same beginning."""

    task: Task
    size: int

    @property
    def seats(self) -> int:
        return self.size + (self.size > 1)  # the one that stays at the beginning, to be forked

    def given_up(self, lost: Lost, error: EnvTorchError, ending: Ending = Ending.LOST) -> TrajectoryGroup:
        members = (Trajectory(self.task, place, ending, blame=error, lost=lost) for place in range(self.size))
        return TrajectoryGroup(self.task, tuple(members))


@dataclass(frozen=True, slots=True)
class TreeOrder:
    """A task, to be played as a tree; see `Rollouts.tree`."""

    task: Task
    width: int
    branch_when: Callable[[Transcript], bool]
    max_leaves: int

    @property
    def seats(self) -> int:
        forks = (self.max_leaves - 1) // (self.width - 1)
        return 1 + forks * self.width  # the session at a fork stays there

    def given_up(self, lost: Lost, error: EnvTorchError, ending: Ending = Ending.LOST) -> RolloutTree:
        return RolloutTree(self.task, TreeNode(None, over=Over(ending, error), lost=lost))


# To a driver.


@dataclass(frozen=True, slots=True)
class Assignment:
    """An order for a driver."""

    number: int
    order: RolloutOrder
    address: str
    """The server to play it on."""
    lost: Lost
    """Attempts that were lost with the drivers before this one."""


Answer = str | EnvTorchError
"""An address that a driver asked for, or why there is none."""


# From a driver.


@dataclass(frozen=True, slots=True)
class PlaceWanted:
    """A place on a server for one session more. Places of an order have numbers; 0 came with it."""

    place: int


@dataclass(frozen=True, slots=True)
class PlaceMoved:
    """The session at this place lost its server and needs a place elsewhere.

    A copy, made by a fork, that had no place of its own names that of its `origin`.
    """

    place: int
    origin: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class PlaceLeft:
    """The session at this place has ended."""

    place: int
    is_suspected: bool
    """It ended with a fault of its server, which may be dead."""


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The order was played; and the policy's calls since the driver last told of them."""

    result: Any
    batch_sizes: tuple[int, ...]
    busy_s: float


DriverEvent = PlaceWanted | PlaceMoved | PlaceLeft | OrderResult
