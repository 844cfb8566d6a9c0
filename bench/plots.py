"""Pictures of the records, as PNG."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

from bench.records import Failed, Records

matplotlib.use("agg")
from matplotlib import pyplot

STYLES: dict[str, dict[str, Any]] = {
    "echo": {"color": "0.75", "linestyle": ":"},
    "handler": {"color": "0.45", "linestyle": ":"},
    "batch": {"color": "0.45", "linestyle": ":"},
    "inline": {"color": "tab:blue", "marker": "o"},
    "async": {"color": "tab:cyan", "marker": "s"},
    "columns": {"color": "tab:pink", "marker": "*"},
    "together": {"color": "tab:purple", "marker": "P"},
    "thread": {"color": "tab:green", "marker": "^"},
    "asgi": {"color": "tab:olive", "marker": "v"},
    "process": {"color": "tab:purple", "marker": "D"},
    "openenv": {"color": "tab:red", "marker": "o"},
    "openenv-async": {"color": "tab:orange", "marker": "s"},
    "openenv-best": {"color": "tab:brown", "marker": "^"},
    "openenv-together": {"color": "tab:red", "marker": "P"},
}
Panel = tuple[str, str, str]
"""A value, its heading, and the scale of its axis."""

LINES: dict[str, tuple[Panel, ...]] = {
    "steps": (("steps_per_s", "steps per second", "log"), ("cpu_us", "server CPU, µs per step", "log")),
    "batch": (("steps_per_s", "steps per second", "log"), ("cpu_us", "server CPU, µs per step", "log")),
    "scaling": (("success", "sessions that succeeded, %", "linear"), ("p99_s", "p99 of a session, s", "log")),
}
BARS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("client", "p50_us", "blocking step, p50 µs", ("handler", "inline", "thread", "openenv")),
    ("open", "p50_us", "connect + reset, p50 µs", ("handler", "inline", "thread", "openenv")),
    ("http", "p50_us", "HTTP step, p50 µs", ("http", "inline", "thread", "openenv")),
    ("large", "p50_us", "1 MB observation, p50 µs", ("handler", "inline", "thread", "openenv")),
    ("arrays", "p50_us", "array observation, p50 µs", ("handler", "pictures", "openenv-pictures")),
    ("idle", "bare_mb", "bare server, MB", ("handler", "thread", "openenv")),
    ("idle", "kb_per_session", "idle session, kB", ("handler", "inline", "thread", "openenv")),
    (
        "import-client",
        "cpu_ms",
        "import client, CPU ms",
        ("interpreter", "envtorch-import", "openenv-import"),
    ),
)
BAR_COLOURS = {"open": "tab:red", "limit": "0.6", "ours": "tab:blue"}


def draw(records: Records, folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """The plots that there are records for: the measurement, and the file that shows it."""
    drawn = {}
    for measure, panels in LINES.items():
        if records.sizes(measure):
            _save(folder / f"{measure}.png", _lines(records, measure, panels, names))
            drawn[measure] = f"{measure}.png"
    if records.sizes("client") and records.sizes("import-client"):
        _save(folder / "costs.png", _bars(records, names))
        drawn["import-server"] = "costs.png"
    return drawn


def _save(path: Path, paint: Callable[[], Any]) -> None:
    figure = paint()
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


def _lines(
    records: Records, measure: str, panels: tuple[Panel, ...], names: Mapping[str, str]
) -> Callable[[], Any]:
    def paint() -> Any:
        figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.2))
        for axis, (value, heading, scale) in zip(axes, panels, strict=True):
            for key in records.contenders(measure):
                points = list(_points(records, measure, key, value))
                if points:
                    axis.plot(*zip(*points, strict=True), label=names[key], **STYLES.get(key, {}))
            axis.set(xscale="log", yscale=scale, xlabel="sessions", title=heading)
            axis.set_xticks(records.sizes(measure), [f"{size:,}" for size in records.sizes(measure)])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=9)
        return figure

    return paint


def _points(records: Records, measure: str, key: str, value: str) -> list[tuple[int, float]]:
    points = []
    for size in records.sizes(measure):
        try:
            points.append((size, records.summary(measure, key, size, value).median))
        except Failed:
            continue
    return points


def _bars(records: Records, names: Mapping[str, str]) -> Callable[[], Any]:
    def paint() -> Any:
        figure, axes = pyplot.subplots(4, 2, figsize=(12, 11))
        for axis, (measure, value, heading, keys) in zip(axes.flat, BARS, strict=True):
            found = [(key, points[0][1]) for key in keys if (points := _points(records, measure, key, value))]
            labels = [names[key] for key, _ in found]
            bars = axis.barh(labels, [v for _, v in found], color=[_colour(names[key]) for key, _ in found])
            axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
            axis.set(title=heading)
            axis.invert_yaxis()
            axis.margins(x=0.15)
            axis.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        return figure

    return paint


def _colour(name: str) -> str:
    if name.startswith("limit"):
        return BAR_COLOURS["limit"]
    return BAR_COLOURS["open"] if name.startswith("OpenEnv") else BAR_COLOURS["ours"]
