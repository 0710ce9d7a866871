"""Makes the logs of many new replicas without holding up the loop.

Theory of operation
-------------------
Making a log is a directory and two files: a fraction of a millisecond on a quiet disk, several on a busy one. A few
are made at once, when the metadata that asks for them is applied. What goes beyond `INLINE_LOGS_MAX` of one change
waits here: a task makes a few dozen at a time in a worker of their directory, and then has the broker look at the
metadata again (as it is by then), which finds the logs and hosts them. Until then the replica is answered for as one
whose broker has not heard of it: NOT_LEADER_OR_FOLLOWER, which clients retry.

Rules
* While a worker makes a log of some name, nobody else does: what asks for that name waits here as well.
* What is not wanted any more when it is made (deleted, or moved away meanwhile) is removed again.
* What a worker could not make is tried once more on the loop by the placement, which passes over full directories and
  has the last word.

PORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from data_plane.log.config import LogConfig
from data_plane.log.log_dir import LogDir
from data_plane.log.partition_log import PartitionLog
from data_plane.replica_placement import DirectoryAway, ReplicaPlacement
from odradek.env.ports import DiskError, TaskGroup

if TYPE_CHECKING:
    from metadata_quorum.image import MetadataImage

__all__ = ["INLINE_LOGS_MAX", "LogMaker"]

Replica: TypeAlias = "tuple[bytes, int]"
"""Topic id and partition."""

INLINE_LOGS_MAX = 32
"""Logs that one change of metadata may make on the loop: some 8 ms of a quiet disk."""
LOGS_PER_STEP = 64


@attrs.frozen
class _Wanted:
    """A log that a worker is to make."""

    replica: Replica
    topic: str
    config: LogConfig


class LogMaker:
    """See the module. `hosted(topics)` has the broker look at these partitions again."""

    def __init__(
        self,
        node_id: int,
        placement: ReplicaPlacement,
        tasks: TaskGroup,
        *,
        image: Callable[[], MetadataImage],
        config_for: Callable[[str], LogConfig],
        hosted: Callable[[dict[str, tuple[int, ...]]], None],
    ) -> None:
        self._node_id = node_id
        self._placement = placement
        self._tasks = tasks
        self._image = image
        self._config_for = config_for
        self._hosted = hosted
        self._waiting: dict[Replica, bool] = {}
        """Replicas without a log; whether they are new ones."""
        self._making: dict[tuple[str, int], None] = {}
        """Names that a worker is making."""
        self._looked_at: dict[Replica, bool] = {}
        """What the broker is to host now; as in `_waiting`."""
        self._inline_left = INLINE_LOGS_MAX
        self._is_running = False
        self._is_stopped = False

    def __contains__(self, replica: object) -> bool:
        return replica in self._waiting

    def begin_change(self) -> None:
        """Another change of metadata is being applied."""
        self._inline_left = INLINE_LOGS_MAX

    def may_make_now(self, topic: str, index: int) -> bool:
        """Whether the log may be made on the loop, now. If so, it counts."""
        if self._inline_left <= 0 or (topic, index) in self._making:
            return False
        self._inline_left -= 1
        return True

    def make_later(self, replica: Replica, *, is_new: bool) -> None:
        """Have the log made as soon as its turn comes."""
        self._waiting[replica] = self._waiting.get(replica, False) or is_new
        if not self._is_running and not self._is_stopped:
            self._is_running = True
            self._tasks.start_soon(self._run)

    def is_new(self, replica: Replica) -> bool:
        """Whether this process has seen the replica come into being, of those that wait or have just waited."""
        return self._looked_at.get(replica, False) or self._waiting.get(replica, False)

    def stop(self) -> None:
        """Make no more: the directories are about to be closed."""
        self._is_stopped = True
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            for log_dir, wanted in self._plan():
                await self._make(log_dir, wanted)
            self._host()
        self._is_running = False

    def _plan(self) -> list[tuple[LogDir, list[_Wanted]]]:
        """What to make next, by directory."""
        image = self._image()
        looked_at = self._looked_at = {}
        steps: dict[str, tuple[LogDir, list[_Wanted]]] = {}
        for replica, is_new in self._waiting.items():
            if len(looked_at) == LOGS_PER_STEP:
                break
            looked_at[replica] = is_new
            topic_id, index = replica
            topic = image.topics_by_id.get(topic_id)
            partition = None if topic is None else topic.partitions.get(index)
            if topic is None or partition is None or self._node_id not in partition.replicas:
                continue
            assigned = partition.directory_of(self._node_id)
            if self._placement.find(topic.name, index, topic_id, assigned) is not None:
                continue
            try:
                candidates = self._placement.candidates(topic.name, index, assigned, is_new=is_new)
            except DirectoryAway:
                # The broker comes to the same end, and says so.
                continue
            if candidates and candidates[0].get(topic.name, index) is None:
                log_dir = candidates[0]
                log_dir.logs_being_made += 1
                wanted = _Wanted(replica, topic.name, self._config_for(topic.name))
                steps.setdefault(log_dir.path, (log_dir, []))[1].append(wanted)
        return list(steps.values())

    async def _make(self, log_dir: LogDir, wanted: list[_Wanted]) -> None:
        names = {(each.topic, each.replica[1]): None for each in wanted}
        self._making.update(names)

        def make() -> list[PartitionLog | DiskError]:
            made: list[PartitionLog | DiskError] = []
            for each in wanted:
                try:
                    made.append(log_dir.make_log(each.topic, each.replica[1], each.replica[0], each.config))
                except DiskError as error:
                    made.append(error)
            return made

        try:
            made = await log_dir.workers.run(make)
        finally:
            for name in names:
                del self._making[name]
            log_dir.logs_being_made -= len(wanted)
        for each, found in zip(wanted, made, strict=True):
            if isinstance(found, DiskError):
                log_dir.disk_failed_unless_full(found)
            elif self._is_stopped or log_dir.offline_reason is not None:
                found.abandon()
            else:
                log_dir.adopt(found)
                if not self._is_wanted(each.replica):
                    log_dir.delete_log(each.topic, each.replica[1])

    def _is_wanted(self, replica: Replica) -> bool:
        topic = self._image().topics_by_id.get(replica[0])
        partition = None if topic is None else topic.partitions.get(replica[1])
        return partition is not None and self._node_id in partition.replicas

    def _host(self) -> None:
        """Have the broker take what is there now; it makes on the loop what could not be made here."""
        image = self._image()
        topics: dict[str, list[int]] = {}
        for replica in self._looked_at:
            if self._waiting.pop(replica, None) is not None:
                topic = image.topics_by_id.get(replica[0])
                if topic is not None and replica[1] in topic.partitions:
                    topics.setdefault(topic.name, []).append(replica[1])
        if topics:
            self._hosted({name: tuple(numbers) for name, numbers in topics.items()})
        self._looked_at = {}

    def statistics(self) -> dict[str, int]:
        """Figures for metrics."""
        return {"logs_to_make": len(self._waiting)}
