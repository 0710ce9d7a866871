"""Finds the disk of a replica's log, or chooses one for a new log (fewest logs, enough room) and makes it.
Makes no log if the replica's disk may be offline.

Theory of operation
-------------------
The metadata log has the directory of each replica (KIP-858). A broker with several directories chooses one
when it makes the log, and reports it to the controller (`DirectoryAssignments`).

* **The rule for a new log.** Directories with less than half as much free space as the emptiest directory are
  tried last. Of the others, the directory with the fewest logs gets the new log (Kafka's rule). If several
  have equally few logs, the one with the most free space gets it. This spreads logs evenly over equal disks.
  A disk that has filled up gets no more logs while others have room, and a new empty disk is filled first. A
  disk that turns out to be full is skipped.
* **Nothing is made twice.** If a replica's directory is offline, or may be offline, requests for the replica
  get KAFKA_STORAGE_ERROR. The directory may be offline if three conditions hold together. The metadata names
  no directory, the replica existed before this process, and some directory is offline. If the broker made an
  empty log in this state, the records on the offline disk would be lost.
* If a replica's directory is no longer configured, and all configured directories are online, then its disk
  has been replaced. The replica begins anew with an empty log, and the broker logs an error. Until the new
  directory is reported to the controller, the replica is offline. When the controller gets this report, it
  removes the replica from the eligible leaders.
* **No empty log takes the place of an unreadable one.** If `partition.metadata` is damaged, nobody knows which
  topic the log belongs to. The broker then reports the replica as LOST. Another replica leads, or the
  partition waits for an operator.
* If two directories have a log of the same replica, the log in the assigned directory is used. The other log
  is set aside as a stray.

PURE except for the files of the logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import DiskError, DiskHung, DiskRefused, Log
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    RESERVED_DIRECTORIES,
    UNASSIGNED_DIRECTORY,
)
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

PREFERRED_MAX = 10_000
_UNDECIDED = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)


class DirectoryAway(Exception):
    """Raised if the directory of a replica is offline, or is unknown and may be offline."""


class LogUnreadable(DirectoryAway):
    """Raised if a directory has a log of the replica's name whose topic id cannot be read."""


class ReplicaPlacement:
    """Finds and makes the logs of one broker's replicas."""

    def __init__(self, log_dirs: Sequence[LogDir], unavailable: Mapping[str, str], log: Log) -> None:
        self.log_dirs = log_dirs
        self.unavailable = unavailable
        """The configured directories that could not be opened at the start: path -> reason."""
        self.cordoned: tuple[bytes, ...] = ()
        """The ids of directories that get no new replicas while others can take them (`cordoned.log.dirs`,
        KIP-1066).
        """
        self.preferred: dict[TopicPartition, bytes] = {}
        """The directory ids that AlterReplicaLogDirs has named for replicas that do not exist yet, by partition
        (KIP-113).
        """
        self._log = log

    def prefer(self, topic: str, index: int, directory_id: bytes) -> None:
        """Remember the directory for a replica that this broker may get later. Beyond `PREFERRED_MAX`
        replicas, the oldest entry is dropped.
        """
        self.preferred.pop(TopicPartition(topic, index), None)
        if len(self.preferred) >= PREFERRED_MAX:
            del self.preferred[next(iter(self.preferred))]
        self.preferred[TopicPartition(topic, index)] = directory_id

    @property
    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self.log_dirs if log_dir.offline_reason is None]

    def is_away(self, directory_id: bytes) -> bool:
        """True if no online directory of this broker has this id. Reserved ids (unassigned, lost) give False."""
        return directory_id not in RESERVED_DIRECTORIES and all(
            log_dir.directory_id != directory_id for log_dir in self.online
        )

    @property
    def usable(self) -> list[LogDir]:
        """The online directories that the event loop may touch now, because they do not hang."""
        return [log_dir for log_dir in self.online if not log_dir.is_stalled]

    def find(self, topic: str, index: int, topic_id: bytes, assigned: bytes) -> LogDir | None:
        """Return the directory that holds the replica's log; None if there is none. Further copies of the log
        are set aside as strays.
        """
        holders = [log_dir for log_dir in self.online if _holds(log_dir, topic, index, topic_id)]
        if len(holders) > 1:
            holders.sort(key=lambda log_dir: log_dir.directory_id != assigned)
            for log_dir in holders[1:]:
                self._log.warning("partition.stray", topic=topic, partition=index, directory=log_dir.path)
                log_dir.set_stray(topic, index)
        return holders[0] if holders else None

    def check_readable(self, topic: str, index: int) -> None:
        """Raise `LogUnreadable` if a directory has a log of this name that could not be opened."""
        for log_dir in self.log_dirs:
            file = log_dir.unreadable.get(TopicPartition(topic, index))
            if file is not None:
                raise LogUnreadable(f"{file} does not say which topic its records belong to")

    def create(
        self, topic: str, index: int, topic_id: bytes, config: LogConfig, assigned: bytes, *, is_new: bool
    ) -> LogDir:
        """Make the replica's log, and return its directory. `is_new` is true if this process has seen the
        creation of the partition.

        Raises:
            DirectoryAway: the log must not be made, because its directory is offline.
            DiskRefused: no directory has room.
            DiskError: no directory is online.
        """
        failure: DiskError | None = None
        for log_dir in self.candidates(topic, index, assigned, is_new=is_new):
            try:
                log_dir.create_log(topic, index, topic_id, config)
            except DiskError as error:
                reached("disks.next_directory_tried")
                if failure is None or isinstance(error, DiskRefused):
                    failure = error
                continue
            self.preferred.pop(TopicPartition(topic, index), None)
            return log_dir
        assert failure is not None
        raise failure

    def candidates(self, topic: str, index: int, assigned: bytes, *, is_new: bool) -> list[LogDir]:
        """List the directories in which a new log may be made, the best first.

        Raises:
            DirectoryAway: the log must not be made, because its directory is offline.
            DiskHung: the replica's directory does not answer now.
            DiskError: no directory is online.
        """
        found = self._candidates(topic, index, assigned, is_new=is_new)
        if not found:
            path = self.log_dirs[0].path
            raise DiskError(path, path, "create", 0, "all log directories of this broker are offline")
        return found

    def _candidates(self, topic: str, index: int, assigned: bytes, *, is_new: bool) -> list[LogDir]:
        if assigned in _UNDECIDED:
            if not is_new and self._some_are_away():
                reached("disks.old_log_may_be_offline")
                raise DirectoryAway("the replica's log may lie in a log directory that is offline")
            wish = self.preferred.get(TopicPartition(topic, index))
            found = directories_for_new_log(self._open_to_new)
            return [each for each in self.usable if each.directory_id == wish] + found
        for log_dir in self.log_dirs:
            if log_dir.directory_id == assigned:
                if log_dir.offline_reason is not None:
                    reached("disks.assigned_directory_offline")
                    raise DirectoryAway(f"the replica's log directory {log_dir.path} is offline")
                if log_dir.is_stalled:
                    reached("disks.assigned_directory_hangs")
                    raise DiskHung(log_dir.path, log_dir.path, "create", 0, "the disk does not answer")
                return [log_dir]
        if assigned == LOST_DIRECTORY or self._some_are_away():
            reached("disks.lost_directory_may_be_offline")
            raise DirectoryAway("the log directory that held the replica is offline")
        self._log.error(
            "partition.begun_anew",
            topic=topic,
            partition=index,
            reason="its disk was replaced, or its log directory was removed from log.dirs",
        )
        return directories_for_new_log(self._open_to_new)

    @property
    def _open_to_new(self) -> list[LogDir]:
        online = self.usable or self.online
        return [log_dir for log_dir in online if log_dir.directory_id not in self.cordoned] or online

    def _some_are_away(self) -> bool:
        return bool(self.unavailable) or any(log_dir.offline_reason is not None for log_dir in self.log_dirs)


def _holds(log_dir: LogDir, topic: str, index: int, topic_id: bytes) -> bool:
    log = log_dir.get(topic, index)
    return log is not None and log.topic_id == topic_id


def directories_for_new_log(online: Sequence[LogDir]) -> list[LogDir]:
    """Sort the directories into the order in which to try them for a new log, by the rule in the module's
    docstring.
    """
    if not online:
        return []
    half = max(log_dir.space.free_bytes for log_dir in online) / 2

    def rank(log_dir: LogDir) -> tuple[bool, int, int]:
        free = log_dir.space.free_bytes
        return free < half, len(log_dir.logs) + log_dir.logs_being_made, -free

    return sorted(online, key=rank)


def log_of(log_dir: LogDir, topic: str, index: int) -> PartitionLog:
    """Return a partition's log in a directory that `find` or `create` has returned."""
    log = log_dir.get(topic, index)
    assert log is not None
    return log
