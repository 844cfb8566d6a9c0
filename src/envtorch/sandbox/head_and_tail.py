"""The head and the tail of a stream of bytes of any length, in bounded memory."""

__all__ = ["HeadAndTail"]


class HeadAndTail:
    """Keeps the first and the last half of `limit` bytes, and counts what was left out between them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0
        """How many bytes are not kept."""

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[: max(0, room)]
        self._tail += data[max(0, room) :]
        if len(self._tail) > self._half:
            excess = len(self._tail) - self._half
            self.left_out += excess
            del self._tail[:excess]

    def text(self) -> str:
        """What is kept, decoded, with a line that says what is missing."""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self.left_out:
            return (head + tail).decode(errors="replace")
        note = f"\n[... {self.left_out} bytes left out ...]\n"
        return head.decode(errors="replace") + note + tail.decode(errors="replace")

    def __bytes__(self) -> bytes:
        return bytes(self._head + self._tail)
