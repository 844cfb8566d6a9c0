"""A channel has one session, and a session one channel, also where its session lives with another worker."""

import pytest

from tests.server.test_one_session_a_channel import assert_taken, attach
from tests.server.workers.support import WorkersServer
from tests.support import eventually

HERE, THERE = 0, 1


def detached(server: WorkersServer, worker: int) -> str:
    """The token of a session of this worker that waits for a socket."""
    with server.wire(worker) as wire:
        return str(wire.open()["token"])


@pytest.mark.parametrize("second", [HERE, THERE])
@pytest.mark.parametrize("first", [HERE, THERE])
def test_an_attach_displaces_no_session_of_either_worker(first: int, second: int, two: WorkersServer) -> None:
    tokens = [detached(two, first), detached(two, second)]
    with two.wire(HERE) as wire:
        opened = attach(wire, tokens[0], id=1)["data"]
        assert_taken(attach(wire, tokens[1], id=2))
        assert attach(wire, tokens[0], id=3)["data"]["session_id"] == opened["session_id"]
        assert_taken(attach(wire, tokens[0], id=4, ch=1))
        assert wire.ask(type="state", id=5)["type"] == "state"
        assert wire.ask(type="state", id=6, ch=1)["data"]["code"] == "SESSION_ERROR"
        assert attach(wire, tokens[1], id=7, ch=1)["type"] == "session"
        wire.close(0)
        wire.close(1)
    eventually(lambda: two.sessions() == 0, "both are closed")


def test_of_two_requests_for_one_channel_in_a_frame_one_is_answered(two: WorkersServer) -> None:
    far, near = detached(two, THERE), detached(two, HERE)
    with two.wire(HERE) as wire:
        asked = [
            {"type": "attach", "id": id, "data": {"token": token}} for id, token in ((1, far), (2, near))
        ]
        wire.say(*asked, {"type": "session", "id": 3})
        answers = wire.hear_all({1, 2, 3})
        assert answers[1]["type"] == "session"
        assert_taken(answers[2])
        assert_taken(answers[3])
        wire.close()
        attach(wire, near, id=4)
        wire.close()
    eventually(lambda: two.sessions() == 0, "no slot is taken")


def test_a_closed_channel_of_the_other_worker_takes_a_session_in_the_same_frame(two: WorkersServer) -> None:
    far = detached(two, THERE)
    with two.wire(HERE) as wire:
        attach(wire, far, id=1)
        wire.say({"type": "close", "id": 2}, {"type": "session", "id": 3})
        answers = wire.hear_all({2, 3})
        assert [answers[id]["type"] for id in (2, 3)] == ["closed", "session"]
        assert wire.ask(type="state", id=4)["type"] == "state"
        wire.close()
    eventually(lambda: two.sessions() == 0, "both are closed")


@pytest.mark.parametrize("kind", ["session", "attach"])
def test_a_close_behind_a_request_for_the_other_workers_session_ends_it_though_the_socket_goes(
    kind: str, two: WorkersServer
) -> None:
    token = f"chosen-for-the-{kind}"
    with two.wire(THERE) as owner:
        owner.open(token=token, grace_s=3600)
    with two.wire(HERE) as wire:
        wire.say({"type": kind, "id": 1, "data": {"token": token}}, {"type": "close", "id": 2})
    eventually(lambda: two.sessions() == 0, "it has ended, long before its grace is over")
