"""Readers of the records in a simulated partition's log, for the checks. PURE."""

from __future__ import annotations

import attrs

from odradek.data_plane.groups.records import decode_key
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.metadata_frames import CoordinatorLog, decode_coordinator_key, decode_coordinator_value
from odradek.wire.structure import Message
from sim.alone.replication_broker import BATCH_BYTES_MAX

__all__ = ["LoggedRecord", "decoded", "logged_records"]

NO_VALUE, SOME_VALUE = b"\x00", b"\x01"


@attrs.frozen
class LoggedRecord:
    """A record of a log, with its leader epoch."""

    key: bytes
    value: bytes | None
    next_offset: int
    """The offset after the last record of its batch."""
    leader_epoch: int

    @property
    def data(self) -> bytes:
        """The key and the value as one byte string, which `decoded` splits again."""
        value = NO_VALUE if self.value is None else SOME_VALUE + self.value
        return len(self.key).to_bytes(4, "big") + self.key + value


def logged_records(log: PartitionLog, start: int, end: int) -> dict[int, LoggedRecord]:
    """Read all records whose offsets are at least `start` and below `end`. Return them by offset."""
    found: dict[int, LoggedRecord] = {}
    offset = max(start, log.log_start_offset)
    while offset < end:
        data = log.read_bytes(offset, BATCH_BYTES_MAX, upper_bound=end, min_one=True)
        if not data:
            break
        for position, header in iter_batches(data):
            for record in records(data, position, decompressed_bytes_max=BATCH_BYTES_MAX):
                if start <= record.offset < end:
                    value = None if record.value is None else bytes(record.value)
                    key = bytes(record.key or b"")
                    found[record.offset] = LoggedRecord(
                        key, value, header.next_offset, header.partition_leader_epoch
                    )
            offset = header.next_offset
    return found


def decoded(data: bytes, kind: CoordinatorLog = "group") -> tuple[Message | None, Message | None]:
    """Decode a record of a coordinator of this kind into (key, value). The key is None if its kind is unknown, the value None for a
    tombstone.
    """
    size = int.from_bytes(data[:4], "big")
    raw_key, value = data[4 : 4 + size], data[4 + size :]
    key = decode_key(raw_key) if kind == "group" else decode_coordinator_key(raw_key, kind)
    if key is None or value[:1] == NO_VALUE:
        return key, None
    return key, decode_coordinator_value(key, value[1:])
