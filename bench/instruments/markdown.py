"""Prints the tables for bench's READMEs from the JSON of a run.

python -m bench --all --json FILE && python -m bench.instruments.markdown FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.hot_path.small_requests import KINDS
from bench.hot_path.stages import STAGES
from bench.instruments.tables import table
from bench.report import NAMES
from bench.throughput.passes import WORKLOADS


def throughput(found: dict[str, Any]) -> str:
    """Return the table of throughput: every server's rate and cost by workload and action, and the ratios to Kafka."""
    servers = [key for key in NAMES if any(each["server"] == key for each in found["throughput"])]
    cells = {(each["workload"], each["action"], each["server"]): each for each in found["throughput"]}
    over = {
        (each["workload"], each["action"]): each for each in found["ratios"] if each["reference"] == "kafka"
    }
    rows = []
    for workload in WORKLOADS:
        for action in ("produce", "consume"):
            if (workload.name, action, "odradek") not in cells:
                continue
            row = [f"{action}: {workload.title}"]
            for server in servers:
                cell = cells.get((workload.name, action, server))
                if cell is None:
                    row.append("")
                    continue
                row.append(f"{cell['messages_per_second'] / 1000:,.0f}k at {cell['cpu_seconds_per_gb']:.2f}")
            ratio = over.get((workload.name, action))
            row += (
                ["", ""]
                if ratio is None
                else [f"{ratio['messages_per_second']:.2f}x", f"{ratio['cpu']:.2f}x"]
            )
            rows.append(row)
    head = ["messages/s at CPU-s/GB", *(NAMES[server] for server in servers), "messages/s", "CPU"]
    return table(head, rows)


def requests(found: dict[str, Any]) -> str:
    """Return the table of CPU time per small request."""
    cells = {(each["kind"], each["server"]): each for each in found["requests"]}
    servers = [key for key in NAMES if any(server == key for _, server in cells)]
    rows = [
        [kind.title, *(f"{cells[kind.name, server]['cpu_microseconds']:.1f}" for server in servers)]
        for kind in KINDS
    ]
    return table(["CPU microseconds per request", *(NAMES[server] for server in servers)], rows)


def stages(found: dict[str, Any]) -> str:
    """Return the table of a request's CPU time by stage, in microseconds."""
    columns = ["wake", *STAGES]
    rows = [
        [
            each["kind"],
            f"{each['cpu_microseconds']:.1f}",
            *(f"{each['stages'][column]:.1f}" for column in columns),
        ]
        for each in found["stages"]
    ]
    return table(["", "all", *columns], rows)


def footprint(found: dict[str, Any]) -> str:
    """Return the table of the costs of an idle server."""
    figures = found["footprint"]
    servers = [key for key in NAMES if any(each["server"] == key for each in figures)]
    cells = {(each["name"], each["server"]): each for each in figures}
    rows = []
    for name in dict.fromkeys(each["name"] for each in figures):
        row = [name]
        for server in servers:
            cell = cells.get((name, server))
            row.append("" if cell is None else f"{cell['value']:.2f} {cell['unit']}")
        rows.append(row)
    return table(["", *(NAMES[server] for server in servers)], rows)


def main() -> None:
    """Print the tables of the results in the file."""
    found = json.loads(Path(sys.argv[1]).read_text())
    print(f"{found['machine']}, {found['method']}\n")
    for name, render in (
        ("throughput", throughput),
        ("requests", requests),
        ("stages", stages),
        ("footprint", footprint),
    ):
        if name in found:
            print(render(found))


if __name__ == "__main__":
    main()
