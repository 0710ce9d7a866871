"""The measured costs of expensive frames, their budgets, and the table with a row for each kind of request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from bench.budget.frames import Costly, costly_frame
from bench.budget.stage import Judged
from bench.instruments.tables import table
from odradek.wire.api_keys import APIS, ApiKey

SIZES = {"1K": 1 << 10, "100K": 100 << 10, "1M": 1 << 20}
STALL_MS_MAX = 100
MEMORY_MIB_MAX = 64
LEFT_MIB_MAX = MEMORY_MIB_MAX / 4
PACED_SHARE_MIN = 0.8
BACK_TO_BACK_SHARE_MIN = 0.4
WAIT_MS_MAX = 500


@attrs.frozen
class Frame:
    """An expensive frame: its API, version and size, and the listener that it is sent to."""

    listener: str
    api_key: ApiKey
    version: int
    line: Costly
    size: str

    @property
    def title(self) -> str:
        name = "".join(word.capitalize() for word in APIS[self.api_key].module.split("_"))
        where = " (controller)" if self.listener == "controller" else ""
        return f"{name}{where} {self.line.name}".strip()

    def bytes(self, node: Judged) -> bytes:
        return costly_frame(self.line, self.api_key, self.version, SIZES[self.size], node.stage)[0]


@attrs.define
class Cost:
    """The costs of one frame. Figures about rates are None if they were not measured."""

    frame: Frame
    stall_ms: float
    cpu_ms: float
    peak_mib: float
    left_mib: float
    outcome: str
    paced_share: float | None = None
    back_to_back_share: float | None = None
    wait_ms: float | None = None
    """The longest wait of an ordinary client while the frames were sent back to back."""
    frames_per_second: float | None = None
    """The frames per second that the node answered or refused while they were sent back to back."""
    unsteady: bool = False
    """True if the rates without attack, before and after, differed by more than a fifth."""

    @property
    def is_answered(self) -> bool:
        return self.outcome != "no answer"

    @property
    def over(self) -> list[str]:
        """The names of the figures that exceed their budget."""
        judged = {
            "stall": self.stall_ms <= STALL_MS_MAX,
            "peak": self.peak_mib <= MEMORY_MIB_MAX,
            "left": self.left_mib <= LEFT_MIB_MAX,
            "answer": self.is_answered,
            "4/s": self.paced_share is None or self.paced_share >= PACED_SHARE_MIN,
            "back to back": self.back_to_back_share is None
            or self.back_to_back_share >= BACK_TO_BACK_SHARE_MIN,
            "wait": self.wait_ms is None or self.wait_ms <= WAIT_MS_MAX,
        }
        return [name for name, holds in judged.items() if not holds]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


ROW_HEAD = (
    *("frame", "version", "size", "stall ms", "CPU ms", "peak MiB", "left MiB"),
    *("kept at 4/s", "kept back to back", "longest wait ms", "frames/s", "answer", "over"),
)


def row(cost: Cost) -> list[str]:
    """Return the table cells of one frame."""
    frame = cost.frame
    return [
        frame.title,
        str(frame.version),
        frame.size,
        *map(_number, (cost.stall_ms, cost.cpu_ms, cost.peak_mib, cost.left_mib)),
        _share(cost.paced_share) + ("?" if cost.unsteady else ""),
        _share(cost.back_to_back_share),
        _number(cost.wait_ms),
        "" if cost.frames_per_second is None else f"{cost.frames_per_second:.1f}",
        cost.outcome,
        ", ".join(cost.over),
    ]


def write_rows(path: Path, costs: Iterable[Cost]) -> None:
    """Write the rows of all frames to a file, tab-separated, with a header."""
    lines = [ROW_HEAD, *map(row, costs)]
    path.write_text("".join("\t".join(cells) + "\n" for cells in lines))


def by_line(costs: Iterable[Cost]) -> list[list[Cost]]:
    """Collect the costs of each kind of request in a list. Return the lists in the order of measurement."""
    found: dict[str, list[Cost]] = {}
    for cost in costs:
        found.setdefault(cost.frame.title, []).append(cost)
    return list(found.values())


LINE_HEAD = (
    *("frame", "stall ms", "CPU ms", "peak MiB", "left MiB"),
    *("4/s", "back to back", "longest wait ms", "frames/s", "budget"),
)


def _worst(costs: list[Cost], figure: Callable[[Cost], float]) -> str:
    """Return the largest value of a figure as text; with version and size if there are several frames."""
    worst = max(costs, key=figure)
    value = f"{max(0.0, figure(worst)):.0f}"
    versions = {cost.frame.version for cost in costs}
    sizes = {cost.frame.size for cost in costs}
    where = []
    if len(versions) > 1:
        where.append(f"v{worst.frame.version}")
    if len(sizes) > 1 and worst.frame.size != "1M":
        where.append(worst.frame.size)
    return f"{value} ({' '.join(where)})" if where and value != "0" else value


def line_row(costs: list[Cost]) -> list[str]:
    """Return the table cells of one kind of request: the worst value of each figure over its versions and sizes."""
    rated = next((cost for cost in costs if cost.paced_share is not None), None)
    over = list(dict.fromkeys(name for cost in costs for name in cost.over))
    rates = ["", "", "", ""] if rated is None else row(rated)[7:11]
    return [
        costs[0].frame.title,
        _worst(costs, lambda cost: cost.stall_ms),
        _worst(costs, lambda cost: cost.cpu_ms),
        _worst(costs, lambda cost: cost.peak_mib),
        _worst(costs, lambda cost: cost.left_mib),
        *rates,
        f"**over: {', '.join(over)}**" if over else "holds",
    ]


def line_table(costs: Iterable[Cost]) -> str:
    """Return the table for bench/budget/README.md."""
    return table(LINE_HEAD, [line_row(each) for each in by_line(costs)])
