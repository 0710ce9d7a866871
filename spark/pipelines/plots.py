"""Draws PNG files for the jobs, with matplotlib. The extra `spark` installs it; without it the job prints a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from odradek.spark.pipelines.job import Failed

__all__ = ["LagPoint", "plot_delays", "plot_lag"]

_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#c17c00")
_INK = "#333333"


@attrs.frozen
class LagPoint:
    """The lag of a job in records, `seconds` after its start."""

    seconds: float
    records: int


def plot_lag(path: Path, title: str, points: Sequence[LagPoint]) -> None:
    """Draw the lag over time, with a point for each load."""
    figure, axes = _canvas(title)
    seconds, records = [point.seconds for point in points], [point.records for point in points]
    axes.plot(
        seconds,
        records,
        color=_COLOURS[0],
        marker="o",
        markersize=4,
        drawstyle="steps-post",
        clip_on=False,
        zorder=3,
    )
    axes.fill_between(seconds, records, step="post", color=_COLOURS[0], alpha=0.12, linewidth=0)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("records behind")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _save(figure, axes, path)


def plot_delays(path: Path, title: str, by_name: Mapping[str, Mapping[int, float]]) -> None:
    """Draw mean delays in minutes by the hour of the day, with a line for each name."""
    figure, axes = _canvas(title)
    for colour, (name, by_hour) in zip(_COLOURS, sorted(by_name.items()), strict=False):
        hours = sorted(by_hour)
        axes.plot(
            hours,
            [by_hour[hour] for hour in hours],
            color=colour,
            marker="o",
            markersize=4,
            label=name,
            linewidth=2,
        )
    axes.set_xlabel("hour of the day in New York")
    axes.set_ylabel("mean delay of departure, minutes")
    hours = sorted({hour for by_hour in by_name.values() for hour in by_hour})
    axes.set_xticks([hour for hour in hours if hour % 2 == 0])
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.legend(frameon=False)
    _save(figure, axes, path)


def _canvas(title: str) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Failed("--plot needs matplotlib: pip install 'odradek[plots]'") from None
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, loc="left", color=_INK)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path)
