"""Check of metadata images, snapshots and voters: they must equal a model built from the metadata log. PURE.

1. The image of each node equals the model of the committed log at the image's offset. One model follows the log for
   all nodes. Each newly published image is compared in its changed entries, random images are compared completely.
2. A snapshot, together with the records after it, gives the same state as the image. The newest snapshot of a node is
   checked once with some probability, and again at the end of the run.
3. The voters in force at a node are those of the newest voters record in the node's log. If the log has no such
   record, they are those of the snapshot, or else those of the configuration (Raft thesis, 4.1).

`sim.checks.folds.metadata_fold` interprets the records. Decoded batches are cached by offset, epoch and checksum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

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
from sim.checks.folds.decision_laws import judge_decision
from sim.checks.folds.eligible_law import EligibleLaw
from sim.checks.folds.metadata_difference import metadata_difference
from sim.checks.folds.metadata_fold import Judge, MetadataFold, Touched
from sim.checks.stored_logs import StoredLogs
from sim.checks.watched import Hosted, Processes
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk
from sim.machine.members import Member
from sim.machine.platter import Folder, Inode

__all__ = ["MetadataReplay"]

REPLAY = 0.01
"""The probability that a call of `look` compares the images of a random node completely."""
VOTERS = 0.1
"""The probability that a call of `look` checks the voters of all nodes."""

_Batch = tuple[bool, tuple[Message | None, ...]]


class MetadataReplay:
    """The check that images and snapshots agree with the metadata log, and that voters agree with each node's own
    log.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/metadata replay")
        self._stored = StoredLogs(is_durable=False)
        self._decoded: dict[tuple[int, int, int], _Batch] = {}
        self.eligible = EligibleLaw()
        self.judges: list[Judge] = [judge_decision, self.eligible.judge]
        """The checks of each committed record."""
        self.newest = MetadataFold(self._judge)
        """The model of the committed log, up to the newest image that any node has published."""
        self._judged: set[tuple[str, str]] = set()
        """The (machine, file name) of each snapshot that was already checked."""
        self.replays = self.voters_seen = self.images_seen = self.snapshots_seen = self.begun_anew = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the voters of all nodes, and the images of a random node, each with its probability. Raises
        `SafetyViolation`.
        """
        if self._random.random() < VOTERS:
            self._look_at_voters()
        if self._random.random() < REPLAY:
            found = [each for each in self._processes.living() if each[1].metadata is not None]
            if found:
                self._look_at_images(*self._random.choice(found))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check the voters, images and snapshots of all nodes. Raises `SafetyViolation`."""
        self._judged.clear()
        self._look_at_voters()
        for member, node in self._processes.living():
            self._look_at_images(member, node)

    # --- images

    def published(self, member: Member, image: MetadataImage) -> None:
        """Continue the model up to an image that a node publishes, and compare the changed entries. Raises
        `SafetyViolation`.
        """
        if image.offset <= self.newest.offset:
            return
        if not self._go_on(*self._place(member), self.newest, image.offset, self):
            # The node's log starts at a snapshot beyond the end of the model, so a new model is built from that
            # snapshot.
            fold = self.replay(member, image, self._judge)
            if fold is None:
                return
            self.newest = fold
            self.begun_anew += 1
        if self.newest.held is None:
            touched, self.newest.touched = self.newest.touched, Touched()
            self.images_seen += 1
            _compare(member, self.newest, image, touched)

    def _judge(self, state: MetadataFold, record: Message) -> None:
        for judge in self.judges:
            judge(state, record)

    def fold_at(self, offset: int) -> MetadataFold | None:
        """Return the model if it ends at this offset; otherwise None."""
        return self.newest if self.newest.offset == offset and self.newest.held is None else None

    def _look_at_images(self, member: Member, node: Node) -> None:
        if node.metadata is None:
            return
        newest = node.metadata.committed_image
        images = [newest]
        if node.broker is not None and node.broker.image is not newest:
            images.append(node.broker.image)
        for image in images:
            if image.offset >= 0:
                _compare(member, self.fold_at(image.offset) or self.replay(member, image), image)
        snapshot = self._newest_snapshot(member, newest.offset)
        if snapshot is not None and (member.name, snapshot) not in self._judged:
            replayed = self.replay(member, newest)
            if replayed is not None:
                self._judged.add((member.name, snapshot))
                self.snapshots_seen += 1
                _compare(member, replayed, newest)

    def _newest_snapshot(self, member: Member, last: int) -> str | None:
        """Return the file name of the newest snapshot that ends at or before offset `last`; None if there is none."""
        disk, path = self._place(member)
        ends = [end for end in map(parse_snapshot_name, disk.in_cache(path)) if end is not None]
        usable = [end for end in ends if 0 < end[0] <= last + 1]
        return snapshot_name(*max(usable)) if usable else None

    def replay(self, member: Member, image: MetadataImage, judge: Judge | None = None) -> MetadataFold | None:
        """Build a model from the files of a node, up to the image's offset; None if the files end before that offset.
        `judge` is for the records behind its snapshot.
        """
        disk, path = self._place(member)
        fold = MetadataFold()
        name = self._newest_snapshot(member, image.offset)
        if name is not None:
            end = parse_snapshot_name(name)
            assert end is not None
            fold.take(end[0] - 1, end[1], _snapshot(disk.in_cache(path), *end).records)
        fold.judge = judge
        if not self._go_on(disk, path, fold, image.offset) or fold.held is not None:
            return None
        self.replays += 1
        fold.touched = Touched()
        return fold

    def _go_on(
        self, disk: SimDisk, path: str, fold: MetadataFold, last: int, reader: MetadataReplay | None = None
    ) -> bool:
        """Continue a model with the log's records up to offset `last`. Return False if the log does not reach it.

        With `reader`, the position in each file is kept for this reader, so that it skips the batches that it has
        already read.
        """
        for base_offset, inode in self._stored.segments(disk, path):
            if base_offset > fold.offset + 1 or fold.offset >= last:
                break
            noted = inode.notes.get(reader) if reader is not None else None
            position = noted if isinstance(noted, int) else 0
            position = self._fold_segment(inode.data, position, fold, last)
            if reader is not None:
                inode.notes[reader] = position
        return fold.offset == last

    def _fold_segment(self, data: bytearray, position: int, fold: MetadataFold, last: int) -> int:
        """Add the records of a segment up to `last` to the model. Return the position of the first batch that is not
        completely included.
        """
        while position + HEADER.size <= len(data):
            base_offset, length, epoch, _, crc, _, delta, *_ = HEADER.unpack_from(data, position)
            size = length + SIZE_PREFIX
            following = fold.offset + 1
            if base_offset > min(last, following) or position + size > len(data):
                break
            if base_offset + delta >= following:
                is_control, records = self._decode(data, position, size, (base_offset, epoch, crc))
                wanted = records[following - base_offset : last + 1 - base_offset]
                fold.take(following + len(wanted) - 1, epoch, () if is_control else wanted)
                if fold.offset < base_offset + delta:
                    break
            position += size
        return position

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
                continue  # The log and the core differ in the log end, so they cannot be compared yet.
            expected = self._stored_voters(member, quorum.settings.static_voters, state.end_offset)
            self.voters_seen += 1
            if expected is not None and state.voters != expected:
                raise SafetyViolation(
                    f"voters: {', '.join(map(str, state.voters.node_ids))} are in force on {member.name}, and its log names "
                    f"{', '.join(map(str, expected.node_ids))} last"
                )

    def _stored_voters(self, member: Member, static: VoterSet, end_offset: int) -> VoterSet | None:
        """Read the newest voters on a node's disk; None if the log there does not end at `end_offset`."""
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
        """Read the voters of the newest snapshot that ends at or before `end_offset`. A later snapshot may exist, but
        is not in force yet.
        """
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


def _compare(
    member: Member, fold: MetadataFold | None, image: MetadataImage, touched: Touched | None = None
) -> None:
    difference = None if fold is None else metadata_difference(fold, image, touched)
    if difference is not None:
        raise SafetyViolation(
            f"metadata image: {member.name} has another one at offset {image.offset} than the log: {difference}"
        )
