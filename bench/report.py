"""Formats the results of measurements: tables for people, JSON for programs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import attrs

from bench.hot_path.small_requests import Kind
from bench.hot_path.stages import STAGES
from bench.scale.footprint import Figure
from bench.throughput.passes import Summary, Workload

OURS = "odradek"
REFERENCE = "kafka"
NAMES = {OURS: "Odradek", REFERENCE: "Apache Kafka 4.3", "mock": "librdkafka mock"}


@attrs.frozen
class RequestCost:
    """The server's CPU time for one small request, and the requests per second."""

    server: str
    kind: str
    requests_per_second: float
    cpu_microseconds: float


@attrs.frozen
class StageCost:
    """The CPU microseconds of one kind of request by stage. `wake` is the CPU time of the plain node that no
    other stage accounts for.
    """

    kind: str
    cpu_microseconds: float
    stages: dict[str, float]


@attrs.frozen
class Ratio:
    """Our figures divided by a reference's, with the goals (0: none)."""

    workload: str
    action: str
    reference: str
    messages_per_second: float
    cpu: float
    messages_per_second_min: float
    cpu_max: float

    @property
    def holds(self) -> bool:
        return self.messages_per_second >= self.messages_per_second_min and (
            not self.cpu_max or self.cpu <= self.cpu_max
        )


def machine() -> dict[str, Any]:
    """Return facts about the machine that influence the figures."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
    }


def ratios(workload: Workload, summaries: Sequence[Summary]) -> list[Ratio]:
    """Return the ratios of our figures to those of every measured reference."""
    by_place = {(summary.server, summary.action): summary for summary in summaries}
    found = []
    for (server, action), reference in by_place.items():
        ours = by_place.get((OURS, action))
        if server == OURS or ours is None:
            continue
        produced = action == "produce"
        limited = server == REFERENCE
        found.append(
            Ratio(
                workload=workload.name,
                action=action,
                reference=server,
                messages_per_second=ours.messages_per_second / reference.messages_per_second,
                cpu=ours.cpu_seconds_per_gb / reference.cpu_seconds_per_gb,
                messages_per_second_min=(workload.produce_rate_min if produced else workload.consume_rate_min)
                * limited,
                cpu_max=(workload.produce_cpu_max if produced else workload.consume_cpu_max) * limited,
            )
        )
    return found


def throughput_table(workload: Workload, summaries: Sequence[Summary]) -> str:
    """Return the table of one workload: a line per server and action, then the ratios."""
    lines = [
        f"\n{workload.title}",
        f"  {'':<9}{'server':<18}{'messages/s':>12}{'MB/s':>8}{'MB/CPU-s':>10}{'CPU-s/GB':>10}{'spread':>8}",
    ]
    for summary in sorted(summaries, key=lambda each: each.action, reverse=True):
        lines.append(
            f"  {summary.action:<9}{NAMES[summary.server]:<18}{summary.messages_per_second:>12,.0f}"
            f"{summary.mb_per_second:>8,.0f}{summary.mb_per_cpu_second:>10,.0f}"
            f"{summary.cpu_seconds_per_gb:>10.2f}{summary.spread:>8.0%}"
        )
    for ratio in ratios(workload, summaries):
        wanted = []
        if ratio.messages_per_second_min:
            wanted.append(f"at least {ratio.messages_per_second_min:g}x messages/s")
        if ratio.cpu_max:
            wanted.append(f"at most {ratio.cpu_max:g}x CPU")
        verdict = f"   ({', '.join(wanted)}: {'holds' if ratio.holds else 'MISSED'})" if wanted else ""
        lines.append(
            f"  {ratio.action:<9}over {NAMES[ratio.reference]}: {ratio.messages_per_second:.2f}x messages/s,"
            f" {ratio.cpu:.2f}x CPU per GB{verdict}"
        )
    return "\n".join(lines)


def footprint_table(figures: Sequence[Figure]) -> str:
    """Return a table with one line per figure, and its limit if there is one."""
    lines = ["\nAt rest"]
    for figure in figures:
        limit = (
            f"   (at most {figure.at_most:g}: {'holds' if figure.holds else 'MISSED'})"
            if figure.at_most
            else ""
        )
        lines.append(
            f"  {NAMES[figure.server]:<18}{figure.name:<48}{figure.value:>9.2f} {figure.unit}{limit}"
        )
    return "\n".join(lines)


def requests_table(kinds: Sequence[Kind], costs: Sequence[RequestCost]) -> str:
    """Return the table of CPU time per request, by kind and server."""
    titles = {kind.name: kind.title for kind in kinds}
    lines = ["\nSmall requests", f"  {'':<52}{'server':<18}{'requests/s':>12}{'CPU us':>9}"]
    for cost in costs:
        lines.append(
            f"  {titles[cost.kind]:<52}{NAMES[cost.server]:<18}{cost.requests_per_second:>12,.0f}"
            f"{cost.cpu_microseconds:>9.1f}"
        )
    return "\n".join(lines)


def stages_table(costs: Sequence[StageCost]) -> str:
    """Return the table of microseconds by stage. The columns add up to the CPU time of one request."""
    columns = ("wake", *STAGES)
    lines = ["\nWhere a request's CPU microseconds go"]
    lines.append(f"  {'':<16}{'all':>8}" + "".join(f"{column:>10}" for column in columns))
    for cost in costs:
        numbers = "".join(f"{cost.stages[column]:>10.1f}" for column in columns)
        lines.append(f"  {cost.kind:<16}{cost.cpu_microseconds:>8.1f}{numbers}")
    return "\n".join(lines)
