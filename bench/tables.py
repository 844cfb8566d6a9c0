"""Records as Markdown: a table per measurement, medians and ratios. No I/O."""

from collections.abc import Mapping, Sequence

from bench.measure import Column, Measure
from bench.records import Failed, Records
from bench.stats import Summary


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def figure(summary: Summary, digits: int) -> str:
    """The median, and half the spread beside it: `1,234 ±6%`."""
    text = number(summary.median, digits)
    return text if summary.rounds == 1 else f"{text} ±{summary.spread / 2:.0%}"


def times(ratio: float, *, is_better_high: bool) -> str:
    """A ratio to read at a glance: `8.1x` of a rate, `1/8.1` of a cost."""
    if is_better_high:
        return f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"
    return f"1/{1 / ratio:.1f}" if 0 < ratio < 1 else f"{ratio:.1f}x"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table whose source is aligned too; the first `left` columns are text."""
    widths = [max(3, *(len(row[i]) for row in (headings, *rows))) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(headings), line(rule), *(line(row) for row in rows)])


def measure_table(records: Records, measure: Measure, names: Mapping[str, str]) -> str:
    """Each size, each contender: the medians, and how they compare with the baseline."""
    headings = [measure.size, "server"]
    for column in measure.columns:
        headings += [column.heading, "to OpenEnv"]
    rows = []
    for size in records.sizes(measure.key):
        for key in records.contenders(measure.key):
            if records.of(measure.key, key, size):
                cells = [
                    cell for column in measure.columns for cell in _cells(records, measure, key, size, column)
                ]
                rows.append([number(size, 0), names.get(key, key), *cells])
    return markdown(headings, rows, left=2)


def _cells(records: Records, measure: Measure, key: str, size: int, column: Column) -> tuple[str, str]:
    try:
        value = figure(records.summary(measure.key, key, size, column.value), column.digits)
    except Failed as why:
        return ("not measured" if str(why) == "not measured" else "failed"), ""
    if key == measure.baseline:
        return value, ""
    try:
        ratio = records.ratio(measure.key, key, measure.baseline, size, column.value)
    except Failed:
        return value, "no ratio"
    return value, times(ratio.median, is_better_high=column.is_better_high)
