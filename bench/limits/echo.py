"""A bare picows server that sends every frame back: `python -m bench.limits.echo FD`"""

import asyncio
import socket
import sys

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server


class Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        else:
            transport.send(frame.msg_type, frame.get_payload_as_bytes())


async def main(listener: socket.socket) -> None:
    server = await ws_create_server(lambda request: Echo(), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(socket.socket(fileno=int(sys.argv[1]))))
