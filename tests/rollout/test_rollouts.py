"""Rollouts over real servers: endings, groups, losses."""

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console

from envtorch.client.aio.client import AsyncEnvClient
from envtorch.client.aio.socket import Connection
from envtorch.errors import ConfigurationError, EnvironmentFailed, InvalidAction, SessionLost, TimedOut
from envtorch.rollout import (
    Completion,
    Ending,
    Prompt,
    Rollouts,
    RolloutSummary,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.rollout.dials import (
    LETTERS,
    RAISE,
    SLEEP,
    Dial,
    DialEnv,
    Player,
    Riveted,
    Seen,
    dials,
    lose,
    scattered,
    upwards,
)
from tests.support import Running, eventually

QUICK = {"wait_s": 60.0, "reconnect_s": 1.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def play(
    server: Running, tasks: Any, player: Any, *, size: int = 4, where: Any = None, **options: Any
) -> list[TrajectoryGroup]:
    """The groups in the order of the tasks."""

    async def run() -> list[TrajectoryGroup]:
        options.setdefault("client_options", QUICK)
        async with Rollouts(DialEnv, server.url if where is None else where, player, **options) as rollouts:
            return [group async for group in rollouts.groups(tasks, size=size)]

    groups = asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")
    return sorted(groups, key=lambda group: group.task.options["seed"])


def run(server: Running, player: Any, **options: Any) -> Trajectory:
    return play(server, [3], player, size=1, **options)[0][0]


def story(trajectory: Trajectory) -> tuple[Any, ...]:
    """What must be the same, however the beginning was shared."""
    return (trajectory.messages, trajectory.tokens, trajectory.reward, trajectory.ending)


def test_an_episode_is_played_to_its_end(server: Running) -> None:
    played = run(server, Player(upwards))
    assert played.ending is Ending.DONE
    assert played.blame is None
    presses = len(played.turns)
    assert played.reward == pytest.approx(1.0 - 0.125 * (presses - 1))
    roles = [message["role"] for message in played.messages]
    assert roles == ["system", "user", *["assistant", "user"] * (presses - 1), "assistant"]
    assert "game 3" in played.messages[1]["content"]
    assert played.messages[3]["content"] == "higher after 1"


def test_an_episode_that_would_go_on_is_scored_with_what_it_had(server: Running) -> None:
    played = run(server, Player(lambda prompt: 11), max_turns=3)
    assert (played.ending, played.reward, len(played.turns)) == (Ending.MAX_TURNS, -0.375, 3)


def test_a_completion_that_is_no_action_is_the_policys_ending(server: Running) -> None:
    async def chatter(prompts: list[Prompt]) -> list[Completion]:
        return [Completion("I would rather not.") for _ in prompts]

    played = run(server, chatter)
    assert (played.ending, played.reward) == (Ending.POLICY, 0.0)
    assert played.cause == "policy: NotAnAction"


def test_a_step_that_times_out_is_the_policys_and_is_scored(server: Running) -> None:
    played = run(server, Player(lambda prompt: 11 if upwards(prompt) < 1 else SLEEP), step_timeout_s=0.2)
    assert (played.ending, played.reward) == (Ending.POLICY, -0.125)
    assert isinstance(played.blame, TimedOut)
    assert not played.lost, "it was not played again"


def test_a_caller_may_see_a_timeout_as_the_infrastructures(server: Running) -> None:
    player = Player(lambda prompt: SLEEP)
    played = run(server, player, step_timeout_s=0.1, attempts=2, faults={TimedOut: Ending.LOST})
    assert (played.ending, played.reward) == (Ending.LOST, None)
    assert [type(error) for error in played.lost] == [TimedOut]


def test_a_failing_environment_gives_no_reward(server: Running) -> None:
    played = run(server, Player(lambda prompt: RAISE))
    assert (played.ending, played.reward) == (Ending.ENVIRONMENT, None)
    assert isinstance(played.blame, EnvironmentFailed)


def test_a_reset_with_a_wrong_option_is_not_the_policys_fault(server: Running) -> None:
    try:
        played = play(server, [{"seed": 1, "colour": "red"}], Player(upwards), size=1)[0][0]
    except InvalidAction as error:
        assert "colour" in error.message
    else:
        assert (played.ending, played.reward) == (Ending.ENVIRONMENT, None)


def test_what_the_policy_raises_ends_the_rollouts_and_their_sessions(server: Running) -> None:
    async def broken(prompts: list[Prompt]) -> list[Completion]:
        raise ArithmeticError("no model today")

    with pytest.raises(ArithmeticError, match="no model today"):
        play(server, range(3), broken)
    eventually(lambda: server.sessions.active == 0, "every session is closed")


@pytest.mark.parametrize("share", ["fork", "reset"])
@pytest.mark.parametrize("often", [1, 3])
def test_rollouts_that_are_cancelled_at_any_moment_leave_nothing(
    server: Running, share: Any, often: int
) -> None:
    async def collect() -> None:
        async with Rollouts(DialEnv, server.url, Player(upwards), share=share) as rollouts:
            async for _ in rollouts.groups(range(4), size=3):
                pass

    async def cancelled_after(delay_s: float) -> None:
        collecting = asyncio.create_task(collect())
        for _ in range(often):
            await asyncio.sleep(delay_s)
            collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting

    for step in range(12):
        asyncio.run(cancelled_after(0.004 * step))
        assert not open_transports()
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_rollouts_that_are_closed_while_they_fail_leave_nothing(server: Running) -> None:
    """A group ends its sessions because the policy failed, and is cancelled at that moment."""

    async def fail_and_close(turns_of_the_loop: int) -> None:
        has_failed = asyncio.Event()

        async def broken(prompts: Sequence[Prompt]) -> list[Completion]:
            has_failed.set()
            raise ArithmeticError("no model today")

        rollouts = Rollouts(DialEnv, server.url, broken, share="fork")
        groups = rollouts.groups([1], size=3)
        playing = asyncio.ensure_future(anext(groups))
        await has_failed.wait()
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        await rollouts.close()
        await asyncio.gather(playing, return_exceptions=True)
        await groups.aclose()

    for turns_of_the_loop in range(0, 200, 5):
        asyncio.run(fail_and_close(turns_of_the_loop))
    gc.collect()  # what was left open warns
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def open_transports() -> list[Any]:
    """Clients' connections that nobody has closed."""
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, asyncio.Transport)
        and isinstance(thing.get_protocol(), Connection)
        and not thing.is_closing()
    ]


def test_a_policy_that_answers_too_few_is_told_so(server: Running) -> None:
    async def short(prompts: list[Prompt]) -> list[Completion]:
        return []

    with pytest.raises(ValueError, match="0 completions for 1 prompt:"):
        run(server, short)


def test_a_policy_that_is_not_async_is_told_so(server: Running) -> None:
    def plain(prompts: Sequence[Prompt]) -> Any:
        return [Completion('{"number": 1}') for _ in prompts]

    with pytest.raises(TypeError, match=r"the policy returned list.*`async def`"):
        run(server, plain)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "the policy gave NoneType: it must give a list of Completions"),
        (Completion("x"), "the policy gave Completion: it must give a list"),
        ([Completion(None)], "a Completion whose text is NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_answers_something_else_is_told_so(server: Running, given: Any, told: str) -> None:
    async def odd(prompts: Sequence[Prompt]) -> Any:
        return given

    with pytest.raises(TypeError, match=told):
        run(server, odd)


async def _awaited() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (None, "tasks is NoneType: give a list"),
        (_awaited(), "tasks is async_generator: give a list or an ordinary generator"),
        (["sort"], "'sort' is no task: give a Task"),
        ([("seed", 1)], "is no task"),
        ([0.5], "0.5 is no task"),
    ],
)
def test_what_is_no_task_is_told(server: Running, tasks: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        play(server, tasks, Player(upwards))


def test_options_that_make_no_sense_are_refused(server: Running) -> None:
    with pytest.raises(ConfigurationError, match="format is 'json': give a ChatFormat"):
        run(server, Player(upwards), format="json")
    with pytest.raises(ConfigurationError):
        run(server, Player(upwards), attempts=0)
    with pytest.raises(ConfigurationError, match="where"):
        run(server, Player(upwards), where=())


@pytest.mark.parametrize("template", [None, LETTERS])
def test_forked_groups_and_reset_groups_have_the_same_trajectories(server: Running, template: Any) -> None:
    tasks = [Task({"seed": seed}, prompt="Find the number.") for seed in range(5)]
    by_fork = play(server, tasks, Player(scattered), size=4, template=template, share="fork")
    by_reset = play(server, tasks, Player(scattered), size=4, template=template, share="reset")
    assert [[story(t) for t in group] for group in by_fork] == [
        [story(t) for t in group] for group in by_reset
    ]
    assert {t.ending for group in by_fork for t in group} <= {Ending.DONE, Ending.MAX_TURNS}
    assert [[t.member for t in group] for group in by_fork] == [[0, 1, 2, 3]] * 5


def test_environments_that_cannot_be_copied_are_reset_instead() -> None:
    with dials(Riveted) as server:
        groups = play(server, range(3), Player(upwards))
    assert all(t.ending is Ending.DONE for group in groups for t in group)


@pytest.mark.parametrize("room", [1, 4, 5])
def test_a_small_server_still_plays_whole_groups(room: int) -> None:
    with dials(room=room) as server:
        groups = play(server, range(3), Player(upwards), size=4, concurrency=room)
    assert [t.ending for group in groups for t in group] == [Ending.DONE] * 12


def losing(server: Running, calls: set[int], place: int = -1) -> Callable[[int], Awaitable[None]]:
    async def before(call: int) -> None:
        if call in calls:
            await lose(server, place)

    return before


def test_the_first_call_of_the_policy_has_the_whole_group(server: Running) -> None:
    sizes: list[int] = []
    player = Player(upwards)

    async def watched(prompts: Sequence[Prompt]) -> list[Completion]:
        sizes.append(len(prompts))
        return list(await player(prompts))

    play(server, [3], watched, size=6)
    assert sizes[0] == 6


def test_a_lost_member_is_played_again_from_the_groups_beginning(server: Running) -> None:
    plain = play(server, [7], Player(upwards), share="fork")[0]
    group = play(server, [7], Player(upwards, losing(server, {2})), share="fork")[0]
    assert [story(t) for t in group] == [story(t) for t in plain], (
        "the loss cannot be seen in what it learned"
    )
    assert sum(len(t.lost) for t in group) == 1, "one member was lost, and no other"
    assert {type(error).__name__ for t in group for error in t.lost} == {"SessionLost"}


def test_a_group_whose_beginning_is_lost_too_begins_anew_with_the_same(server: Running) -> None:
    async def lose_all(call: int) -> None:
        if call == 2:
            for place in range(5):
                await lose(server, place)

    plain = play(server, [7], Player(upwards))[0]
    group = play(server, [7], Player(upwards, lose_all), share="fork")[0]
    assert [story(t) for t in group] == [story(t) for t in plain]
    assert all(len(t.lost) >= 1 for t in group)


class Shuffled(Dial):
    """A dial whose beginning is another one at each reset."""

    async def reset_async(self, seed: int | None = None) -> Seen:
        await super().reset_async(seed=3)
        return Seen(hint=f"a number from 0 to 9, in game {uuid4()}")


def test_an_episode_that_never_begins_twice_alike_is_played_again_when_it_is_lost() -> None:
    with dials(Shuffled) as server:
        played = run(server, Player(upwards, losing(server, {2})))
    assert (played.ending, len(played.lost)) == (Ending.DONE, 1)


def test_a_group_that_never_begins_twice_alike_begins_anew_when_its_first_fork_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = AsyncEnvClient.fork
    forks = 0

    async def lost_fork(env: Any, *options: Any, **named: Any) -> Any:
        nonlocal forks
        forks += 1
        if forks == 1:
            raise SessionLost("the server is gone")
        return await fork(env, *options, **named)

    monkeypatch.setattr(AsyncEnvClient, "fork", lost_fork)
    with dials(Shuffled) as server:
        group = play(server, [3], Player(upwards), share="fork")[0]
    assert {member.ending for member in group} == {Ending.DONE}
    assert len({str(member.messages[:2]) for member in group}) == 1


def test_what_is_lost_in_every_attempt_has_no_reward(server: Running) -> None:
    async def lose_all(call: int) -> None:
        for place in range(8):
            await lose(server, place)

    played = run(server, Player(upwards, lose_all), attempts=2)
    assert (played.ending, played.reward) == (Ending.LOST, None)
    assert len(played.lost) == 1


def test_a_dead_server_is_replaced_by_the_next(server: Running) -> None:
    with dials() as doomed:
        pass  # its address is refused from now on
    options = {"wait_s": 60.0, "reconnect_s": 0.2, "connect_timeout_s": 1.0}
    where = [doomed.url, server.url]
    groups = play(server, range(4), Player(upwards), size=2, where=where, client_options=options)
    assert [t.ending for group in groups for t in group] == [Ending.DONE] * 8
    assert any(t.lost for group in groups for t in group)


def test_a_summary_counts_endings_by_cause_and_scores_no_lost_rollout(server: Running) -> None:
    done = run(server, Player(upwards))
    failed = run(server, Player(lambda prompt: RAISE))
    late = run(
        server, Player(lambda prompt: SLEEP), step_timeout_s=0.1, attempts=2, faults={TimedOut: Ending.LOST}
    )
    summary = RolloutSummary.of([done, done, failed, late])
    assert summary.causes == {"done": 2, "environment: EnvironmentFailed": 1, "lost: TimedOut": 1}
    assert (summary.count, summary.scored, summary.attempts_lost) == (4, 2, 2)
    assert summary.reward_mean == done.reward
    assert summary.step_p50_s <= summary.step_p99_s
    console = Console(file=io.StringIO(), width=100)
    console.print(summary.table())
    assert "lost: TimedOut" in console.file.getvalue()  # type: ignore[attr-defined]
    assert RolloutSummary.of([]).reward_mean is None


def test_tasks_are_taken_as_there_is_room(server: Running) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    async def first_five() -> int:
        player = Player(upwards)
        async with Rollouts(DialEnv, server.url, player, concurrency=8, client_options=QUICK) as rollouts:
            count = 0
            async for group in rollouts.groups(endless(), size=4):
                assert len(group) == 4
                count += 1
                if count == 5:
                    break
            return taken

    assert asyncio.run(first_five()) <= 5 + 2
    eventually(lambda: server.sessions.active == 0, "every session is closed")


@pytest.mark.parametrize("share", ["fork", "reset"])
@pytest.mark.parametrize("concurrency", [1, 2, 4, 5, 8])
def test_no_more_sessions_are_open_than_concurrency_says(
    server: Running, share: Any, concurrency: int
) -> None:
    most = 0

    async def watching(call: int) -> None:
        nonlocal most
        most = max(most, server.sessions.active)

    player = Player(upwards, before=watching)
    groups = play(server, range(2), player, size=4, concurrency=concurrency, share=share, policy_calls=8)
    assert [t.ending for group in groups for t in group] == [Ending.DONE] * 8
    assert [[t.member for t in group] for group in groups] == [[0, 1, 2, 3]] * 2
    assert 1 <= most <= concurrency


def test_members_that_wait_for_their_turn_begin_where_the_group_does(server: Running) -> None:
    """Without a seed every reset has another secret: only a fork has the group's."""
    [group] = play(server, [{"seed": None}], Player(upwards), size=12, concurrency=3)
    assert {t.ending for t in group} == {Ending.DONE}
    assert len({len(t.turns) for t in group}) == 1


def test_a_group_that_is_scored_has_to_fit(server: Running) -> None:
    async def score(candidates: Sequence[Any]) -> list[float]:
        return [1.0] * len(candidates)

    fitting = play(server, [1], Player(upwards), size=4, concurrency=4, score=score)
    assert fitting[0].rewards == (1.0,) * 4
    with pytest.raises(ConfigurationError, match=r"concurrency=4 or more"):
        play(server, [1], Player(upwards), size=4, concurrency=3, score=score)
