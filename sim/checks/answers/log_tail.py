"""Reader of the batches that were appended to a log after a given moment, from the bytes of its segments. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.records import records
from odradek.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from odradek.wire.metadata_frames import decode_coordinator_key, decode_coordinator_value
from sim.machine.disk_files import SimFile

__all__ = ["DECOMPRESSED_BYTES_MAX", "Tail", "transaction_states"]

DECOMPRESSED_BYTES_MAX = 1 << 20


@attrs.frozen(eq=False)
class Tail:
    """The end of a log at one moment."""

    log: PartitionLog
    truncations: int
    file: SimFile
    position: int

    @classmethod
    def of(cls, log: PartitionLog) -> Tail | None:
        """Record the present end of the log; None if the log is closed or offline."""
        if log.offline or log.is_closed:
            return None
        file = log.segments[-1].file
        assert isinstance(file, SimFile)
        return cls(log, log.durability.truncations, file, len(file.content))

    def appended(self) -> list[tuple[BatchHeader, bytes]] | None:
        """List (header, bytes) of each batch after the recorded end. None if the log was truncated, closed, cleaned or
        damaged since.
        """
        log = self.log
        if log.offline or log.is_closed or log.durability.truncations != self.truncations:
            return None
        files = [segment.file for segment in log.segments]
        if self.file not in files:
            return None
        try:
            return list(self._batches(files[files.index(self.file) :]))
        except CorruptBatch:
            return None

    def _batches(self, files: Sequence[object]) -> Iterator[tuple[BatchHeader, bytes]]:
        for file in files:
            assert isinstance(file, SimFile)
            content = bytes(file.content[self.position if file is self.file else 0 :])
            for position, header in iter_batches(content):
                yield header, content[position : position + header.size]


def transaction_states(
    batches: Sequence[tuple[BatchHeader, bytes]],
    transactional_id: str | None = None,
) -> Iterator[tuple[int, str, TransactionLogValue]]:
    """Yield (offset, transactional id, state) for each record of a transaction coordinator, without tombstones.

    With `transactional_id`, only the states of that id are decoded. Raises `KafkaError`, `ProtocolError` and
    `CorruptBatch` for bytes that cannot be read.
    """
    for header, batch in batches:
        if header.is_control:
            continue
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if record.key is None or record.value is None:
                continue
            key = decode_coordinator_key(record.key, "transaction")
            if not isinstance(key, TransactionLogKey) or transactional_id not in (None, key.transactional_id):
                continue
            value = decode_coordinator_value(key, record.value)
            if isinstance(value, TransactionLogValue):
                yield record.offset, key.transactional_id, value
