"""Gymnasium drives sessions over a real server: `make`, `make_vec`, `check_env`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from envtorch.errors import ConfigurationError, EnvironmentFailed, SessionLost
from tests.support import Running, eventually
from tests.train.buttons import FORBIDDEN, ButtonsEnv, buttons, lose

gymnasium = pytest.importorskip("gymnasium", reason="needs the gymnasium package")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import envtorch.train.gymnasium_envs  # noqa: E402, F401

NAME = "envtorch/Session-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with buttons() as running:
        yield running


def make(server: Running, **options: Any) -> Any:
    return gymnasium.make(NAME, client=ButtonsEnv, base_url=server.url, **options)


def make_vec(server: Running, count: int, mode: str = "vector_entry_point", **options: Any) -> Any:
    given = {"client": ButtonsEnv, "base_url": server.url, **options}
    return gymnasium.make_vec(NAME, num_envs=count, vectorization_mode=mode, **given)


def test_gymnasiums_own_checker_passes(server: Running) -> None:
    env = make(server)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()
    eventually(lambda: server.sessions.active == 0, "the session is closed")


def episodes(env: Any, count: int, seed: int) -> list[tuple[int, float, bool, bool]]:
    """What the first episodes look like to a player who presses what is lit."""
    seen, _ = env.reset(seed=seed)
    played = []
    for _ in range(count):
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(seen)
            played.append((int(seen), float(reward), terminated, truncated))
            over = terminated or truncated
        seen, _ = env.reset()
    return played


def test_the_first_seed_decides_all_later_episodes(server: Running) -> None:
    env = make(server)
    first, second, other = (episodes(env, 4, seed) for seed in (7, 7, 8))
    env.close()
    assert first == second
    assert first != other
    assert sum(reward for _, reward, _, _ in first) == pytest.approx(4.0)
    assert [terminated for _, _, terminated, _ in first[:3]] == [False, False, True]


def test_an_episode_that_was_cut_short_is_truncated_and_not_terminated(server: Running) -> None:
    env = make(server, reset_options={"cut": 2})
    played = episodes(env, 1, seed=1)
    env.close()
    assert [one[2:] for one in played] == [(False, False), (False, True)]


def test_a_failure_is_raised_as_what_it_is(server: Running) -> None:
    env = make(server, reset_options={"forbids": True})
    env.reset(seed=1)
    with pytest.raises(EnvironmentFailed):
        env.step(FORBIDDEN)
    lose(server)
    with pytest.raises(SessionLost):
        env.step(1)
    env.reset()
    assert env.step(1)[1] in (0.0, pytest.approx(1 / 3))
    env.close()


def test_a_vector_plays_what_as_many_single_environments_play(server: Running) -> None:
    played = []
    for mode in ("vector_entry_point", "sync"):
        envs = make_vec(server, 5, mode)
        seen, _ = envs.reset(seed=3)
        steps = [np.asarray(seen)]
        for _ in range(10):  # three presses an episode, and a step that resets
            seen, rewards, terminations, truncations, _ = envs.step(seen)
            steps += [np.asarray(one) for one in (seen, rewards, terminations, truncations)]
        played.append(steps)
        envs.close()
    for ours, theirs in zip(*played, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert ours.dtype == theirs.dtype == np.bool_


def test_a_vector_has_gymnasiums_spaces_and_metadata(server: Running) -> None:
    envs = make_vec(server, 3)
    assert envs.single_action_space == gymnasium.spaces.Discrete(10)
    assert envs.action_space == gymnasium.spaces.MultiDiscrete([10] * 3)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    seen, _ = envs.reset(seed=1)
    assert envs.observation_space.contains(seen)
    envs.close()
    eventually(lambda: server.sessions.active == 0, "the sessions are closed")


def test_a_failed_session_of_a_vector_raises(server: Running) -> None:
    envs = make_vec(server, 3, reset_options={"forbids": True})
    envs.reset(seed=1)
    with pytest.raises(EnvironmentFailed) as failed:
        envs.step(np.array([1, FORBIDDEN, 1]))
    assert failed.value.__notes__ == ["in session 1 of 3"]
    envs.close()


def test_a_failed_session_of_a_vector_can_be_truncated_and_has_no_reward(server: Running) -> None:
    envs = make_vec(server, 3, failures="truncate", reset_options={"forbids": True, "rounds": 9})
    envs.reset(seed=1)
    _, rewards, terminations, truncations, infos = envs.step(np.array([1, FORBIDDEN, 1]))
    assert np.isnan(rewards).tolist() == truncations.tolist() == [False, True, False]
    assert not terminations.any()
    assert isinstance(infos["error"][1], EnvironmentFailed)
    assert infos["_error"].tolist() == [False, True, False]
    _, rewards, _, truncations, infos = envs.step(np.array([1, 1, 1]))
    assert not truncations.any()
    assert "error" not in infos
    lose(server)
    _, rewards, _, truncations, infos = envs.step(np.array([1, 1, 1]))
    assert np.isnan(rewards).all()
    assert truncations.all()
    assert {type(error) for error in infos["error"]} == {SessionLost}
    _, rewards, _, _, infos = envs.step(np.array([1, 1, 1]))
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert "error" not in infos
    envs.close()


def test_an_unknown_option_is_refused(server: Running) -> None:
    with pytest.raises(ConfigurationError, match="'raise' or 'truncate'"):
        make_vec(server, 2, failures="ignore")
    with pytest.raises(TypeError, match="observe"):
        make(server, observe=["light"])
