"""The steps of many sessions in one call, for environments whose author wrote `step_many`."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import CoroutineType
from typing import Any

from envtorch.batch_actions import Actions
from envtorch.errors import EnvironmentFailed, EnvTorchError
from envtorch.protocol.batch import Share, Steps, lost_rewards, write_together
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded, encode_observation
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost, answer_many, failure_of
from envtorch.protocol.ledger import CallOutcome, digest_of
from envtorch.server.runners.forked_process import end_if_forked
from envtorch.server.sessions.session import Session

__all__ = ["StepsTogether"]


class RowDigests:
    """The digests of the steps in a batch, as if each had been asked by itself. Steps are rarely repeated, so
    they are found out when one is."""

    def __init__(self, asked: Steps, format: Format) -> None:
        self._asked, self._format = asked, format

    def of(self, place: int) -> int:
        return self._digests[place]

    @cached_property
    def _digests(self) -> list[int]:
        return [digest_of("step", bytes(row)) for row in self._asked.rows(self._format)]


class StepsTogether:
    """A batch whose steps are one call. Whether they can be is decided before anything runs."""

    def __init__(
        self, sessions: Sequence[Session], hosts: Sequence[EnvironmentHost], actions: Actions[Any]
    ) -> None:
        self._sessions, self._hosts, self._actions = sessions, hosts, actions
        self.columns: bytes | None = None
        """The data of the reply to all of them, where `step_many` returned columns and none has failed."""

    @classmethod
    def of(
        cls, asked: Steps, sessions: Sequence[Session | None], id: int, format: Format
    ) -> "StepsTogether | None":
        """The batch as one call; None where a session is busy, or its environment steps by itself."""
        ready = [session for session in sessions if session is not None and session.may_step_together(id)]
        if not ready or len(ready) != len(sessions) or len(set(asked.ch)) != len(asked.ch):
            return None
        hosts = [host for session in ready if (host := session.runner.steps_together) is not None]
        if len({type(host.environment) for host in hosts}) != 1:
            return None
        actions = _actions(asked, hosts[0], format)
        if actions is None or len(actions) != len(ready):
            return None
        return cls(ready, hosts, actions)

    def run(self, asked: Steps, id: int, acknowledged: int | None, format: Format) -> list[CallOutcome]:
        """Take the steps; what came of each."""
        channels, rows = asked.ch, RowDigests(asked, format)

        def act() -> tuple[Sequence[Any], EnvTorchError | None]:
            process = os.getpid()
            returned, error = answer_many(self._hosts, self._actions)
            end_if_forked(process)
            if error is not None:
                return (), error
            try:
                return self._results(returned, channels, format), None
            except BaseException as failed:  # what was returned may be of any kind, with code of its own
                return (), failure_of("step_many", failed)

        call = Call("step", bytes(asked.columns) or bytes(asked.actions), format.name)
        digests = [partial(rows.of, place) for place in range(len(channels))]
        return Session.submit_together(
            self._sessions, call, act, id=id, digests=digests, acknowledged=acknowledged
        )

    def _results(self, returned: Any, channels: list[int], format: Format) -> Sequence[Any]:
        """A result or an error for each session."""
        kind = self._hosts[0].codec.spec.observation
        if isinstance(returned, Mapping):
            columns = write_together(kind, returned, channels, format)
            failed = lost_rewards(returned)
            if not failed:
                self.columns = columns
            return [failed.get(place) or Share(columns, place, format) for place in range(len(channels))]
        return [_encoded(one, format, kind) for one in _observations(returned, len(channels))]


def _encoded(observation: Any, format: Format, kind: type) -> Encoded | EnvTorchError:
    try:
        return encode_observation(observation, format, method="step_many", expected=kind, strict=True)
    except BaseException as error:
        return failure_of("step_many", error)


def _actions(asked: Steps, host: EnvironmentHost, format: Format) -> Actions[Any] | None:
    """The actions, read at once; None when they have to be read one by one."""
    if bytes(asked.columns):
        return host.codec.decode_columns(bytes(asked.columns), len(asked.ch), format)
    rows = host.codec.decode_actions(bytes(asked.actions), format)
    return None if rows is None else Actions.of(rows)


def _observations(returned: Any, count: int) -> list[Any]:
    """What `step_many` returned, if it is as many observations as there were environments."""
    if isinstance(returned, CoroutineType):
        returned.close()
        raise EnvironmentFailed("step_many has to be a plain classmethod: it is not awaited")
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        raise EnvironmentFailed(
            f"step_many returned {type(returned).__name__}; it must return a list of observations, "
            "or their columns"
        )
    if len(returned) != count:
        raise EnvironmentFailed(f"step_many returned {len(returned)} observations for {count} environments")
    return list(returned)
