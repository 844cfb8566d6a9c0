"""Frames through an ASGI WebSocket, text or binary."""

from starlette.websockets import WebSocket, WebSocketDisconnect

__all__ = ["receive_frame", "send_frame"]


async def receive_frame(websocket: WebSocket) -> str | bytes:
    """The next frame. Raises `WebSocketDisconnect` when there is none."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text: str | None = message.get("text")
    return text if text is not None else bytes(message["bytes"])


async def send_frame(websocket: WebSocket, frame: bytes, *, binary: bool = False) -> None:
    """Send one frame. Raises `WebSocketDisconnect` when nobody is there to take it."""
    if binary:
        await websocket.send_bytes(frame)
    else:
        await websocket.send_text(frame.decode())
