"""The idempotent and transactional producers of a log: which sequence or epoch is refused, duplicates, open
transactions, expiry, the snapshot's format.

Theory of operation
-------------------
For each producer id the log keeps the last five batches, so that a retried batch is recognised. The answer to
the retry has the offsets of the first attempt. Within a producer epoch, sequence numbers must have no gaps.
They start at 0 in a new epoch, and 0 follows 2**31 - 1. An unknown producer may start with any number. Its
state may have expired, and refusing its number would then stop it permanently. (Kafka has the same rule since
2.5.)

The state follows from the batches of the log alone, so it can be rebuilt by reading batch headers. For each
segment, a file `<offset>.snapshot` contains the state as of that offset. So only later headers must be read.
The files have the format of Kafka's ProducerSnapshot, version 1. An entry of this format has room for one
batch of a producer. Kafka writes only the last batch of each producer. So after a clean restart, Kafka takes
a retry of one of the four earlier batches for a gap. Odradek writes an entry for each batch of a producer,
the oldest first. When Kafka reads such a file, it keeps the last entry of each producer. Odradek keeps all
five.

A transaction is open from its first batch in this log to its marker. It is unstable while it is open, or while
its marker is not yet below the high watermark (Kafka's `ProducerStateManager.unreplicatedTxns`). The first
unstable offset is the first offset of the earliest unstable transaction. A read-committed consumer reads up to
this offset. A snapshot lists no markers. So after reading a snapshot, the state lacks the markers before it.
They count as below the high watermark. This is safe, because the coordinator decided before it wrote any
marker, and it writes a lost marker again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from odradek.data_plane.log.parts.producer_entry import (
    BATCH,
    HEAD,
    HEAD_SIZE,
    NO_BATCH,
    NO_BEGIN,
    Duplicate,
    ProducerEntries,
    batches_of,
    begin_of_silence,
    find_duplicate,
    older_batches,
    pack_with_batch,
    read_head,
    read_what_decides,
    silent_since,
)
from odradek.metadata_quorum.features import EPOCHS_GROW_LEVEL
from odradek.named_states import reached
from odradek.wire.batches.batch_header import SEQUENCE_MASK
from odradek.wire.batches.transaction_markers import EndMarker
from odradek.wire.errors import ErrorCode, KafkaError

NO_OFFSET = (1 << 63) - 1
"""A number above all offsets: the first unstable offset of a log without undecided transactions."""
EPOCH_MAX = (1 << 15) - 1
NO_EPOCH = -1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = Struct(">hIi")
_CRC_END = 6
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")


class DamagedSnapshot(Exception):
    """Raised if a producer snapshot is cut, has a wrong checksum or an unknown version."""


class EndedTransaction(NamedTuple):
    """A transaction with records in this log that has ended; its marker is at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ActiveProducer(NamedTuple):
    """One producer, with the fields of a DescribeProducers response. A field is -1 if its value is unknown."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerState:
    """The state of all producers of one log. Only appended batches change it."""

    __slots__ = ("_packed", "ended", "first_ongoing", "ongoing")

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}
        """The producers by id, packed as `producer_entry` describes."""
        self.ongoing: OrderedDict[int, int] = OrderedDict()
        """The open transactions: first offset -> producer id, ascending."""
        self.first_ongoing = NO_OFFSET
        """The first offset of the earliest open transaction, or `NO_OFFSET`. All threads may read it."""
        self.ended: deque[tuple[int, int]] = deque()
        """Ended transactions whose marker may be at or above the high watermark, as pairs (marker's offset,
        first offset). Both offsets ascend. A transaction that lies within the range of a later one is left out.
        """

    @property
    def entries(self) -> ProducerEntries:
        """The producers by id. Each is unpacked when it is read."""
        return ProducerEntries(self._packed)

    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        is_transactional: bool = False,
    ) -> Duplicate | None:
        """Check a client's batch before it is appended. Returns the earlier batch that it repeats, or None if
        it is new.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH for an epoch below the known epoch.
                OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, or for a new epoch that does not start at 0.
                INVALID_TXN_STATE for a batch outside of transactions while the producer has an open
                transaction.
        """
        packed = self._packed.get(producer_id)
        if packed is None:
            return None
        if len(packed) > HEAD_SIZE:
            known_epoch, begin, last_sequence = read_what_decides(packed)
        else:
            known_epoch, _, begin, _ = read_head(packed)
            last_sequence = -1
        if epoch == known_epoch:
            if base_sequence == (last_sequence + 1) & SEQUENCE_MASK:
                if begin >= 0 and not is_transactional:
                    raise _not_transactional(producer_id)
                return None
            duplicate = find_duplicate(
                packed, epoch, base_sequence, (base_sequence + last_offset_delta) & SEQUENCE_MASK
            )
            if duplicate is not None:
                return duplicate
            reached("log.sequence_gap_refused")
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {producer_id}: {base_sequence} "
                f"(incoming seq. number), {last_sequence} (current end sequence number)",
            )
        if epoch < known_epoch:
            reached("log.producer_of_earlier_epoch_refused")
            raise _old_epoch(producer_id, epoch, known_epoch)
        if base_sequence and known_epoch != NO_EPOCH:
            reached("log.epoch_begun_in_the_middle_refused")
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {producer_id}: {base_sequence} "
                f"(incoming seq. number), {epoch} (incoming epoch)",
            )
        if begin >= 0 and not is_transactional:
            raise _not_transactional(producer_id)
        return None

    def find_duplicate(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> Duplicate | None:
        """Return the earlier batch that a client's batch repeats; None if it is new."""
        packed = self._packed.get(producer_id)
        if packed is None:
            return None
        return find_duplicate(
            packed, epoch, base_sequence, (base_sequence + last_offset_delta) & SEQUENCE_MASK
        )

    def has_ongoing(self, producer_id: int, epoch: int) -> bool:
        """True if the producer has an open transaction in this log and in this epoch."""
        packed = self._packed.get(producer_id)
        if packed is None:
            return False
        known_epoch, _, begin, _ = read_head(packed)
        return bool(begin >= 0 and known_epoch == epoch)

    def is_unsequenced(self, producer_id: int) -> bool:
        """True if the log knows no batch of the producer's present epoch."""
        packed = self._packed.get(producer_id)
        return packed is None or len(packed) == HEAD_SIZE

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Check the epoch of a batch that a coordinator appends. Raises `KafkaError` INVALID_PRODUCER_EPOCH."""
        packed = self._packed.get(producer_id)
        if packed is not None:
            known_epoch = read_head(packed)[0]
            if epoch < known_epoch:
                raise _old_epoch(producer_id, epoch, known_epoch)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check a transaction's marker before it is appended (Kafka's
        `ProducerAppendInfo.appendEndTxnMarker`).

        Since transaction version 2, a marker's epoch is higher than the epoch of its transaction. There are two
        exceptions. A marker that is written a second time has the epoch that the log already knows, and finds
        no open transaction. A transaction of the highest possible epoch ends with a marker of the same epoch.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, or TRANSACTION_COORDINATOR_FENCED for a coordinator epoch
                below the last marker's.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            if epoch < NO_EPOCH:
                raise _old_epoch(producer_id, epoch, NO_EPOCH)
            known_coordinator_epoch = -1
        elif epoch < entry.epoch or (
            transaction_version >= EPOCHS_GROW_LEVEL
            and epoch == entry.epoch
            and entry.current_txn_first_offset >= 0
            and epoch != EPOCH_MAX
        ):
            reached("log.marker_of_earlier_epoch_refused")
            raise _old_epoch(producer_id, epoch, entry.epoch)
        else:
            known_coordinator_epoch = entry.coordinator_epoch
        if coordinator_epoch < known_coordinator_epoch:
            reached("log.marker_of_earlier_coordinator_refused")
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producer {producer_id}: {coordinator_epoch} (zombie), "
                f"{known_coordinator_epoch} (current)",
            )

    def update(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset: int,
        last_offset_delta: int,
        timestamp_ms: int,
        is_transactional: bool,
    ) -> None:
        """Update the producer's state with an appended batch of data. A coordinator's batch has no sequence
        number (-1).
        """
        packed = self._packed.get(producer_id)
        coordinator_epoch = begin = -1
        older = b""
        last_sequence = (base_sequence + last_offset_delta) & SEQUENCE_MASK if base_sequence >= 0 else -1
        if packed is not None:
            known_epoch, coordinator_epoch, begin, _ = read_head(packed)
            if known_epoch == epoch:
                older = older_batches(packed, last_sequence, last_offset, last_offset_delta, timestamp_ms)
        if begin < 0:
            begin = NO_BEGIN
            if is_transactional:
                begin = last_offset - last_offset_delta
                self.ongoing[begin] = producer_id
                if begin < self.first_ongoing:
                    self.first_ongoing = begin
        newest = pack_with_batch(
            epoch,
            coordinator_epoch,
            begin,
            timestamp_ms,
            last_sequence,
            last_offset,
            last_offset_delta,
            timestamp_ms,
        )
        self._packed[producer_id] = newest + older

    def end_transaction(
        self, producer_id: int, epoch: int, offset: int, timestamp_ms: int, marker: EndMarker
    ) -> EndedTransaction | None:
        """Update the producer's state with a marker that was appended at `offset`. The marker may have a new
        epoch.

        Returns the transaction that the marker ends, or None if this log has no records of that transaction.
        """
        packed = self._packed.get(producer_id)
        coordinator_epoch, first_offset, batches = -1, NO_BEGIN, b""
        if packed is not None:
            known_epoch, coordinator_epoch, first_offset, _ = read_head(packed)
            if known_epoch == epoch:
                batches = packed[HEAD_SIZE:]
        coordinator_epoch = max(coordinator_epoch, marker.coordinator_epoch)
        self._packed[producer_id] = HEAD.pack(epoch, coordinator_epoch, NO_BEGIN, timestamp_ms) + batches
        if first_offset < 0:
            return None
        ended = self.ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()
        ended.append((offset, first_offset))
        # Delete this entry last. Then a worker that reads at any moment finds the transaction in `ongoing` or
        # in `ended`.
        del self.ongoing[first_offset]
        self.first_ongoing = next(iter(self.ongoing), NO_OFFSET)
        return EndedTransaction(producer_id, first_offset, offset, marker.is_abort)

    def stable_behind(self, offset: int) -> int:
        """Return the first offset of the earliest open transaction. If there is none, returns the offset
        after the marker at `offset`.
        """
        return offset + 1 if self.first_ongoing == NO_OFFSET else self.first_ongoing

    def first_unstable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the earliest transaction that is open, or whose marker is not below the
        high watermark.

        Returns `NO_OFFSET` if there is no such transaction. May run in a worker.
        """
        first = self.first_ongoing
        if self.ended:
            for marker, begun in list(self.ended):
                if marker >= high_watermark:
                    return min(first, begun)
        return first

    def forget_ended(self, high_watermark: int) -> None:
        """Forget the ended transactions whose marker is below the high watermark (on the loop)."""
        ended = self.ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()

    def reaches(self, offset: int) -> bool:
        """True if any known batch ends at `offset` or later, so that a truncation to `offset` would change
        this state.
        """
        if self.ended and self.ended[-1][0] >= offset:
            # The marker's producer may have expired since.
            return True
        return any(
            entry.last_offset >= offset or entry.coordinator_epoch >= 0 for entry in self.entries.values()
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers without an open transaction that have been silent for `expiration_ms`. Returns
        their number. `now_ms` is monotonic.

        A producer is silent from the first check that finds no new batch of it. Kafka instead compares the
        batches' timestamps with the wall clock. So with a wrong clock, Kafka may forget an active producer.
        That is harmful, because the next batch of a forgotten producer may have any sequence number, so batches
        may get into the wrong order.
        """
        expired = []
        for producer_id, packed in self._packed.items():
            epoch, coordinator_epoch, begin, timestamp_ms = read_head(packed)
            if begin == NO_BEGIN:
                head = HEAD.pack(epoch, coordinator_epoch, begin_of_silence(now_ms), timestamp_ms)
                self._packed[producer_id] = head + packed[HEAD_SIZE:]
            elif begin < NO_BEGIN and now_ms - silent_since(begin) >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._packed[producer_id]
        return len(expired)

    def active_producers(self) -> Iterator[ActiveProducer]:
        for producer_id, packed in self._packed.items():
            epoch, coordinator_epoch, begin, timestamp_ms = read_head(packed)
            last_sequence = BATCH.unpack_from(packed, HEAD_SIZE)[0] if len(packed) > HEAD_SIZE else -1
            yield ActiveProducer(
                producer_id, epoch, last_sequence, timestamp_ms, coordinator_epoch, max(begin, NO_BEGIN)
            )

    def encode(self) -> bytes:
        """Encode the state as the contents of a snapshot file."""
        body = bytearray(_SNAPSHOT_HEADER.size)
        count = 0
        for producer_id, packed in self._packed.items():
            epoch, coordinator_epoch, begin, newest_ms = read_head(packed)
            newest, *older = batches_of(packed) if len(packed) > HEAD_SIZE else (NO_BATCH,)
            for batch in reversed(older):
                body += _SNAPSHOT_ENTRY.pack(producer_id, epoch, *batch, -1, -1)
                count += 1
            sequence, offset, delta, _ = newest
            begun = max(begin, NO_BEGIN)
            body += _SNAPSHOT_ENTRY.pack(
                producer_id, epoch, sequence, offset, delta, newest_ms, coordinator_epoch, begun
            )
            count += 1
        _SNAPSHOT_HEADER.pack_into(body, 0, _SNAPSHOT_VERSION, 0, count)
        body[2:_CRC_END] = crc32c(memoryview(body)[_CRC_END:]).to_bytes(4, "big")
        return bytes(body)

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """Decode the contents of a snapshot file. Raises `DamagedSnapshot`."""
        if len(data) < _SNAPSHOT_HEADER.size:
            raise DamagedSnapshot(f"the snapshot has only {len(data)} bytes, too few for its header")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise DamagedSnapshot(f"the snapshot has the unknown version {version}")
        if crc != crc32c(memoryview(data)[_CRC_END:]):
            raise DamagedSnapshot("the snapshot's checksum is wrong")
        if count < 0 or len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise DamagedSnapshot(
                f"the snapshot claims {count} entries, which do not fit its {len(data)} bytes"
            )
        state = cls()
        packed = state._packed
        begun: dict[int, int] = {}
        for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEADER.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = fields
            known = packed.get(producer_id)
            batches = b""
            if offset >= 0:
                batches = BATCH.pack(sequence, offset, delta, timestamp)
                if known is not None and read_head(known)[0] == epoch:
                    batches += older_batches(known, sequence, offset, delta, timestamp)
            begin = max(txn_first, NO_BEGIN)
            packed[producer_id] = HEAD.pack(epoch, coordinator_epoch, begin, timestamp) + batches
            begun[producer_id] = begin
        by_offset = ((begin, producer_id) for producer_id, begin in begun.items() if begin >= 0)
        state.ongoing.update(sorted(by_offset))
        state.first_ongoing = next(iter(state.ongoing), NO_OFFSET)
        return state


def has_open_transaction(snapshot: bytes) -> bool:
    """True if a snapshot file has an open transaction, or cannot be read."""
    entries = memoryview(snapshot)[_SNAPSHOT_HEADER.size :]
    if len(entries) % _SNAPSHOT_ENTRY.size:
        return True
    return any(fields[-1] >= 0 for fields in _SNAPSHOT_ENTRY.iter_unpack(entries))


def _old_epoch(producer_id: int, epoch: int, known_epoch: int) -> KafkaError:
    comparison = "smaller than" if epoch < known_epoch else "not above"
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch of producer {producer_id} is {epoch}, which is {comparison} the last seen epoch {known_epoch}",
    )


def _not_transactional(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"Expected transactional write from producer {producer_id}"
    )
