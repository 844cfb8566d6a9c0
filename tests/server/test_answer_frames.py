"""Answers that are gathered for one frame."""

from collections.abc import Callable

import msgspec

from envtorch.protocol.extended import Message
from envtorch.protocol.formats import JSON
from envtorch.server.doors.answer_frames import AnswerFrames
from envtorch.server.transport.connection import UNSENT_BYTES, Conversation

ANSWER = msgspec.Raw(b'"' + b"x" * (UNSENT_BYTES // 4) + b'"')


class EndedLine:
    """A line whose peer has gone, which has room for everything; it notes the sizes of what it is given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self.sizes.append(len(frame))

    def has_room(self, go_on: Callable[[], None], *, more: int = 0) -> bool:
        return True

    def close(self, code: int = 1000) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def converse(self, conversation: Conversation) -> None: ...


def test_answers_to_one_frame_are_not_gathered_without_bound() -> None:
    line = EndedLine()
    answers = AnswerFrames(line, JSON, lambda: True)
    answers.gather()
    for number in range(40):
        answers.add(Message("observation", id=number, ch=0, data=ANSWER))
    answers.flush()
    assert sum(line.sizes) > 40 * len(ANSWER), "every answer was given to the line"
    assert max(line.sizes) < UNSENT_BYTES + 2 * len(ANSWER)
