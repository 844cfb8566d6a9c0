"""An environment whose resets and steps take as long as they are told to: what rollouts are measured on."""

import asyncio
import random

from envtorch import Action, EnvClient, Environment, Observation, State, create_app

__all__ = ["Light", "PacedEnv", "Press", "app"]


class Press(Action):
    button: int


class Light(Observation):
    light: int = 0


class Paced(Environment[Press, Light, State]):
    """A light that names a button, `rounds` times."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    async def reset_async(
        self, seed: int = 0, rounds: int = 5, step_s: float = 0.0, slow_seed: int = -1
    ) -> Light:
        self._random = random.Random(seed)
        self._rounds, self._state = rounds, State()
        self._step_s = step_s * (20 if seed == slow_seed else 1)
        self._light = self._random.randrange(10)
        return Light(light=self._light)

    async def step_async(self, action: Press) -> Light:
        if self._step_s:
            await asyncio.sleep(self._step_s)
        self._state.step_count += 1
        reward = float(action.button == self._light) / self._rounds
        self._light = self._random.randrange(10)
        return Light(light=self._light, reward=reward, done=self._state.step_count >= self._rounds)

    def reset(self, seed: int = 0) -> Light:
        raise NotImplementedError

    def step(self, action: Press) -> Light:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return self._state


class PacedEnv(EnvClient[Press, Light, State]): ...


app = create_app(Paced, Press, Light, env_name="paced", sessions=512)
