"""What an operator sees: sessions by phase, steps per second, latency, errors, and the tree of forks."""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.web.charts import bars, lines

__all__ = ["Operations", "Sample", "quantile"]

_KEPT = 120
_SHORTEST_S = 0.4
_WINDOW_S = 5.0
_MOST_SESSIONS = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """A server's counters at one moment."""

    at: float
    steps: int
    errors: int
    buckets: tuple[tuple[float, float], ...]
    """Upper bounds in seconds, and how many steps took at most that long."""


def quantile(before: Sample, after: Sample, q: float) -> float | None:
    """A latency that the share `q` of the steps between two samples stayed within; None without steps.

    It lies inside a bucket, where it is guessed linearly, so it is no more exact than the buckets.
    """
    counts = [late[1] - early[1] for early, late in zip(before.buckets, after.buckets, strict=True)]
    bounds = [bound for bound, _ in after.buckets]
    if not counts or counts[-1] <= 0:
        return None
    wanted = q * counts[-1]
    index = bisect_left(counts, wanted)
    low_count, low = (counts[index - 1], bounds[index - 1]) if index else (0.0, 0.0)
    high = bounds[index] if bounds[index] != float("inf") else low
    share = (wanted - low_count) / ((counts[index] - low_count) or 1.0)
    return low + (high - low) * share


class Operations:
    """Samples a server while somebody looks, and draws what it saw."""

    def __init__(self, sessions: Sessions, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=_KEPT)

    def sample(self) -> None:
        """Take a sample, unless one was taken just now for another visitor."""
        now = self._clock()
        if self._samples and now - self._samples[-1].at < _SHORTEST_S:
            return
        meter = self._sessions.meter
        cumulative, _ = meter.step_latency()
        buckets = tuple((float("inf") if bound == "+Inf" else float(bound), n) for bound, n in cumulative)
        self._samples.append(Sample(now, meter.steps, sum(meter.errors.values()), buckets))

    def rates(self) -> list[float]:
        """Steps per second between each two samples."""
        pairs = zip(self._samples, list(self._samples)[1:], strict=False)
        return [(late.steps - early.steps) / (late.at - early.at) for early, late in pairs]

    def html(self) -> str:
        """The whole tab."""
        self.sample()
        status, meter = self._sessions.status(), self._sessions.meter
        rates = self.rates()
        recent = self._recent()
        middle, late = (quantile(recent, self._samples[-1], q) for q in (0.5, 0.99))
        figures = [
            ("sessions", f"{status.active_sessions} / {status.max_sessions}"),
            ("waiting", str(self._sessions.slots.waiting)),
            ("steps / s", f"{rates[-1]:.1f}" if rates else "–"),
            ("step p50", duration(middle)),
            ("step p99", duration(late)),
            ("steps", f"{meter.steps}"),
            ("errors", f"{sum(meter.errors.values())}"),
        ]
        return "".join(
            (
                '<div class="et-figures">',
                *(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures),
                "</div>",
                lines([("steps / s", rates)], label="Steps per second, while this tab is open", wide=True),
                '<div class="et-columns"><section><h4>Sessions by phase</h4>',
                bars([(phase, float(count)) for phase, count in self._sessions.phases().items()]),
                "</section><section><h4>Errors by code</h4>",
                bars([(code, float(count)) for code, count in meter.errors.items()]),
                "</section></div><h4>Sessions and their forks</h4>",
                fork_tree(self._sessions.all()),
            )
        )

    def _recent(self) -> Sample:
        """The sample that the last few seconds began with."""
        newest = self._samples[-1].at
        return next(sample for sample in self._samples if newest - sample.at <= _WINDOW_S)


def duration(seconds: float | None) -> str:
    """A time in three digits and a unit, which fits its card."""
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.001 else f"{seconds * 1e6:.3g} µs"


def fork_tree(sessions: Sequence[Session]) -> str:
    """Live sessions as a tree: copies under what they were copied from, while that lives."""
    if not sessions:
        return '<p class="et-quiet">No session is open.</p>'
    alive = {session.id for session in sessions}
    children: dict[str | None, list[Session]] = {}
    for session in sessions[:_MOST_SESSIONS]:
        parent = session.parent_id if session.parent_id in alive else None
        children.setdefault(parent, []).append(session)
    more = len(sessions) - _MOST_SESSIONS
    rest = f'<p class="et-quiet">and {more} more</p>' if more > 0 else ""
    return f'<div class="et-tree">{_level(children, None)}</div>{rest}'


def _level(children: dict[str | None, list[Session]], parent: str | None) -> str:
    now = time.time()
    rows = "".join(
        f"<li><code>{session.id[:8]}</code> <span class='et-phase et-{session.phase.value}'>"
        f"{escape(session.phase.value)}</span> {session.steps} steps, "
        f"{_age(now - session.info.created_at)} old{_orphan(session, parent)}"
        f"{_level(children, session.id)}</li>"
        for session in children.get(parent, ())
    )
    return f"<ul>{rows}</ul>" if rows else ""


def _orphan(session: Session, shown_under: str | None) -> str:
    """A copy whose original has ended still says what it was copied from."""
    is_orphan = session.parent_id is not None and shown_under is None
    return f", a copy of <code>{session.parent_id[:8]}</code>" if is_orphan and session.parent_id else ""


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
