"""The history of a run's clients: sends, polls, assignments and commits, each with its outcome.

An operation begins with outcome `info` ("maybe it happened"). The client that began it completes it once. If the
client crashes, the outcome stays `info`. Times are seconds since the run began, on one clock for all clients.

A key is one partition, written `topic-partition`. A value is an integer that is sent at most once in a run, so that a
read value identifies its send. Sends and polls that form one operation (a list of records, a transaction) have the
same `txn`. The terms are Jepsen's (its Kafka workload).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import attrs

Outcome = Literal["ok", "fail", "info"]
"""The outcome of an operation: `ok` (it happened), `fail` (it certainly failed), or `info` (either is possible)."""

Record = tuple[int, int]
"""The offset and the value of a record that a consumer has read."""

CORRUPT = -1
"""The value that stands for a record whose bytes no producer of the run has written."""


@attrs.define
class Send:
    """A record that was passed to a producer. `offset` comes from the acknowledgement."""

    kind: ClassVar[str] = "send"
    process: str
    invoked: float
    key: str
    value: int
    completed: float | None = None
    outcome: Outcome = "info"
    offset: int | None = None
    error: str = ""
    txn: int | None = None
    """The number of the operation to which this send belongs, among the operations of its process. None if the
    operation is this send alone.
    """
    may_repeat: bool = False
    """True if the producer is not idempotent: its records may be stored twice, and in another order."""


@attrs.define
class Restart:
    """A producer restarted its sequence numbers in a new epoch, and sent the unanswered records again.

    librdkafka does this by itself when an answer reports a gap. After a change
    of leaders its own retries cause that gap (confluentinc/librdkafka#4953). The records sent again may be in the log
    already.
    """

    kind: ClassVar[str] = "restart"
    process: str
    invoked: float
    detail: str


@attrs.define
class Poll:
    """The records that one call of a consumer returned, by key in the order of arrival.

    `rebalanced` has the keys that were assigned or revoked during the call. `final` marks the complete reading of
    every key from its first record after all faults have ended.
    """

    kind: ClassVar[str] = "poll"
    process: str
    invoked: float
    completed: float | None = None
    outcome: Outcome = "info"
    records: dict[str, list[Record]] = attrs.field(factory=dict)
    rebalanced: list[str] = attrs.field(factory=list)
    final: bool = False
    txn: int | None = None
    """The operation that this poll is a part of, as in `Send`."""


@attrs.define
class Assign:
    """A consumer assigns `keys` to itself (without a group), and begins to read each of them."""

    kind: ClassVar[str] = "assign"
    process: str
    invoked: float
    keys: list[str]


@attrs.define
class Own:
    """A group assigns `keys` to a member, which then fetches the committed offsets of these keys."""

    kind: ClassVar[str] = "own"
    process: str
    invoked: float
    group: str
    keys: list[str]


@attrs.define
class Commit:
    """A member of a group commits offsets: for each key the offset of the next record to read."""

    kind: ClassVar[str] = "commit"
    process: str
    invoked: float
    group: str
    offsets: dict[str, int]
    completed: float | None = None
    outcome: Outcome = "info"
    error: str = ""
    over: float | None = None
    """The time after which the commit can have no effect, because its generation was over; None if this time is
    unknown.
    """
    repeated: bool = False
    """True if the commit was sent more than once: a late copy may take effect after the answer, until `over`."""

    @property
    def effective_until(self) -> float | None:
        """The last time at which the commit can take effect; None if there is no limit."""
        if self.outcome == "ok" and not self.repeated and self.completed is not None:
            return self.completed
        return self.over


@attrs.define
class Fault:
    """A fault that the nemesis caused. Checkers ignore it; it is for people who read the history."""

    kind: ClassVar[str] = "fault"
    invoked: float
    name: str
    detail: str


Operation = Send | Restart | Poll | Assign | Own | Commit | Fault
_KINDS: dict[str, type[Any]] = {each.kind: each for each in (Send, Restart, Poll, Assign, Own, Commit, Fault)}


_REPEATED = ("process", "key", "outcome", "group")
"""Fields that have only a few different values. Millions of operations share the strings of these values."""


@attrs.define
class History:
    """The operations of a run, in the order of their start."""

    operations: list[Operation] = attrs.field(factory=list)

    def sends(self) -> Iterator[Send]:
        return (each for each in self.operations if isinstance(each, Send))

    def polls(self) -> Iterator[Poll]:
        return (each for each in self.operations if isinstance(each, Poll))

    def to_lines(self) -> Iterator[str]:
        """Yield one JSON object per operation; its field `kind` has the kind of operation."""
        for each in self.operations:
            yield json.dumps({"kind": each.kind, **attrs.asdict(each)}, separators=(",", ":"))

    @staticmethod
    def from_lines(lines: Iterable[str]) -> History:
        """Parse lines that `to_lines` has written. Raises `ValueError` or `TypeError` for other lines."""
        history = History()
        for line in lines:
            fields = json.loads(line)
            kind = _KINDS.get(fields.pop("kind"))
            for name in _REPEATED:
                if isinstance(fields.get(name), str):
                    fields[name] = sys.intern(fields[name])
            if kind is None:
                raise ValueError(f"an operation of an unknown kind: {line!r}")
            operation = kind(**fields)
            if isinstance(operation, Poll):
                operation.records = {
                    key: [(offset, value) for offset, value in records]
                    for key, records in operation.records.items()
                }
            history.operations.append(operation)
        return history
