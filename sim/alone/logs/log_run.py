"""One log of a schedule: the steps that change it, each with the change of its model, and its checks. PURE."""

from __future__ import annotations

from random import Random

from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import KafkaError
from odradek.wire.record_batch import RecordBatchBuilder
from sim.alone.logs.log_checks import (
    KeptSegments,
    check_cleaned,
    check_epochs,
    check_offsets,
    check_producers,
    check_read,
    check_retained,
    check_times,
    first_difference,
    is_in_order,
    must,
)
from sim.alone.logs.log_host import EXPIRATION_MS, LogHost
from sim.alone.logs.log_model import NONE, Batch, LogModel, Producer, Record
from sim.alone.replication_broker import BATCH_BYTES_MAX
from sim.history import SafetyViolation

__all__ = ["LogRun"]

IDEMPOTENT, TRANSACTIONAL = (1, 2), (11, 12, 13)
KEYS = 6
RECORDS_MAX = 4
TOMBSTONES = 7
"""One record in so many is a tombstone."""
LATE_MS = (0, 0, 0, 50, 3000, 30_000)
"""How much older than the present time a batch may be."""


class LogRun:
    """A log and its model. `open` is called when a process has started, `died` or `stopped` when it has ended."""

    def __init__(self, host: LogHost, topic: str, random: Random) -> None:
        self._host = host
        self.topic = topic
        self._random = random
        self.config = host.configs[topic]
        self.model = LogModel()
        self.log: PartitionLog
        self.is_open = False
        self.written = 0
        self._epoch = 0
        self._refused_epochs: dict[int, int] = {}
        """The epoch of each producer's last batch that a full disk has refused. A producer never goes back to an
        earlier epoch.
        """
        self._pending: Batch | None = None
        """The batch whose append is under way."""
        self._before_cut: list[Batch] | None = None
        """The batches before the truncation that is under way."""
        self._stored_start = 0
        self._durable = 0
        self._lost_power = self._is_damaged = False
        self._was_clean = True
        self._kept: KeptSegments | None = None

    @property
    def _is_compacted(self) -> bool:
        return self.config.is_compacted

    # --- processes

    def open(self) -> None:
        """Take the log of a process that has just started."""
        self.log = self._host.log(self.topic)

    def died(self, *, power: bool) -> None:
        """Note what the log had promised when its process died."""
        self._was_clean = False
        self._lost_power = self._lost_power or power
        if not self.is_open:
            return
        self.is_open = False
        self.model.start_max = max(self.model.start_max, self.log.log_start_offset)
        self._durable = self.log.recovery_point
        if self.model.durable_max is not None:
            self._durable = min(self._durable, self.model.durable_max)
        self._stored_start = self.log.stored_start_offset

    def damaged(self, offset: int) -> None:
        """Note that the disk has damaged the batch at an offset, after the process has died."""
        self._is_damaged = True
        self._durable = min(self._durable, offset)
        self.model.past.append(list(self.model.batches))

    def stopped(self) -> None:
        """Note a clean stop."""
        self.is_open = False
        self.model.start_max = max(self.model.start_max, self.log.log_start_offset)
        self._was_clean = True
        self._durable = self.model.end_offset
        self._stored_start = self.log.log_start_offset

    def started(self) -> None:
        """Check everything that the log has after a start, and take over what the crash has left."""
        log, model = self.log, self.model
        self.is_open = True
        start, end = log.log_start_offset, log.log_end_offset
        must(start <= model.start_max, f"{log} begins at {start}, and began at {model.start_max} at most")
        must(
            start >= self._stored_start,
            f"{log} begins at {start}, and had stored {self._stored_start} as its start",
        )
        if self._was_clean:
            must(end == model.end_offset, f"{log} ends at {end} after a clean stop, not {model.end_offset}")
        must(end >= self._durable, f"{log} ends at {end}, and was durable up to {self._durable}")
        if start == end and "log.start_is_behind_end" in self._host.notes.events:
            # The stored start is newer than the log, whose records were all deleted.
            batches: list[Batch] = []
        else:
            batches = self._history()
        model.base = start
        model.become(batches)
        self._pending = self._before_cut = model.durable_max = None
        if self._lost_power or self._was_clean:
            model.past.clear()
        self._lost_power, self._is_damaged, self._was_clean = False, False, True
        self._check_all()
        if self._random.random() < 0.5:
            log.advance_high_watermark(min(model.committed, log.log_end_offset))

    def _history(self) -> list[Batch]:
        """Return the batches of the state that a crash has left. It is the last state up to the log's end, or one
        before a truncation that was undone.
        """
        model, end = self.model, self.log.log_end_offset
        states = [model.batches]
        if self._pending is not None:
            states.append([*model.batches, self._pending])
        if self._before_cut is not None:
            states.append(self._before_cut)
        if self._lost_power:
            states += reversed(model.past)
        elif not (self._was_clean or self._is_damaged) and self._pending is None and self._before_cut is None:
            must(
                end == model.end_offset,
                f"{self.log} ends at {end} after its process died, not {model.end_offset}",
            )
        why = ""
        for state in states:
            kept = [each for each in state if each.next_offset <= end]
            if (kept[-1].next_offset if kept else self.log.log_start_offset) != end:
                continue
            why = self._difference(kept)
            if not why:
                return kept
        raise SafetyViolation(f"{self.log} up to {end} is no earlier state: {why}")

    def _difference(self, batches: list[Batch]) -> str:
        removable = self._removable() if self._is_compacted else set[int]()
        return first_difference(self.log, batches, removable, self.log.log_start_offset)

    def _removable(self) -> set[int]:
        if not self._is_compacted:
            return set()
        return self.model.removable(self._host.clock.now_ms, self.config.delete_retention_ms)

    # --- checks

    def check(self) -> None:
        """Check the log as after each step."""
        self.model.start_max = max(self.model.start_max, self.log.log_start_offset)
        self.model.committed = max(self.model.committed, self.log.high_watermark)
        if not self.log.segment_list.entry_is_dirty and self.log.recovery_point == self.log.log_end_offset:
            self.model.past.clear()
        check_offsets(self.log, self.model)

    def _check_all(self) -> None:
        self.check()
        check_epochs(self.log, self.model)
        check_producers(self.log, self.model)
        why = self._difference(self.model.batches)
        must(not why, f"{self.log}: {why}")

    def read(self) -> None:
        """Read from a random offset on, as a consumer of either isolation level does."""
        log, random = self.log, self._random
        if log.log_start_offset < log.high_watermark:
            check_read(
                log,
                self.model,
                random.randint(log.log_start_offset, log.high_watermark - 1),
                random.choice((1, 300, BATCH_BYTES_MAX)),
                committed_only=random.random() < 0.7,
                removable=self._removable(),
            )

    def look_up(self) -> None:
        """Look up a time near that of a record, below a random bound."""
        times = [record.timestamp_ms for _, record in self.model.records()]
        if times:
            asked = self._random.choice(times) + self._random.randint(-2, 2)
            bounds = [each.next_offset for each in self.model.batches[-10:]]
            check_times(self.log, self.model, asked, self._random.choice(bounds))

    def cleaned(self) -> None:
        """Check the log after a pass of the cleaner."""
        check_cleaned(self.log, self.model)
        why = self._difference(self.model.batches)
        must(not why, f"{self.log} after a pass: {why}")

    def upkeep_begins(self, milliseconds: int) -> None:
        """Note the state before upkeep."""
        self._kept = KeptSegments(self.log)
        now_ms = self._host.clock.now_ms + milliseconds
        for number, last_ms in self.model.last_ms.items():
            producer = self.model.producers.get(number)
            if now_ms - last_ms >= EXPIRATION_MS and producer is not None and producer.open_from < 0:
                self.model.unsure[number] = self.model.once_unsure[number] = None

    def upkeep_ended(self) -> None:
        """Check what upkeep has removed."""
        assert self._kept is not None
        self._kept.check(self.model, self.config, self._host.clock.wall_ms())

    def check_retained(self) -> None:
        """Check that retention has done its work."""
        check_retained(self.log, self.config)

    # --- appends

    def append(self) -> None:
        """Append a data batch: plain, of an idempotent producer, or of a transaction."""
        number = self._random.choice((NONE, NONE, *IDEMPOTENT, *TRANSACTIONAL))
        if number in IDEMPOTENT or number in TRANSACTIONAL:
            producer = self._known(number)
            epoch = 0 if producer is None else producer.epoch
            if producer is not None and producer.open_from < 0 and self._random.random() < 0.1:
                epoch += 1
            if producer is not None and producer.open_from < 0:
                epoch = max(epoch, self._refused_epochs.get(number, 0))
            begins = producer is None or epoch != producer.epoch or not producer.batches
            sequence = 0 if producer is None or begins else producer.last_sequence + 1
            self._take(self._data(number, epoch, sequence))
        else:
            self._take(self._data())

    def _known(self, number: int) -> Producer | None:
        """Return what the log should know of a producer. If it may have forgotten it, ask the log."""
        model = self.model
        if number in model.unsure and number not in self.log.load_producers().entries:
            model.producers.pop(number, None)
        return model.producers.get(number)

    def _data(self, number: int = NONE, epoch: int = NONE, sequence: int = NONE) -> Batch:
        random, base = self._random, self.log.log_end_offset
        begun_ms = self._host.clock.wall_ms() - random.choice(LATE_MS)
        records = []
        for at in range(random.randint(1, RECORDS_MAX)):
            self.written += 1
            value = b"%d" % self.written + b"." * random.choice((0, 0, 10, 30))
            key = b"k%d" % random.randrange(KEYS)
            gone = random.randrange(TOMBSTONES) == 0
            records.append(
                Record(base + at, begun_ms + random.randint(-20, 20), key, None if gone else value)
            )
        return Batch(
            base,
            base + len(records),
            self._epoch,
            tuple(records),
            number,
            epoch,
            sequence,
            number in TRANSACTIONAL,
            timestamp_ms=max(each.timestamp_ms for each in records),
        )

    def end_transaction(self) -> None:
        """Write the marker of an open transaction."""
        found = [number for number, each in self.model.producers.items() if each.open_from >= 0]
        if found:
            self._end(self._random.choice(found), commits=self._random.random() < 0.5)

    def _end(self, number: int, *, commits: bool) -> None:
        producer = self.model.producers[number]
        epoch = producer.epoch + self._random.choice((0, 1))
        base = self.log.log_end_offset
        known = self.log.load_producers().entries.get(number)
        newest = NONE if known is None else known.coordinator_epoch
        coordinator_epoch = max(producer.coordinator_epoch, newest, 0) + self._random.choice((0, 0, 1))
        now_ms = self._host.clock.wall_ms()
        marker = Batch(
            base,
            base + 1,
            self._epoch,
            (),
            number,
            epoch,
            is_transactional=True,
            commits=commits,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        self._take(marker)

    def _take(self, batch: Batch) -> None:
        """Append a batch as a leader or as a follower does, and add it to the model."""
        follows = self._random.random() < 0.3
        data = _encoded(batch, follows=follows)
        self._pending = batch
        try:
            self._append(data, batch, follows=follows)
        except KafkaError as error:
            raise SafetyViolation(f"{self.log} refuses {batch}: {error}") from error
        self._pending = None
        self.model.append(batch, self._host.clock.now_ms)

    def _append(self, data: bytearray, batch: Batch, *, follows: bool) -> int:
        """Append the bytes of a batch. Return the offset that the log answers."""
        log, now_ms = self.log, self._host.clock.wall_ms()
        guard = None
        if follows:
            log.append(memoryview(data), Origin.REPLICA, self._epoch, now_ms)
            return batch.base_offset
        if batch.commits is not None:
            return log.append(memoryview(data), Origin.COORDINATOR, self._epoch, now_ms).base_offset
        if batch.is_transactional:
            log.load_producers()
            header = parse_header(data)
            name = f"id-{batch.producer_id}"
            guard = log.producers.verify(
                batch.producer_id, name, header.producer_epoch, header.base_sequence, False, 0, True
            )
        return log.append(memoryview(data), Origin.CLIENT, self._epoch, now_ms, guard).base_offset

    def repeat(self) -> None:
        """Send one of a producer's last batches again. The log must answer with its offset, and append nothing."""
        number = self._random.choice(IDEMPOTENT)
        producer, known = self._known(number), self.log.load_producers().entries.get(number)
        if producer is None or known is None or not producer.batches:
            return
        batch = self._random.choice(producer.batches[-self.model.remembered(number) :])
        base = self._append(_encoded(batch, follows=False), batch, follows=False)
        must(base == batch.base_offset, f"{self.log} answers {base} for {batch}, which it has")

    def misplace(self) -> None:
        """Send a batch that may not follow a producer's last one. The log accepts it if it follows."""
        number = self._random.choice(IDEMPOTENT)
        producer = self._known(number)
        if producer is None:
            return
        epoch = max(0, producer.epoch + self._random.choice((-1, 0, 0, 1)))
        sequence = max(0, producer.last_sequence + self._random.choice((2, 3, 9)))
        batch = self._data(number, epoch, sequence)
        if is_in_order(producer, epoch, sequence):
            return
        try:
            self._append(_encoded(batch, follows=False), batch, follows=False)
        except KafkaError:
            return
        raise SafetyViolation(f"{self.log} takes {batch} behind {producer}")

    def refused(self) -> None:
        """Called when the disk was full, so that the change under way has changed nothing."""
        if self._pending is not None:
            self._refused_epochs[self._pending.producer_id] = self._pending.producer_epoch
        self._pending = self._before_cut = self.model.durable_max = None

    # --- other changes

    def commit(self) -> None:
        """Raise the high watermark, to the end of a batch: replicas fetch whole batches."""
        log = self.log
        drawn = self._random.choice(
            (log.log_end_offset, self._random.randint(log.high_watermark, log.log_end_offset))
        )
        ends = [each.next_offset for each in self.model.batches if each.next_offset <= drawn]
        end = max((log.high_watermark, *ends))
        log.advance_high_watermark(end)
        self.model.committed = max(self.model.committed, end)

    def begin_epoch(self) -> None:
        """Begin a new leader epoch. A leader notes it at once, a follower with the first batch."""
        self._epoch += 1
        if self._random.random() < 0.5:
            self.log.assign_epoch(self._epoch)

    def cut(self) -> None:
        """Truncate the log above everything that was ever committed, as a new leader demands."""
        model, log = self.model, self.log
        floor = max(model.committed, log.high_watermark, log.log_start_offset)
        if floor >= log.log_end_offset:
            return
        offset = self._random.randint(floor, log.log_end_offset)
        kept = [each for each in model.batches if each.next_offset <= offset]
        end = kept[-1].next_offset if kept else log.log_start_offset
        self._before_cut = list(model.batches)
        model.durable_max = end
        log.truncate_to(offset)
        entries = log.epochs.entries
        must(
            not entries or entries[-1][1] < max(log.log_end_offset, 1) or end == log.log_start_offset,
            f"{log} is cut at {end}, and has the epochs {entries}",
        )
        model.past.append(self._before_cut)
        self._before_cut = model.durable_max = None
        model.cut(offset)
        self._epoch += 1

    def delete(self) -> None:
        """Delete records on request (DeleteRecords)."""
        log = self.log
        offset = self._random.randint(log.log_start_offset, log.high_watermark)
        self.model.start_max = max(self.model.start_max, offset)
        log.set_log_start_offset(offset)

    def settle(self) -> None:
        """End all transactions, and commit everything."""
        for number, each in list(self.model.producers.items()):
            if each.open_from >= 0:
                self._end(number, commits=True)
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.check()


def _encoded(batch: Batch, *, follows: bool) -> bytearray:
    """Build the bytes of a batch: as a client or a coordinator sends it, or as a follower fetches it."""
    if batch.commits is not None:
        data = build_marker(
            batch.producer_id,
            batch.producer_epoch,
            batch.coordinator_epoch,
            is_commit=batch.commits,
            timestamp_ms=batch.timestamp_ms,
        )
    else:
        builder = RecordBatchBuilder(
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            is_transactional=batch.is_transactional,
        )
        for record in batch.records:
            builder.append(record.timestamp_ms, record.key, record.value)
        data = builder.build()
    if follows:
        data[0:8] = batch.base_offset.to_bytes(8, "big")
        data[12:16] = batch.epoch.to_bytes(4, "big")
    return data
