"""Batched steps on bare picows: a frame is a list of messages, and so is its answer.

`python -m bench.limits.batch FD`. Each channel is an echo environment, as in `bench.limits.handler`.
"""

import asyncio
import socket
import sys

import msgspec
import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from bench.limits.handler import BESIDE, Said, serialise, validate


class Message(msgspec.Struct):
    type: str
    ch: int
    id: int
    data: msgspec.Raw = msgspec.Raw(b"{}")


read = msgspec.json.Decoder(list[Message]).decode


class Batches(WSListener):
    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            return
        replies = [self.answer(message) for message in read(frame.get_payload_as_memoryview())]
        transport.send(WSMsgType.TEXT, b"[%b]" % b",".join(replies))

    def answer(self, message: Message) -> bytes:
        action = validate(bytes(message.data))
        self.steps[message.ch] = self.steps.get(message.ch, 0) + 1
        said = Said(message=action.message, reward=1.0)
        return (
            b'{"ch":%d,"id":%d,"type":"observation","data":{"observation":%b,"reward":1.0,"done":false}}'
            % (
                message.ch,
                message.id,
                serialise(said, exclude=BESIDE),
            )
        )


async def main(listener: socket.socket) -> None:
    server = await ws_create_server(lambda request: Batches(), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(socket.socket(fileno=int(sys.argv[1]))))
