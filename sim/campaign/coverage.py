"""Code coverage of the product in one simulated run: lines, branches and buggify points. SHELL.

`sys.settrace` follows each line of the packages in `PACKAGES`. A branch is a pair of lines: a conditional jump and
its target. Jumps within one line are not distinguished. The run has the same events and the same digest as without
coverage, but takes more real time.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs

from sim.options import RunOptions
from sim.run import RunResult, run

PACKAGES = ("metadata_quorum", "data_plane", "odradek/client")
_REPOSITORY = Path(__file__).resolve().parent.parent.parent

__all__ = ["PACKAGES", "Coverage", "branches_of", "covered_run", "lines_of"]

Branch = tuple[int, int]


@attrs.define
class Coverage:
    """Executed lines and branches by file. `points` has how often each buggify point fired."""

    lines: dict[str, set[int]] = attrs.Factory(dict)
    branches: dict[str, set[Branch]] = attrs.Factory(dict)
    points: dict[str, int] = attrs.Factory(dict)

    def merge(self, other: Coverage) -> int:
        """Add the coverage of another run. Return how many of its lines, branches and points were new."""
        new = 0
        for file, lines in other.lines.items():
            there = self.lines.setdefault(file, set())
            new += len(lines - there)
            there |= lines
        for file, branches in other.branches.items():
            known = self.branches.setdefault(file, set())
            new += len(branches - known)
            known |= branches
        for point, times in other.points.items():
            new += point not in self.points
            self.points[point] = self.points.get(point, 0) + times
        return new

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": {file: sorted(lines) for file, lines in sorted(self.lines.items())},
            "branches": {file: sorted(branches) for file, branches in sorted(self.branches.items())},
            "points": dict(sorted(self.points.items())),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Coverage:
        return cls(
            {file: set(lines) for file, lines in given["lines"].items()},
            {file: {(one, other) for one, other in pairs} for file, pairs in given["branches"].items()},
            dict(given["points"]),
        )


def covered_run(seed: int, options: RunOptions) -> tuple[RunResult, Coverage]:
    """Run a seed with these options, and record the coverage."""
    found = Coverage()

    def on_line(word: str, line: str) -> None:
        if word == "buggify":
            point = line.rsplit(" ", 1)[1]
            found.points[point] = found.points.get(point, 0) + 1

    with _following() as arcs:
        result = run(seed, options, trace=on_line)
    for code, pairs in arcs.items():
        # A package is imported by way of a symbolic link: odradek/wire is the folder wire.
        file = Path(code.co_filename).resolve().relative_to(_REPOSITORY).as_posix()
        lines = found.lines.setdefault(file, set())
        lines |= {line for _, line in pairs}
        branches = found.branches.setdefault(file, set())
        branches |= pairs & branches_of(code)
    return result, found


def _imported_from(package: str) -> Path:
    """Return the folder from which a package is imported: its symbolic link in `odradek/`, if there is one."""
    link = _REPOSITORY / "odradek" / package
    return link if link.is_symlink() else _REPOSITORY / package


@contextmanager
def _following() -> Iterator[dict[CodeType, set[Branch]]]:
    """Trace the packages in `PACKAGES` while the context lasts. Yields a dict: by code object, the pairs of lines that
    were executed one after the other.
    """
    arcs: dict[CodeType, set[Branch]] = {}
    prefixes = tuple(f"{_imported_from(package)}/" for package in PACKAGES)
    is_followed: dict[CodeType, bool] = {}

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        followed = is_followed.get(code)
        if followed is None:
            followed = is_followed[code] = code.co_filename.startswith(prefixes)
            if followed:
                arcs[code] = set()
        if not followed:
            return None
        add, last = arcs[code].add, 0

        def step(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                line = frame.f_lineno
                add((last, line))
                last = line
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield arcs
    finally:
        sys.settrace(before)


def branches_of(code: CodeType) -> set[Branch]:
    """Find the branches of one function: from each conditional jump to each of the two lines that may follow."""
    instructions = list(dis.get_instructions(code))
    line_at: dict[int, int] = {}
    line = code.co_firstlineno
    for each in instructions:
        line = each.positions.lineno if each.positions and each.positions.lineno else line
        line_at[each.offset] = line
    found: set[Branch] = set()
    for index, each in enumerate(instructions):
        is_conditional = "JUMP" in each.opname and "_IF_" in each.opname
        if not is_conditional and each.opname != "FOR_ITER":
            continue
        follows = [instructions[index + 1].offset] if index + 1 < len(instructions) else []
        for offset in (*follows, int(each.argval)):
            target = line_at[offset]
            if target != line_at[each.offset]:
                found.add((line_at[each.offset], target))
    return found


def lines_of(path: Path) -> tuple[set[int], set[Branch]]:
    """Find all lines and branches of the functions in a file. Code that runs at import time is left out."""
    lines: set[int] = set()
    branches: set[Branch] = set()
    waiting = [compile(path.read_text(), str(path), "exec")]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        if code.co_flags & 0x02:  # CO_NEWLOCALS: functions have this flag, modules and classes do not.
            first = code.co_firstlineno
            lines |= {line for _, _, line in code.co_lines() if line is not None and line != first}
            branches |= branches_of(code)
    return lines, branches
