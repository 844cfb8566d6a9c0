"""What a vector does when some of its sessions fail, and when it is asked for some of them only."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from envtorch import StepResult, VectorEnv, create_app
from envtorch.client.blocking.socket import BlockingShell
from envtorch.client.client_options import ClientOptions
from envtorch.client.opening import resumed
from envtorch.errors import (
    CapacityReached,
    ClientClosed,
    EnvironmentFailed,
    InvalidAction,
    MessageTooLarge,
    SessionLost,
    TimedOut,
)
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import JSON
from tests.client.test_clients import ObedientEnv
from tests.client.test_vector import AwaitedLine, Line, LineEnv, Move, QuickLine
from tests.faults.counting import Add, Counting, CountingEnv, counting_server, expected
from tests.faults.proxy import Break, Direction, Fault, Proxy, proxy_to
from tests.server.environments import AsyncObedient, Order
from tests.support import Running, cut, eventually, running

HOURS = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Counting, max_concurrent_envs=32)) as running_server:
        yield running_server


@pytest.fixture(scope="module", params=[Line, QuickLine, AwaitedLine])
def lines(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(create_app(request.param, max_concurrent_envs=32)) as running_server:
        yield running_server


def end_behind_its_back(envs: VectorEnv[Any, Any, Any], url: str, place: int) -> None:
    """End a session by another client that knows its token."""
    sessions = envs._flows.sessions
    assert sessions is not None
    options = ClientOptions.of(url)
    token = sessions.channels._channels[place].token
    shell, other = BlockingShell(options), resumed(options, JSON, token)
    drive(other.open(), shell.act)
    drive(other.close(), shell.act)


def adds(count: int, slow: int | None = None, n: int = 1) -> list[Add]:
    return [Add(n=n, wait_s=HOURS if place == slow else 0.0) for place in range(count)]


class TestTimeouts:
    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_one_late_session_is_the_only_one_and_the_next_step_is_the_next_step(
        self, server: Running, wire: Any
    ) -> None:
        with CountingEnv.vector(server.url, 4, wire=wire, message_timeout_s=1.0) as envs:
            envs.reset(seed=10)
            late = envs.step(adds(4, slow=2))
            assert list(late.errors) == [2]
            assert isinstance(late.errors[2], TimedOut)
            assert [late.rewards[2], late.dones[2]] == [None, False]
            totals = [3 * (10 + place) + 1 for place in range(4)]
            assert [late[place].observation.total for place in (0, 1, 3)] == [totals[p] for p in (0, 1, 3)]
            result = envs.step(adds(4, n=2))
            assert result.errors == {}
            totals = [3 * total + 2 for total in totals]
            totals[2] = 3 * 12 + 2  # its late step was cancelled
            assert [one.total for one in result.observations] == totals
            assert [one.step_count for one in envs.state()] == [2, 2, 1, 2]

    def test_the_servers_own_deadline_is_a_typed_error_of_its_session(self, server: Running) -> None:
        with CountingEnv.vector(server.url, 3) as envs:
            envs.reset()
            result = envs.step(adds(3, slow=1), timeout_s=0.3)
            assert list(result.errors) == [1]
            assert result.errors[1].details["usable"] is True
            assert envs.step(adds(3)).errors == {}

    def test_receive_gives_what_was_asked_and_nothing_else(self, server: Running) -> None:
        with CountingEnv.vector(server.url, 4, message_timeout_s=0.5) as envs:
            envs.reset(seed=1)
            envs.send({0: Add(n=1), 2: Add(n=1, wait_s=HOURS)})
            first = envs.receive(2)
            assert isinstance(first[2], TimedOut)
            assert isinstance(first[0], StepResult)
            envs.send({1: Add(n=5)})
            [(place, one)] = envs.receive().items()
            assert place == 1
            assert isinstance(one, StepResult)
            assert one.observation.total == 3 * 2 + 5

    def test_an_interrupted_step_leaves_nothing_for_the_next_one(self, server: Running) -> None:
        class Interrupted(Exception): ...

        def interrupt(*_: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with CountingEnv.vector(server.url, 3) as envs:
                envs.reset(seed=0)
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                with pytest.raises(Interrupted):
                    envs.step(adds(3, slow=0))
                with pytest.raises(InvalidAction, match="nothing was sent"):
                    envs.step_wait()
                result = envs.step(adds(3, n=7))
                assert result.errors == {}
                assert result.observations[0].total == 7
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class TestActionsThatCannotBeEncoded:
    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    @pytest.mark.parametrize("bad", [Order(do="\ud800"), {"do": "\ud800"}, {"do": object()}], ids=type)
    def test_is_the_failure_of_its_own_session(self, bad: Any, wire: Any) -> None:
        with (
            running(create_app(AsyncObedient, max_concurrent_envs=3)) as server,
            ObedientEnv.vector(server.url, 3, wire=wire) as envs,
        ):
            envs.reset()
            result = envs.step([Order(do="a"), bad, Order(do="c")])
            assert list(result.errors) == [1]
            assert isinstance(result.errors[1], InvalidAction)
            assert [result[place].observation.said for place in (0, 2)] == ["a", "c"]
            assert [state.step_count for state in envs.state()] == [1, 0, 1]
            envs.send({0: bad, 2: Order(do="d")})
            assert {place: type(one) for place, one in envs.receive(2).items()} == {
                0: InvalidAction,
                2: StepResult,
            }
            with pytest.raises(InvalidAction, match="cannot be encoded"):
                envs.step([bad] * 3)


class TestLostSessions:
    @pytest.mark.parametrize("is_cut", [True, False], ids=["and a cut line", "and a line that holds"])
    def test_one_dead_session_is_the_only_one(self, server: Running, is_cut: bool) -> None:
        eventually(lambda: server.sessions.active == 0, "the server is empty")
        with CountingEnv.vector(server.url, 3) as envs:
            envs.reset(seed=1)
            end_behind_its_back(envs, server.url, 1)
            if is_cut:
                cut(envs)
            for number in range(2):
                result = envs.step(adds(3))
                assert list(result.errors) == [1], "and it stays lost"
                assert isinstance(result.errors[1], SessionLost)
                assert result.rewards[1] is None
                assert [result[place].observation.total for place in (0, 2)] == [
                    [4, 10],
                    [13, 31],
                ][number]
            again = envs.reset({1: {"seed": 5}})
            assert list(again) == [1]
            result = envs.step(adds(3))
            assert result.errors == {}
            assert result.observations[1].total == 16
        eventually(lambda: server.sessions.active == 0, "every slot is free")

    def test_when_all_are_lost_the_call_says_so_and_a_reset_opens_new_ones(self, server: Running) -> None:
        eventually(lambda: server.sessions.active == 0, "the server is empty")
        with CountingEnv.vector(server.url, 2) as envs:
            envs.reset(seed=1)
            for place in range(2):
                end_behind_its_back(envs, server.url, place)
            for _ in range(2):
                with pytest.raises(SessionLost):
                    envs.step(adds(2))
            assert [one.total for one in envs.reset(seed=7).observations] == [7, 8]

    def test_the_first_handshake_is_tried_again(self, server: Running) -> None:
        port = int(server.url.rsplit(":", 1)[1])

        def play(port: int) -> list[int]:
            with CountingEnv.vector(f"http://127.0.0.1:{port}", 2) as envs:
                return [one.total for one in envs.reset(seed=3).observations]

        async def disturbed(planned: Break) -> tuple[list[int], int]:
            async with proxy_to(port, planned) as proxy:
                return await asyncio.to_thread(play, proxy.port), proxy.faults

        for direction in Direction:
            for at in (0, 20, 150, 280):
                assert asyncio.run(disturbed(Break(Fault.CUT, direction, at))) == ([3, 4], 1)


class TestFailedSlots:
    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_a_fault_is_not_a_reward_and_not_the_end_of_an_episode(self, lines: Running, wire: Any) -> None:
        with LineEnv.vector(lines.url, 3, wire=wire) as envs:
            envs.reset()
            result = envs.step([Move(by=2), Move(do="fail"), Move(by=5)])
            assert result.rewards == [2.0, None, 5.0]
            assert result.dones == [False, False, True]
            assert (result.terminated[1], result.truncated[1]) == (False, False)
            assert isinstance(result.errors[1], EnvironmentFailed)
            assert result.ok == [True, False, True]
            np.testing.assert_array_equal(result.array("reward"), [2.0, np.nan, 5.0])

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_columns_and_arrays_leave_a_gap(self, lines: Running, wire: Any) -> None:
        with LineEnv.vector(lines.url, 3, wire=wire) as envs:
            envs.reset()
            result = envs.step([Move(by=2), Move(do="fail"), Move(by=3)])
            assert result.column("position") == [2, None, 3]
            assert result.array("position").tolist() == [2, 0, 3]
            pictures = result.array("picture")
            assert pictures.shape == (3, 2, 3)
            assert pictures[np.array(result.ok)].tolist() == [[[2] * 3] * 2, [[3] * 3] * 2]

    def test_all_of_them_may_fail(self, lines: Running) -> None:
        with LineEnv.vector(lines.url, 2) as envs:
            envs.reset()
            result = envs.step([Move(do="fail")] * 2)
            assert result.ok == [False, False]
            assert result.column("position") == [None, None]
            assert np.isnan(result.array("reward")).all()

    @pytest.mark.parametrize("autoreset", ["disabled", "next_step", "same_step"])
    def test_autoreset_leaves_a_failed_session_alone(self, lines: Running, autoreset: Any) -> None:
        with LineEnv.vector(lines.url, 2, autoreset=autoreset) as envs:
            envs.reset(start=2)
            result = envs.step([Move(do="fail"), Move(by=1)])
            assert list(result.errors) == [0]
            assert result.final == {}
            result = envs.step([Move(by=1), Move(by=1)])
            assert [one.position for one in result.observations] == [3, 4], "its next step is a step"


class TestSomeSessions:
    def test_reset_takes_options_for_each(self, lines: Running) -> None:
        with LineEnv.vector(lines.url, 4) as envs:
            envs.reset(start=1)
            outcomes = envs.reset({1: {"start": 3, "seed": 9}, 3: {}}, start=2, seed=40)
            assert {
                p: one.observation.position for p, one in outcomes.items() if isinstance(one, StepResult)
            } == {
                1: 3,
                3: 2,
            }
            assert [state.episode_id for state in envs.state()] == [
                "seed None",
                "seed 9",
                "seed None",
                "seed 43",
            ]
            assert [one.position for one in envs.step([Move()] * 4).observations] == [2, 4, 2, 3]
            with pytest.raises(InvalidAction, match="there is no session 4"):
                envs.reset({4: {}})

    def test_autoreset_uses_each_sessions_own_options_again(self, lines: Running) -> None:
        with LineEnv.vector(lines.url, 2, autoreset="same_step") as envs:
            envs.reset()
            envs.reset({1: {"start": 4}})
            result = envs.step([Move(by=5), Move(by=1)])
            assert [one.position for one in result.observations] == [0, 4]

    def test_a_fork_joins_the_vector_on_the_same_socket(self, lines: Running) -> None:
        eventually(lambda: lines.sessions.active == 0, "the server is empty")
        with LineEnv.vector(lines.url, 2) as envs:
            envs.reset(start=-10)
            envs.step([Move(by=1), Move(by=2)])
            assert envs.fork(1, 3) == [2, 3, 4]
            assert (len(envs), lines.sessions.active) == (5, 5)
            result = envs.step([Move(by=place) for place in range(5)])
            assert [one.position for one in result.observations] == [-9, -7, -6, -5, -4]
            envs.end([2, 4])
            eventually(lambda: lines.sessions.active == 3, "their slots are free")
            result = envs.step([Move(by=1)] * 5)
            assert {place: type(error) for place, error in result.errors.items()} == {
                2: ClientClosed,
                4: ClientClosed,
            }
            assert [one.position for one in result.observations if one] == [-8, -6, -4]
            cut(envs)
            assert list(envs.step([Move(by=1)] * 5).errors) == [2, 4], "and it survives its socket"
        eventually(lambda: lines.sessions.active == 0, "every slot is free")

    def test_there_may_be_no_room_for_a_fork(self, server: Running) -> None:
        with CountingEnv.vector(server.url, 2) as envs:
            envs.reset()
            with pytest.raises(CapacityReached):
                envs.fork(0, 31)
            assert envs.step(adds(2)).errors == {}

    def test_outcomes_are_given_as_they_are_completed(self, server: Running) -> None:
        with CountingEnv.vector(server.url, 3) as envs:
            envs.reset(seed=0)
            order: list[int] = []
            for place, outcome in envs.as_completed({0: Add(n=0, wait_s=0.6), 1: Add(n=1), 2: Add(n=2)}):
                assert isinstance(outcome, StepResult)
                order.append(place)
                if len(order) == 2:
                    envs.send({place: Add(n=9)})  # more, while the slow one is at it
            assert order[-1] == 0
            assert sorted(order) == sorted([0, 1, 2, order[1]])

    def test_a_failure_is_an_outcome_like_any_other(self, lines: Running) -> None:
        with LineEnv.vector(lines.url, 2) as envs:
            envs.reset()
            outcomes = dict(envs.as_completed({0: Move(do="fail"), 1: Move(by=1)}))
            assert isinstance(outcomes[0], EnvironmentFailed)
            assert isinstance(outcomes[1], StepResult)


class TestAsyncTwin:
    def test_does_the_same(self, lines: Running) -> None:
        async def play() -> None:
            async with LineEnv.aio.vector(lines.url, 3) as envs:
                assert [one.position for one in (await envs.reset(start=1)).observations] == [1] * 3
                result = await envs.step([Move(by=1), Move(do="fail"), Move(by=3)])
                assert (result.rewards, list(result.errors)) == ([2.0, None, 4.0], [1])
                assert list(await envs.reset({0: {"start": 4}})) == [0]
                assert await envs.fork(0, 2) == [3, 4]
                came = {p: o async for p, o in envs.as_completed({p: Move(by=p) for p in range(5)})}
                seen = {p: o.observation.position for p, o in came.items() if isinstance(o, StepResult)}
                assert seen == {0: 4, 1: 2, 2: 6, 3: 7, 4: 8}
                assert len(await envs.state()) == 5
                await envs.end([4])
            with pytest.raises(ClientClosed):
                await envs.step([Move()] * 5)

        asyncio.run(play())
        eventually(lambda: lines.sessions.active == 0, "every slot is free")

    def test_survives_its_socket(self, server: Running) -> None:
        port = int(server.url.rsplit(":", 1)[1])

        async def play() -> list[int]:
            async with proxy_to(port) as proxy:
                import random

                dice = random.Random(3)
                async with CountingEnv.aio.vector(f"http://127.0.0.1:{proxy.port}", 3) as envs:
                    await envs.reset(seed=[5, 5, 5])
                    for n in range(20):
                        result = await envs.step([Add(n=n)] * 3)
                        assert result.errors == {}
                        proxy.cut_one(dice)
                    return [one.total for one in result.observations]

        assert asyncio.run(play()) == [expected(5, 20)[-1]] * 3

    def test_a_cancelled_step_leaves_nothing_for_the_next_one(self, server: Running) -> None:
        async def play() -> int:
            async with CountingEnv.aio.vector(server.url, 3) as envs:
                await envs.reset(seed=0)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await envs.step(adds(3, slow=0))
                return (await envs.step(adds(3, n=7))).observations[0].total

        assert asyncio.run(play()) == 7


class TestHalfAMessage:
    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_a_socket_left_in_the_middle_of_a_message_is_not_written_to_again(self, wire: Any) -> None:
        large = {"text": "x" * 15_000_000}
        with counting_server() as server, CountingEnv(server.url, wire=wire, message_timeout_s=20) as env:
            env.reset(seed=1)
            server.send(signal.SIGSTOP)
            try:
                with pytest.raises(TimedOut):
                    env.step(Add(n=1, metadata=large), timeout_s=0.1)
            finally:
                server.send(signal.SIGCONT)
            assert env.step(Add(n=2)).observation.total == 5, "the first never arrived, the second did"
            assert env.state().step_count == 1

    def test_nor_by_the_async_client(self) -> None:
        async def play(server: Any) -> int:
            async with CountingEnv.aio(server.url, message_timeout_s=20) as env:
                await env.reset(seed=1)
                server.send(signal.SIGSTOP)
                try:
                    with pytest.raises(TimedOut):
                        await env.step(Add(n=1, metadata={"text": "x" * 15_000_000}), timeout_s=0.1)
                finally:
                    server.send(signal.SIGCONT)
                return (await env.step(Add(n=2))).observation.total

        with counting_server() as server:
            assert asyncio.run(play(server)) == 5


class TestSizes:
    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_an_oversized_action_names_size_and_limit_at_once_and_the_session_goes_on(
        self, wire: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ENVTORCH_MAX_MESSAGE_BYTES", "1000000")
        large = Add(n=1, metadata={"text": "x" * 3_000_000})
        with running(create_app(Counting, max_concurrent_envs=3)) as server:
            with CountingEnv(server.url, wire=wire) as env:
                env.reset(seed=1)
                with pytest.raises(MessageTooLarge, match=r"of 3,000,\d+ bytes .* limit of 1,000,000 bytes"):
                    env.step(large)
                assert env.step(Add(n=2)).observation.total == 5
                assert env.state().step_count == 1
            with CountingEnv.vector(server.url, 2, wire=wire) as envs:
                envs.reset(seed=1)
                with pytest.raises(MessageTooLarge, match="2 sessions together"):
                    envs.step([Add(n=1), large])
                assert [one.total for one in envs.step(adds(2)).observations] == [4, 7]


class Gathering(Proxy):
    """Forwards nothing of the second and later connections until so many of them are there."""

    def __init__(self, target_port: int, together: int) -> None:
        super().__init__(target_port)
        self._accepted = 0
        self._together = asyncio.Barrier(together)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        if self._accepted > 1:
            await self._together.wait()
        await super().accept(reader, writer)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
def test_the_copies_of_a_session_are_attached_together(server: Running, is_async: bool) -> None:
    def blocking(url: str) -> list[int]:
        with CountingEnv(url) as env:
            env.reset(seed=1)
            copies = env.fork(7)
            totals = [copy.step(Add(n=n)).observation.total for n, copy in enumerate(copies)]
            for copy in copies:
                copy.close()
            return totals

    async def awaited(url: str) -> list[int]:
        async with CountingEnv.aio(url) as env:
            await env.reset(seed=1)
            copies = await env.fork(7)
            totals = [(await copy.step(Add(n=n))).observation.total for n, copy in enumerate(copies)]
            await asyncio.gather(*(copy.close() for copy in copies))
            return totals

    async def play() -> list[int]:
        proxy = Gathering(int(server.url.rsplit(":", 1)[1]), 7)
        listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            return await (awaited(url) if is_async else asyncio.to_thread(blocking, url))
        finally:
            listener.close()
            proxy.close()
            await asyncio.sleep(0)

    assert asyncio.run(play()) == [3 + n for n in range(7)]
