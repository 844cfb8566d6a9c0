"""Plays a recording again, and says where what happens now is not what happened then."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from envtorch.recording.compare import Comparison, Difference
from envtorch.recording.format import Fork, Line, Moment, Reset, Step, ToolCall
from envtorch.recording.reader import Recording

__all__ = ["Divergence", "Player", "Replay", "SkippedStep", "Way", "replay"]

Outcome = Mapping[str, Any]
"""As `Call.outcome` has it: `observation`, `reward`, `done`, ..., or `error` with `code` and `message`."""


class Player(Protocol):
    """A session to play on. Errors of the environment are outcomes; a lost server is raised."""

    def reset(self, options: Mapping[str, Any]) -> Outcome: ...
    def step(self, action: Any, options: Mapping[str, Any]) -> Outcome: ...
    def call_tool(self, name: str, arguments: Mapping[str, Any], form: str) -> Outcome: ...
    def fork(self) -> "Player": ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Way:
    """How a session was spoken to, which is how it should be spoken to again."""

    wire: str = "json"
    """The client's `wire`: "json", "msgpack", or "openenv" where options were not strictly checked."""
    over_http: bool = False
    """Tools were called in MCP's own form, which goes over HTTP."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> "Way":
        """The way that suits a session and its forks."""
        calls = [line for line in lines if isinstance(line, Reset | Step | ToolCall)]
        has_forks = any(isinstance(line, Fork) for line in lines)
        if any(isinstance(call, ToolCall) and call.form == "mcp" for call in calls) and not has_forks:
            return cls(over_http=True)
        if any(call.wire == "msgpack" for call in calls):
            return cls("msgpack")
        is_loose = not has_forks and any(not call.strict for call in calls)
        return cls("openenv" if is_loose else "json")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call of an episode that did not come out as recorded."""

    episode: int
    moment: Moment
    differences: tuple[Difference, ...]
    seeded: bool
    """Whether the episode was begun with a seed; without one, chance alone may explain it."""


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """An episode that could not be played to its end."""

    episode: int
    step: int
    reason: str


@dataclass(slots=True)
class Replay:
    """What came of a replay."""

    episodes: int = 0
    """Played, wholly or up to where they diverged or were skipped."""
    moments: int = 0
    """Calls made and compared."""
    divergences: list[Divergence] = field(default_factory=list)
    skipped: list[SkippedStep] = field(default_factory=list)

    @property
    def first(self) -> Divergence | None:
        """The first divergence, in the order in which episodes began."""
        return min(self.divergences, key=lambda found: found.episode, default=None)

    @property
    def ok(self) -> bool:
        return not self.divergences


def replay(
    recording: Recording,
    open_player: Callable[[Way], Player],
    *,
    comparison: Comparison | None = None,
    stop_at_first: bool = False,
    on_moment: Callable[[Moment], None] = lambda moment: None,
) -> Replay:
    """Play every session of a recording again, and compare call by call.

    An episode that diverges is left there, with its forks; others go on. One of which lines were lost is not
    played. `open_player` opens a fresh session.
    """
    outcome = Replay()
    gaps = {episode.number for episode in recording.episodes if not episode.complete}
    for lines in recording.families():
        family = _Family(open_player, Way.of(lines), comparison or Comparison(), outcome, gaps)
        try:
            for line in lines:
                family.take(line)
                if isinstance(line, Reset | Step | ToolCall):
                    on_moment(line)
                if stop_at_first and outcome.divergences:
                    return outcome
        finally:
            family.close()
    return outcome


class _Family:
    """One session and its forks, being played again."""

    def __init__(
        self,
        open_player: Callable[[Way], Player],
        way: Way,
        comparison: Comparison,
        outcome: Replay,
        gaps: Set[int],
    ) -> None:
        """`gaps` are the episodes of which lines are missing."""
        self._open = open_player
        self._way = way
        self._comparison = comparison
        self._outcome = outcome
        self._gaps = gaps
        self._players: dict[int, Player] = {}
        self._left: set[int] = set()
        """Sessions whose episode is not played on."""
        self._seen: set[int] = set()
        self._seeded: dict[int, bool] = {}

    def take(self, line: Line) -> None:
        if isinstance(line, Fork):
            self._fork(line)
        elif isinstance(line, Reset | Step | ToolCall):
            if isinstance(line, Reset):
                self._left.discard(line.session)
                self._seeded[line.session] = line.options.get("seed") is not None
            if line.session not in self._left:
                self._play(line)

    def _fork(self, line: Fork) -> None:
        if line.parent_session in self._left or line.parent_episode in self._gaps:
            self._left.add(line.session)
            self._skip(line.episode, line.parent_step, "it is a fork of an episode that was left")
        else:
            self._players[line.session] = self._players[line.parent_session].fork()
            self._seeded[line.session] = self._seeded.get(line.parent_session, False)

    def _play(self, moment: Moment) -> None:
        if moment.episode not in self._seen:
            self._seen.add(moment.episode)
            self._outcome.episodes += 1
        reason = _GAP if moment.episode in self._gaps else _why_not(moment)
        if reason is not None:
            self._left.add(moment.session)
            self._skip(moment.episode, moment.step, reason)
            return
        if moment.session not in self._players:
            self._players[moment.session] = self._open(self._way)
        now = _make(self._players[moment.session], moment)
        self._outcome.moments += 1
        found = self._compare(_filled(moment.outcome, moment), _filled(now, moment))
        if found:
            self._left.add(moment.session)
            seeded = self._seeded.get(moment.session, False)
            self._outcome.divergences.append(Divergence(moment.episode, moment, found, seeded))

    def _compare(self, then: dict[str, Any], now: dict[str, Any]) -> tuple[Difference, ...]:
        if ("error" in then) != ("error" in now):
            return (Difference("outcome", then, now),)
        return tuple(self._comparison.differences(then, now))

    def _skip(self, episode: int, step: int, reason: str) -> None:
        self._outcome.skipped.append(SkippedStep(episode, step, reason))

    def close(self) -> None:
        for player in self._players.values():
            player.close()


_GAP = "lines of it were lost: what happened between the others is not known"


def _why_not(moment: Moment) -> str | None:
    """Why a call cannot be made again."""
    if moment.redacted:
        return "a secret was sent, which is not in the recording"
    if moment.error is not None and moment.error.code == "ABORTED":
        return "the call was given up on while it ran: what it did is not known"
    return None


def _make(player: Player, moment: Moment) -> Outcome:
    match moment:
        case Reset():
            return player.reset(moment.options)
        case Step():
            return player.step(moment.action, moment.options)
        case ToolCall():
            return player.call_tool(moment.name, moment.arguments, moment.form)


def _filled(outcome: Outcome, moment: Moment) -> dict[str, Any]:
    """An outcome with everything said that a client would understand of itself."""
    if isinstance(moment, ToolCall):
        return _of_tool(outcome, moment.form)
    if "error" in outcome:
        return {"error": outcome["error"]}
    truncated = bool(outcome.get("truncated"))
    terminated = outcome.get("terminated")
    if terminated is None:
        terminated = bool(outcome.get("done")) and not truncated
    told = {**outcome, "terminated": terminated, "truncated": truncated}
    return {name: value for name, value in told.items() if name != "metadata" or value is not None}


def _of_tool(outcome: Outcome, form: str) -> dict[str, Any]:
    """What a tool answered. JSON-RPC tells no code of ours, and MCP has a failure as a result."""
    if "error" not in outcome:
        return {"observation": outcome["observation"]}
    message = outcome["error"]["message"]
    if form == "mcp":
        return {"observation": {"content": [{"type": "text", "text": message}], "isError": True}}
    return {"error": {"message": message}}
