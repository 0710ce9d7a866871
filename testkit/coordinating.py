"""A group or transaction coordinator that a test drives by hand: its log is in memory, and the test controls time and
the high watermark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

from odradek.data_plane.coordination.asking import Answers, Ask, Reply, TimePasses
from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.metadata_quorum.state_machine import Machine, ReplicatedStateMachine

__all__ = ["WALL_MS", "HeldLog", "KeptReply", "ScriptedCoordinator", "deliver"]

S = TypeVar("S")
D = TypeVar("D")
WALL_MS = 1_000_000
"""The wall-clock time in milliseconds when a test begins."""


class HeldLog(Generic[S]):
    """A decision log in memory. Its high watermark follows the log's end at once, or stands still while `held` is
    true.
    """

    def __init__(self, read: Callable[[Latest], S]) -> None:
        """`read` makes a coordinator's state from the latest record of each key."""
        self._read = read
        self.records: list[CoordinatorRecord] = []
        self.high_watermark = 0
        self.epoch = 1
        self.has_room = True
        self.held = False
        self._listeners: list[Callable[[int], None]] = []

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def encode_batch(self, records: Sequence[CoordinatorRecord]) -> Sequence[CoordinatorRecord]:
        """Check that all records can be encoded, and return them as the batch. Raises an error if a value does not fit
        into its field.
        """
        for each in records:
            each.encoded_key(), each.encoded_value()
        return records

    def append_batch(self, batch: Sequence[CoordinatorRecord]) -> int:
        """Append a batch and return the offset of its last record."""
        self.records += batch
        return len(self.records) - 1

    def subscribe(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    def catch_up(self) -> None:
        """Move the high watermark to the end of the log, unless it is held."""
        if not self.held and self.high_watermark < len(self.records):
            self.high_watermark = len(self.records)
            for listener in self._listeners:
                listener(self.high_watermark)

    def take_over(self) -> S:
        """Remove uncommitted records, as a change of leader may do. Return the state with which the new leader's
        coordinator begins.
        """
        del self.records[self.high_watermark :]
        self.epoch += 1
        self.held = False
        return self.state()

    def state(self) -> S:
        """Return the state that a new coordinator reads from the committed records, after encoding and decoding."""
        committed = self.records[: self.high_watermark]
        return self._read(Latest({each.encoded_key(): each.encoded_value() for each in committed}))


class KeptReply:
    """A reply object that keeps the answers which it gets."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def complete(self, response: object) -> None:
        self.answers.append(response)


def deliver(answers: Answers) -> None:
    """Pass each answer to its reply object."""
    for reply, response in answers:
        reply.complete(response)


class _Deadlines(Protocol):
    @property
    def next_ms(self) -> float: ...


class ScriptedCoordinator(ABC, Generic[S, D]):
    """A coordinator to which a test sends requests. `lines` describes its records, answers and timers as text."""

    def __init__(self, log: HeldLog[S]) -> None:
        self.log = log
        self.now_ms = 0
        self.lines: list[str] = []

    @abstractmethod
    def tell_record(self, record: CoordinatorRecord) -> str:
        """Describe a record of a decision in words."""

    def asked_at_ms(self) -> int:
        """Return the wall-clock time in milliseconds at which a request arrives."""
        return WALL_MS + self.now_ms

    def lead(
        self,
        machine: Machine[S, D, Ask, Answers],
        deadlines: _Deadlines,
        state: S,
        new_uuid: Callable[[], bytes],
    ) -> None:
        """Make the coordinator a leader, which decides from this state on."""
        self._deadlines = deadlines
        self.runtime: ReplicatedStateMachine[S, D, Ask, Answers] = ReplicatedStateMachine(
            machine, self.log, state, random=Random(1), new_uuid=new_uuid
        )

    def submit(
        self, request: object, version: int, reply: Reply | None, client_id: str = "", host: str = ""
    ) -> None:
        """Send a request to the coordinator. Its records are added to `lines`; answers are delivered once their
        records are committed.
        """
        before = len(self.log.records)
        ask = Ask(request, version, reply, self.asked_at_ms(), client_id, host)
        deferred = self.runtime.submit(ask, self.now_ms)
        self.lines += map(self.tell_record, self.log.records[before:])
        deferred.on_release(deliver)
        self.log.catch_up()

    def wait(self, milliseconds: int) -> None:
        """Let time pass. Timers that become due fire in order, and their lines begin with their time."""
        end_ms = self.now_ms + milliseconds
        while self._deadlines.next_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self._deadlines.next_ms))
            at = len(self.lines)
            self.submit(TimePasses(), 0, None)
            self.lines[at:] = [f"at {self.now_ms}: {line}" for line in self.lines[at:]]
        self.now_ms = end_ms
