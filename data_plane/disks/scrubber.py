"""The tasks that search a broker's logs for silently damaged bytes: each log is read once per
`odradek.scrub.interval.ms`, with progress in a checkpoint. PORTED.

Theory of operation
-------------------
A disk may return other bytes than were written to it. Readers check only the bytes that they ask for
(`odradek.data_plane.replication.rotten_replicas`), and all other bytes stay unchecked. So each disk has a
task that reads all of its logs, one after the other, past the page cache
(`odradek.data_plane.log.directory.scrub`).

* **Slow on purpose.** The reading rate is computed from the bytes in the logs and the interval, so that a
  round takes most of the interval. The rate is at least `BYTES_PER_SECOND_MIN`.
* **A round survives a restart.** A checkpoint in the directory, at most a minute old, names the last log that
  the round has finished.
* **Damage** that a scrub finds is handled like damage that a reader finds. The replica is replaced if other
  replicas are in sync; otherwise it stays, and the damage is reported. Damage does not count if a truncation
  or deletion has removed the bytes meanwhile.
* A disk that is hung, offline or closing is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

import attrs

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.directory.scrub import CHUNK_BYTES, SegmentScrub, segment_scrub
from odradek.data_plane.log.log_config import LONG_MAX
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.rot import Rot
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError, DiskRefused, FileMissing, TaskGroup
from odradek.serving.disk_troubles import Trouble
from odradek.wire.topic_partition import TopicPartition

CHECKPOINT_FILE = "odradek-scrub-checkpoint"
CHECKPOINT_SECONDS = 60.0
BYTES_PER_SECOND_MIN = 1 << 20
FIRST_ROUND_SECONDS = 3600.0
"""The time in seconds from the start to the first round, in a directory without a checkpoint. Soon after a
start, other reads matter more.
"""
_HASTE = 1.25
"""The factor by which the scrubber reads faster than the interval demands. With this factor, a round takes
four fifths of the interval.
"""
_LOOK_SECONDS = 10.0


@attrs.define
class ScrubState:
    """Progress and findings of the scrub in one directory. Times are wall-clock times in milliseconds."""

    began_ms: int = -1
    """The time at which the current round began; -1 between rounds."""
    ended_ms: int = -1
    """The time at which the last complete round ended; -1 if there was none."""
    after: TopicPartition | None = None
    """The last log that the current round has finished."""
    bytes_read: int = 0
    """The number of bytes read since the process started."""
    logs_done: int = 0
    """The number of logs of this round that were read since the process started."""
    rotten: int = 0
    """The number of rotten logs found since the process started."""

    def text(self) -> bytes:
        """Encode the checkpoint as JSON."""
        after = None if self.after is None else list(self.after)
        return json.dumps({"began_ms": self.began_ms, "ended_ms": self.ended_ms, "after": after}).encode()

    def load(self, text: bytes) -> None:
        """Load a checkpoint. If it is malformed, it is ignored, and a new round begins."""
        try:
            stored = json.loads(text)
            began_ms, ended_ms, after = int(stored["began_ms"]), int(stored["ended_ms"]), stored["after"]
            read_up_to = None if after is None else TopicPartition(str(after[0]), int(after[1]))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
            return
        if max(abs(began_ms), abs(ended_ms)) > LONG_MAX:
            return
        self.began_ms, self.ended_ms, self.after = began_ms, ended_ms, read_up_to


class RotSink(Protocol):
    """The receiver of damage that a scrub has found."""

    def note_rot(self, partition: Partition, rot: Rot) -> None:
        """Called when bytes of this replica differ from the bytes that were written."""


class ScrubHost(BrokerHost, Protocol):
    """The interface of the broker that a scrubber uses."""

    @property
    def log_dirs(self) -> Sequence[LogDir]: ...

    @property
    def hosted(self) -> HostedTopics: ...

    @property
    def tasks(self) -> TaskGroup: ...


class Scrubber:
    """Scrubs all directories of one broker."""

    def __init__(self, broker: ScrubHost, sink: RotSink, interval_ms: int) -> None:
        """Take the broker, the receiver of damage, and the interval in milliseconds. An interval of 0
        disables the scrub.
        """
        self._broker = broker
        self._sink = sink
        self._interval_ms = interval_ms
        self._is_stopped = False
        self.states = {log_dir.path: ScrubState() for log_dir in broker.log_dirs}

    def run(self) -> None:
        """Start one scrub task for each directory."""
        if self._interval_ms > 0:
            for log_dir in self._broker.log_dirs:
                self._broker.tasks.start_soon(self._run_directory, log_dir)

    def stop(self) -> None:
        """End all scrubs, because the directories are about to be closed."""
        self._is_stopped = True

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return figures by directory. `progress` is the finished share of the logs in the current round,
        from 0 to 1.
        """
        return {log_dir.path: self._figures(log_dir) for log_dir in self._broker.log_dirs}

    def _figures(self, log_dir: LogDir) -> dict[str, float]:
        state = self.states[log_dir.path]
        progress = float(state.ended_ms >= 0)
        if state.began_ms >= 0:
            after = state.after
            done = 0 if after is None else sum(key <= after for key in log_dir.logs)
            progress = done / max(1, len(log_dir.logs))
        return {
            "progress": progress,
            "ended_ms": state.ended_ms,
            "bytes": state.bytes_read,
            "rotten": state.rotten,
        }

    # -- a directory

    def _is_over(self, log_dir: LogDir) -> bool:
        return self._is_stopped or not log_dir.is_served

    async def _rest(self, log_dir: LogDir, until: float) -> None:
        """Sleep until `until` (monotonic seconds), or until the scrub is stopped."""
        clock = self._broker.clock
        while not self._is_over(log_dir) and (now := clock.monotonic()) < until:
            await clock.sleep_until(min(until, now + _LOOK_SECONDS))

    async def _run_directory(self, log_dir: LogDir) -> None:
        clock, state = self._broker.clock, self.states[log_dir.path]
        try:
            state.load(await log_dir.workers.run(log_dir.directory.read_bytes, CHECKPOINT_FILE))
        except FileMissing:
            state.ended_ms = -1
        except DiskError as error:
            log_dir.disk_failed_unless_refused(error)
        interval_seconds = self._interval_ms / 1000
        if state.began_ms < 0 and state.ended_ms < 0:
            await self._rest(log_dir, clock.monotonic() + min(interval_seconds, FIRST_ROUND_SECONDS))
        while not self._is_over(log_dir):
            if state.began_ms < 0:
                # `max` limits the wait to one interval, even if the wall clock was set back.
                since_ms = max(0, clock.wall_ms() - state.ended_ms)
                if state.ended_ms >= 0 and since_ms < self._interval_ms:
                    await self._rest(log_dir, clock.monotonic() + (self._interval_ms - since_ms) / 1000)
                    if self._is_over(log_dir):
                        return
                state.began_ms, state.after = clock.wall_ms(), None
            await self._round(log_dir, state)

    async def _round(self, log_dir: LogDir, state: ScrubState) -> None:
        """Read every log that the current round has not read yet."""
        clock = self._broker.clock
        state.logs_done = 0
        saved_at = clock.monotonic()
        for key in sorted(log_dir.logs):
            if state.after is not None and key <= state.after:
                continue
            log = log_dir.logs.get(key)
            if log is not None:
                await self._scrub_log(log_dir, log, state)
            if self._is_over(log_dir):
                return
            state.after = key
            state.logs_done += 1
            if clock.monotonic() >= saved_at + CHECKPOINT_SECONDS:
                saved_at = clock.monotonic()
                await self._store(log_dir, state)
        state.began_ms, state.ended_ms, state.after = -1, clock.wall_ms(), None
        self._broker.log.info(
            "scrub.ended",
            directory=log_dir.path,
            logs=state.logs_done,
            rotten=state.rotten,
            bytes=state.bytes_read,
        )
        await self._store(log_dir, state)

    async def _store(self, log_dir: LogDir, state: ScrubState) -> None:
        try:
            await log_dir.workers.run(log_dir.directory.write_atomic, CHECKPOINT_FILE, state.text())
        except DiskError as error:
            log_dir.disk_failed_unless_refused(error)

    def _bytes_per_second(self, log_dir: LogDir) -> float:
        there = sum(log.size_bytes for log in log_dir.logs.values())
        return max(BYTES_PER_SECOND_MIN, _HASTE * there * 1000 / self._interval_ms)

    async def _scrub_log(self, log_dir: LogDir, log: PartitionLog, state: ScrubState) -> None:
        offset = 0
        while not self._is_over(log_dir) and not log.is_closed:
            if log.offline or log_dir.trouble is Trouble.HUNG:
                await self._rest(log_dir, self._broker.clock.monotonic() + _LOOK_SECONDS)
                continue
            try:
                piece = segment_scrub(log, offset)
            except DiskError as error:
                log.home.failed(error)
                return
            if piece is None:
                return
            offset = piece.base_offset + 1
            truncations = log.durability.truncations
            try:
                rot = await self._scrub_segment(log_dir, piece, state)
            except (FileMissing, DiskRefused):
                # Skip this segment. If it was removed, it needs no check. If the process was short of file
                # descriptors, the next round reads it.
                continue
            except DiskError as error:
                log.home.failed(error)
                return
            if rot is not None and truncations == log.durability.truncations and not log.is_closed:
                self._report(log, rot, state)
                return

    async def _scrub_segment(self, log_dir: LogDir, piece: SegmentScrub, state: ScrubState) -> Rot | None:
        """Read one segment, at the rate that follows from the interval. Returns the first damage, or None.
        Raises `DiskError`.
        """
        clock, workers = self._broker.clock, log_dir.workers
        buffer = bytearray(min(CHUNK_BYTES, max(piece.end, 1)))
        rate = self._bytes_per_second(log_dir)
        try:
            while not piece.is_done and not self._is_over(log_dir):
                begin, began_at = piece.position, clock.monotonic()
                rot = await workers.run(piece.check_chunk, buffer)
                state.bytes_read += piece.position - begin
                if rot is not None:
                    return rot
                await self._rest(log_dir, began_at + (piece.position - begin) / rate)
        finally:
            piece.close()
        return None

    def _report(self, log: PartitionLog, rot: Rot, state: ScrubState) -> None:
        partition = self._broker.hosted.partition(log.topic, log.partition)
        if partition is not None and partition.log is log:
            state.rotten += 1
            self._sink.note_rot(partition, rot)
