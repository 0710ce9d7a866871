"""Target `logs`: a partition's directory with arbitrary bytes in its files, opened as after a crash or a clean
shutdown.

An input begins with a byte of flags and a recovery point. Then comes each file: the number of its name, its size in two
bytes, its content. With the flag `SEAL` the batches get valid checksums, so that changes of their headers get through.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import METADATA_FILE_NAME
from odradek.data_plane.log.partition_log import Origin, PartitionLog
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import KafkaError
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS
from tests.fuzz.sealing import seal_batches
from tests.fuzz.target import Input, Target
from tests.log.support import ROOT, append, append_verified, batch, content, new_disk, open_log

CLEAN, SEAL = 1, 2
BASES = (0, 4, 8)
"""The base offsets of the segments in an input."""
NAMES = (
    *(
        f"{base:020d}{suffix}"
        for base in BASES
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    ),
    EPOCHS_FILE_NAME,
    METADATA_FILE_NAME,
    f"{4:020d}.log.swap",
    f"{4:020d}.log.cleaned",
    f"{8:020d}.log.deleted",
)
CONFIG = LogConfig(index_interval_bytes=100)


def run(data: bytes) -> None:
    """Open the directory, use the log in all ways, then close it and open it again."""
    given = Input(data)
    flags, recovery_point = given.byte(), given.byte()
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    while not given.is_empty:
        name = NAMES[given.byte() % len(NAMES)]
        held = bytearray(given.take(given.short()))
        if flags & SEAL and ".log" in name:
            seal_batches(held)
        directory.write_atomic(name, bytes(held))
    is_clean = bool(flags & CLEAN)
    log = open_log(directory, CONFIG, clean=is_clean, recovery_point=recovery_point)
    log.check()
    if not is_clean:
        # Recovery does not read what lies below the recovery point.
        _use(log, is_trusted=recovery_point == 0)
    else:
        _use(log, is_trusted=False)
    end, start = log.log_end_offset, log.log_start_offset
    log.flush()
    log.close()
    again = open_log(disk.open_dir(ROOT), CONFIG, recovery_point=end, log_start_offset=start)
    again.check()
    assert again.log_end_offset == end, "a clean shutdown, and another end"
    again.close()


def _use(log: PartitionLog, *, is_trusted: bool) -> None:
    """Read, look up and write. If recovery has read the whole log (`is_trusted`), all its batches must be valid."""
    try:
        _read(log, is_trusted=is_trusted)
    except KafkaError:
        assert not is_trusted, "recovery has let a damaged batch stand"
    log.load_producers()
    for timestamp in (0, NOW_MS, 1 << 50):
        try:
            log.times().offset_for_timestamp(timestamp, upper_bound=log.log_end_offset)
            log.times().offset_of_max_timestamp(log.log_end_offset)
        except KafkaError:
            continue
    log.end_offset_for_epoch(3)
    before = log.log_end_offset
    result = append(log, batch(2), epoch=max(log.latest_epoch, 0))
    assert result.base_offset == before
    assert log.log_end_offset == before + 2
    found = log.read_bytes(before, 1 << 20, upper_bound=before + 2)
    assert [header.base_offset for _, header in iter_batches(found)] == [before]


def _read(log: PartitionLog, *, is_trusted: bool) -> None:
    """Read the whole log. It must consist of whole batches with ascending offsets."""
    found = content(log)
    expected = log.log_start_offset
    for _, header in iter_batches(found):
        assert header.last_offset >= expected or not is_trusted, "offsets that do not ascend"
        expected = header.next_offset
    assert not found or expected <= log.log_end_offset or not is_trusted
    log.aborted_transactions(log.log_start_offset, log.log_end_offset)


def encoded(disk: SimDisk, flags: int, recovery_point: int) -> bytes:
    """Encode the files of a log as an input."""
    parts = [bytes([flags, recovery_point])]
    for name, held in disk.peek(ROOT).items():
        if name in NAMES:
            parts.append(bytes([NAMES.index(name)]) + len(held).to_bytes(2, "big") + held)
    return b"".join(parts)


def seeds() -> Iterator[bytes]:
    """Return a closed log of three segments with an aborted transaction, and the same log as it was while open."""
    disk = new_disk()
    log = open_log(disk.open_dir(ROOT, create=True), CONFIG)
    for number, base in enumerate(BASES):
        if number:
            log.roll(NOW_MS)
        append(log, batch(1), epoch=base)
        append_verified(
            log, batch(1, producer_id=9, producer_epoch=0, base_sequence=number, is_transactional=True)
        )
        marker = build_marker(9, 0, 1, is_commit=base == 4, timestamp_ms=NOW_MS)
        append(log, marker, origin=Origin.COORDINATOR, epoch=base)
        append(log, batch(1, compression_type=4), epoch=base)
    log.advance_high_watermark(log.log_end_offset)
    yield encoded(disk, SEAL, 0)
    log.flush()
    log.close()
    for recovery_point in (0, 5, log.log_end_offset):
        for flags in (0, CLEAN, SEAL, CLEAN | SEAL):
            yield encoded(disk, flags, recovery_point)


TARGET = Target("logs", run, seeds)
