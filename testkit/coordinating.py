"""A coordinator's machine by hand: over a log in memory whose high watermark a test holds back, on time that it moves."""

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
"""The wall clock's time when a script begins."""


class HeldLog(Generic[S]):
    """A decision log whose high watermark follows at once, or stands still while it is held."""

    def __init__(self, read: Callable[[Latest], S]) -> None:
        """`read` makes the state of a coordinator that finds these records."""
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
        """Encode the records, so that values which fit no field are refused; here a batch is the list of its records."""
        for each in records:
            each.encoded_key(), each.encoded_value()
        return records

    def append_batch(self, batch: Sequence[CoordinatorRecord]) -> int:
        """Append a batch, and return its last offset."""
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
        """Lose records that are not committed, as a new leader may; return the state that its coordinator begins with."""
        del self.records[self.high_watermark :]
        self.epoch += 1
        self.held = False
        return self.state()

    def state(self) -> S:
        """Return the state that a new coordinator reads: every committed record as it is on disk."""
        committed = self.records[: self.high_watermark]
        return self._read(Latest({each.encoded_key(): each.encoded_value() for each in committed}))


class KeptReply:
    """A reply that keeps its answers."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def complete(self, response: object) -> None:
        self.answers.append(response)


def deliver(answers: Answers) -> None:
    """Give each reply its answer."""
    for reply, response in answers:
        reply.complete(response)


class _Deadlines(Protocol):
    @property
    def next_ms(self) -> float: ...


class ScriptedCoordinator(ABC, Generic[S, D]):
    """A coordinator that a script talks to; `lines` is what the script shows."""

    def __init__(self, log: HeldLog[S]) -> None:
        self.log = log
        self.now_ms = 0
        self.lines: list[str] = []

    @abstractmethod
    def tell_record(self, record: CoordinatorRecord) -> str:
        """Put a record of a decision into words."""

    def asked_at_ms(self) -> int:
        """Return the wall clock's time that a request comes with."""
        return WALL_MS + self.now_ms

    def lead(
        self,
        machine: Machine[S, D, Ask, Answers],
        deadlines: _Deadlines,
        state: S,
        new_uuid: Callable[[], bytes],
    ) -> None:
        """Begin to decide, with this state."""
        self._deadlines = deadlines
        self.runtime: ReplicatedStateMachine[S, D, Ask, Answers] = ReplicatedStateMachine(
            machine, self.log, state, random=Random(1), new_uuid=new_uuid
        )

    def submit(
        self, request: object, version: int, reply: Reply | None, client_id: str = "", host: str = ""
    ) -> None:
        """Have the machine decide: its records become lines, then answers are delivered as far as they are committed."""
        before = len(self.log.records)
        ask = Ask(request, version, reply, self.asked_at_ms(), client_id, host)
        deferred = self.runtime.submit(ask, self.now_ms)
        self.lines += map(self.tell_record, self.log.records[before:])
        deferred.on_release(deliver)
        self.log.catch_up()

    def wait(self, milliseconds: int) -> None:
        """Let time pass. Timers fire in their order, and each notes its time."""
        end_ms = self.now_ms + milliseconds
        while self._deadlines.next_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self._deadlines.next_ms))
            at = len(self.lines)
            self.submit(TimePasses(), 0, None)
            self.lines[at:] = [f"at {self.now_ms}: {line}" for line in self.lines[at:]]
        self.now_ms = end_ms
