"""Counts of the answers that nodes have sent in a run, by API, version and error code. PURE.

Each node's table of handlers already counts its answers (`odradek.serving.api_table`). When a process ends, its
counts are added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from odradek.serving.api_table import ApiTable
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode

ANSWERS = "answers"
"""The key under which all answers are counted. The other keys are names of error codes."""

__all__ = ["ANSWERS", "AnswerCounts", "never_seen"]


@attrs.define
class AnswerCounts:
    """Counts of answers by "listener API version", then by error code. `served` has the versions that processes have
    offered.
    """

    counts: dict[str, dict[str, int]] = attrs.Factory(dict)
    served: dict[str, list[int]] = attrs.Factory(dict)
    """The lowest and the highest version that any process has offered, by "listener API"."""

    def count_table(self, table: ApiTable) -> None:
        """Add the counts of a process that has ended."""
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
        """Add the counts of another run."""
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
    """List by "listener API" the offered versions for which no process has sent an answer."""
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
