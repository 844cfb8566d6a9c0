"""A whole environment, its server and a client, in one file. Run: python examples/first_environment.py"""

import socket
import threading

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class GuessingGame(Environment[Guess, Hint, State]):
    """Find the number between 1 and 100."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Hint:
        self._secret = 1 + (seed or 0) * 7919 % 100
        self._state = State(episode_id=f"game-{seed}")
        return Hint(text="Guess a number between 1 and 100.")

    def step(self, action: Guess) -> Hint:
        self._state.step_count += 1
        if action.number == self._secret:
            return Hint(text="Yes!", reward=1.0, done=True)
        return Hint(text="higher" if action.number < self._secret else "lower", reward=0.0)

    @property
    def state(self) -> State:
        return self._state


class GuessingClient(EnvClient[Guess, Hint, State]): ...


def play(env: GuessingClient) -> int:
    """Find the number by halving the interval; say how many guesses it took."""
    low, high = 1, 100
    env.reset(seed=3)
    while True:
        guess = (low + high) // 2
        result = env.step(Guess(number=guess))
        if result.done:
            return env.state().step_count
        low, high = (guess + 1, high) if result.observation.text == "higher" else (low, guess - 1)


if __name__ == "__main__":
    app = create_app(GuessingGame, sessions=8)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    with GuessingClient.local(GuessingGame) as env:
        print(f"in this process: {play(env)} guesses")
    with GuessingClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as env:
        print(f"over a socket:   {play(env)} guesses")
