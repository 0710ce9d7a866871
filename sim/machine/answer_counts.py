"""Counts of the answers in a run: API x version x error code, counted where a node encodes its answers. PURE.

The nodes' own tables of handlers count answers already (`odradek.serving.api_table`). A process adds its counts when
it ends, so that a run has the counts of all its processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from odradek.serving.api_table import ApiTable
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode

ANSWERS = "answers"
"""The word beside the error codes: the number of all answered requests."""

__all__ = ["ANSWERS", "AnswerCounts", "never_seen"]


@attrs.define
class AnswerCounts:
    """Counts by "listener API version" and error code; `served` are the versions that some process offered."""

    counts: dict[str, dict[str, int]] = attrs.Factory(dict)
    served: dict[str, list[int]] = attrs.Factory(dict)
    """The first and the last version by "listener API"."""

    def count_table(self, table: ApiTable) -> None:
        """Add the figures of a process that has ended."""
        listener = "broker" if ApiKey.PRODUCE in table.advertised else "controller"
        for api_key, (low, high) in sorted(table.advertised.items()):
            self._widen(f"{listener} {ApiKey(api_key).name}", low, high)
        for entry in table.entries():
            answers = sum(entry.latencies)
            if not answers and not entry.errors:
                continue
            there = self.counts.setdefault(f"{listener} {ApiKey(entry.api_key).name} {entry.version}", {})
            there[ANSWERS] = there.get(ANSWERS, 0) + answers
            for code, times in sorted(entry.errors.items()):
                name = _name_of(code)
                there[name] = there.get(name, 0) + times

    def merge(self, counts: Mapping[str, Mapping[str, int]], served: Mapping[str, Iterable[int]]) -> None:
        """Add the figures of another run."""
        for key, codes in counts.items():
            there = self.counts.setdefault(key, {})
            for code, times in codes.items():
                there[code] = there.get(code, 0) + times
        for key, (low, high) in served.items():
            self._widen(key, low, high)

    def _widen(self, key: str, low: int, high: int) -> None:
        before = self.served.get(key, [low, high])
        self.served[key] = [min(low, before[0]), max(high, before[1])]


def never_seen(counts: AnswerCounts) -> dict[str, list[int]]:
    """List the served versions of each API that no process answered, by "listener API"."""
    missing = {}
    for key, (low, high) in sorted(counts.served.items()):
        versions = [version for version in range(low, high + 1) if f"{key} {version}" not in counts.counts]
        if versions:
            missing[key] = versions
    return missing


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"CODE_{code}"
