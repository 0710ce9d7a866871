"""The page of benchmarks over time: a table of the newest run, and a drawing of all runs. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.history.recorded import Measured, RecordedRun
from bench.instruments.tables import table

WIDTH, ROW_HEIGHT, LEFT, RIGHT, TOP = 960, 56, 330, 90, 40
RATIO_MIN, RATIO_MAX = 1 / 16, 16.0


def markdown(runs: Sequence[RecordedRun], drawing: str) -> str:
    """Return the page. `drawing` is the path of the SVG file, as a link from the page."""
    newest = runs[-1]
    rows = [
        [
            each.name,
            *(_number(value) for value in (each.value, each.reference)),
            f"{each.ratio:.2f}",
            _range(runs, each),
        ]
        for each in newest.figures
    ]
    head = ["figure", "Odradek", "Apache Kafka", "ratio", "ratio in all runs"]
    machine = newest.machine
    return (
        "# Benchmarks over time\n\n"
        "`python -m bench --all --record` measures this checkout beside Apache Kafka, and adds a file to\n"
        "[bench/history](../bench/history/README.md). `python -m bench.history` draws this page from these files.\n\n"
        "A ratio is our figure over Kafka's in the same run. Of CPU, seconds and memory, less is better; of rates, more is.\n\n"
        f"![ratios of all recorded runs]({drawing})\n\n"
        f"The newest run is of commit {newest.commit} ({newest.date}), on {machine.cpus} processors, "
        f"Linux {machine.kernel}, Python {machine.python}:\n\n" + table(head, rows)
    )


def svg(runs: Sequence[RecordedRun]) -> str:
    """Return the drawing as SVG: a row for each figure, a dot for each run, on a logarithmic scale around 1."""
    names = list(dict.fromkeys(each.name for run in reversed(runs) for each in run.figures))
    height = TOP + ROW_HEIGHT * len(names) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" fill="#555555">{escape(runs[0].date)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="22" fill="#555555" text-anchor="end">{escape(runs[-1].date)}</text>',
    ]
    for index, name in enumerate(names):
        parts += _row(name, TOP + ROW_HEIGHT * index, [_named(run, name) for run in runs])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(name: str, top: int, series: Sequence[Measured | None]) -> Iterator[str]:
    middle = top + ROW_HEIGHT / 2
    yield f'<text x="{LEFT - 12}" y="{middle + 4:.0f}" text-anchor="end">{escape(name)}</text>'
    yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="#cccccc"/>'
    step = (WIDTH - LEFT - RIGHT) / max(1, len(series) - 1)
    points = [
        (LEFT + step * place, _height(each.ratio, middle), each)
        for place, each in enumerate(series)
        if each is not None
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    yield f'<polyline points="{line}" fill="none" stroke="#1f6fb2" stroke-width="1.5"/>'
    for x, y, each in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6fb2"><title>{each.ratio:.2f}</title></circle>'
    x, y, newest = points[-1]
    yield f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="#1f6fb2">{newest.ratio:.2f}</text>'


def _height(ratio: float, middle: float) -> float:
    """Return the y coordinate of a ratio: 1 is in the middle of its row, and larger ratios are above."""
    shown = min(RATIO_MAX, max(RATIO_MIN, ratio))
    return middle - (ROW_HEIGHT / 2 - 6) * math.log(shown) / math.log(RATIO_MAX)


def _named(run: RecordedRun, name: str) -> Measured | None:
    return next((each for each in run.figures if each.name == name), None)


def _range(runs: Sequence[RecordedRun], figure: Measured) -> str:
    ratios = [found.ratio for run in runs if (found := _named(run, figure.name)) is not None]
    return f"{min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
