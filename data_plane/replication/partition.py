"""A partition as its broker sees it: the log, who leads it, and what waits for its high watermark.

The high watermark is the offset below which every in-sync replica has the log; consumers read up to it. It advances
only while the in-sync replicas number at least `effective_min_isr` (DESIGN: "the gate"), whatever the acks.
PURE: the log's files are reached only through its own methods.
"""

from __future__ import annotations

from collections.abc import Callable

from data_plane.log.config import LogConfig
from data_plane.log.partition_log import AppendResult, Origin, PartitionLog
from metadata_quorum.image import PartitionImage
from wire.errors import ErrorCode, KafkaError

NO_LEADER_EPOCH = -1
"""A request that does not say which epoch it knows; any other number is compared (KIP-320)."""


class Partition:
    """One replica of a partition on this broker. `image` is the controller's last word about it."""

    __slots__ = (
        "_waiting_for_sync",
        "_watchers",
        "advances_alone",
        "has_min_isr",
        "image",
        "is_leader",
        "leader_epoch",
        "log",
    )

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.image: PartitionImage | None = None
        self.is_leader = False
        self.leader_epoch = -1
        self.has_min_isr = True
        """Whether enough replicas are in sync for an acks=all write; kept, not derived, for the hot path."""
        self.advances_alone = False
        """Whether this replica is the only one in sync, so that an append moves the high watermark by itself."""
        self._watchers: list[Callable[[], None]] | None = None
        self._waiting_for_sync: list[Callable[[KafkaError | None], None]] | None = None

    def apply(self, image: PartitionImage, node_id: int) -> None:
        """Take the controller's word: leader, epoch, replicas. Watchers are woken, they may have to fail."""
        if image.leader_epoch < self.leader_epoch:
            raise AssertionError(
                f"{self.log.topic}-{self.log.partition}: leader epoch fell from "
                f"{self.leader_epoch} to {image.leader_epoch}"
            )
        self.image = image
        self.is_leader = image.leader == node_id
        self.leader_epoch = image.leader_epoch
        self._weigh_isr()
        if self.is_leader:
            self.log.assign_epoch(image.leader_epoch)
            self._raise_high_watermark()
        self.wake_watchers()

    def set_config(self, config: LogConfig) -> None:
        """Take the topic's new configuration; `min.insync.replicas` may open or close the gate."""
        self.log.config = config
        self._weigh_isr()
        if self.is_leader:
            self.advance_high_watermark()

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (Kafka's `effectiveMinIsr`)."""
        replicas = 1 if self.image is None else len(self.image.replicas)
        return min(self.log.config.min_insync_replicas, replicas)

    def _weigh_isr(self) -> None:
        if self.image is not None:
            self.has_min_isr = len(self.image.isr) >= self.effective_min_isr
            self.advances_alone = self.is_leader and len(self.image.isr) == 1

    def append_as_leader(self, batch: memoryview, now_ms: int) -> AppendResult:
        """Append one batch of a client. Raises `KafkaError`, `DiskError`; nothing is appended then."""
        result = self.log.append(batch, Origin.CLIENT, self.leader_epoch, now_ms)
        if self.advances_alone and self.has_min_isr:
            log = self.log
            log.advance_high_watermark(log.log_end_offset)
            if self._watchers:
                self.wake_watchers()
        return result

    def advance_high_watermark(self) -> None:
        """Catch up with the log's end, if the gate is open and nobody else is in sync."""
        if self._raise_high_watermark():
            self.wake_watchers()

    def _raise_high_watermark(self) -> bool:
        log = self.log
        if log.high_watermark < log.log_end_offset and self.advances_alone and self.has_min_isr:
            log.advance_high_watermark(log.log_end_offset)
            return True
        return False

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever the high watermark or the leadership changes, until `unwatch`."""
        if self._watchers is None:
            self._watchers = [watcher]
        else:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Forget the watcher; unknown ones are fine (it was woken and removed meanwhile)."""
        if self._watchers is not None and watcher in self._watchers:
            self._watchers.remove(watcher)
            if not self._watchers:
                self._watchers = None

    def wake_watchers(self) -> None:
        """Tell all watchers, in the order in which they came."""
        if self._watchers is not None:
            for watcher in list(self._watchers):
                watcher()

    def leader_error(self, current_leader_epoch: int) -> ErrorCode:
        """Why a request that names this leader epoch (-1: none) cannot be served here (KIP-320's fences)."""
        if current_leader_epoch != NO_LEADER_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def wait_for_sync(self, done: Callable[[KafkaError | None], None]) -> bool:
        """Queue for the next flush of this log. True for the first in the queue, who starts the flush."""
        if self._waiting_for_sync is None:
            self._waiting_for_sync = [done]
            return True
        self._waiting_for_sync.append(done)
        return False

    def take_sync_waiters(self) -> list[Callable[[KafkaError | None], None]]:
        """Those whom the flush that begins now will cover."""
        waiters, self._waiting_for_sync = self._waiting_for_sync or [], None
        return waiters
