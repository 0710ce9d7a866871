"""The start and end offsets of all replicas, and the losses of bytes by faults. PURE.

The offsets are read from the bytes on the disks, even while a broker's process is down. A machine that loses power
loses unsynced bytes; a machine whose disk is replaced loses all. The machine's broker stays in the ISR or ELR until
it registers again, although it already lacks records (`was_robbed`). A replica with damaged bytes is never checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.log.directory.checkpoints import LOG_START_FILE, decode_offsets
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition, TopicPartition
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.stored_logs import StoredLogs
from sim.checks.watched import Processes
from sim.machine.disk import SimDisk
from sim.machine.members import Member
from sim.machine.platter import Folder, Inode
from sim.storm.fault_atlas import FaultAtlas

__all__ = ["ReplicaBytes"]

NOWHERE = -1


@attrs.frozen
class _Loss:
    """A replica that has lost bytes by a fault. `broker_epoch` is the highest epoch that its broker may have had
    before the loss.
    """

    broker_epoch: int
    takes_synced: bool
    """True if the replica has lost synced bytes, too."""


class ReplicaBytes:
    """The start and end offsets of replicas, and their losses of bytes, by broker id and partition."""

    def __init__(self, processes: Processes, newest: NewestMetadata) -> None:
        self._processes = processes
        self._newest = newest
        self._brokers = {member.config.node_id: member for member in processes.cluster.brokers}
        self._cached = StoredLogs(is_durable=False)
        self._durable = StoredLogs(is_durable=True)
        self._losses: dict[tuple[int, str], _Loss] = {}
        self.atlas = FaultAtlas()
        """The replicas whose bytes the storm has damaged."""
        self.all_is_synced = processes.cluster.shape.syncs_all
        """True if all brokers sync before they acknowledge, so that only lost synced bytes count."""
        newest.on_change.append(self._forgive)

    def watch_losses(self) -> None:
        """Record from now on which replicas lose bytes because a page cache or a disk is lost."""
        for broker_id, member in self._brokers.items():
            self._watch_disk(broker_id, member, self._processes.world.machine(member.name).disk)

    # -- end offsets and start offsets of replicas

    def end_offset(self, broker_id: int, key: TopicIdPartition, *, is_durable: bool = False) -> int:
        """Return the end offset of a replica's log; -1 without a log. The log is read in the page cache, or with
        `is_durable` on the disk.
        """
        member, name = self._brokers[broker_id], self._newest.name(key)
        disk = self._processes.world.machine(member.name).disk
        path = None if name is None else self._path(member, disk, name)
        if path is None:
            return NOWHERE
        logs = self._durable if is_durable else self._cached
        return logs.end_offset(disk, path)

    def start_offset(self, broker_id: int, key: TopicIdPartition) -> int:
        """Return the log start offset that a restart would find in the checkpoint or by the first segment; -1 without
        a log.
        """
        member, name = self._brokers[broker_id], self._newest.name(key)
        disk = self._processes.world.machine(member.name).disk
        path = None if name is None else self._path(member, disk, name)
        if path is None or name is None:
            return NOWHERE
        root, _, _ = path.rpartition("/")
        segments = self._cached.segments(disk, path)
        start = segments[0][0] if segments else 0
        inode = disk.in_cache(root).get(LOG_START_FILE)
        if isinstance(inode, Inode):
            topic, _, number = name.rpartition("-")
            start = max(start, decode_offsets(bytes(inode.data)).get(TopicPartition(topic, int(number)), 0))
        return start

    def reach(self, broker_id: int, key: TopicIdPartition) -> int:
        """Return the offset below which a replica lacks no record: its end offset, or its start offset if the start
        offset is higher.
        """
        end_offset = self.end_offset(broker_id, key)
        hosted = self.hosted(broker_id, key)
        if hosted is not None:
            return max(end_offset, hosted.log.log_start_offset)
        return max(end_offset, self.start_offset(broker_id, key))

    def living(self, broker_id: int) -> Broker | None:
        """Return the present broker object with this id; None if its process is down."""
        found = self._processes.named(self._brokers[broker_id].name) if broker_id in self._brokers else None
        return None if found is None else found[1].broker

    def hosted(self, broker_id: int, key: TopicIdPartition) -> Partition | None:
        """Return the partition in the broker's present process; None if the process does not host it, or is down."""
        broker = self.living(broker_id)
        return None if broker is None else broker.hosted.partition(key.topic_id, key.partition)

    @staticmethod
    def _path(member: Member, disk: SimDisk, name: str) -> str | None:
        for root in member.config.log_dirs:
            if isinstance(disk.in_cache(root).get(name), Folder):
                return f"{root}/{name}"
        return None

    # --- losses

    def was_robbed(self, broker_id: int, key: TopicIdPartition, *, also_of_synced: bool = False) -> bool:
        """True if a fault has removed bytes of this replica, and the replica's broker has not registered since.

        With `also_of_synced` only losses of synced bytes count.
        """
        name = self._newest.name(key)
        if name is None or broker_id not in self._brokers:
            return True
        if (self._brokers[broker_id].name, name) in self.atlas.rotten:
            return True
        loss = self._losses.get((broker_id, name))
        if loss is None or ((also_of_synced or self.all_is_synced) and not loss.takes_synced):
            return False
        return self._registered_epoch(broker_id) <= loss.broker_epoch

    def has_lost(self, broker_id: int, key: TopicIdPartition) -> bool:
        """True if a fault has removed bytes of this replica since it was last in the ISR."""
        loss = self._losses.get((broker_id, str(self._newest.name(key))))
        counts = loss is not None and (loss.takes_synced or not self.all_is_synced)
        return counts or self.was_robbed(broker_id, key)

    def _registered_epoch(self, broker_id: int) -> int:
        image = self._newest.image
        known = None if image is None else image.brokers.get(broker_id)
        return -1 if known is None else known.epoch

    def _forgive(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        """Forget the losses of replicas that have joined the ISR again."""
        if not self._losses:
            return
        name = self._newest.name(key)
        for broker_id in partition.isr:
            loss = self._losses.get((broker_id, str(name)))
            if loss is not None and self._registered_epoch(broker_id) > loss.broker_epoch:
                del self._losses[broker_id, str(name)]

    def _watch_disk(self, broker_id: int, member: Member, disk: SimDisk) -> None:
        def before_loss() -> Callable[[], None]:
            replicas = list(self._replicas(member, disk))
            broker = None if member.node is None else member.node.broker
            own_epoch = -1 if broker is None else broker.replication.broker_epoch
            self._newest.refresh()
            epoch = max(own_epoch, self._registered_epoch(broker_id))

            def afterwards() -> None:
                for name, path, cached, durable in replicas:
                    takes_synced = self._durable.end_offset(disk, path) < durable
                    if takes_synced or durable < cached:
                        before = self._losses.get((broker_id, name))
                        takes_synced |= before is not None and before.takes_synced
                        self._losses[broker_id, name] = _Loss(epoch, takes_synced)

            return afterwards

        disk.before_loss = before_loss

    def _replicas(self, member: Member, disk: SimDisk) -> Iterator[tuple[str, str, int, int]]:
        """Yield (name, path, end offset in the page cache, end offset on the disk) for each replica."""
        for root in member.config.log_dirs:
            for name, node in disk.in_cache(root).items():
                if isinstance(node, Folder) and name.rpartition("-")[2].isdigit():
                    path = f"{root}/{name}"
                    durable = self._durable.end_offset(disk, path)
                    if any(isinstance(each, Inode) and each.lost for each in node.entries.values()):
                        # A sync has failed: the kernel dropped pages, which will read as zeros.
                        durable = NOWHERE
                    yield name, path, self._cached.end_offset(disk, path), durable
