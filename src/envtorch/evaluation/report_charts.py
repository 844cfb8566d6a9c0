"""Plots of a report, as SVG without scripts. Every text in them is escaped."""

from collections.abc import Mapping, Sequence
from html import escape

from envtorch.evaluation.estimates import Estimate

__all__ = ["endings_chart", "pass_chart", "rates_chart"]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 230, 44, 34, 26


def pass_chart(pass_at: Mapping[int, Estimate]) -> str:
    """pass@k over k, with its intervals."""
    step = (WIDTH - LEFT - 20) / max(len(pass_at), 1)
    marks, points = [], []
    for place, (k, estimate) in enumerate(pass_at.items()):
        x = LEFT + step * (place + 0.5)
        y, low, high = (_y(part) for part in estimate)
        told = f"pass@{k}: {estimate.value:.1%}, 95 % interval {estimate.low:.1%} to {estimate.high:.1%}"
        points.append(f"{x:.1f},{y:.1f}")
        ends = "".join(f"M{x - 5:.1f} {end:.1f}h10" for end in (low, high))
        marks += [
            f'<path class="bar" d="M{x:.1f} {low:.1f}V{high:.1f}{ends}"/>',
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{told}</title></circle>',
            f'<text x="{x + 8:.1f}" y="{y - 7:.1f}">{estimate.value:.0%}</text>',
            _label(x, f"pass@{k}"),
        ]
    line = f'<polyline class="line" points="{" ".join(points)}"/>'
    return _figure(HEIGHT, "pass@k with 95 % intervals", [_grid(), line, *marks])


def rates_chart(rates: Sequence[float]) -> str:
    """How many tasks pass how often, in tenths."""
    counts = [0] * 10
    for rate in rates:
        counts[min(int(rate * 10), 9)] += 1
    most = max([*counts, 1])
    step = (WIDTH - LEFT - 20) / 10
    marks = [f'<path class="grid" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - 20}"/>']
    for place, count in enumerate(counts):
        tall = (HEIGHT - TOP - BOTTOM) * count / most
        x, y = LEFT + step * place, HEIGHT - BOTTOM - tall
        marks.append(_bar("fill", x + 1, y, step - 2, tall, f"{count} tasks"))
        if count:
            marks.append(f'<text x="{x + step / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">{count}</text>')
    marks += [_label(LEFT + step * tenth, f"{tenth * 10} %") for tenth in (0, 5, 10)]
    return _figure(HEIGHT, "Tasks by the share of samples that passed", marks)


def endings_chart(endings: Mapping[str, int]) -> str:
    """How many samples ended for which cause."""
    most, row = max([*endings.values(), 1]), 26
    marks = []
    for place, (cause, count) in enumerate(endings.items()):
        y, long = place * row + 6, (WIDTH - 240) * count / most
        kind = f"fill {cause.split(':')[0]}"
        marks += [
            f'<text class="axis" x="0" y="{y + 14}">{escape(cause[:32])}</text>',
            _bar(kind, 190, y, long, 18, f"{cause}: {count}"),
            f'<text x="{196 + long:.1f}" y="{y + 14}">{count}</text>',
        ]
    return _figure(row * max(len(endings), 1) + 12, "Endings by cause", marks)


def _y(part: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def _grid() -> str:
    lines = []
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - 20}"/>')
        lines.append(
            f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>'
        )
    return "".join(lines)


def _label(x: float, text: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(text)}</text>'


def _bar(kind: str, x: float, y: float, wide: float, tall: float, told: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    return f'<rect class="{escape(kind)}" {place}><title>{escape(told)}</title></rect>'


def _figure(height: float, title: str, marks: Sequence[str]) -> str:
    drawing = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{''.join(marks)}</svg></figure>"
