"""Checks of a log against its model (`log_model.py`): contents, reads, producers, look-ups by time, retention. PURE.

All functions raise `SafetyViolation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker
from sim.alone.logs.log_model import NONE, Batch, LogModel, Producer
from sim.alone.replication_broker import BATCH_BYTES_MAX
from sim.history import SafetyViolation

__all__ = [
    "KeptSegments",
    "check_cleaned",
    "check_epochs",
    "check_offsets",
    "check_producers",
    "check_read",
    "check_retained",
    "check_times",
    "first_difference",
    "is_in_order",
    "must",
]

FIELDS = 4
"""How many numbers the producer state keeps for each batch of a producer."""


@attrs.frozen
class Found:
    """A record that was read from a log."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    epoch: int


def must(holds: bool, promise: str) -> None:
    """Raise `SafetyViolation` with the text `promise` if `holds` is False."""
    if not holds:
        raise SafetyViolation(promise)


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    for position, header in iter_batches(data):
        yield header, data[position : position + header.size]


def _records(header: BatchHeader, batch: bytes) -> Iterator[Found]:
    for each in records(batch, 0, decompressed_bytes_max=BATCH_BYTES_MAX):
        value = None if each.value is None else bytes(each.value)
        epoch = header.partition_leader_epoch
        yield Found(each.offset, each.timestamp, bytes(each.key or b""), value, epoch)


def _read_all(log: PartitionLog) -> Iterator[tuple[BatchHeader, bytes]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read_bytes(offset, BATCH_BYTES_MAX, upper_bound=log.log_end_offset, min_one=True)
        batches = list(_batches(data))
        must(
            not data or (bool(batches) and batches[-1][0].next_offset > offset),
            f"{log}: {data!r} is read at {offset}",
        )
        if not data:
            return
        yield from batches
        offset = batches[-1][0].next_offset


# --- contents


def first_difference(
    log: PartitionLog, batches: Sequence[Batch], removable: set[int], start_offset: int
) -> str:
    """Compare a log's data with the records that it should have. Return the first difference, or an empty text.
    Records at the offsets `removable` may be missing.
    """
    there, markers = dict[int, Found](), dict[int, tuple[int, int, bool | None]]()
    for header, data in _read_all(log):
        if not header.is_control:
            there.update(
                (each.offset, each) for each in _records(header, data) if each.offset >= start_offset
            )
        elif header.base_offset >= start_offset:
            marker = parse_marker(data)
            aborts = None if marker is None else marker.is_abort
            markers[header.base_offset] = (header.partition_leader_epoch, header.producer_id, aborts)
    for batch in batches:
        if batch.commits is not None and batch.base_offset in markers:
            # The cleaner removes the record of an old marker, and keeps the batch of a producer's last marker.
            epoch, number, aborts = markers.pop(batch.base_offset)
            is_here = (epoch, number) == (batch.epoch, batch.producer_id)
            if not is_here or aborts not in (None, not batch.commits):
                return f"{batch} is stored in epoch {epoch} for producer {number}, aborts: {aborts}"
        for record in batch.records:
            if record.offset < start_offset:
                continue
            found = there.pop(record.offset, None)
            if found is None:
                if record.offset not in removable:
                    return f"{record} is lost"
            elif found != Found(record.offset, record.timestamp_ms, record.key, record.value, batch.epoch):
                return f"{record} of epoch {batch.epoch} is stored as {found}"
    strangers = [*there.values(), *markers.items()]
    return f"{strangers[0]} was never written" if strangers else ""


def check_cleaned(log: PartitionLog, model: LogModel) -> None:
    """Check that each key has one record at most below the first dirty offset. Deleted records do not count."""
    end, seen = log.first_dirty_offset, dict[bytes, int]()
    aborted = {record.offset for batch, record in model.records() if model.is_aborted(batch)}
    for header, batch in _read_all(log):
        for found in () if header.is_control else _records(header, batch):
            if not model.start_max <= found.offset < end or found.offset in aborted:
                continue
            before = seen.setdefault(found.key, found.offset)
            must(
                before == found.offset,
                f"{log}: key {found.key!r} is at {before} and {found.offset}, and clean below {end}",
            )


# --- offsets


def check_offsets(log: PartitionLog, model: LogModel) -> None:
    """Check a log's end, its epochs, and its last stable offset."""
    log.check()
    must(
        log.log_end_offset == model.end_offset, f"{log} ends at {log.log_end_offset}, not {model.end_offset}"
    )
    high_watermark, start = log.high_watermark, log.log_start_offset
    if high_watermark == log.log_end_offset:
        model.is_exact = True
    exact = model.first_unstable(high_watermark)
    exact = high_watermark if exact is None else min(high_watermark, max(exact, start))
    loose = model.first_open()
    loose = high_watermark if loose is None else min(high_watermark, max(loose, start))
    stable = log.last_stable_offset
    must(
        exact <= stable <= (exact if model.is_exact else loose),
        f"{log} is stable up to {stable}, and its transactions up to {exact}",
    )


def check_epochs(log: PartitionLog, model: LogModel) -> None:
    """Check that each batch has the leader epoch that the log knows for its offset. A crash may bring deleted records
    back whose epoch is gone.
    """
    for batch in model.batches:
        if batch.base_offset >= log.log_start_offset:
            known = log.epochs.epoch_for_offset(batch.base_offset)
            must(
                known == batch.epoch or (known is None and batch.base_offset < model.start_max),
                f"{log} takes {known} for the epoch of {batch.base_offset}, not {batch.epoch}",
            )


# --- producers


def check_producers(log: PartitionLog, model: LogModel) -> None:
    """Check that a log knows its producers as its batches have them."""
    known = log.load_producers().entries
    for number, producer in model.producers.items():
        entry = known.get(number)
        if entry is None:
            must(number in model.unsure, f"{log} has forgotten producer {number}: {producer}")
            continue
        # The cleaner removes markers, and a producer that was forgotten begins anew. Its marker may be all that is left.
        was_forgotten = number in model.once_unsure
        is_vague = model.clean_end > 0 or was_forgotten
        last = list(entry.batches[1::FIELDS])
        there = [each.next_offset - 1 for each in producer.batches]
        must(
            (entry.epoch, entry.current_txn_first_offset) == (producer.epoch, producer.open_from)
            and last == there[len(there) - len(last) :]
            and (bool(last) == bool(there) or was_forgotten)
            and (entry.coordinator_epoch == producer.coordinator_epoch or is_vague),
            f"{log} knows epoch {entry.epoch}, open from {entry.current_txn_first_offset}, batches {last}, coordinator "
            f"{entry.coordinator_epoch} of producer {number}: {producer}",
        )
    strangers = [number for number in known if number not in model.producers]
    must(not strangers, f"{log} knows the producers {strangers}, which have no batches")


def is_in_order(producer: Producer | None, epoch: int, sequence: int) -> bool:
    """True if a log must accept a new batch of a producer that begins with this sequence number."""
    if producer is None:
        return True
    if epoch != producer.epoch:
        return epoch > producer.epoch and sequence == 0
    # Behind a marker with a new epoch, the first batch begins with 0.
    return sequence == (producer.last_sequence + 1 if producer.batches else 0)


# --- reads


def check_read(
    log: PartitionLog,
    model: LogModel,
    offset: int,
    bytes_max: int,
    *,
    committed_only: bool,
    removable: set[int],
) -> None:
    """Read as a consumer does, and check that it gets each record that it should see, and no other. With
    `committed_only` it skips the aborted transactions that the broker's answer lists.
    """
    bound = log.last_stable_offset if committed_only else log.high_watermark
    data = log.read_bytes(offset, bytes_max, upper_bound=bound, min_one=True)
    batches = list(_batches(data))
    if not batches:
        must(
            not any(each.base_offset >= offset and each.next_offset <= bound for each in model.batches)
            or model.clean_end > offset,
            f"{log}: nothing is read at {offset}, below {bound}",
        )
        return
    end_offset = batches[-1][0].next_offset
    aborted = log.aborted_transactions(offset, end_offset) if committed_only else []
    seen = _visible(batches, [(each.first_offset, each.producer_id) for each in aborted])
    for batch in model.batches:
        is_hidden = committed_only and model.is_aborted(batch)
        for record in batch.records:
            if not offset <= record.offset < end_offset:
                continue
            found = seen.pop(record.offset, None)
            if is_hidden:
                must(found is None, f"{log}: {record} was aborted, and is read")
            else:
                must(
                    found is not None or record.offset in removable,
                    f"{log}: {record} is committed, and is not read from {offset} on",
                )
    strange = [each for each in seen if each >= offset]
    must(not strange, f"{log}: offsets {strange} are read, and were never written")


def _visible(batches: list[tuple[BatchHeader, bytes]], aborted: list[tuple[int, int]]) -> dict[int, Found]:
    """Return the records that a consumer hands out (Kafka's `Fetcher`). `aborted` has (first offset, producer)."""
    waiting = sorted(aborted)
    void: dict[int, None] = {}
    seen: dict[int, Found] = {}
    for header, batch in batches:
        while waiting and waiting[0][0] <= header.last_offset:
            void[waiting.pop(0)[1]] = None
        if header.is_control:
            marker = parse_marker(batch)
            if marker is not None and marker.is_abort:
                void.pop(header.producer_id, None)
        elif not (header.is_transactional and header.producer_id in void):
            seen.update((found.offset, found) for found in _records(header, batch))
    return seen


# --- look-ups by time


def check_times(log: PartitionLog, model: LogModel, asked_ms: int, upper_bound: int) -> None:
    """Check the first record at or after a time, and the newest record."""
    there = [
        (each.timestamp_ms, each.offset, batch.epoch)
        for batch in model.batches
        for each in _timed(batch)
        if log.log_start_offset <= each.offset < upper_bound
    ]
    found = log.times().offset_for_timestamp(asked_ms, upper_bound)
    wanted = next((each for each in there if each[0] >= asked_ms), None)
    must(found == wanted, f"{log}: at {asked_ms} below {upper_bound} is {wanted}, and {found} is found")
    newest = log.times().offset_of_max_timestamp(upper_bound)
    latest = max(there, key=lambda each: (each[0], -each[1]), default=None)
    must(
        newest == latest or (newest is not None and newest[1] < log.log_start_offset),
        f"{log}: the newest below {upper_bound} is {latest}, and {newest} is found",
    )


@attrs.frozen
class _Timed:
    offset: int
    timestamp_ms: int


def _timed(batch: Batch) -> Iterator[_Timed]:
    for record in batch.records:
        yield _Timed(record.offset, record.timestamp_ms)
    if batch.commits is not None:
        yield _Timed(batch.base_offset, batch.timestamp_ms)


# --- retention


class KeptSegments:
    """The segments of a log before a run of retention. `check` judges those that are gone after it."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        segments = log.segments
        ends = [*(each.base_offset for each in segments[1:]), log.log_end_offset]
        self._base_offset = segments[0].base_offset
        self._sizes = [(end, each.size) for each, end in zip(segments, ends, strict=True)]

    def check(self, model: LogModel, config: LogConfig, now_ms: int) -> None:
        """Check that each segment that is gone was deleted on request, too old, or too much."""
        log = self._log
        begins, base = log.segment_list.base_offset, self._base_offset
        gone = sum(size for end, size in self._sizes if end <= begins)
        total = max(sum(size for _, size in self._sizes), log.size_bytes + gone)
        for end, size in self._sizes:
            if end > begins:
                break
            is_too_much = config.retention_bytes >= 0 and total - size >= config.retention_bytes
            held = [each.timestamp_ms for each in model.batches if base < each.next_offset <= end]
            newest, base = max(held, default=NONE), end
            is_old = config.retention_ms >= 0 and newest < now_ms - config.retention_ms
            must(
                end <= model.start_max or (config.deletes_by_retention and (is_too_much or is_old)),
                f"{log}: retention removes what ends at {end}; {total} bytes were left, the newest of {newest}",
            )
            total -= size
        must(begins <= log.high_watermark, f"{log} begins at {begins}, above its high watermark")


def check_retained(log: PartitionLog, config: LogConfig) -> None:
    """Check that retention has removed the segments that are too much."""
    if config.deletes_by_retention and config.retention_bytes >= 0 and len(log.segments) > 1:
        first, second = log.segments[:2]
        must(
            log.size_bytes - first.size < config.retention_bytes or second.base_offset > log.high_watermark,
            f"{log} keeps {log.size_bytes} bytes, and only {config.retention_bytes} are allowed",
        )
