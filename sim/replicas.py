"""Comparison of all replicas' logs, which are read from the disks without the nodes' help. PURE.

Three rules:

* Replicas of a partition have the same bytes up to the high watermark, and completely once nothing is written.
* Two metadata logs with an entry of the same offset and epoch are equal up to that entry (Raft, 5.3: log matching).
* Records that were seen committed in the metadata log remain there, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import check_crc, iter_batches
from sim.history import SafetyViolation

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log\Z")


@attrs.frozen
class StoredBatch:
    """One batch that is stored on a disk."""

    base_offset: int
    next_offset: int
    epoch: int
    data: bytes


def read_log(files: Mapping[str, bytes]) -> list[StoredBatch]:
    """Read the complete batches of a log's segments in order, up to the first incomplete or damaged batch."""
    found: list[StoredBatch] = []
    for name in sorted(files):
        if not _SEGMENT_NAME.match(name):
            continue
        data = files[name]
        try:
            for position, header in iter_batches(data):
                if not check_crc(data, position, header.size):
                    return found
                batch = data[position : position + header.size]
                found.append(
                    StoredBatch(header.base_offset, header.next_offset, header.partition_leader_epoch, batch)
                )
        except CorruptBatch:
            return found
    return found


def start_of(log: Sequence[StoredBatch]) -> int:
    return log[0].base_offset if log else 0


def end_of(log: Sequence[StoredBatch]) -> int:
    return log[-1].next_offset if log else 0


def first_difference(one: Sequence[StoredBatch], other: Sequence[StoredBatch]) -> int | None:
    """Return the first offset at which two logs differ, in the range where both have records; None if they agree
    there.
    """
    there = {batch.base_offset: batch for batch in other}
    start = max(start_of(one), start_of(other))
    end = min(end_of(one), end_of(other))
    for batch in one:
        if start <= batch.base_offset < end and there.get(batch.base_offset) != batch:
            return batch.base_offset
    return None


def check_replicas_equal(name: str, logs: Mapping[str, Sequence[StoredBatch]], end_offset: int) -> None:
    """Check that all replicas reach `end_offset`, and agree below it. Raises `SafetyViolation`."""
    sources = list(logs)
    for who in sources:
        if end_of(logs[who]) < end_offset:
            raise SafetyViolation(
                f"{name}: the replica of {who} ends at {end_of(logs[who])}, below {end_offset}"
            )
    for who in sources[1:]:
        at = first_difference(logs[sources[0]], logs[who])
        if at is not None and at < end_offset:
            raise SafetyViolation(f"{name}: the replicas of {sources[0]} and {who} differ at offset {at}")


def check_log_matching(logs: Mapping[str, Sequence[StoredBatch]]) -> None:
    """Check metadata logs: if two agree on an entry, they agree on all entries before it. Raises `SafetyViolation`."""
    sources = list(logs)
    for index, one in enumerate(sources):
        for other in sources[index + 1 :]:
            at = first_difference(logs[one], logs[other])
            if at is None:
                continue
            epochs = {batch.base_offset: batch.epoch for batch in logs[one]}
            for batch in logs[other]:
                if batch.base_offset >= at and epochs.get(batch.base_offset) == batch.epoch:
                    raise SafetyViolation(
                        f"metadata log: {one} and {other} differ at offset {at}, "
                        f"but both have {batch.base_offset} of epoch {batch.epoch}"
                    )


@attrs.define
class Committed:
    """The batches that were seen committed in the metadata log, by base offset."""

    batches: dict[int, StoredBatch] = attrs.Factory(dict)
    high_watermark: int = 0

    def see(self, who: str, log: Sequence[StoredBatch], high_watermark: int) -> None:
        """Record that `who` leads the quorum, and that all batches of its log below `high_watermark` are committed.
        Raises `SafetyViolation`.
        """
        for batch in log:
            if batch.next_offset > high_watermark:
                break
            if self.batches.setdefault(batch.base_offset, batch) != batch:
                raise SafetyViolation(
                    f"metadata log: at {batch.base_offset} {who} has epoch {batch.epoch}, but epoch "
                    f"{self.batches[batch.base_offset].epoch} was committed there"
                )
        self.high_watermark = max(self.high_watermark, high_watermark)

    def check(self, who: str, log: Sequence[StoredBatch], snapshot_end: int = 0) -> None:
        """Check that this log has all committed batches, except those before its start or its snapshot. Raises
        `SafetyViolation`.
        """
        there = {batch.base_offset: batch for batch in log}
        start = start_of(log) if log else snapshot_end
        for base_offset, batch in self.batches.items():
            if base_offset >= start and there.get(base_offset) != batch:
                raise SafetyViolation(
                    f"metadata log: {who} has lost what was committed at {base_offset}, epoch {batch.epoch}"
                )
