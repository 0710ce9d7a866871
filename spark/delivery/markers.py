"""Markers and decisions as readable JSON records: encoding them, and collecting them from the decisions topic. PURE.

A marker's key is `{"query":"...","task":0}`, its value `{"batch":7,"rows":1000,"rowHash":"00...","hashVersion":2,"run":"..."}`. The
completion of a batch has the key `{"query":"...","complete":"batch"}`; its value has `tasks` beside the sums of rows and
hashes. A decision of the two-phase protocol has the key `{"query":"...","decision":"two-phase"}`. Its value also has `winners`, each as [task,
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

from odradek.spark.delivery.completion import Completion
from odradek.spark.delivery.task_protocol import HASH_VERSION, Marker, ProgressError, RowSummary, TopicIds
from odradek.spark.delivery.two_phase import Decision, Prepared
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker

__all__ = [
    "MarkerLog",
    "TaskKey",
    "completion_key",
    "completion_value",
    "decision_key",
    "decision_value",
    "marker_key",
    "marker_value",
    "partition_of",
]

_DECOMPRESSED_BYTES_MAX = 64 << 20

TaskKey = tuple[str, int]
"""The key of a marker: (query, task). Decisions and completions are about all tasks, so their keys have the tasks
`_ALL_TASKS` and `_COMPLETE`.
"""
_ALL_TASKS = -1
_COMPLETE = -2
_TWO_PHASE = "two-phase"
_OF_A_BATCH = "batch"


def partition_of(query: str, partitions: int) -> int:
    """Choose the partition of the decisions topic for a query, out of `partitions`."""
    return crc32(query.encode()) % partitions


def marker_key(query: str, task: int) -> bytes:
    """Encode the key of a task's marker. Compaction keeps only the last marker of a task."""
    return json.dumps({"query": query, "task": task}, separators=(",", ":")).encode()


def marker_value(marker: Marker) -> bytes:
    """Encode the value of a marker."""
    run = {"run": marker.run} if marker.run else {}
    return _as_json({**_common(marker.batch, marker.summary), "topics": _named(marker.topics), **run})


def completion_key(query: str) -> bytes:
    """Encode the key of a query's completions. Compaction keeps only the last completion."""
    return _as_json({"query": query, "complete": _OF_A_BATCH})


def completion_value(completion: Completion) -> bytes:
    """Encode the value of a completion."""
    by_hand = {"byHand": True} if completion.by_hand else {}
    common = _common(completion.batch, completion.summary)
    return _as_json({**common, "tasks": completion.tasks, "topics": _named(completion.topics), **by_hand})


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
    found = {"batch": batch, "rows": summary.rows, "rowHash": f"{summary.row_hash:016x}"}
    return found if summary.hash_version == 1 else {**found, "hashVersion": summary.hash_version}


def _named(topics: TopicIds) -> dict[str, str]:
    return {name: topic_id.hex() for name, topic_id in topics}


def _as_json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _parse_key(key: bytes | None) -> TaskKey | None:
    """Parse the key of a record as (query, task). Return None if the record is no marker, decision or completion."""
    try:
        found = json.loads(key or b"")
        query = found["query"]
        if found.get("decision") == _TWO_PHASE:
            task = _ALL_TASKS
        elif found.get("complete") == _OF_A_BATCH:
            task = _COMPLETE
        else:
            task = found["task"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return (query, task) if isinstance(query, str) and type(task) is int else None


def _parse_value(key: TaskKey, value: bytes) -> Marker | Decision | Completion:
    try:
        found = json.loads(value)
        batch, rows, row_hash = found["batch"], found["rows"], int(found["rowHash"], 16)
        topics = tuple((name, bytes.fromhex(text)) for name, text in found.get("topics", {}).items())
        if type(batch) is int and type(rows) is int:
            summary = RowSummary(rows, row_hash, int(found.get("hashVersion", 1)))
            if key[1] == _COMPLETE:
                return Completion(batch, summary, int(found["tasks"]), topics, found.get("byHand") is True)
            if key[1] != _ALL_TASKS:
                return Marker(batch, summary, topics, str(found.get("run", "")))
            winners = tuple(Prepared(*map(int, each)) for each in found["winners"])
            return Decision(batch, summary, winners, found["complete"] is True, topics)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    what = {_ALL_TASKS: "decision", _COMPLETE: "completion"}.get(key[1], f"marker of task {key[1]}")
    raise ProgressError(f"the {what} of {key[0]} cannot be read: {value[:200]!r}.")


@attrs.define
class MarkerLog:
    """The last committed marker of each task, and the last decision and completion of one query. They come from the
    record batches before the offset `position`.
    """

    query: str
    position: int = 0
    markers: dict[int, Marker] = attrs.field(factory=dict)
    decision: Decision | None = None
    completion: Completion | None = None
    has_tombstones: bool = False
    """True if a marker or decision was deleted, as the driver of a job does at the job's end."""
    _open: dict[int, list[tuple[TaskKey, bytes | None]]] = attrs.field(factory=dict)

    def copy(self) -> MarkerLog:
        """Return a copy. Record batches that are added to the copy do not change this log."""
        return attrs.evolve(self, markers=dict(self.markers), open={})

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
        return max([self.newest, *(each.batch for _, each in self._held_markers())])

    @property
    def finished(self) -> Completion | None:
        """The last batch that is finished, in any delivery mode; None if there is none."""
        decision, completion = self.decision, self.completion
        if decision is None or not decision.is_complete:
            return completion
        if completion is not None and completion.batch >= decision.batch:
            return completion
        return Completion(decision.batch, decision.summary, topics=decision.topics)

    @property
    def is_empty(self) -> bool:
        """True if the query has neither a marker, nor a decision, nor a completion."""
        return self.newest_begun < 0 and self.decision is None and self.completion is None

    def hash_version(self, batch: int) -> int:
        """Return the version of the hashes that records of `batch` have; the present one if there is none."""
        stored = [*self.markers.values(), *(each for _, each in self._held_markers())]
        known = [*stored, *(each for each in (self.decision, self.completion) if each is not None)]
        found = [each.summary.hash_version for each in known if each.batch == batch]
        return min(found, default=HASH_VERSION)

    def of_other_runs(self, batch: int, run: str) -> dict[int, Marker]:
        """Return the markers of `batch` that other runs have written, by task. Markers in open transactions count."""
        found = {task: each for task, each in self._held_markers() if each.batch == batch and each.run != run}
        stored = {
            task: each for task, each in self.markers.items() if each.batch == batch and each.run != run
        }
        return {**found, **stored}

    def _held_markers(self) -> list[tuple[int, Marker]]:
        held = [each for records in self._open.values() for each in records]
        parsed = [(key[1], _parse_value(key, value)) for key, value in held if value and key[1] >= 0]
        return [(task, each) for task, each in parsed if isinstance(each, Marker)]

    def is_undecided(self, task: int, since: int = 0) -> bool:
        """True if an open transaction has a marker of this task, of batch `since` or a later one."""
        return any(each.batch >= since for number, each in self._held_markers() if number == task)

    def is_taken_over(self, batch: int, run: str) -> bool:
        """Return whether another run works on `batch` now, by an open marker, or has gone beyond it."""
        if self.completion is not None and self.completion.batch >= batch:
            return True
        beyond = any(each.batch > batch and each.run != run for each in self.markers.values())
        return beyond or any(each.batch >= batch and each.run != run for _, each in self._held_markers())

    def open_tasks_of(self, batch: int, run: str) -> frozenset[int]:
        """Return the tasks that have a marker of this batch and this run in an open transaction."""
        return frozenset(
            task for task, each in self._held_markers() if (each.batch, each.run) == (batch, run)
        )

    @property
    def open_tasks(self) -> frozenset[int]:
        """The tasks that have a marker in an open transaction."""
        return frozenset(task for task, _ in self._held_markers())

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
                assert parsed is None or isinstance(parsed, Decision)
                self.decision = parsed
                self.has_tombstones |= parsed is None
            elif key[1] == _COMPLETE:
                assert parsed is None or isinstance(parsed, Completion)
                known = self.completion
                # A driver that was superseded is fenced (`batch_driver.py`). This is a second line of defence.
                is_late = parsed is not None and known is not None and parsed.batch < known.batch
                if parsed is None or parsed.by_hand or not is_late:
                    self.completion = parsed
            elif parsed is None:
                self.markers.pop(key[1], None)
                self.has_tombstones = True
            else:
                assert isinstance(parsed, Marker)
                self.markers[key[1]] = parsed
