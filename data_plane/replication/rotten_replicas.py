"""Rotten replicas, whose bytes differ from the written bytes: found by readers, taken out of the ISR, set aside
and begun anew. PORTED.

Theory of operation
-------------------
A disk may return other bytes than were written to it, without reporting an error. A slow scrub reads all logs
now and then (`odradek.data_plane.disks.scrubber`). Until the scrub comes, readers check the bytes. A follower
checks each batch before it appends the batch. A client checks a batch before it uses a record. So a replica is
*suspected* in two cases. First, a follower fetches repeatedly at one offset although there are records after it.
Second, the bytes at an offset do not form valid batches. A worker then checks the bytes at that offset against their
checksums. The replica is rotten only if a checksum is wrong. Otherwise the reader had another problem.

    sound --suspected, wrong checksum--> rotten --others are in sync--> lost --another leads--> set aside, begun anew
                                           |                            (the controller decides)       |
                                           '-- the last in sync: serves on, and reports it             '--> sound

* **Given up through the controller.** The broker reports that the replica lies in the LOST directory
  (KIP-858's word for a replica of a failed directory). In one record the controller takes the replica out of
  the ISR and out of the eligible replicas. If the replica led, the same record elects another leader. The
  leader epoch rises, so that earlier fetches no longer count.
* **Never empty and in sync.** The log is set aside only when the metadata says two things: another broker
  leads, and this broker's replica is neither in sync nor eligible. While the metadata says LOST, no leader
  takes the replica into an ISR. The directory is reported only when the new, empty log is there. From then on
  the replica is a follower like any other: it joins the ISR when it has all records.
* **The last replica in sync keeps its records.** No other replica has all acknowledged records. If all others
  fail just when this replica has been given up, the broker withdraws its report, and the replica leads again.
* **Nothing is removed.** The old log's directory is renamed to `-stray`; its good parts are for the operator.
* A crash in between does no harm, because the metadata says LOST until a new log has begun. A log that is found
  at the start is then set aside like a rotten one. If the log found at the start was the new log, the replica
  begins once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import attrs

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.rot import Rot, Suspected, suspected
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError, FileMissing, TaskGroup, Workers
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    PartitionImage,
)
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicIdPartition

AGAIN_SECONDS = 2.0
"""The shortest time in seconds between two checks of the same replica."""


class Fate(Enum):
    """The next step for a replica that the metadata calls LOST."""

    FOLLOW = "the replica has begun anew already, and the controller will get a report of that"
    BEGIN_ANEW = "other replicas have all records, so this replica is set aside"
    RETURN = "other replicas lack records, so this replica withdraws its report and leads again"
    WAIT = "the partition has no leader that this replica could follow"


@attrs.define(eq=False)
class _Case:
    """The damage that was found in a replica; kept until the replica is replaced."""

    partition: Partition
    rot: Rot
    is_alone_logged: bool = False


class DirectoryReports(Protocol):
    """The queue of reports that name replicas' directories to the controller."""

    @property
    def pending(self) -> Mapping[TopicIdPartition, bytes]: ...

    def note(self, topic_id: bytes, index: int, directory_id: bytes) -> None:
        """Report a replica's directory to the controller soon, because the metadata does not name it yet."""


class RotHost(BrokerHost, Protocol):
    """The interface of the broker that `RottenReplicas` uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def hosted(self) -> HostedTopics: ...

    @property
    def assignments(self) -> DirectoryReports: ...

    def workers_for(self, log: PartitionLog) -> Workers:
        """Return the worker threads that may wait for the disk of this log."""


class RottenReplicas:
    """Finds and replaces the rotten replicas of one broker."""

    def __init__(self, broker: RotHost, fetch_bytes_max: int) -> None:
        """Take the broker. `fetch_bytes_max` is the number of bytes of a partition that a follower fetches at
        once.
        """
        self._broker = broker
        self._fetch_bytes_max = fetch_bytes_max
        self._node_id = broker.node_id
        self._checked_at: dict[TopicIdPartition, float] = {}
        """The time, in monotonic seconds, at which each replica was last checked."""
        self._found: dict[TopicIdPartition, _Case] = {}
        self._renewed: dict[TopicIdPartition, bytes] = {}
        """Replicas that have begun anew while the metadata still calls them LOST, with the ids of their
        directories.
        """
        self.checks = 0
        self.set_aside = 0

    # -- the check of a suspected replica -------------------------------------------------------------------------

    def suspect(self, partition: Partition, offset: int) -> None:
        """Check the log's bytes at this offset against their checksums, because a reader could not use these
        bytes.
        """
        log = partition.log
        replica = TopicIdPartition(log.topic_id, log.partition)
        now = self._broker.clock.monotonic()
        checked_at = self._checked_at.get(replica)
        if replica in self._found or (checked_at is not None and now < checked_at + AGAIN_SECONDS):
            return
        self._checked_at[replica] = now
        try:
            suspect = suspected(log, offset, self._fetch_bytes_max)
        except DiskError as error:
            self._broker.log.error(
                "log.unreadable", topic=log.topic, partition=log.partition, error=str(error)
            )
            return
        if suspect is not None:
            self.checks += 1
            self._broker.tasks.start_soon(self._check, partition, suspect)

    async def _check(self, partition: Partition, suspect: Suspected) -> None:
        log = partition.log
        try:
            rot = await self._broker.workers_for(log).run(suspect.check)
        except FileMissing:
            return
        except DiskError as error:
            log.home.failed(error)
            return
        if (
            log.durability.truncations != suspect.truncations
            or log.is_closed
            or not self._broker.hosted.holds(partition)
        ):
            reached("rot.suspicion_outdated")
            # The log may have been truncated since the suspected bytes were read. So the result of the check
            # means nothing.
            return
        if rot is None:
            self._broker.log.info(
                "log.suspected",
                topic=log.topic,
                partition=log.partition,
                offset=suspect.offset,
                outcome="sound",
            )
            return
        self.note_rot(partition, rot)

    def note_rot(self, partition: Partition, rot: Rot) -> None:
        """Called when bytes of a replica differ from the written bytes. Gives the replica up if other
        replicas are in sync.
        """
        log = partition.log
        replica = TopicIdPartition(log.topic_id, log.partition)
        if replica in self._found:
            return
        self._found[replica] = case = _Case(partition, rot)
        self._broker.log.error(
            "log.rotten",
            topic=log.topic,
            partition=log.partition,
            file=rot.file,
            position=rot.position,
            offset=rot.offset,
            reason=rot.reason,
            is_leader=partition.is_leader,
        )
        self._give_up(case)

    # -- the end of a rotten replica ------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Decide about all rotten replicas again, after a change of the metadata. Other replicas may be in
        sync now, or a rotten replica may count as sound again.
        """
        for replica in list(self._renewed):
            image = self._image_of(replica)
            if image is None or image.directory_of(self._node_id) != LOST_DIRECTORY:
                del self._renewed[replica]
        for replica, case in list(self._found.items()):
            if self._broker.hosted.holds(case.partition):
                self._give_up(case)
            else:
                del self._found[replica]

    def _image_of(self, replica: TopicIdPartition) -> PartitionImage | None:
        topic = self._broker.newest.image.topics_by_id.get(replica.topic_id)
        return None if topic is None else topic.partitions.get(replica.partition)

    def _give_up(self, case: _Case) -> None:
        """Report the replica as lost to the controller, if the controller has another in-sync replica to
        elect.
        """
        partition, log = case.partition, case.partition.log
        image = partition.image
        if image is None or image.directory_of(self._node_id) == LOST_DIRECTORY:
            return
        if self._others_are_in_sync(partition):
            case.is_alone_logged = False
            if (
                self._broker.assignments.pending.get(TopicIdPartition(log.topic_id, log.partition))
                != LOST_DIRECTORY
            ):
                self._broker.assignments.note(log.topic_id, log.partition, LOST_DIRECTORY)
        elif not case.is_alone_logged:
            case.is_alone_logged = True
            self._broker.log.error(
                "log.rotten_and_the_last_in_sync",
                topic=log.topic,
                partition=log.partition,
                file=case.rot.file,
                position=case.rot.position,
                offset=case.rot.offset,
                hint=(
                    "this replica keeps serving its undamaged records, because no other replica has all acknowledged records"
                ),
            )

    def _others_are_in_sync(self, partition: Partition) -> bool:
        brokers = self._broker.newest.image.brokers
        for broker_id in partition.isr_state.isr:
            known = brokers.get(broker_id)
            if broker_id != self._node_id and known is not None and known.is_active:
                return True
        return False

    # -- a replica that the metadata calls LOST -------------------------------------------------------------------

    def fate(self, replica: TopicIdPartition, image: PartitionImage, *, is_empty: bool) -> Fate:
        """Choose what happens next to a replica that the metadata calls LOST. `is_empty` is true if its log
        has no records.
        """
        if replica in self._renewed:
            reached("rot.renewed_replica_follows")
            return Fate.FOLLOW
        if self.holds_promises(image):
            reached("rot.promising_replica_returns")
            return Fate.RETURN
        if is_empty:
            return Fate.FOLLOW
        return Fate.BEGIN_ANEW if image.leader >= 0 else Fate.WAIT

    def holds_promises(self, image: PartitionImage) -> bool:
        """True if this broker's replica may be needed to keep acknowledged records.

        The replica is needed if it leads, is in sync, or is eligible. A replica that is only a last known
        member of the ISR is needed until the partition has a leader. A leader from the ISR has all of the
        acknowledged records that this replica has.
        """
        node_id = self._node_id
        if node_id in (image.leader, *image.isr, *image.elr):
            return True
        return image.leader == NO_LEADER and node_id in image.last_known_elr

    def note_set_aside(self, partition: Partition, log_dir: LogDir, kept_as: str | None) -> None:
        """Called when a rotten log was taken out of service. A new log is about to be made in the same
        directory.
        """
        log = partition.log
        replica = TopicIdPartition(log.topic_id, log.partition)
        case = self._found.pop(replica, None)
        self._checked_at.pop(replica, None)
        self.set_aside += 1
        self._broker.log.error(
            "partition.set_aside",
            topic=log.topic,
            partition=log.partition,
            kept_as=None if kept_as is None else f"{log_dir.path}/{kept_as}",
            file=None if case is None else case.rot.file,
            position=None if case is None else case.rot.position,
            offset=None if case is None else case.rot.offset,
            reason="the metadata log says that this replica was lost" if case is None else case.rot.reason,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
        self._renewed[replica] = log_dir.directory_id

    def report_directory(self, replica: TopicIdPartition, directory_id: bytes, *, is_anew: bool) -> None:
        """Report to the controller that the replica is in this directory. `is_anew` is true for a log that
        has begun anew.
        """
        if is_anew:
            self._renewed[replica] = directory_id
        self._broker.assignments.note(*replica, directory_id)

    def directory_for(self, replica: TopicIdPartition, image: PartitionImage) -> bytes:
        """Choose the directory for a new log of a replica. This is the directory in the metadata, with
        one exception. If the metadata say LOST and the replica is not needed (`holds_promises`), it is the
        directory of the lost log. If that directory is unknown, the result is the unassigned id.
        """
        assigned = image.directory_of(self._node_id)
        if assigned != LOST_DIRECTORY or self.holds_promises(image):
            return assigned
        return self._renewed.get(replica, UNASSIGNED_DIRECTORY)

    def statistics(self) -> dict[str, int]:
        """Return the number of rotten replicas still in service, and the numbers of checks and of replicas
        set aside since the start.
        """
        return {"rotten": len(self._found), "checks": self.checks, "set_aside": self.set_aside}
