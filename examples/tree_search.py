"""Search a tree of actions by forking a session, and by replaying: the same tree, and what each costs.

Run: python examples/tree_search.py
"""

import asyncio
import socket
import threading
import time
from dataclasses import dataclass

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.client import AsyncEnvClient

TARGET, DEPTH, WIDTH = 4399, 12, 4
STEP_S = 0.02
"""What a step costs: a compiler, a browser or a simulator takes longer."""
MOVES = ("+1", "*2", "+5", "*3")


class Move(Action):
    move: str


class Number(Observation):
    number: int = 1


class Calculator(Environment[Move, Number, State]):
    """Starts at 1; every move changes the number, and takes a while."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    async def reset(self, seed: int | None = None) -> Number:
        self._number, self._state = 1, State()
        return Number(number=1)

    async def step(self, action: Move) -> Number:
        await asyncio.sleep(STEP_S)
        self._state.step_count += 1
        by = int(action.move[1:])
        self._number = self._number + by if action.move[0] == "+" else self._number * by
        found = self._number == TARGET
        return Number(number=self._number, reward=float(found), done=found)

    @property
    def state(self) -> State:
        return self._state


class CalculatorEnv(EnvClient[Move, Number, State]): ...


Client = AsyncEnvClient[Move, Number, State]


@dataclass(frozen=True)
class Node:
    """A state of the search: the moves that lead to it, and the number there."""

    moves: tuple[str, ...]
    number: int


@dataclass
class Search:
    """A beam search: the states nearest to the target go on, with every move."""

    url: str
    steps: int = 0

    async def by_fork(self) -> Node:
        """Every move is tried on a copy of the session."""
        root = CalculatorEnv.aio(self.url)
        await root.reset()
        beam: list[tuple[Client, Node]] = [(root, Node((), 1))]
        while True:
            branches = await asyncio.gather(*(self._branch(client, node) for client, node in beam))
            grown = [branch for some in branches for branch in some]
            grown.sort(key=lambda one: self._distance(one[1]))
            beam, rest = grown[:WIDTH], grown[WIDTH:]
            await asyncio.gather(*(client.close() for client, _ in rest))
            if self._is_over(beam[0][1]):
                await asyncio.gather(*(client.close() for client, _ in beam))
                return beam[0][1]

    async def _branch(self, client: Client, node: Node) -> list[tuple[Client, Node]]:
        copies = await client.fork(len(MOVES))
        await client.close()
        nodes = await asyncio.gather(*map(self._step, copies, [node] * len(MOVES), MOVES))
        return list(zip(copies, nodes, strict=True))

    async def by_replay(self) -> Node:
        """Every move is tried in a new session, which first plays all moves up to there."""
        beam = [Node((), 1)]
        while True:
            trials = [(node, move) for node in beam for move in MOVES]
            grown = await asyncio.gather(*(self._replay(node, move) for node, move in trials))
            beam = sorted(grown, key=self._distance)[:WIDTH]
            if self._is_over(beam[0]):
                return beam[0]

    async def _replay(self, node: Node, move: str) -> Node:
        async with CalculatorEnv.aio(self.url) as client:
            await client.reset()
            reached = Node((), 1)
            for earlier in node.moves:
                reached = await self._step(client, reached, earlier)
            return await self._step(client, reached, move)

    async def _step(self, client: Client, node: Node, move: str) -> Node:
        self.steps += 1
        result = await client.step(Move(move=move))
        return Node((*node.moves, move), result.observation.number)

    def _distance(self, node: Node) -> int:
        return abs(TARGET - node.number)

    def _is_over(self, best: Node) -> bool:
        return best.number == TARGET or len(best.moves) == DEPTH


async def main(url: str) -> None:
    results = {}
    for name in ("fork", "replay"):
        search = Search(url)
        began = time.perf_counter()
        best = await (search.by_fork() if name == "fork" else search.by_replay())
        took = time.perf_counter() - began
        results[name] = best
        print(f"{name:>6}: {' '.join(best.moves)} = {best.number}, {search.steps} steps in {took:.2f} s")
    assert results["fork"] == results["replay"], "a fork goes on exactly as a replay does"


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Calculator, sessions=128)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{listener.getsockname()[1]}"))
