"""Trees of rollouts: episodes that are forked in the middle, and share what came before."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from envtorch.errors import EnvTorchError, Unsupported
from envtorch.rollout.beginnings import RolloutClient, close_quietly
from envtorch.rollout.lost_attempts import Lost, pause
from envtorch.rollout.trajectories import ChatMessage, Ending, Task, Tokens, Trajectory, TurnRecord
from envtorch.rollout.transcripts import Transcript
from envtorch.rollout.turn_taking import Over, TurnTaker

__all__ = ["RolloutTree", "TreeGrower", "TreeNode"]


@dataclass(slots=True, eq=False)
class TreeNode:
    """What was said and heard between two forks. Only its own part: the rest is its parents'."""

    parent: "TreeNode | None"
    messages: tuple[ChatMessage, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    turns: tuple[TurnRecord, ...] = ()
    over: Over | None = None
    """How the episode ended; None where it was forked."""
    lost: Lost = ()
    children: "list[TreeNode]" = field(default_factory=list)

    @property
    def path(self) -> "list[TreeNode]":
        """From the root to this node."""
        return [*(self.parent.path if self.parent is not None else ()), self]

    @property
    def leaves(self) -> "Iterator[TreeNode]":
        """The ends of the episodes that went through this node."""
        if self.over is not None:
            yield self
        for child in self.children:
            yield from child.leaves

    @property
    def lost_with(self) -> EnvTorchError | None:
        """Why none of the episodes that went through this node came to an end; None if one did."""
        endings = [leaf.over for leaf in self.leaves if leaf.over is not None]
        error = endings[0].blame
        is_lost = all(over.ending is Ending.LOST for over in endings)
        return error if is_lost and isinstance(error, EnvTorchError) else None


@dataclass(frozen=True, slots=True)
class RolloutTree:
    """The rollouts of one task, with what they share held once."""

    task: Task
    root: TreeNode

    @property
    def trajectories(self) -> list[Trajectory]:
        """Each leaf's episode from the beginning, as if it had been played by itself."""
        return [self._trajectory(place, leaf) for place, leaf in enumerate(self.root.leaves)]

    @property
    def unique_tokens(self) -> int:
        """How many tokens the tree holds; a trainer that packs prefixes computes so many."""
        return _count_tokens(self.root)

    def value(self, node: TreeNode) -> float | None:
        """The mean reward of the scored episodes that went through a node; None when there is none."""
        played = [self._trajectory(0, leaf).reward for leaf in node.leaves]
        rewards = [reward for reward in played if reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def advantage(self, node: TreeNode) -> float | None:
        """How much better a branch did than its siblings and itself on average; None when it has no value."""
        if node.parent is None:
            return None
        value, usual = self.value(node), self.value(node.parent)
        return value - usual if value is not None and usual is not None else None

    def _trajectory(self, place: int, leaf: TreeNode) -> Trajectory:
        assert leaf.over is not None
        path = leaf.path
        return Trajectory(
            self.task,
            place,
            leaf.over.ending,
            tuple(message for node in path for message in node.messages),
            Tokens.joined(node.tokens for node in path),
            tuple(turn for node in path for turn in node.turns),
            blame=leaf.over.blame,
            lost=tuple(error for node in path for error in node.lost),
        )


def _count_tokens(node: TreeNode) -> int:
    return len(node.tokens) + sum(map(_count_tokens, node.children))


class TreeGrower:
    """Plays one tree.

    The session at a fork stays where it is until its branches are over: a lost one can be forked again.
    """

    def __init__(
        self,
        turns: TurnTaker,
        *,
        width: int,
        branch_when: Callable[[Transcript], bool],
        max_leaves: int,
        attempts: int,
    ) -> None:
        self._turns = turns
        self._width = width
        self._branch_when = branch_when
        self._attempts = attempts
        self._leaves_left = max_leaves - 1

    async def grow(self, client: RolloutClient, talk: Transcript, parent: TreeNode | None = None) -> TreeNode:
        """The episode from here on, with all its branches."""
        is_root = parent is None
        node = TreeNode(parent)
        messages, tokens, turns = (
            (0, 0, 0) if is_root else (len(talk.messages), len(talk.tokens), len(talk.turns))
        )
        over: Over | None = None
        if not (is_root and self._may_branch(talk)):
            with self._turns.joined():
                over = await self._turns.play(client, talk, self._may_branch)
        node.messages = tuple(talk.messages[messages:])
        node.tokens = talk.tokens.after(tokens)
        node.turns = tuple(talk.turns[turns:])
        node.over = over
        if over is None:
            await self._branch(client, talk, node)
        return node

    def _may_branch(self, talk: Transcript) -> bool:
        """Whether to fork here; the leaves that it adds are taken from what is left."""
        if self._leaves_left < self._width - 1 or not self._branch_when(talk):
            return False
        self._leaves_left -= self._width - 1
        return True

    async def _branch(self, client: RolloutClient, talk: Transcript, node: TreeNode) -> None:
        copies: list[RolloutClient] = []
        try:
            try:
                copies = await client.fork(self._width)
            except Unsupported:
                raise
            except EnvTorchError:
                pass  # each branch tries for itself
            waiting = [*copies, *(None,) * (self._width - len(copies))]
            async with asyncio.TaskGroup() as group:
                branches = [group.create_task(self._child(client, copy, talk, node)) for copy in waiting]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await close_quietly(*copies)
        node.children = [branch.result() for branch in branches]

    async def _child(
        self, stem: RolloutClient, client: RolloutClient | None, talk: Transcript, parent: TreeNode
    ) -> TreeNode:
        """One branch, played again from the fork while the infrastructure loses it."""
        lost: Lost = ()
        while True:
            try:
                if client is None:
                    (client,) = await stem.fork(1)
                node = await self.grow(client, talk.copy(), parent)
            except EnvTorchError as error:
                node = TreeNode(parent, over=Over(self._turns.ending_of(error, has_acted=False), error))
            finally:
                if client is not None:
                    await close_quietly(client)
            node.lost = lost
            if node.over is None or node.over.ending is not Ending.LOST or len(lost) + 1 >= self._attempts:
                return node
            assert isinstance(node.over.blame, EnvTorchError)
            lost, client = (*lost, node.over.blame), None
            await pause(len(lost))
