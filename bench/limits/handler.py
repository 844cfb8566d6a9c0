"""The least that a server of this wire must do, on bare picows: `python -m bench.limits.handler FD`

The envelope is decoded with msgspec, the action validated with pydantic, an observation built and encoded
with pydantic. No sessions, no errors, no other message than these.
"""

import asyncio
import socket
import sys

import msgspec
import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server
from pydantic import BaseModel


class Say(BaseModel, extra="forbid"):
    message: str
    wait_s: float = 0.0
    size: int = 0
    metadata: dict[str, object] = {}


class Said(BaseModel, extra="forbid"):
    done: bool = False
    reward: float | None = None
    metadata: dict[str, object] = {}
    message: str = ""


class Envelope(msgspec.Struct):
    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


read = msgspec.json.Decoder(Envelope).decode
validate = Say.__pydantic_validator__.validate_json
serialise = Said.__pydantic_serializer__.to_json
BESIDE = {"reward", "done"}


class Handler(WSListener):
    """One connection: an echo environment."""

    def __init__(self) -> None:
        self.steps = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            return
        envelope = read(frame.get_payload_as_memoryview())
        if envelope.type == "state":
            reply = b'{"type":"state","data":{"step_count":%d}}' % self.steps
        else:
            reply = self.observe(envelope)
        transport.send(WSMsgType.TEXT, reply)

    def observe(self, envelope: Envelope) -> bytes:
        if envelope.type == "step":
            action = validate(bytes(envelope.data))
            self.steps += 1
            said = Said(message="x" * action.size if action.size else action.message, reward=1.0)
        else:
            said = Said(message="ready")
        return b'{"type":"observation","data":{"observation":%b,"reward":%b,"done":%b}}' % (
            serialise(said, exclude=BESIDE),
            b"null" if said.reward is None else repr(said.reward).encode(),
            b"true" if said.done else b"false",
        )


async def main(listener: socket.socket) -> None:
    server = await ws_create_server(lambda request: Handler(), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(socket.socket(fileno=int(sys.argv[1]))))
