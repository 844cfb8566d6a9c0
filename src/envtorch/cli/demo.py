"""`envtorch demo`: a real server, three clients, one table."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["demo"]

MESSAGES = ("Hello, World!", "one protocol,", "three ways in")


@dataclass(frozen=True, slots=True)
class DemoLine:
    """One row of the table."""

    client: str
    call: str
    seen: str
    reward: float | None


def demo() -> None:
    """Start an echo server and play an episode on it in three ways."""
    console = Console()
    with echo_server() as url:
        console.print(f"An echo environment is served at [bold]{url}[/bold]\n")
        lines = [*play_blocking(url), *asyncio.run(play_async(url)), *play_http(url)]
    console.print(table_of(lines))
    total = sum(line.reward or 0.0 for line in lines)
    console.print(f"\n3 episodes, {len(lines) - 3} steps, return {total:.1f}. The server is stopped.")


@contextmanager
def echo_server() -> Iterator[str]:
    """A server process on a port nobody else can take: the parent binds it, the child inherits it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        fd = listener.fileno()
        command = [sys.executable, "-m", "envtorch.cli", "serve", "echo_env", "--fd", str(fd)]
        server = subprocess.Popen(command, pass_fds=[fd], stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


def play_blocking(url: str) -> Iterator[DemoLine]:
    """An episode with the blocking client."""
    from envtorch.envs.echo_env import EchoAction, EchoEnv

    with EchoEnv(url, connect_timeout_s=30.0) as env:
        result = env.reset(seed=7)
        yield DemoLine("EchoEnv", "reset(seed=7)", result.observation.echoed_message, result.reward)
        for message in MESSAGES:
            result = env.step(EchoAction(message=message))
            yield DemoLine("", f"step({message!r})", result.observation.echoed_message, result.reward)


async def play_async(url: str) -> list[DemoLine]:
    """The same episode, awaited."""
    from envtorch.envs.echo_env import EchoAction, EchoEnv

    async with EchoEnv.aio(url) as env:
        result = await env.reset(seed=7)
        lines = [
            DemoLine("EchoEnv.aio", "await reset(seed=7)", result.observation.echoed_message, result.reward)
        ]
        for message in MESSAGES:
            result = await env.step(EchoAction(message=message))
            seen = result.observation.echoed_message
            lines.append(DemoLine("", f"await step({message!r})", seen, result.reward))
    return lines


def play_http(url: str) -> Iterator[DemoLine]:
    """The same episode with nothing but HTTP: the session cookie keeps it."""
    import httpx

    with httpx.Client(base_url=url) as http:
        body = http.post("/reset", json={"seed": 7}).raise_for_status().json()
        yield DemoLine("httpx", "POST /reset", body["observation"]["echoed_message"], body["reward"])
        for message in MESSAGES:
            answer = http.post("/step", json={"action": {"message": message}}).raise_for_status()
            body = answer.json()
            yield DemoLine("", "POST /step", body["observation"]["echoed_message"], body["reward"])
        http.post("/close").raise_for_status()


def table_of(lines: list[DemoLine]) -> Table:
    """What happened, as a person reads it."""
    table = Table(title="One environment, three clients", title_justify="left")
    table.add_column("client", style="cyan")
    table.add_column("call")
    table.add_column("observation", style="green")
    table.add_column("reward", justify="right")
    for line in lines:
        if line.client and table.row_count:
            table.add_section()
        table.add_row(line.client, line.call, line.seen, f"{line.reward:.1f}")
    return table
