"""Opens the logs of one directory at a start, in workers, and recovers them unless the last shutdown was clean. PORTED.

`-delete` directories, whose removal a restart has interrupted, are returned to the caller; `-stray` ones are logged
for the operator. A directory without a partition's name is left alone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from odradek.data_plane.log.directory.log_dir_background import UpkeepContext
from odradek.data_plane.log.directory.offset_checkpoints import OffsetCheckpoints
from odradek.data_plane.log.directory.watched_workers import WatchedWorkers
from odradek.data_plane.log.loading import (
    LoadingStopped,
    LoadOptions,
    UnreadableId,
    open_partition_log,
)
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import LogOwner
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import NEVER_CLEANED
from odradek.data_plane.log.segments.scan import RECOVERY_CHUNK_BYTES
from odradek.env.ports import Dir, ResourcesShort
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "DELETE_SUFFIX",
    "FUTURE_SUFFIX",
    "METADATA_TOPIC",
    "STRAY_SUFFIX",
    "LogLoader",
    "parse_partition_name",
]

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
METADATA_TOPIC = "__cluster_metadata"
_WAY_OUT = "write the file again with the two lines `version: 0` and `topic_id: ID`; or, if its records are not needed, move the directory away. Then restart the node"
_LOGS_PER_LOAD = 32
_LOAD_RETRY_SECONDS = 1.0
_turn = threading.Lock()
"""The lock for opening logs. Only one worker of the process opens logs at a time. Several workers would only
wait for one another, since one thread at a time runs Python.
"""
_TURN_WAIT_SECONDS_MAX = 0.03
"""The longest time in seconds that a worker waits for the lock; then it continues without the lock. The
worker that holds the lock for so long waits for a device or recovers a long log.
"""
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})")


def parse_partition_name(name: str) -> TopicPartition | None:
    """Parse topic and partition from the name of a partition's directory; returns None for any other name."""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX)):
        return None
    match = _PARTITION_NAME.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match is not None else None


@contextmanager
def _one_after_the_other() -> Iterator[None]:
    """Hold the lock for opening logs in the `with` block. Continues without it if another worker has held it
    for too long.
    """
    is_ours = _turn.acquire(timeout=_TURN_WAIT_SECONDS_MAX)
    try:
        yield
    finally:
        if is_ours:
            _turn.release()


@attrs.define(eq=False)
class LogLoader:
    """Opens all logs of one directory; `owner` becomes their owner."""

    directory: Dir
    context: UpkeepContext
    workers: WatchedWorkers
    checkpoints: OffsetCheckpoints
    owner: LogOwner
    config_for: Callable[[str], LogConfig]
    is_clean: bool
    """True if the last shutdown was clean."""
    is_stopping: bool = False
    unreadable: dict[TopicPartition, str] = attrs.field(factory=dict)
    """Partitions whose logs are left untouched, because their topic id cannot be read. The value is the name
    of the file that should contain the id.
    """

    async def load(self, logs: dict[TopicPartition, PartitionLog], deleted: Callable[[str], None]) -> None:
        """Open every log and put it into `logs`. `deleted` is called with the name of each directory that is
        to be removed.

        Raises `LoadingStopped`, `DiskError`.
        """
        run = self.workers.run_long
        partitions = []
        for name in await run(self.directory.list_directories):
            key = parse_partition_name(name)
            if key is not None and key.topic != METADATA_TOPIC:
                partitions.append((name, key))
            elif name.endswith(DELETE_SUFFIX):
                deleted(name)
            elif name.endswith(STRAY_SUFFIX):
                self.context.log.warning("log_dir.stray", directory=self.directory.path, name=name)
        buffer = bytearray(0 if self.is_clean else RECOVERY_CHUNK_BYTES)
        for at in range(0, len(partitions), _LOGS_PER_LOAD):
            for log in await self._load_patiently(partitions[at : at + _LOGS_PER_LOAD], buffer):
                logs[log.home.key] = log
        for key, file in self.unreadable.items():
            self.context.log.error(
                "log.id_unreadable", topic=key.topic, partition=key.partition, file=file, way_out=_WAY_OUT
            )
        if self.checkpoints.say_too_much(logs):
            await run(self.checkpoints.lower)

    async def _load_patiently(
        self, partitions: list[tuple[str, TopicPartition]], buffer: bytearray
    ) -> list[PartitionLog]:
        """Open the logs of these partitions. While the process is out of descriptors or memory, try again
        every second.
        """
        clock, path = self.context.clock, self.directory.path
        is_logged = False
        while True:
            try:
                return await self.workers.run_long(self._load_some, partitions, buffer)
            except ResourcesShort as error:
                if not is_logged:
                    self.context.log.error("log_dir.load_waits", directory=path, reason=str(error))
                is_logged = True
                await clock.sleep_until(clock.monotonic() + _LOAD_RETRY_SECONDS)

    def _load_some(
        self, partitions: list[tuple[str, TopicPartition]], buffer: bytearray
    ) -> list[PartitionLog]:
        logs: list[PartitionLog] = []
        try:
            with _one_after_the_other():
                for name, key in partitions:
                    if self.is_stopping:
                        raise LoadingStopped
                    log = self._load_one(name, key, buffer)
                    if log is not None:
                        logs.append(log)
        except ResourcesShort:
            for log in logs:
                log.abandon()
            raise
        return logs

    def _load_one(self, name: str, key: TopicPartition, buffer: bytearray) -> PartitionLog | None:
        """Open the log of one partition. Returns None if its topic id cannot be read."""
        context, known = self.context, self.checkpoints
        options = LoadOptions(
            is_clean=self.is_clean,
            recovery_point=known.recovery_points.get(key, 0),
            is_known=key in known.recovery_points or key in known.first_dirty,
            log_start_offset=known.starts.get(key, -1),
            first_dirty_offset=known.first_dirty.get(key, NEVER_CLEANED),
            high_watermark=known.high_watermarks.get(key, -1),
            # The file with the topic id is synced before any record is synced. So a recovery point above 0
            # means that the id must be readable. With nothing synced, a loss of power may have destroyed the
            # file.
            must_know_id=self.is_clean or known.recovery_points.get(key, 0) > 0,
            now_ms=context.clock.wall_ms(),
            random=context.random,
            log=context.log,
            buffer=buffer or None,
            is_stopping=lambda: self.is_stopping,
        )
        directory = self.directory.subdir(name)
        try:
            log = open_partition_log(directory, *key, self.config_for(key.topic), self.owner, options)
        except UnreadableId as error:
            self.unreadable[key] = error.file
            return None
        # Close the descriptor, because a process may have fewer descriptors than logs. The first append or read
        # opens the file again.
        log.active.file.rest()
        return log
