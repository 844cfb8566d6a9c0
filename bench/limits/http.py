"""The least that answers HTTP: a protocol on uvloop with one answer: `python -m bench.limits.http FD`"""

import asyncio
import socket
import sys
from typing import cast

import uvloop

BODY = b'{"observation":{"metadata":{},"message":"hello"},"reward":1.0,"done":false,"metadata":null}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Answering(asyncio.Protocol):
    """Answers each request when its body has come; bodies have a length, and requests come one by one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(body) >= length:
            self.received = b""
            self.transport.write(ANSWER)


async def main(listener: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(Answering, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(socket.socket(fileno=int(sys.argv[1]))))
