"""Helpers for tests of the log: batches, logs on a simulated disk, and ports that never wait."""

from __future__ import annotations

from random import Random
from typing import Any

import structlog
from structlog.testing import LogCapture

from odradek.data_plane.log.directory.checkpoints import decode_offsets
from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.log.loading import LoadOptions, open_partition_log
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import AppendResult, Origin, PartitionLog
from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.data_plane.log.retention import look_at_ages, needs_look
from odradek.data_plane.log.segments.walked_times import UNBOUNDED, WalkBudget
from odradek.env.ports import Dir
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.disk import SimDisk
from testkit.by_hand import NOW_MS, InlineWorkers, ManualClock, finish

TOPIC_ID = bytes(range(16))
DIRECTORY_ID = bytes(range(16, 32))
ROOT = "disk"


def batch(
    count: int = 1,
    *,
    value: bytes = b"v" * 20,
    timestamp: int = NOW_MS,
    step: int = 1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    **fields: Any,
) -> bytearray:
    """Make a batch of `count` records that are `step` milliseconds apart."""
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=leader_epoch, **fields)
    for at in range(count):
        builder.append(timestamp + at * step, b"k%d" % at, value)
    return builder.build()


def append(
    log: PartitionLog,
    data: bytearray,
    *,
    epoch: int = 0,
    now_ms: int = NOW_MS,
    origin: Origin = Origin.CLIENT,
    guard: VerificationGuard | None = None,
    transaction_version: int = 0,
) -> AppendResult:
    return log.append(memoryview(data), origin, epoch, now_ms, guard, transaction_version=transaction_version)


def append_verified(
    log: PartitionLog, data: bytearray, *, name: str = "mine", supports_epoch_bump: bool = False
) -> AppendResult:
    """Append a transactional batch as a leader does after the coordinator has verified this transactional id."""
    header = parse_header(data)
    log.load_producers()
    guard = log.producers.verify(
        header.producer_id,
        name,
        header.producer_epoch,
        header.base_sequence,
        supports_epoch_bump,
        0,
        log.config.verifies_transactions,
    )
    return append(log, data, guard=guard)


def fill(log: PartitionLog, batches: int, count: int = 1, **fields: Any) -> None:
    """Append equal batches, and commit all of them."""
    for _ in range(batches):
        append(log, batch(count, **fields))
    log.advance_high_watermark(log.log_end_offset)


def retain(log: PartitionLog, now_ms: int) -> int:
    """Apply retention as the upkeep of a directory does. Return the number of removed segments."""
    segments, config = log.segment_list, log.config
    if needs_look(log, segments, config, now_ms):
        assert look_at_ages(log, segments, config, now_ms, WalkBudget(UNBOUNDED))
    return log.delete_old_segments(now_ms)


def content(log: PartitionLog) -> bytes:
    """Return all bytes of the log from its start offset on."""
    parts = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 30, upper_bound=log.log_end_offset, min_one=True)
        if found.file is None:
            break
        parts.append(found.file.pread(found.count, found.position))
        found.release()
        offset = found.next_offset
    return b"".join(parts)


def open_log(
    directory: Dir,
    config: LogConfig | None = None,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    **options: Any,
) -> PartitionLog:
    """Open a log without the log directory around it."""
    load = LoadOptions(is_clean=clean, recovery_point=recovery_point, now_ms=NOW_MS, **options)
    return open_partition_log(directory, "t", 0, config or LogConfig(), None, load)


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(Random(seed), wall_ms=lambda: NOW_MS)


def new_log(config: LogConfig | None = None, disk: SimDisk | None = None) -> PartitionLog:
    """Make an empty log on its own disk."""
    disk = new_disk() if disk is None else disk
    return open_log(disk.open_dir(ROOT, create=True), config)


class Node:
    """A log directory on a simulated disk, with functions to start it, crash it and run its upkeep."""

    def __init__(self, config: LogConfig | None = None, disk: SimDisk | None = None) -> None:
        self.config = config or LogConfig()
        self.disk = new_disk() if disk is None else disk
        self.clock = ManualClock()
        self.offline: list[str] = []
        self.captured = LogCapture()
        directory = self.disk.open_dir(ROOT, create=True)
        directory.write_atomic(META_PROPERTIES, MetaProperties("c", 1, DIRECTORY_ID).encode())
        self.log_dir = self.start()

    def start(self, **context: Any) -> LogDir:
        """Open the directory and load all logs."""
        logger = structlog.wrap_logger(None, processors=[self.captured])
        fields: dict[str, Any] = {
            "clock": self.clock,
            "workers": InlineWorkers(),
            "random": Random(5),
            "log": logger,
            "on_offline": lambda log_dir, reason: self.offline.append(reason),
        }
        directory = self.disk.open_dir(ROOT)
        self.log_dir = LogDir.open(
            directory, LogDirContext(**{**fields, **context}), config_for=lambda topic: self.config
        )
        finish(self.log_dir.load())
        return self.log_dir

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        """Return the log, which is created if it is missing."""
        found = self.log_dir.get(topic, partition)
        return found or self.log_dir.create_log(topic, partition, TOPIC_ID, self.config)

    def look(self, milliseconds: int = 0) -> None:
        """Let time pass, then run the background work that is due."""
        self.clock.now_ms += milliseconds
        finish(self.log_dir.background.look(self.clock.now_ms))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log events of this name."""
        return [dict(entry) for entry in self.captured.entries if entry["event"] == name]


def offsets_in(node: Node, name: str) -> dict[tuple[str, int], int]:
    """Read the file of offsets `name` in the log directory."""
    return decode_offsets(node.disk.open_dir(ROOT).read_bytes(name))
