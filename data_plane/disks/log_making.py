"""Makes the logs of many new replicas without blocking the event loop.

Theory of operation
-------------------
Making a log means making a directory and two files. This takes a fraction of a millisecond on a quiet disk,
and several milliseconds on a busy one. When a change of the metadata is applied, the loop makes up to
`INLINE_LOGS_MAX` logs itself. The other logs of this change wait here, in the queue of their directory. The
task of the queue lets a worker make a few dozen logs at a time. After each such step, the broker reads the
newest metadata, finds the logs and hosts their replicas. Until then requests for these replicas get
NOT_LEADER_OR_FOLLOWER, which clients retry.

Rules
* A directory that hangs delays only its own queue.
* While a worker makes a log, the loop makes no log of the same name. If the topic is created again meanwhile,
  its new replica waits in a queue, too. That queue may be another directory's. Then two workers may make logs
  of the same name at the same time, each in its own directory. The older replica's log is removed again.
* If a replica is deleted or moved away while its log is being made, the log is removed again.
* If a worker could not make a log, the broker tries once more on the loop, and skips full directories. The
  result of this attempt is final.

PORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import attrs

from odradek.data_plane.disks.replica_placement import ReplicaPlacement
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.newest_image import NewestImage
from odradek.env.pausing import pause
from odradek.env.ports import DiskError, TaskGroup
from odradek.wire.topic_partition import TopicIdPartition, TopicPartition

__all__ = ["INLINE_LOGS_MAX", "LogMaker"]

INLINE_LOGS_MAX = 16
"""The most logs that one change of metadata may make on the event loop. To make so many takes 4 ms on a quiet
disk, and 50 ms on a busy disk.
"""
LOGS_PER_STEP = 64


@attrs.frozen
class _Wanted:
    """A log that a worker must make."""

    replica: TopicIdPartition
    topic: str
    config: LogConfig


class LogMaker:
    """Makes logs with one task per directory. After each step the task calls `hosted` with topics and
    partition numbers, so that the broker hosts these partitions.
    """

    def __init__(
        self,
        node_id: int,
        placement: ReplicaPlacement,
        tasks: TaskGroup,
        newest: NewestImage,
        *,
        config_for: Callable[[str], LogConfig],
        hosted: Callable[[dict[str, tuple[int, ...]]], None],
    ) -> None:
        self._node_id = node_id
        self._placement = placement
        self._tasks = tasks
        self._newest = newest
        self._config_for = config_for
        self._hosted = hosted
        self._waiting: dict[TopicIdPartition, bool] = {}
        """Replicas that wait for their log. The value is true for a new replica."""
        self._queues: dict[str, dict[TopicIdPartition, None]] = {}
        """The replicas of `_waiting`, by the path of the directory for their log. One task works on each
        directory.
        """
        self._making: dict[str, dict[TopicPartition, None]] = {}
        """The partitions whose logs workers are making now, by the path of their directory."""
        self._hosting: dict[TopicIdPartition, bool] = {}
        """The replicas that the broker is asked to host now. The value is true for a new replica."""
        self._inline_left = INLINE_LOGS_MAX
        self._is_stopped = False

    def __contains__(self, replica: object) -> bool:
        return replica in self._waiting

    def begin_change(self) -> None:
        """Begin a new change of metadata, which may again make `INLINE_LOGS_MAX` logs on the loop."""
        self._inline_left = INLINE_LOGS_MAX

    def may_make_now(self, topic: str, index: int) -> bool:
        """True if the caller may make this log now, on the event loop. The log then counts toward
        `INLINE_LOGS_MAX`.
        """
        name = TopicPartition(topic, index)
        if self._inline_left <= 0 or any(name in names for names in self._making.values()):
            return False
        self._inline_left -= 1
        return True

    def make_later(self, replica: TopicIdPartition, topic: str, assigned: bytes, *, is_new: bool) -> None:
        """Put the log of a replica in the queue of its directory. Raises the errors of
        `ReplicaPlacement.candidates`.
        """
        if replica in self._waiting or self._is_stopped:
            return
        log_dir = self._placement.candidates(topic, replica.partition, assigned, is_new=is_new)[0]
        self._waiting[replica] = is_new
        log_dir.logs_being_made += 1
        queue = self._queues.get(log_dir.path)
        if queue is None:
            queue = self._queues[log_dir.path] = {}
            self._tasks.start_soon(self._work_off, log_dir, queue)
        queue[replica] = None

    def is_new(self, replica: TopicIdPartition) -> bool:
        """True if the replica's log waits in a queue or has just been made, and this process has seen the
        replica's creation.
        """
        return self._hosting.get(replica, False) or self._waiting.get(replica, False)

    def stop(self) -> None:
        """Stop making logs, because the directories are about to be closed."""
        self._is_stopped = True

    async def _work_off(self, log_dir: LogDir, queue: dict[TopicIdPartition, None]) -> None:
        while queue and not self._is_stopped:
            step = list(islice(queue, LOGS_PER_STEP))
            if log_dir.offline_reason is None:
                await self._make(log_dir, [each for each in map(self._wanted, step) if each is not None])
            log_dir.logs_being_made -= len(step)
            for replica in step:
                del queue[replica]
                self._hosting[replica] = self._waiting.pop(replica)
            self._host(step)
        del self._queues[log_dir.path]

    def _wanted(self, replica: TopicIdPartition) -> _Wanted | None:
        """Return a description of the log to make for a replica; None if the replica is gone, or already has
        its log.
        """
        topic = self._newest.image.topics_by_id.get(replica.topic_id)
        partition = None if topic is None else topic.partitions.get(replica.partition)
        if topic is None or partition is None or self._node_id not in partition.replicas:
            return None
        if any(log_dir.get(topic.name, replica.partition) is not None for log_dir in self._placement.online):
            return None
        return _Wanted(replica, topic.name, self._config_for(topic.name))

    async def _make(self, log_dir: LogDir, wanted: list[_Wanted]) -> None:
        assert log_dir.path not in self._making, "one task works on each directory"
        self._making[log_dir.path] = {
            TopicPartition(each.topic, each.replica.partition): None for each in wanted
        }

        def make() -> list[PartitionLog | DiskError]:
            made: list[PartitionLog | DiskError] = []
            now_ms = log_dir.context.clock.wall_ms()
            for each in wanted:
                pause()
                try:
                    made.append(
                        log_dir.make_log(
                            each.topic, each.replica.partition, each.replica.topic_id, each.config, now_ms
                        )
                    )
                except DiskError as error:
                    made.append(error)
            return made

        try:
            made = await log_dir.workers.run(make)
        finally:
            del self._making[log_dir.path]
        for each, found in zip(wanted, made, strict=True):
            if isinstance(found, DiskError):
                log_dir.disk_failed_unless_refused(found)
            elif self._is_stopped or log_dir.offline_reason is not None:
                found.abandon()
            else:
                log_dir.adopt(found)
                if not self._is_wanted(each.replica):
                    log_dir.delete_log(each.topic, each.replica.partition)

    def _is_wanted(self, replica: TopicIdPartition) -> bool:
        topic = self._newest.image.topics_by_id.get(replica.topic_id)
        partition = None if topic is None else topic.partitions.get(replica.partition)
        return partition is not None and self._node_id in partition.replicas

    def _host(self, step: list[TopicIdPartition]) -> None:
        """Let the broker host the replicas of this step. If a log is still missing, the broker itself tries
        to make it.
        """
        image = self._newest.image
        topics: dict[str, list[int]] = {}
        for topic_id, index in step:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None and index in topic.partitions:
                topics.setdefault(topic.name, []).append(index)
        if topics and not self._is_stopped:
            self._hosted({name: tuple(numbers) for name, numbers in topics.items()})
        for replica in step:
            del self._hosting[replica]

    def statistics(self) -> dict[str, int]:
        """Return figures about waiting logs, for metrics."""
        return {"logs_to_make": len(self._waiting)}
