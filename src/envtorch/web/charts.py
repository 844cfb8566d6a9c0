"""Small charts as SVG: drawn on the server, coloured by the page's own theme, light enough for a phone."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["bars", "lines"]

_HEIGHT, _BOTTOM, _TOP, _RIGHT = 170, 22, 12, 12
_DIGIT = 7.5
"""How wide a character of a label is, at most."""
_NARROW, _WIDE = 420, 960


def lines(
    series: Sequence[tuple[str, Sequence[float]]],
    *,
    label: str,
    x_label: str = "",
    first_x: int = 0,
    wide: bool = False,
) -> str:
    """Lines over a shared axis. Each series is a name and its values, one per unit of x."""
    values = [value for _, points in series for value in points]
    if not values:
        return f'<p class="et-quiet">{escape(label)}: nothing yet.</p>'
    low, high = min(0.0, *values), max(0.0, *values)
    plot = _Plot(
        width=_WIDE if wide else _NARROW,
        low=low,
        high=high if high > low else low + 1.0,
        longest=max(len(points) for _, points in series),
    )
    drawn = [plot.axes(first_x, x_label)]
    drawn += [plot.line(points, f"et-series-{i % 4}", name) for i, (name, points) in enumerate(series)]
    legend = "".join(
        f'<span class="et-key et-series-{index % 4}">{escape(name)}</span>'
        for index, (name, _) in enumerate(series)
        if len(series) > 1
    )
    return (
        f'<figure class="et-chart"><figcaption>{escape(label)} {legend}</figcaption>'
        f'<svg viewBox="0 0 {plot.width} {_HEIGHT}" style="max-width:{plot.width * 1.3:.0f}px" role="img" '
        f'aria-label="{escape(label)}">{"".join(drawn)}</svg></figure>'
    )


@dataclass(frozen=True, slots=True)
class _Plot:
    """Where values lie on the paper."""

    width: int
    low: float
    high: float
    longest: int

    @property
    def marks(self) -> tuple[float, float, float]:
        """The values that have a label."""
        return self.low, (self.low + self.high) / 2, self.high

    @property
    def left(self) -> float:
        """Where the plot begins: right of the widest label."""
        return max(36.0, 10 + _DIGIT * max(len(_label(value)) for value in self.marks))

    def x(self, index: int) -> float:
        share = index / (self.longest - 1) if self.longest > 1 else 0.5
        return self.left + (self.width - self.left - _RIGHT) * share

    def y(self, value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (value - self.low) / (self.high - self.low))

    def axes(self, first_x: int, x_label: str) -> str:
        marks = []
        for value in self.marks:
            y, left, right = self.y(value), self.left, self.width - _RIGHT
            marks.append(
                f'<line class="et-grid" x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="et-tick" x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">'
                f"{_label(value)}</text>"
            )
        ends = ((0, "start"), (self.longest - 1, "end")) if self.longest > 1 else ((0, "middle"),)
        for index, anchor in ends if x_label else ():
            marks.append(
                f'<text class="et-tick" x="{self.x(index):.1f}" y="{_HEIGHT - 5}" '
                f'text-anchor="{anchor}">{escape(f"{x_label} {index + first_x}")}</text>'
            )
        return "".join(marks)

    def line(self, points: Sequence[float], style: str, name: str) -> str:
        placed = [(self.x(i), self.y(value)) for i, value in enumerate(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        dots = ""
        if len(placed) <= 60:
            dots = "".join(
                f'<circle class="et-dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                f"<title>{escape(name)}: {value:.4g}</title></circle>"
                for (x, y), value in zip(placed, points, strict=True)
            )
        return f'<polyline class="et-line {style}" points="{path}"/>{dots}'


def _label(value: float) -> str:
    return f"{value:.3g}"


def bars(counts: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Horizontal bars with their numbers, longest first."""
    if not counts:
        return '<p class="et-quiet">None.</p>'
    most = max(value for _, value in counts) or 1.0
    rows = "".join(
        f'<div class="et-bar"><span>{escape(name)}</span>'
        f'<i style="width:{max(1.0, 100 * value / most):.1f}%"></i><b>{value:g}{escape(unit)}</b></div>'
        for name, value in sorted(counts, key=lambda pair: -pair[1])
    )
    return f'<div class="et-bars">{rows}</div>'
