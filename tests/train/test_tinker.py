"""tinker-cookbook rolls out groups on our server. Run by `make test-train`."""

import asyncio
import pickle
from typing import Any

import pytest

from envtorch.errors import SessionLost
from tests.rollout.dials import END, LETTERS
from tests.support import Running, eventually
from tests.train.buttons import ButtonsEnv, buttons, lose
from tests.train.conftest import Report
from tests.train.programs import run_example

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is installed by `make test-train`")

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from envtorch.train import SessionGroupBuilder

pytestmark = pytest.mark.train


class Losing(TokenCompleter):
    """Presses what is lit. Before its first completion every session is lost."""

    def __init__(self, server: Running | None) -> None:
        self._server = server

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(lose, server)
        light = LETTERS.text(model_input.to_ints()).removesuffix("<assistant>")[-1]
        ids = [*LETTERS.encode(f'{{"button": {light}}}'), END]
        return TokensWithLogprobs(tokens=ids, maybe_logprobs=[0.0] * len(ids))


def test_the_example_runs(report: Report) -> None:
    told = run_example("tinker_groups").strip().splitlines()
    assert len(told) == 4
    assert all(line.endswith("(completed)") for line in told)
    report("do_group_rollout, 4 groups of 8 by fork", told[0])


def test_a_group_is_one_reset_and_leaves_no_session(report: Report) -> None:
    with buttons() as server:
        builder = SessionGroupBuilder(ButtonsEnv, server.url, 7, size=5, template=LETTERS, stop=[END])
        copy = pickle.loads(pickle.dumps(builder))
        group = asyncio.run(do_group_rollout(copy, Losing(None)))
        assert group.get_total_rewards() == pytest.approx([1.0] * 5)
        first = {tuple(one.transitions[0].ob.to_ints()) for one in group.trajectories_G}
        assert len(first) == 1, "all of them begin in one state"
        eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_a_lost_member_raises_and_is_played_again_by_the_cookbooks_strategy(report: Report) -> None:
    with buttons() as server:
        options: dict[str, Any] = {"size": 3, "template": LETTERS, "client_options": {"reconnect_s": 1.0}}
        builder = SessionGroupBuilder(ButtonsEnv, server.url, 7, **options)
        with pytest.raises(SessionLost):
            asyncio.run(do_group_rollout(builder, Losing(server)))
        eventually(lambda: server.sessions.active == 0, "every session is closed")
        strategy = RetryOnFailure(max_retries=3)
        group = asyncio.run(do_group_rollout(builder, Losing(server), strategy))
        assert group.get_total_rewards() == pytest.approx([1.0] * 3)
        assert {error.error_type for error in group.rollout_errors} == {"SessionLost"}
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    report("lost members", "raised; RetryOnFailure plays them again")
