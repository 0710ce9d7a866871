"""Markers and decisions as readable JSON records: encoding them, and collecting them from the decisions topic. PURE.

A marker's key is `{"query":"...","task":0}`, its value `{"batch":7,"rows":1000,"rowHash":"00..."}`. A decision of the
two-phase protocol has the key `{"query":"...","decision":"two-phase"}`. Its value also has `winners`, each as [task,
slot, producer id, producer epoch], and `complete`. Markers and decisions also contain `topics`: the topics that were
written, with the topics' ids. All records of a query are in one partition.

`MarkerLog` processes fetched batches. For batches below the last stable offset, the broker lists the aborted
transactions. Above this offset other tasks have open transactions. `MarkerLog` keeps their records aside until it has
read the end of the transaction (KIP-98).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import attrs

from odradek.spark.delivery.task_protocol import Marker, ProgressError, RowSummary, TopicIds
from odradek.spark.delivery.two_phase import Decision, Prepared
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker

__all__ = [
    "MarkerLog",
    "TaskKey",
    "decision_key",
    "decision_value",
    "marker_key",
    "marker_value",
    "partition_of",
]

_DECOMPRESSED_BYTES_MAX = 64 << 20

TaskKey = tuple[str, int]
"""The key of a marker: (query, task). A decision is about all tasks, so its key has the task `_ALL_TASKS`."""
_ALL_TASKS = -1
_TWO_PHASE = "two-phase"


def partition_of(query: str, partitions: int) -> int:
    """Choose the partition of the decisions topic for a query, out of `partitions`."""
    return crc32(query.encode()) % partitions


def marker_key(query: str, task: int) -> bytes:
    """Encode the key of a task's marker. Compaction keeps only the last marker of a task."""
    return json.dumps({"query": query, "task": task}, separators=(",", ":")).encode()


def marker_value(marker: Marker) -> bytes:
    """Encode the value of a marker."""
    return _as_json({**_common(marker.batch, marker.summary), "topics": _named(marker.topics)})


def decision_key(query: str) -> bytes:
    """Encode the key of a query's decisions. Compaction keeps only the last decision."""
    return _as_json({"query": query, "decision": _TWO_PHASE})


def decision_value(decision: Decision) -> bytes:
    """Encode the value of a decision. The winners of a complete decision are left out, because nobody needs them any
    more.
    """
    winners = () if decision.is_complete else decision.winners
    return _as_json(
        {
            **_common(decision.batch, decision.summary),
            "complete": decision.is_complete,
            "winners": [attrs.astuple(each) for each in winners],
            "topics": _named(decision.topics),
        }
    )


def _common(batch: int, summary: RowSummary) -> dict[str, Any]:
    return {"batch": batch, "rows": summary.rows, "rowHash": f"{summary.row_hash:016x}"}


def _named(topics: TopicIds) -> dict[str, str]:
    return {name: topic_id.hex() for name, topic_id in topics}


def _as_json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _parse_key(key: bytes | None) -> TaskKey | None:
    """Parse the key of a record as (query, task). Return None if the record is neither a marker nor a
    decision.
    """
    try:
        found = json.loads(key or b"")
        query = found["query"]
        task = _ALL_TASKS if found.get("decision") == _TWO_PHASE else found["task"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return (query, task) if isinstance(query, str) and type(task) is int else None


def _parse_value(key: TaskKey, value: bytes) -> Marker | Decision:
    try:
        found = json.loads(value)
        batch, rows, row_hash = found["batch"], found["rows"], int(found["rowHash"], 16)
        topics = tuple((name, bytes.fromhex(text)) for name, text in found.get("topics", {}).items())
        if type(batch) is int and type(rows) is int:
            summary = RowSummary(rows, row_hash)
            if key[1] != _ALL_TASKS:
                return Marker(batch, summary, topics)
            winners = tuple(Prepared(*map(int, each)) for each in found["winners"])
            return Decision(batch, summary, winners, found["complete"] is True, topics)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    what = f"marker of task {key[1]}" if key[1] != _ALL_TASKS else "decision"
    raise ProgressError(f"the {what} of {key[0]} cannot be read: {value[:200]!r}.")


@attrs.define
class MarkerLog:
    """The last committed marker of each task, and the last decision of one query. They come from the record batches
    before the offset `position`.
    """

    query: str
    position: int = 0
    markers: dict[int, Marker] = attrs.field(factory=dict)
    decision: Decision | None = None
    _open: dict[int, list[tuple[TaskKey, bytes | None]]] = attrs.field(factory=dict)

    def copy(self) -> MarkerLog:
        """Return a copy. Record batches that are added to the copy do not change this log."""
        return MarkerLog(self.query, self.position, dict(self.markers), self.decision)

    def add_stable(self, buf: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        """Process record batches below the last stable offset. `aborted` has (producer id, first offset) of aborted
        transactions, sorted by offset.
        """
        coming, gone = list(aborted), set[int]()
        for place, header in self._batches(buf):
            while coming and coming[0][1] <= header.last_offset:
                gone.add(coming.pop(0)[0])
            if header.is_control:
                marker = parse_marker(buf[place : place + header.size])
                if marker is not None and marker.is_abort:
                    gone.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in gone):
                self._apply(self._records(buf, place))

    def add_unstable(self, buf: memoryview, end: int) -> None:
        """Process record batches from the last stable offset up to `end`. Records in a transaction count only once the
        commit of the transaction has been read.
        """
        for place, header in self._batches(buf):
            if header.base_offset >= end:
                return
            if header.is_control:
                held = self._open.pop(header.producer_id, [])
                marker = parse_marker(buf[place : place + header.size])
                if marker is not None and not marker.is_abort:
                    self._apply(held)
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, []).extend(self._records(buf, place))
            else:
                self._apply(self._records(buf, place))

    @property
    def newest(self) -> int:
        """The last batch of the query that any task has committed; -1 if there is none."""
        return max((each.batch for each in self.markers.values()), default=-1)

    @property
    def newest_begun(self) -> int:
        """The last batch of any marker, whether committed or in an open transaction; -1 if there is none."""
        held = [each for records in self._open.values() for each in records]
        begun = (_parse_value(key, value) for key, value in held if value and key[1] != _ALL_TASKS)
        return max([self.newest, *(each.batch for each in begun)])

    def is_undecided(self, task: int) -> bool:
        """True if an open transaction has a marker of this task."""
        return any(key[1] == task for held in self._open.values() for key, _ in held)

    def _batches(self, buf: memoryview) -> list[tuple[int, BatchHeader]]:
        """List the complete record batches that were not processed before, as (position, header)."""
        found = []
        for place, header in iter_batches(buf):
            if header.next_offset > self.position:
                self.position = header.next_offset
                found.append((place, header))
        return found

    def _records(self, buf: memoryview, place: int) -> list[tuple[TaskKey, bytes | None]]:
        found = []
        for record in records(buf, place, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX):
            key = _parse_key(record.key)
            if key is not None and key[0] == self.query:
                found.append((key, record.value))
        return found

    def _apply(self, found: list[tuple[TaskKey, bytes | None]]) -> None:
        for key, value in found:
            parsed = None if value is None else _parse_value(key, value)
            if key[1] == _ALL_TASKS:
                assert not isinstance(parsed, Marker)
                self.decision = parsed
            elif parsed is None:
                self.markers.pop(key[1], None)
            else:
                assert isinstance(parsed, Marker)
                self.markers[key[1]] = parsed
