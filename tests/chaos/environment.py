"""The environment of the soak: it writes down every step that it runs, and answers with what it was asked."""

import os
import time

from envtorch import Action, EnvClient, Environment, Observation, State

LOG = "CHAOS_LOG"
"""The environment variable with the file that steps are written to."""


class Mark(Action):
    episode: str
    number: int
    wait_s: float = 0.0


class Seen(Observation):
    episode: str = ""
    number: int = -1
    steps: int = 0


class Marking(Environment[Mark, Seen, State]):
    """Appends each step to the log before it answers, on a thread of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        self._state = State(episode_id=episode_id)
        return Seen(episode=episode_id or "")

    def step(self, action: Mark) -> Seen:
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND)
        try:  # one write of one line: whole, whatever other processes write and whenever this one is killed
            os.write(log, f"{action.episode} {action.number}\n".encode())
        finally:
            os.close(log)
        if action.wait_s:
            time.sleep(action.wait_s)
        self._state.step_count += 1
        return Seen(
            episode=action.episode, number=action.number, steps=self._state.step_count, reward=action.number
        )

    @property
    def state(self) -> State:
        return self._state


class MarkingOnLoop(Marking):
    """The same on the event loop."""

    BLOCKING = False


class MarkingEnv(EnvClient[Mark, Seen, State]): ...
