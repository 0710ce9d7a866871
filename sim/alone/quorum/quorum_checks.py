"""Safety checks of the metadata quorum, after each step of a schedule and at its end. PURE.

The bytes on the disks are compared with each other and with the nodes' messages (`quorum_platter.py`). These checks
read only a few attributes of the product's own objects: a node's role, epoch, high watermark, voters and image.

* Raft, figure 3: an epoch has one leader, leaders only append, logs match, and leaders have all committed records.
  Different records are never applied at one offset.
* A vote is synced to disk before it is sent. A Fetch names an offset up to which the whole log is synced.
* A leader's committed records are synced at a majority of its voters. One step may commit records and then change the
  voters. So a majority of the voters before that step is enough, too.
* The voters in force are those of the newest voters record in the log. If the log has no such record, they are those
  of the snapshot before it.
* The image of each node and each snapshot equals a replay of the committed records. All acknowledged registrations
  are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import attrs

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.raft.messages import Fetch, Vote
from odradek.metadata_quorum.raft.roles import Leader, Resigned
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.wire.messages.control_records import VotersRecord
from odradek.wire.messages.vote import VoteRequest, VoteResponse
from sim.alone.quorum.quorum_node import CLUSTER_ID, Node
from sim.alone.quorum.quorum_platter import LoggedBatch
from sim.history import SafetyViolation

__all__ = ["Promises", "whole_log"]


@attrs.define
class _Seen:
    """The state of a node at the previous check, for one run of its process."""

    life: int = -1
    high_watermark: int = -1
    leads: int = -1
    """The epoch in which the node leads; -1 if it does not lead."""
    log_end: LoggedBatch | None = None
    """The last batch of the node's log, recorded only while the node leads."""
    flushed: int = -1
    epoch: int = -1
    voters: VoterSet | None = None
    """The voters in force at the previous check."""
    images: int = 0


def _must(holds: bool, promise: str) -> None:
    if not holds:
        raise SafetyViolation(promise)


def whole_log(node: Node) -> list[LoggedBatch]:
    """Read the batches of a node's log from its disk, up to the first gap.

    A power loss may remove unsynced bytes of one segment but keep the next segment. The next start truncates the
    log at this gap. Raises `SafetyViolation` if a node with an open log has a gap.
    """
    batches = node.platter.log()
    for at, (before, after) in enumerate(pairwise(batches), 1):
        if before.last_offset + 1 != after.base_offset:
            is_open = node.service is not None and node.service.quorum.is_open
            _must(not is_open, f"{node.node_id} has a hole in its log between {before} and {after}")
            return batches[:at]
    return batches


class Promises:
    """Everything that was observed of the replicas so far. Each new state is checked against it. All methods raise
    `SafetyViolation`.
    """

    def __init__(self, nodes: Mapping[int, Node], first_voters: VoterSet) -> None:
        self._nodes = nodes
        self._first_voters = first_voters
        self._seen = {node_id: _Seen() for node_id in nodes}
        self._voted: dict[tuple[int, int], int] = {}
        """The candidate for which a node voted in an epoch, by (node id, epoch)."""
        self.leaders: dict[int, int] = {}
        """The id of the leader of each epoch."""
        self.committed: list[LoggedBatch] = []
        self.committed_end = 0
        self._committed_in: dict[int, int] = {}
        """The epoch of the leader that committed each batch, by the last offset of the batch."""
        self._by_last: dict[int, LoggedBatch] = {}
        self._voters = [(0, first_voters)]
        """(end offset, voters in force from there) for each change of voters in the committed log."""
        self._builder = ImageBuilder(MetadataImage.empty(CLUSTER_ID))
        self._images = {0: MetadataImage.empty(CLUSTER_ID)}
        """The metadata image of the log up to the end of each committed batch, by the end offset of the batch."""
        self.acknowledged: list[int] = []
        """Ids of the brokers whose registration was acknowledged."""
        self._told: list[tuple[Node, int, int]] = []
        """Broker registrations that were acknowledged in the present step: (acknowledging node, number of the node's
        process run, broker id).
        """

    # -- messages -------------------------------------------------------------------------------------------------

    def sends(self, node: Node, request: Fetch | Vote) -> None:
        """Check a request that a node is about to send."""
        if isinstance(request, Fetch):
            _must(
                node.platter.promised_to(request.offset, request.last_epoch),
                f"{node.node_id} promises what a loss of power would take: all below {request.offset}",
            )
        elif not request.pre_vote:
            self._vote(node, request.epoch, node.node_id)

    def answers(self, node: Node, request: Any, response: Any) -> None:
        """Check an answer that a node sends: a vote it grants must be synced to disk."""
        if isinstance(response, VoteResponse) and isinstance(request, VoteRequest) and response.topics:
            asked = request.topics[0].partitions[0]
            if response.topics[0].partitions[0].vote_granted and not asked.pre_vote:
                self._vote(node, asked.replica_epoch, asked.replica_id)

    def _vote(self, node: Node, epoch: int, candidate: int) -> None:
        _must(
            node.platter.vote() == (epoch, candidate),
            f"{node.node_id} votes for {candidate} in epoch {epoch}, and a loss of power would take the vote",
        )
        before = self._voted.setdefault((node.node_id, epoch), candidate)
        _must(before == candidate, f"{node.node_id} votes for {before} and {candidate} in epoch {epoch}")

    # -- checks after each step -----------------------------------------------------------------------------------

    def look(self, node: Node) -> None:
        """Check everything that a step of this node may have changed."""
        service = node.service
        if service is None or not service.quorum.is_open:
            return
        quorum = service.quorum
        core, seen = quorum.core, self._seen[node.node_id]
        if seen.life != node.life:
            seen = self._seen[node.node_id] = _Seen(node.life, epoch=node.platter.vote()[0])
            _must(core.epoch >= seen.epoch, f"{node.node_id} forgets epoch {seen.epoch}")
            seen.epoch = core.epoch
        if core.epoch != seen.epoch:
            _must(core.epoch > seen.epoch, f"the epoch of {node.node_id} falls to {core.epoch}")
            seen.epoch = core.epoch
        if isinstance(core.role, Leader):
            self._look_at_leader(node, core.epoch, seen)
        if quorum.decisions.high_watermark != seen.high_watermark:
            self._look_at_commit(node, quorum.decisions.high_watermark, seen)
        if core.log.flushed_offset != seen.flushed:
            self._look_at_flushed(node, seen)
        seen.voters = core.voters
        told, self._told = self._told, []
        for narrate, life, broker_id in told:
            if narrate.life == life and narrate.lives:
                _must(broker_id in self._image().brokers, f"{broker_id} is acknowledged, and not committed")
                self.acknowledged.append(broker_id)

    def acknowledge(self, node: Node, broker_id: int) -> None:
        """Record that a node acknowledged this broker's registration. The acknowledgement counts only if the node
        survives the present step.
        """
        self._told.append((node, node.life, broker_id))

    def _image(self) -> MetadataImage:
        return self._images[self.committed_end]

    def _look_at_leader(self, node: Node, epoch: int, seen: _Seen) -> None:
        if seen.leads != epoch:
            seen.leads, seen.log_end = epoch, None
            first = self.leaders.setdefault(epoch, node.node_id)
            _must(first == node.node_id, f"epoch {epoch} is led by {first} and {node.node_id}")
            self._look_for_all_committed(node)
            self.look_at_logs()
        assert node.log is not None
        last = seen.log_end
        if last is not None and last.last_offset >= node.log.log_start_offset:
            _must(
                node.platter.find(last.last_offset) == last,
                f"{node.node_id} leads epoch {epoch}, and its log lacks {last}",
            )
        end_offset = node.log.log_end_offset
        if end_offset and (last is None or end_offset != last.last_offset + 1):
            seen.log_end = node.platter.find(end_offset - 1)

    def _look_for_all_committed(self, node: Node) -> None:
        """Check leader completeness: a new leader's log has all records that were committed in earlier epochs (Raft,
        section 5.4).

        A candidate may receive its votes late, and lead an epoch that is already over. Such a leader can commit
        nothing, so records of later epochs do not count.
        """
        assert node.log is not None
        assert node.service is not None
        start, epoch = node.log.log_start_offset, node.service.quorum.core.epoch
        for batch in reversed(self.committed):
            if batch.last_offset < start:
                break
            if self._committed_in[batch.last_offset] > epoch:
                continue
            found = node.platter.find(batch.last_offset)
            _must(
                found == batch or (found is None and node.platter.has_snapshot(batch.last_offset)),
                f"{node.node_id} leads epoch {epoch} without {batch}, which is committed",
            )

    def _look_at_commit(self, node: Node, high_watermark: int, seen: _Seen) -> None:
        _must(high_watermark > seen.high_watermark, f"the high watermark of {node.node_id} falls")
        begins = seen.high_watermark < 0
        seen.high_watermark = high_watermark
        assert node.log is not None
        if begins or node.log.log_start_offset > self.committed_end:
            self._look_below(node, high_watermark)
        offset = max(self.committed_end, node.log.log_start_offset)
        while offset < high_watermark:
            batch = node.platter.find(offset)
            if batch is None and node.platter.has_snapshot(high_watermark - 1):
                break
            batch = batch or self._given_ahead_of_disk(node, offset)
            _must(batch is not None, f"{node.node_id} commits {offset}, and its log lacks it")
            assert batch is not None
            self._commit(node, batch, seen)
            offset = batch.last_offset + 1
        known = self._by_last.get(high_watermark - 1)
        found = node.platter.find(high_watermark - 1)
        if known is not None and found is not None:
            _must(found == known, f"{node.node_id} applies {found}, and {known} was committed")
        if high_watermark > self.committed_end:
            _must(False, f"{node.node_id} commits up to {high_watermark}, which nobody has committed")

    def _given_ahead_of_disk(self, node: Node, offset: int) -> LoggedBatch | None:
        """Find the batch at `offset` on the disks of the voters, if this leader has not yet written it to its own
        file. A leader may send a batch to its followers before it writes the batch. If the batch removes this leader
        from the voters, the leader resigns as soon as the batch is committed.

        Returns None if this node has not led this epoch, or if no batch is synced at a majority of the voters.
        """
        assert node.service is not None
        core = node.service.quorum.core
        if not isinstance(core.role, Leader | Resigned):
            return None
        found = (self._nodes[each].platter.find(offset, durable=True) for each in core.voters.node_ids)
        ahead = {batch.crc: batch for batch in found if batch is not None and batch.epoch == core.epoch}
        held = (
            each for each in ahead.values() if len(self._holding(each, core.voters)) >= core.voters.majority
        )
        return next(held, None)

    def _commit(self, node: Node, batch: LoggedBatch, seen: _Seen) -> None:
        """Check a newly committed batch: a majority of the voters must have synced it. Then apply the batch to the
        expected image.
        """
        _must(batch.base_offset == self.committed_end, f"{batch} is committed behind {self.committed_end}")
        assert node.service is not None
        voters = node.service.quorum.core.voters
        holding = self._holding(batch, voters)
        _must(
            len(holding) >= voters.majority
            or (seen.voters is not None and len(self._holding(batch, seen.voters)) >= seen.voters.majority),
            f"{node.node_id} commits {batch}, which a loss of power would leave on {holding} of {voters.node_ids}",
        )
        self.committed.append(batch)
        self.committed_end = batch.last_offset + 1
        self._by_last[batch.last_offset] = batch
        self._committed_in[batch.last_offset] = node.service.quorum.core.epoch
        for decoded in read_batches(batch.data, source="the committed log"):
            for offset, record in enumerate(decoded.records, decoded.base_offset):
                if decoded.is_control or record is None:
                    self._builder.advance(offset, decoded.epoch)
                else:
                    self._builder.replay(offset, record, decoded.epoch)
                if isinstance(record, VotersRecord):
                    self._voters.append((offset + 1, VoterSet.from_record(record)))
        self._images[self.committed_end] = self._builder.build()[0]

    def _holding(self, batch: LoggedBatch, voters: VoterSet) -> list[int]:
        """List the ids of the voters that have synced this batch, in the log or in a snapshot."""
        return [
            each
            for each in voters.node_ids
            if self._nodes[each].platter.find(batch.last_offset, durable=True) == batch
            or self._nodes[each].platter.has_snapshot(batch.last_offset)
        ]

    def _look_below(self, node: Node, high_watermark: int) -> None:
        """Check that the batches of this node's log below its high watermark equal the committed batches."""
        for batch in node.platter.log():
            if batch.last_offset < min(high_watermark, self.committed_end):
                known = self._by_last.get(batch.last_offset)
                _must(known == batch, f"{node.node_id} has {batch} in its log, and {known} was committed")

    def _look_at_flushed(self, node: Node, seen: _Seen) -> None:
        """Check that all records which the core counts as flushed are synced to disk. Also check the voters in force."""
        assert node.service is not None
        assert node.log is not None
        core = node.service.quorum.core
        flushed = seen.flushed = core.log.flushed_offset
        if flushed and flushed == core.log.end_offset:
            _must(
                node.platter.promised_to(flushed, core.log.last_epoch),
                f"{node.node_id} takes {flushed} for synced, and a loss of power would take it",
            )
        self.look_at_voters(node)

    def look_at_voters(self, node: Node) -> None:
        """Check that the voters in force are those of the newest voters record on disk. Skip the check while the core
        and the disk differ in the log end.
        """
        assert node.service is not None
        assert node.log is not None
        core = node.service.quorum.core
        if core.log.end_offset != node.log.log_end_offset:
            return  # The disk and the core differ in the log end, so they cannot be compared yet.
        batches = node.platter.log()
        if batches and batches[-1].last_offset + 1 != core.log.end_offset:
            return
        found = self._voters_in(node, batches)
        _must(
            core.voters == found,
            f"{node.node_id} has voters {core.voters.node_ids} in force, and its log says {found.node_ids}",
        )

    def _voters_in(self, node: Node, batches: Iterable[LoggedBatch]) -> VoterSet:
        for batch in reversed(list(batches)):
            if batch.is_control:
                for decoded in read_batches(batch.data, source="a log"):
                    for record in reversed(decoded.records):
                        if isinstance(record, VotersRecord):
                            return VoterSet.from_record(record)
        snapshots = node.platter.snapshots()
        if max(snapshots, default=(0, 0))[0] > 0:
            return self._voters_at(max(snapshots)[0])
        return self._first_voters if (0, 0) in snapshots else VoterSet(())

    def _voters_at(self, end_offset: int) -> VoterSet:
        return next(voters for end, voters in reversed(self._voters) if end <= end_offset)

    # -- occasional checks ----------------------------------------------------------------------------------------

    def published(self, node: Node, image: MetadataImage) -> None:
        """Check an image that a node publishes to its subscribers."""
        known = self._images.get(image.offset + 1)
        if known is not None:
            _must(
                image.brokers == known.brokers and image.features == known.features,
                f"the image of {node.node_id} at {image.offset} is no replay of what was committed",
            )

    def look_at_logs(self) -> None:
        """Check log matching: if two logs share an entry, all earlier entries are equal too (Raft, figure 3)."""
        logs = [whole_log(node) for node in self._nodes.values()]
        for at, first in enumerate(logs):
            for second in logs[at + 1 :]:
                theirs = {(each.last_offset, each.epoch): each for each in second}
                is_shared = False
                start = max(first[0].base_offset if first else 0, second[0].base_offset if second else 0)
                for batch in reversed(first):
                    if batch.base_offset < start:
                        break
                    same = theirs.get((batch.last_offset, batch.epoch))
                    is_shared = is_shared or same is not None
                    _must(not is_shared or same == batch, f"log matching: {batch}, {same}")

    def look_at_snapshots(self, node: Node) -> None:
        """Check that each snapshot on disk equals the expected image at its end offset."""
        for (end, _), data in node.platter.snapshots(durable=True).items():
            known = self._images.get(end)
            if end == 0 or known is None or not data:
                continue
            contents = decode_snapshot(data, source=f"snapshot {end} of {node.node_id}")
            _must(
                list(contents.records) == list(records_of(known)),
                f"snapshot {end} of {node.node_id} is no replay of what was committed",
            )
            for record in contents.control_records:
                if isinstance(record, VotersRecord):
                    _must(
                        VoterSet.from_record(record) == self._voters_at(end),
                        f"snapshot {end} of {node.node_id} has other voters than the log below it",
                    )

    def check(self) -> None:
        """Check, after all faults are healed, that all nodes have the same log, voters and image."""
        self.look_at_logs()
        for node in self._nodes.values():
            assert node.service is not None
            self.look_at_snapshots(node)
            self.look_at_voters(node)
            image = node.service.committed_image
            _must(
                image == attrs.evolve(self._image(), offset=image.offset, epoch=image.epoch),
                f"the image of {node.node_id} is no replay of what was committed",
            )
            for broker_id in self.acknowledged:
                _must(broker_id in image.brokers, f"{broker_id} was acknowledged, and is lost")
