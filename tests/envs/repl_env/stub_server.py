"""A server that speaks OpenAI's chat API on a real socket: it can be slow, fail, limit its rate, stream."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What to do with one request."""

    text: str = ""
    status: int = 200
    wait_for: asyncio.Event | None = None
    """Answer only after this has been set."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """Sent as it is, instead of an answer."""
    stream: bool | None = None
    """Stream, or not, whatever the client asked for."""
    break_off: bool = False
    """Close the connection in the middle of the answer."""
    usage: bool = True


@dataclass(slots=True)
class Heard:
    """One request, as it came."""

    prompt: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass(slots=True)
class StubServer:
    """A live server, what it has heard, and how it behaves."""

    behave: Callable[[Heard], Behaviour]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    heard: list[Heard] = field(default_factory=list)
    url: str = ""
    running: int = 0
    """Requests that are being answered now."""
    most_at_once: int = 0
    hung_up: int = 0
    """Requests whose client went away before it had its answer."""

    def call(self, function: Callable[[], Any]) -> None:
        """Do something on the server's own loop, such as setting an event."""
        self.loop.call_soon_threadsafe(function)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (heard := await _request(reader)) is not None:
                self.heard.append(heard)
                self.running += 1
                self.most_at_once = max(self.most_at_once, self.running)
                try:
                    if not await self._respond(self.behave(heard), heard, reader, writer):
                        return
                finally:
                    self.running -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _respond(
        self, how: Behaviour, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request. False when the connection is of no more use."""
        if how.wait_for is not None and not await _told_or_gone(how.wait_for, reader):
            self.hung_up += 1
            return False
        streams = heard.body.get("stream", False) if how.stream is None else how.stream
        kind = "text/event-stream" if streams and how.status == 200 else "application/json"
        body = how.body if how.body is not None else _body(how, streams)
        length = len(body) + (100 if how.break_off else 0)
        lines = [f"HTTP/1.1 {how.status} Told", f"Content-Type: {kind}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in how.headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return not how.break_off


async def _request(reader: asyncio.StreamReader) -> Heard | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    lines = head.decode().split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:] if line)}
    assert lines[0].startswith("POST /v1/chat/completions ")
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    return Heard(body["messages"][-1]["content"], body, headers)


async def _told_or_gone(event: asyncio.Event, reader: asyncio.StreamReader) -> bool:
    """Wait for the event. False when the client has hung up first."""
    told, gone = asyncio.ensure_future(event.wait()), asyncio.ensure_future(reader.read(1))
    done, pending = await asyncio.wait([told, gone], return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return told in done


def _body(how: Behaviour, streams: bool) -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18} if how.usage else None
    if how.status != 200:
        return json.dumps({"error": {"message": how.text}}).encode()
    if not streams:
        choice = {"index": 0, "message": {"role": "assistant", "content": how.text}}
        return json.dumps({"choices": [choice], "usage": usage}).encode()
    half = len(how.text) // 2
    events: list[Any] = [{"choices": [{"delta": {"content": p}}]} for p in (how.text[:half], how.text[half:])]
    events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    ending = [] if how.break_off else ["data: [DONE]\n\n"]
    return "".join([": a comment\n\n", *lines, *ending]).encode()


@contextmanager
def stub_server(behave: Callable[[Heard], Behaviour]) -> Iterator[StubServer]:
    """Serve for the length of the block, on a thread of its own."""
    stub = StubServer(behave)
    ready = threading.Event()

    async def serve() -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            await stub.answer(reader, writer)

        server = await asyncio.start_server(attend, "127.0.0.1", 0)
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        try:
            await stopping.wait()
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    stopping = asyncio.Event()
    thread = threading.Thread(target=stub.loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield stub
    finally:
        stub.call(stopping.set)
        thread.join(PATIENCE_S)
        stub.loop.close()
