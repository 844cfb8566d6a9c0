"""MCP over standard input and output, for agents that start their tools as programs."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, BinaryIO

from envtorch.protocol.jsonrpc import Code, RpcError, failure
from envtorch.protocol.mcp_message import InvalidMessage, McpMessageKind, read, take
from envtorch.server.app import HTTPEnvServer
from envtorch.server.doors.agent_tools import AgentTools
from envtorch.server.doors.mcp_http import McpDoor
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.sessions.session import Session

__all__ = ["converse", "protocol_output", "serve_stdio"]

ReadLine = Callable[[], Awaitable[bytes]]
WriteLine = Callable[[bytes], None]


async def converse(server: HTTPEnvServer, read_line: ReadLine, write_line: WriteLine) -> None:
    """Answer one message per line until there are no more; one session, ended with the conversation."""
    door = McpDoor(server.sessions, RpcDoor(server.sessions), AgentTools(server.codec, server.mode))
    session: Session | None = None
    try:
        while line := await read_line():
            if not line.strip():
                continue
            try:
                message = take(read(line))
            except InvalidMessage as invalid:
                write_line(failure(invalid.id, invalid))
                continue
            if message.kind is not McpMessageKind.REQUEST:
                continue
            if message.method == "initialize":
                begun = await door.initialize(message, session.token if session else None)
                answer, session = begun.answer, begun.session
            elif session is None:
                answer = failure(message.id, RpcError(Code.INVALID_REQUEST, "initialize comes first"))
            else:
                answer = await door.answer(message, session)
            write_line(answer)
    finally:
        await server.sessions.close()


@contextmanager
def protocol_output() -> Iterator[BinaryIO]:
    """This process's standard output, for the protocol alone.

    Inside the block, everything else that is written to standard output goes to standard error: what Python
    code prints, and what libraries and child processes write to file descriptor 1.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), os.fdopen(kept, "wb", closefd=False) as sink:
            yield sink
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def serve_stdio(server: HTTPEnvServer, given: BinaryIO | None = None, said: BinaryIO | None = None) -> None:
    """Serve an environment's tools on this process's own input and output, until its input ends."""
    source, sink = given or sys.stdin.buffer, said or sys.stdout.buffer

    async def read_line() -> bytes:
        return await asyncio.to_thread(source.readline)

    def write_line(line: bytes) -> None:
        sink.write(line + b"\n")
        sink.flush()

    asyncio.run(converse(server, read_line, write_line))


def is_served(app: Any) -> bool:
    """Whether an application was made by `create_app`, so that its environment can be had."""
    return isinstance(getattr(getattr(app, "state", None), "env_server", None), HTTPEnvServer)
