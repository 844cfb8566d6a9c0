"""Trees: episodes forked in the middle, whose leaves are what linear rollouts would have been."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError, SessionLost, Unsupported
from envtorch.rollout import Completion, Ending, Prompt, Rollouts, RolloutTree, Trajectory, TreeNode
from tests.rollout.dials import END, LETTERS, DialEnv, Player, Riveted, dials, lose, upwards
from tests.support import Running, eventually

QUICK = {"wait_s": 60.0, "reconnect_s": 1.0}
SEED = 7


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


class Varied:
    """A policy that answers the same prompt differently each time."""

    def __init__(self, before: Callable[[int], Awaitable[None]] | None = None) -> None:
        self._asked: Counter[Any] = Counter()
        self._before = before
        self._calls = 0

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        self._calls += 1
        if self._before is not None:
            await self._before(self._calls)
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: Prompt) -> Completion:
        assert prompt.ids is not None
        self._asked[tuple(prompt.ids)] += 1
        number = (self._asked[tuple(prompt.ids)] * 3 + len(prompt.ids)) % 10
        ids = [*LETTERS.encode(f'{{"number": {number}}}'), END]
        return Completion(ids=ids, logprobs=[-number - 0.5] * len(ids))


class Again:
    """A policy that says what was said in a trajectory."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._tokens = trajectory.tokens

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: Prompt) -> Completion:
        assert prompt.ids is not None
        begin = len(prompt.ids)
        assert tuple(prompt.ids) == self._tokens.ids[:begin]
        rest = self._tokens.mask[begin:]
        end = begin + (rest.index(0) if 0 in rest else len(rest))
        return Completion(ids=self._tokens.ids[begin:end], logprobs=self._tokens.logprobs[begin:end])


def grow(
    server: Running,
    policy: Any,
    turns: set[int],
    *,
    attempts: int = 3,
    concurrency: int = 40,
    **options: Any,
) -> RolloutTree:
    async def run() -> RolloutTree:
        made = Rollouts(
            DialEnv,
            server.url,
            policy,
            template=LETTERS,
            max_turns=5,
            concurrency=concurrency,
            attempts=attempts,
            client_options=QUICK,
        )
        async with made as rollouts:
            return await rollouts.tree(SEED, branch_when=lambda talk: len(talk.turns) in turns, **options)

    tree = asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")
    return tree


def linear(server: Running, trajectory: Trajectory) -> Trajectory:
    async def run() -> Trajectory:
        policy = Again(trajectory)
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS, max_turns=5) as rollouts:
            return await rollouts.run(SEED)

    return asyncio.run(run())


def story(trajectory: Trajectory) -> tuple[Any, ...]:
    return (trajectory.messages, trajectory.tokens, trajectory.reward, trajectory.ending)


def nodes(node: TreeNode) -> Iterator[TreeNode]:
    yield node
    for child in node.children:
        yield from nodes(child)


@pytest.mark.parametrize("turns", [{0}, {1}, {0, 1}, {1, 2}, set()])
def test_a_trees_leaves_are_the_linear_rollouts_with_the_same_choices(
    server: Running, turns: set[int]
) -> None:
    tree = grow(server, Varied(), turns, width=2, max_leaves=8)
    leaves = tree.trajectories
    assert [leaf.member for leaf in leaves] == list(range(len(leaves)))
    assert len(leaves) >= (2 if turns else 1)
    for leaf in leaves:
        assert story(leaf) == story(linear(server, leaf))


def test_what_branches_share_is_held_once(server: Running) -> None:
    tree = grow(server, Varied(), {1}, width=3, max_leaves=8)
    assert len(tree.root.children) == 3
    whole = sum(len(leaf.tokens) for leaf in tree.trajectories)
    assert tree.unique_tokens == whole - 2 * len(tree.root.tokens)
    assert tree.unique_tokens == sum(len(node.tokens) for node in nodes(tree.root))


def test_a_tree_has_no_more_leaves_than_it_may(server: Running) -> None:
    tree = grow(server, Varied(), {0, 1, 2, 3}, width=2, max_leaves=5)
    assert len(tree.trajectories) <= 5


def test_advantages_compare_a_branch_with_its_siblings(server: Running) -> None:
    tree = grow(server, Varied(), {0}, width=3, max_leaves=3)
    rewards = [leaf.reward for leaf in tree.trajectories]
    assert None not in rewards
    mean = sum(reward or 0.0 for reward in rewards) / 3
    assert tree.value(tree.root) == pytest.approx(mean)
    assert tree.advantage(tree.root) is None
    for child, reward in zip(tree.root.children, rewards, strict=True):
        assert tree.advantage(child) == pytest.approx((reward or 0.0) - mean)


@settings(max_examples=15)
@given(
    losses=st.dictionaries(st.integers(1, 8), st.integers(0, 20), max_size=3),
    turns=st.sets(st.integers(0, 3)),
)
def test_lost_branches_are_played_again_and_stay_aligned(
    server: Running, losses: dict[int, int], turns: set[int]
) -> None:
    async def before(call: int) -> None:
        if call in losses:
            await lose(server, losses[call])

    tree = grow(server, Varied(before), turns, width=2, max_leaves=6)
    for leaf in tree.trajectories:
        assert len(leaf.tokens.ids) == len(leaf.tokens.mask) == len(leaf.tokens.logprobs)
        assert (leaf.reward is None) == (leaf.ending is Ending.LOST)
        if leaf.ending is not Ending.LOST:
            assert story(leaf) == story(linear(server, leaf))


def test_a_tree_of_what_cannot_be_copied_is_refused() -> None:
    with dials(Riveted) as server, pytest.raises(Unsupported):
        grow(server, Varied(), {1})


def test_a_tree_that_cannot_branch_is_refused(server: Running) -> None:
    with pytest.raises(ConfigurationError):
        grow(server, Varied(), {1}, width=1)


def test_a_task_that_cannot_begin_is_one_lost_leaf(server: Running) -> None:
    async def run(url: str) -> RolloutTree:
        options = {"connect_timeout_s": 0.5, "reconnect_s": 0.1}
        made = Rollouts(DialEnv, url, Player(upwards), attempts=2, client_options=options)
        async with made as rollouts:
            return await rollouts.tree(SEED, branch_when=lambda talk: True)

    with dials() as gone:
        pass
    (leaf,) = asyncio.run(run(gone.url)).trajectories
    assert (leaf.ending, leaf.reward, len(leaf.lost)) == (Ending.LOST, None, 1)


def test_a_tree_has_no_more_sessions_open_than_concurrency_says(server: Running) -> None:
    most = 0

    async def watching(call: int) -> None:
        nonlocal most
        most = max(most, server.sessions.active)

    tree = grow(server, Varied(watching), {0, 1, 2, 3}, width=3, max_leaves=5, concurrency=7)
    assert tree.root.children
    assert 3 < most <= 7


def test_a_tree_that_does_not_fit_is_refused(server: Running) -> None:
    with pytest.raises(ConfigurationError, match=r"up to 7 sessions .* give Rollouts concurrency=7 or more"):
        grow(server, Varied(), {0}, width=3, max_leaves=5, concurrency=6)
    with pytest.raises(ConfigurationError, match="up to 15 sessions"):
        grow(server, Varied(), {0}, width=2, max_leaves=8, concurrency=14)


@pytest.mark.parametrize(
    ("turns", "call"), [({3}, 2), ({0}, 1)], ids=["before it is forked", "after it is forked"]
)
def test_a_tree_whose_trunk_is_lost_is_played_again(server: Running, turns: set[int], call: int) -> None:
    async def losing_all(number: int) -> None:
        if number == call:
            for _ in server.sessions.all():
                await lose(server, 0)

    tree = grow(server, Varied(losing_all), turns, width=2, max_leaves=2)
    assert [type(error) for error in tree.root.lost] == [SessionLost]
    assert Ending.LOST not in {leaf.ending for leaf in tree.trajectories}
    for leaf in tree.trajectories:
        assert leaf.lost[0] is tree.root.lost[0]
        assert story(leaf) == story(linear(server, leaf))


def test_a_tree_whose_trunk_is_lost_each_time_is_one_lost_leaf(server: Running) -> None:
    async def losing_all(number: int) -> None:
        for _ in server.sessions.all():
            await lose(server, 0)

    (leaf,) = grow(server, Varied(losing_all), {3}, attempts=2, width=2, max_leaves=2).trajectories
    assert (leaf.ending, leaf.reward, len(leaf.lost)) == (Ending.LOST, None, 1)
