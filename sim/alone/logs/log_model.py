"""A model of one log: the batches that were appended and not cut away, and what follows from them. PURE.

A power loss may undo a truncation that was not synced, so the model keeps the batches of earlier states. It keeps
deleted batches as well, since producers are remembered beyond the deletion of their batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

__all__ = ["NONE", "Batch", "LogModel", "Producer", "Record"]

NONE = -1
BATCHES = 5
"""How many batches of a producer a log remembers."""


@attrs.frozen
class Record:
    """A record of a data batch."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


@attrs.frozen
class Batch:
    """A batch of a log. A marker has no records."""

    base_offset: int
    next_offset: int
    epoch: int
    records: tuple[Record, ...] = ()
    producer_id: int = NONE
    producer_epoch: int = NONE
    base_sequence: int = NONE
    is_transactional: bool = False
    commits: bool | None = None
    """True for a marker that commits, False for a marker that aborts, None for a data batch."""
    coordinator_epoch: int = NONE
    timestamp_ms: int = NONE
    """The newest timestamp of the batch."""

    @property
    def last_sequence(self) -> int:
        return self.base_sequence + len(self.records) - 1 if self.base_sequence >= 0 else NONE


@attrs.define
class Producer:
    """What a log should know of a producer: its epoch, and its last batches in that epoch, the oldest first."""

    epoch: int
    batches: list[Batch] = attrs.Factory(list)
    open_from: int = NONE
    """The first offset of its open transaction."""
    coordinator_epoch: int = NONE

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NONE


@attrs.frozen
class Transaction:
    """A transaction that has ended, with the offset of its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    commits: bool


class LogModel:
    """The batches of one log. Call `append`, `cut` and `become` for each change of the log."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.past: list[list[Batch]] = []
        """The batches before truncations that a power loss may undo."""
        self.committed = 0
        """The highest high watermark so far. Nothing below it is ever truncated."""
        self.start_max = 0
        """The highest start that the log ever had."""
        self.durable_max: int | None = None
        """An upper bound of the durable end while a truncation is under way."""
        self.clean_end = 0
        """The highest end of a pass of the cleaner."""
        self.first_cleaned_ms: dict[int, int] = {}
        """When the first pass over each tombstone began, by its offset."""
        self.is_exact = True
        """False after a start or a truncation: then a log may count a transaction as open whose marker it has."""
        self.base = 0
        """The log's end while it has no batches."""
        self._fresh: dict[int, int] = {}
        """How many batches of each producer the log has seen since its start and its last truncation."""
        self.unsure: dict[int, None] = {}
        """Producers that were silent for so long that the log may have forgotten them."""
        self.once_unsure: dict[int, None] = {}
        """Producers that were unsure at some time. Without their newest batches they may be forgotten again."""
        self.last_ms: dict[int, int] = {}
        """The monotonic time of each producer's last batch."""
        self.producers: dict[int, Producer] = {}
        self.ended: list[Transaction] = []

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.base

    # --- changes

    def append(self, batch: Batch, now_ms: int) -> None:
        """Add a batch at the end."""
        self.batches.append(batch)
        self._fold(batch)
        if batch.producer_id >= 0:
            self.unsure.pop(batch.producer_id, None)
            self.last_ms[batch.producer_id] = now_ms
            self._fresh[batch.producer_id] = self._fresh.get(batch.producer_id, 0) + 1

    def cut(self, offset: int) -> None:
        """Remove the batches that end above `offset`."""
        self.become([each for each in self.batches if each.next_offset <= offset])

    def become(self, batches: Sequence[Batch]) -> None:
        """Replace all batches, and derive the producers from them."""
        self.batches = list(batches)
        self.committed = min(self.committed, self.end_offset)
        self.producers, self.ended = {}, []
        self._fresh.clear()
        self.unsure.update(self.once_unsure)
        self.is_exact = False
        for batch in self.batches:
            self._fold(batch)

    def _fold(self, batch: Batch) -> None:
        number = batch.producer_id
        if number < 0:
            return
        producer = self.producers.get(number)
        if producer is None:
            producer = self.producers[number] = Producer(batch.producer_epoch)
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches = []
        if batch.commits is None:
            producer.batches.append(batch)
            del producer.batches[:-BATCHES]
            if batch.is_transactional and producer.open_from < 0:
                producer.open_from = batch.base_offset
            return
        producer.coordinator_epoch = batch.coordinator_epoch
        if producer.open_from >= 0:
            self.ended.append(Transaction(number, producer.open_from, batch.base_offset, batch.commits))
            producer.open_from = NONE

    # --- what follows from the batches

    def remembered(self, number: int) -> int:
        """Return how many of a producer's last batches the log must recognise. A start remembers the last one."""
        return max(1, self._fresh.get(number, 0))

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the first offset of the transactions that are open, or whose marker is not committed."""
        firsts = [each.open_from for each in self.producers.values() if each.open_from >= 0]
        firsts += [each.first_offset for each in self.ended if each.marker_offset >= high_watermark]
        return min(firsts, default=None)

    def first_open(self) -> int | None:
        """Return the first offset of all open transactions."""
        return min((each.open_from for each in self.producers.values() if each.open_from >= 0), default=None)

    def is_aborted(self, batch: Batch) -> bool:
        """True if a batch belongs to a transaction that was aborted."""
        return batch.is_transactional and any(
            not each.commits
            and each.producer_id == batch.producer_id
            and each.first_offset <= batch.base_offset < each.marker_offset
            for each in self.ended
        )

    def records(self) -> Iterator[tuple[Batch, Record]]:
        """Yield all records of data batches, each with its batch."""
        for batch in self.batches:
            for record in batch.records:
                yield batch, record

    def removable(self, now_ms: int, delete_retention_ms: int) -> set[int]:
        """List the offsets of records that a cleaner may have removed. Each is void, or a later one has its key."""
        last: dict[bytes, int] = {}
        found = set()
        for batch, record in self.records():
            if record.offset >= self.clean_end:
                break
            if self.is_aborted(batch):
                found.add(record.offset)
                continue
            if record.key in last:
                found.add(last[record.key])
            last[record.key] = record.offset
            if record.value is None:
                begun = self.first_cleaned_ms.get(record.offset)
                if begun is not None and now_ms - begun >= delete_retention_ms:
                    found.add(record.offset)
        return found

    def pass_begins(self, end_offset: int, now_ms: int) -> None:
        """Note that a pass of the cleaner below `end_offset` begins."""
        self.clean_end = max(self.clean_end, end_offset)
        for _, record in self.records():
            if record.value is None and record.offset < end_offset:
                self.first_cleaned_ms.setdefault(record.offset, now_ms)
