"""The rules, and everything that a trainer counts on."""

import pytest
from envtorch.errors import InvalidAction
from envtorch.testing import check_env

from my_game import MyGameAction, MyGameEnv
from my_game.environment import GUESSES, MyGameEnvironment


def test_the_secret_number_is_found_by_halving() -> None:
    with MyGameEnv.local() as env:
        result = env.reset(seed=7)
        low, high = 1, 100
        while not result.done:
            guess = (low + high) // 2
            result = env.step(MyGameAction(guess=guess))
            if result.observation.hint == "higher":
                low = guess + 1
            else:
                high = guess - 1
        assert result.reward == 1.0
        assert result.observation.hint == "right"


def test_guesses_run_out() -> None:
    with MyGameEnv.local() as env:
        env.reset(seed=7)
        found = env.step(MyGameAction(guess=1)).done
        wrong = 2 if found else 1
        env.reset(seed=7)
        results = [env.step(MyGameAction(guess=wrong)) for _ in range(GUESSES)]
        assert [result.done for result in results] == [False] * (GUESSES - 1) + [True]
        assert results[-1].reward == 0.0
        assert env.state().guesses == [wrong] * GUESSES


def test_a_seed_decides_everything() -> None:
    with MyGameEnv.local() as one, MyGameEnv.local() as other:
        one.reset(seed=3)
        other.reset(seed=3)
        for guess in (50, 25, 75, 90):
            assert one.step(MyGameAction(guess=guess)) == other.step(MyGameAction(guess=guess))


def test_the_state_does_not_tell_the_secret() -> None:
    with MyGameEnv.local() as env:
        states = set()
        for seed in range(20):
            env.reset(seed=seed, episode_id="same")
            states.add(env.state().model_dump_json())
        assert len(states) == 1


def test_what_is_no_guess_is_refused() -> None:
    with MyGameEnv.local() as env:
        env.reset(seed=7)
        with pytest.raises(InvalidAction):
            env.step(MyGameAction.model_construct(guess=1000))


def test_it_keeps_its_promises() -> None:
    check_env(MyGameEnvironment).raise_if_wrong()
