"""The metadata that nodes have, against a replay of their own logs from the start. PURE.

1. The image of a controller, and that of a broker, is the replay of the newest snapshot and the log behind it.
2. The voters in force in a quorum's core are the newest in its log. Where the log has none they are those of the
   snapshot, or of the configuration (thesis, 4.1).

A replay costs milliseconds, so a look replays one image by chance; voters are checked more often. Decoded records are
kept by place, epoch and checksum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.ports import Snapshot
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.checkpoint_files import open_snapshot, parse_snapshot_name, snapshot_name
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.node.node import Node
from odradek.wire.batches.batch_header import HEADER, SIZE_PREFIX
from odradek.wire.messages.control_records import VotersRecord
from odradek.wire.structure import Message
from sim.checks.stored_logs import StoredLogs
from sim.checks.watched import Hosted, Processes
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk
from sim.machine.members import Member
from sim.machine.platter import Folder, Inode

__all__ = ["MetadataReplay"]

REPLAY = 0.01
"""The probability that a look replays the image of one node."""
VOTERS = 0.1
"""How often a look holds the voters of all nodes against their logs."""

_Batch = tuple[bool, tuple[Message | None, ...]]


class MetadataReplay:
    """The check that a node's image follows from its log, and its voters from theirs."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/metadata replay")
        self._stored = StoredLogs(is_durable=False)
        self._decoded: dict[tuple[int, int, int], _Batch] = {}
        self.replays = self.voters_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check voters and one image by chance. Raises `SafetyViolation`."""
        if self._random.random() < VOTERS:
            self._look_at_voters()
        if self._random.random() < REPLAY:
            found = [each for each in self._processes.living() if each[1].metadata is not None]
            if found:
                self._look_at_images(*self._random.choice(found))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Look at the voters and images of all nodes."""
        self._look_at_voters()
        for member, node in self._processes.living():
            self._look_at_images(member, node)

    # --- images

    def _look_at_images(self, member: Member, node: Node) -> None:
        if node.metadata is None:
            return
        images = [node.metadata.committed_image]
        if node.broker is not None and node.broker.image is not images[0]:
            images.append(node.broker.image)
        for image in images:
            if image.offset < 0:
                continue
            replayed = self.replay(member, image)
            if replayed is not None and replayed != image:
                raise SafetyViolation(
                    f"metadata image: {member.name} has another one at offset {image.offset} than a replay of its log: "
                    f"{_difference(image, replayed)}"
                )

    def replay(self, member: Member, image: MetadataImage) -> MetadataImage | None:
        """Replay the bytes on the node's disk to the same offset; None where they do not lead there."""
        disk, path = self._place(member)
        files = disk.in_cache(path)
        builder = ImageBuilder(MetadataImage.empty(image.cluster_id))
        ends = [end for end in map(parse_snapshot_name, files) if end is not None]
        usable = [end for end in ends if 0 < end[0] <= image.offset + 1]
        next_offset = 0
        if usable:
            end_offset, epoch = max(usable)
            for record in _snapshot(files, end_offset, epoch).records:
                builder.replay(end_offset - 1, record, epoch)
            builder.advance(end_offset - 1, epoch)
            next_offset = end_offset
        for _, inode in self._stored.segments(disk, path):
            next_offset = self._replay_segment(inode.data, builder, next_offset, image.offset)
        if next_offset != image.offset + 1 or builder.in_transaction:
            return None
        self.replays += 1
        return builder.build()[0]

    def _replay_segment(self, data: bytearray, builder: ImageBuilder, start: int, last: int) -> int:
        """Replay the records from `start` up to `last`. Return the offset behind the last one."""
        position = 0
        while position + HEADER.size <= len(data):
            base_offset, length, epoch, _, crc, _, delta, *_ = HEADER.unpack_from(data, position)
            size = length + SIZE_PREFIX
            if base_offset > last or base_offset > start or position + size > len(data):
                break
            if base_offset + delta >= start:
                is_control, records = self._decode(data, position, size, (base_offset, epoch, crc))
                for offset, record in enumerate(records, base_offset):
                    if offset < start or offset > last:
                        continue
                    if is_control or record is None:
                        builder.advance(offset, epoch)
                    else:
                        builder.replay(offset, record, epoch)
                start = min(base_offset + delta, last) + 1
            position += size
        return start

    def _decode(self, data: bytearray, position: int, size: int, place: tuple[int, int, int]) -> _Batch:
        known = self._decoded.get(place)
        if known is None:
            (batch,) = read_batches(bytes(data[position : position + size]), source="a metadata log")
            known = self._decoded[place] = (batch.is_control, batch.records)
        return known

    # --- voters

    def _look_at_voters(self) -> None:
        for member, node in self._processes.living():
            if node.metadata is None or not node.metadata.quorum.is_open:
                continue
            quorum = node.metadata.quorum
            state = quorum.core.log
            log = quorum.log
            if (state.end_offset, state.last_epoch) != (log.log_end_offset, log.latest_epoch):
                continue  # the decided records are not written yet
            expected = self._stored_voters(member, quorum.settings.static_voters, state.end_offset)
            self.voters_seen += 1
            if expected is not None and state.voters != expected:
                raise SafetyViolation(
                    f"voters: {', '.join(map(str, state.voters.node_ids))} are in force on {member.name}, and its log names "
                    f"{', '.join(map(str, expected.node_ids))} last"
                )

    def _stored_voters(self, member: Member, static: VoterSet, end_offset: int) -> VoterSet | None:
        """Find the newest voters on a node's disk; None where the log on it is another one's by now."""
        disk, path = self._place(member)
        if self._stored.end_offset(disk, path) != end_offset:
            return None
        for _, inode in reversed(self._stored.segments(disk, path)):
            for position, size in reversed(self._stored.walk(inode).controls):
                base_offset, _, epoch, _, crc, *_ = HEADER.unpack_from(inode.data, position)
                _, records = self._decode(inode.data, position, size, (base_offset, epoch, crc))
                if named := [record for record in records if isinstance(record, VotersRecord)]:
                    return VoterSet.from_record(named[-1])
        return self._snapshot_voters(disk, path, static, end_offset)

    def _snapshot_voters(self, disk: SimDisk, path: str, static: VoterSet, end_offset: int) -> VoterSet:
        """Find the voters of the newest snapshot below `end_offset`: a later one is there, and not in force yet."""
        files = disk.in_cache(path)
        ends = [end for end in map(parse_snapshot_name, files) if end is not None and end[0] <= end_offset]
        if not ends:
            return static
        control = _snapshot(files, *max(ends)).control_records
        named = [record for record in control if isinstance(record, VotersRecord)]
        return VoterSet.from_record(named[-1]) if named else static

    def _place(self, member: Member) -> tuple[SimDisk, str]:
        disk = self._processes.world.machine(member.name).disk
        return disk, f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}"


def _snapshot(files: Mapping[str, Inode | Folder], end_offset: int, epoch: int) -> Snapshot:
    name = snapshot_name(end_offset, epoch)
    inode = files[name]
    assert isinstance(inode, Inode)
    return open_snapshot(bytes(inode.data), source=name)


def _difference(one: MetadataImage, other: MetadataImage) -> str:
    """Name the parts in which two images differ."""
    names = [field.name for field in one.__attrs_attrs__]
    return ", ".join(name for name in names if getattr(one, name) != getattr(other, name))
