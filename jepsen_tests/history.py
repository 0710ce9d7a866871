"""The history of a run's clients: sends, polls, assignments, commits, and how each of them ended.

An operation begins with outcome `info` ("maybe it happened") and is completed once, by the client that began it. An
operation that stays incomplete stays `info`, as an operation of a client that crashed does. Times are seconds since
the run began, on one clock for all clients.

A key is one partition, written `topic-partition`. A value is an integer that is sent at most once in a run, so that a
read value names its send. Sends and polls that a client gave as one operation (a list of records, a transaction) have
the same `txn`. The terms are Jepsen's (its Kafka workload).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import attrs

Outcome = Literal["ok", "fail", "info"]
"""The outcome of an operation: it happened, it certainly failed for good, or it is unknown."""

Record = tuple[int, int]
"""(offset, value) as a consumer saw it."""

CORRUPT = -1
"""The value of a record whose bytes no producer of the run wrote."""


@attrs.define
class Send:
    """One record given to a producer. `offset` is what the acknowledgement said."""

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
    """The operation that this is a part of, by a number of its process; None: it is one by itself."""
    may_repeat: bool = False
    """The producer is not idempotent: its records may be stored twice, and in another order."""


@attrs.define
class Restart:
    """A producer gave up its sequence numbers and went on in a new epoch, sending the unanswered records again.

    librdkafka does so by itself when an answer reports a gap. After a change of leaders its own retries cause that
    gap (confluentinc/librdkafka#4953). The records sent again may be in the log already.
    """

    kind: ClassVar[str] = "restart"
    process: str
    invoked: float
    detail: str


@attrs.define
class Poll:
    """The records that one call of a consumer returned, by key in the order of arrival.

    `rebalanced` names the keys that came or went during the call. `final` marks the complete reading of every key
    from its first record after all faults have ended.
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
    """The transaction, as of a `Send`."""


@attrs.define
class Assign:
    """A consumer takes `keys` by hand, and starts each anew."""

    kind: ClassVar[str] = "assign"
    process: str
    invoked: float
    keys: list[str]


@attrs.define
class Own:
    """A group hands `keys` to a member, which has not asked yet where to go on."""

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
    """After this moment it can have no effect: its generation was over. None: nobody knows such a moment."""
    repeated: bool = False
    """It was sent more than once: a late copy may have its effect after the answer, until it is `over`."""

    @property
    def effective_until(self) -> float | None:
        """The last moment at which it can become the group's offset; None: it may do so at any time."""
        if self.outcome == "ok" and not self.repeated and self.completed is not None:
            return self.completed
        return self.over


@attrs.define
class Fault:
    """Something that the nemesis did, for people who read the history; no checker looks at it."""

    kind: ClassVar[str] = "fault"
    invoked: float
    name: str
    detail: str


Operation = Send | Restart | Poll | Assign | Own | Commit | Fault
_KINDS: dict[str, type[Any]] = {each.kind: each for each in (Send, Restart, Poll, Assign, Own, Commit, Fault)}


_REPEATED = ("process", "key", "outcome", "group")
"""Fields of few values: millions of operations share their strings."""


@attrs.define
class History:
    """Operations in the order of their invocation."""

    operations: list[Operation] = attrs.field(factory=list)

    def sends(self) -> Iterator[Send]:
        return (each for each in self.operations if isinstance(each, Send))

    def polls(self) -> Iterator[Poll]:
        return (each for each in self.operations if isinstance(each, Poll))

    def to_lines(self) -> Iterator[str]:
        """Yield one JSON object per operation, its kind under `kind`."""
        for each in self.operations:
            yield json.dumps({"kind": each.kind, **attrs.asdict(each)}, separators=(",", ":"))

    @staticmethod
    def from_lines(lines: Iterable[str]) -> History:
        """Parse the lines of `to_lines`. Raises `ValueError` or `TypeError` for lines that it did not write."""
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
