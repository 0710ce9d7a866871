"""A simulated cluster of Raft cores, whose caller controls network and disks. Raft's safety properties are checked at
every step. PURE.

Each log entry is one batch with a unique value, so that entries can be compared. A crash loses unsynced entries. A
saved vote is durable at once, as the driver ensures. `dies` may crash a node between two effects of one step; then
only the effects before the crash take place.

A violated property raises `SafetyViolation`. `sim.alone.raft_alone` drives the cluster from a seed, and tests drive
it with Hypothesis.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch, QuorumState
from odradek.metadata_quorum.raft.core import RaftCore
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.effects import (
    Answer,
    AppendFetched,
    HighWatermarkAdvanced,
    LoadSnapshot,
    LostLeadership,
    SaveState,
    Send,
    TookLeadership,
    Truncate,
)
from odradek.metadata_quorum.raft.log_state import Batch, LogState
from odradek.metadata_quorum.raft.messages import Fetch, FetchAnswer, Request, Response, Vote, VoteAnswer
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from sim.history import SafetyViolation

FETCH_BATCHES_MAX = 3

__all__ = ["Cluster", "Letter", "Node", "Question", "Reply"]


def _never() -> bool:
    return False


def must(holds: bool, promise: str) -> None:
    """Raise `SafetyViolation` with the text `promise` if `holds` is False."""
    if not holds:
        raise SafetyViolation(promise)


@attrs.frozen
class Question:
    """A request on its way. `life` is the number of the sender's present process: after a restart the sender ignores
    the answer.
    """

    sender: int
    life: int
    receiver: int
    request: Request


@attrs.frozen
class Reply:
    """An answer on its way back."""

    question: Question
    response: Response


Letter = Question | Reply


@attrs.define
class Snapshot:
    end: OffsetAndEpoch
    entries: list[Batch]
    voters: VoterSet


@attrs.define
class Node:
    """A replica: its disk, and its Raft core while its process runs. `core` is None while the replica is down."""

    key: ReplicaKey
    core: RaftCore | None = None
    life: int = 0
    stored: QuorumState | None = None
    base: int = 0
    entries: list[Batch] = attrs.field(factory=list)
    synced: int = 0
    """How many entries at the start of `entries` survive a crash."""

    snapshot: Snapshot | None = None
    to_append: bool = False
    """True while a new leader has yet to append its LeaderChange record."""

    questions: dict[int, Question] = attrs.field(factory=dict)
    committed: int = 0
    """The last high watermark of this node."""

    highest_epoch: int = 0


@attrs.define
class Cluster:
    """A simulated cluster: the nodes by id, the messages on their way, and all leaders and batches that were ever
    elected or committed.
    """

    nodes: dict[int, Node]
    initial: VoterSet
    config: RaftConfig = attrs.field(factory=RaftConfig)
    now: float = 0.0
    letters: list[Letter] = attrs.field(factory=list)
    leaders: dict[int, int] = attrs.field(factory=dict)
    """The id of the leader of each epoch."""

    committed: dict[int, Batch] = attrs.field(factory=dict)
    """The committed batches by their base offsets."""

    committed_in: dict[int, int] = attrs.field(factory=dict)
    """The epoch in which each batch was committed, by its base offset."""

    serial: int = 0
    unanswered: list[Question] = attrs.field(factory=list)
    """Requests that a node had received but not answered when it crashed. Each sender gets an error at its next tick.
    """

    dies: Callable[[], bool] = _never
    """Called before each effect of a step. If it returns True, the node crashes before that effect."""

    @classmethod
    def of(cls, voters: Sequence[int], observers: Sequence[int] = ()) -> Cluster:
        keys = {node_id: ReplicaKey(node_id, bytes([node_id]) * 16) for node_id in [*voters, *observers]}
        initial = VoterSet.of(Voter(keys[node_id]) for node_id in voters)
        cluster = cls({node_id: Node(key) for node_id, key in keys.items()}, initial)
        for node_id in keys:
            cluster.start(node_id)
        return cluster

    # -- steps ------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Start a node's process from its disk."""
        node = self.nodes[node_id]
        assert node.core is None
        node.life += 1
        log = LogState(voter_history=[(-1, self.initial)])
        if node.snapshot is not None:
            log.install(node.snapshot.end, node.snapshot.voters)
        for batch in node.entries:
            log.append(batch)
        log.flushed_offset = log.end_offset
        rng = random.Random(f"{node_id}/{node.life}")
        node.core = RaftCore(
            node.key, log, node.stored, self.config, rng, self.now, bootstrap=sorted(self.nodes)
        )
        self._perform(node)

    def crash(self, node_id: int) -> None:
        """Crash a node: its process ends, and unsynced entries are lost."""
        node = self.nodes[node_id]
        node.core = None
        del node.entries[node.synced :]
        self.unanswered += node.questions.values()
        node.questions.clear()
        node.to_append = False

    def replace_disk(self, node_id: int) -> None:
        """Give a stopped node an empty disk, with a new directory id and without a saved vote."""
        old = self.nodes[node_id]
        assert old.core is None
        directory_id = bytes([node_id]) * 15 + bytes([old.life])
        self.nodes[node_id] = Node(ReplicaKey(node_id, directory_id), life=old.life)

    def tick(self, node_id: int, seconds: float) -> None:
        """Advance time by `seconds`. Fail this node's requests that crashed nodes had received. Let the node handle its
        deadlines.
        """
        self.now += seconds
        node = self.nodes[node_id]
        for question in [each for each in self.unanswered if each.sender == node_id]:
            self.unanswered.remove(question)
            self._refuse(question)
        if node.core is not None:
            node.core.tick(self.now)
            self._perform(node)

    def give_up(self, node_id: int) -> None:
        """Let a node's requests to crashed nodes time out, without a broken connection."""
        for question in [each for each in self.unanswered if each.sender == node_id]:
            self.unanswered.remove(question)
            self._refuse(question, broken=False)

    def flush(self, node_id: int) -> None:
        """Sync all entries of this node's log."""
        node = self.nodes[node_id]
        if node.core is not None:
            node.synced = len(node.entries)
            node.core.flushed(self.end_offset(node), self.now)
            self._perform(node)

    def append(self, node_id: int, count: int = 1, voters: VoterSet | None = None) -> None:
        """Append one batch of `count` records at this leader, as its driver does. With `voters` the batch has a voters
        record.
        """
        node = self.nodes[node_id]
        core = node.core
        assert core is not None
        if voters is not None:
            self._check_change(node)
        self.serial += 1
        base = self.end_offset(node)
        batch = Batch(base, base + count - 1, core.epoch, f"value {self.serial}".encode(), voters)
        node.entries.append(batch)
        core.append(batch, self.now)
        self._perform(node)

    def deliver(self, at: int, *, keep: bool = False) -> None:
        """Deliver the message at this index. With `keep` a copy of the message stays on its way."""
        letter = self.letters[at] if keep else self.letters.pop(at)
        if isinstance(letter, Question):
            node = self.nodes[letter.receiver]
            if node.core is None:
                self._refuse(letter)
                return
            self.serial += 1
            node.questions[self.serial] = letter
            node.core.receive_request(self.serial, letter.request, self.now)
        else:
            node = self.nodes[letter.question.sender]
            if node.core is None or node.life != letter.question.life:
                return
            node.core.receive_response(
                letter.question.receiver, letter.question.request, letter.response, self.now
            )
        self._perform(node)

    def drop(self, at: int, *, broken: bool = False) -> None:
        """Lose the message at this index. The sender of the request sees a timeout or, with `broken`, a broken
        connection.
        """
        letter = self.letters.pop(at)
        self._refuse(letter if isinstance(letter, Question) else letter.question, broken=broken)

    def _refuse(self, question: Question, *, broken: bool = True) -> None:
        node = self.nodes[question.sender]
        if node.core is not None and node.life == question.life:
            node.core.request_failed(question.receiver, question.request, self.now, broken=broken)
            self._perform(node)

    def write_snapshot(self, node_id: int) -> None:
        """Write a snapshot of the committed entries that are synced, and drop these entries from the log."""
        node = self.nodes[node_id]
        core = node.core
        if core is None:
            return
        synced_end = node.entries[node.synced - 1].last_offset + 1 if node.synced else node.base
        end = min(core.high_watermark, synced_end)
        taken = [batch for batch in node.entries if batch.last_offset < end]
        if not taken:
            return
        before = node.snapshot.entries if node.snapshot else []
        core.log.take_snapshot(OffsetAndEpoch(taken[-1].last_offset + 1, taken[-1].epoch))
        end = taken[-1].last_offset + 1
        voters = [each for offset, each in core.log.voter_history if offset < end][-1]
        node.snapshot = Snapshot(OffsetAndEpoch(end, taken[-1].epoch), [*before, *taken], voters)
        core.log.drop_prefix(end)
        node.base = end
        node.synced -= len(taken)
        del node.entries[: len(taken)]

    def settle(self, seconds: float = 60.0) -> None:
        """Run a healthy network for this many virtual seconds: deliver in order, sync at once."""
        until = self.now + seconds
        while self.now < until:
            for _ in range(20):
                for node_id in self.nodes:
                    self.flush(node_id)
                if not self.letters:
                    break
                self.deliver(0)
            for node_id in self.nodes:
                self.tick(node_id, 0.01)

    # -- questions about the state ----------------------------------------------------------------------------

    def leader(self) -> Node | None:
        """Return the present leader with the highest epoch; None if no node considers itself the leader."""
        leading = self.all_leaders()
        return max(leading, key=lambda node: node.core.epoch if node.core else -1, default=None)

    def all_leaders(self) -> list[Node]:
        """List the nodes that consider themselves the leader. At most one of them can still commit."""
        return [
            node
            for node in self.nodes.values()
            if node.core is not None and isinstance(node.core.role, Leader)
        ]

    @staticmethod
    def end_offset(node: Node) -> int:
        return node.entries[-1].last_offset + 1 if node.entries else node.base

    def whole_log(self, node: Node) -> list[Batch]:
        return [*(node.snapshot.entries if node.snapshot else []), *node.entries]

    # -- effects ----------------------------------------------------------------------------------------------

    def _perform(self, node: Node) -> None:
        core = node.core
        assert core is not None
        for effect in core.effects():
            if self.dies():
                self.crash(node.key.node_id)
                return
            match effect:
                case SaveState(state):
                    must(
                        state.leader_epoch >= (node.stored.leader_epoch if node.stored else 0),
                        "a replica saved a lower epoch than before",
                    )
                    node.stored = state
                case Send(node_id, request):
                    self._check_promise(node, request)
                    self.letters.append(Question(node.key.node_id, node.life, node_id, request))
                case Answer(request_id, response, read_offset):
                    self._answer(node, request_id, response, read_offset)
                case Truncate(end_offset):
                    self._truncate(node, end_offset)
                case AppendFetched(batches):
                    node.entries += batches
                case LoadSnapshot(leader_id, snapshot):
                    self._load_snapshot(node, leader_id, snapshot)
                case HighWatermarkAdvanced(high_watermark):
                    self._commit(node, high_watermark)
                case TookLeadership(epoch, _):
                    must(
                        self.leaders.setdefault(epoch, node.key.node_id) == node.key.node_id,
                        f"election safety: epoch {epoch} has two leaders",
                    )
                    self._check_completeness(node)
                    node.to_append = True
                case LostLeadership():
                    node.to_append = False
        if node.to_append:
            node.to_append = False
            self.append(node.key.node_id)
        must(core.epoch >= node.highest_epoch, "the epoch of a replica fell")
        node.highest_epoch = core.epoch

    def _check_change(self, node: Node) -> None:
        """Check that a leader may change the voters: it has committed a record of its epoch (Ongaro's correction of
        2015), and the change before is committed.
        """
        assert node.core is not None
        own = [batch for batch in node.entries if batch.epoch == node.core.epoch]
        is_settled = any(batch.last_offset < node.committed for batch in own)
        is_settled = is_settled or (node.snapshot is not None and node.snapshot.end.epoch == node.core.epoch)
        must(is_settled, "a leader changes the voters before it has committed a record of its epoch")
        under_way = [batch for batch in node.entries if batch.voters and batch.last_offset >= node.committed]
        must(not under_way, "a leader changes the voters while another change is not committed")

    def _check_promise(self, node: Node, request: Request) -> None:
        if isinstance(request, Fetch):
            synced = node.entries[node.synced - 1].last_offset + 1 if node.synced else node.base
            must(
                request.offset <= synced, "a replica fetched from an offset below which its log is not synced"
            )

    def _check_vote(self, node: Node, request: Request, response: Response) -> None:
        """Check that a vote is saved before it is granted (Raft, figure 2)."""
        if isinstance(request, Vote) and not request.pre_vote:
            assert isinstance(response, VoteAnswer)
            stored = node.stored or QuorumState()
            saved = (stored.leader_epoch, stored.voted_id)
            must(
                not response.granted or saved == (request.epoch, request.sender.node_id),
                f"a vote for {request.sender.node_id} in epoch {request.epoch} is granted, but not saved",
            )

    def _answer(self, node: Node, request_id: int, response: Response, read_offset: int | None) -> None:
        question = node.questions.pop(request_id, None)
        if question is None:
            return
        self._check_vote(node, question.request, response)
        if read_offset is not None:
            assert isinstance(response, FetchAnswer)
            batches = [each for each in node.entries if each.base_offset >= read_offset]
            assert batches[0].base_offset == read_offset
            response = attrs.evolve(response, batches=tuple(batches[:FETCH_BATCHES_MAX]))
        self.letters.append(Reply(question, response))

    def _truncate(self, node: Node, end_offset: int) -> None:
        must(not isinstance(node.core.role if node.core else None, Leader), "leader append-only")
        node.entries = [each for each in node.entries if each.last_offset < end_offset]
        must(self.end_offset(node) == end_offset, "a truncation cuts a batch")
        node.synced = min(node.synced, len(node.entries))

    def _load_snapshot(self, node: Node, leader_id: int, wanted: OffsetAndEpoch) -> None:
        assert node.core is not None
        source = self.nodes[leader_id].snapshot
        if source is None or source.end != wanted or self.nodes[leader_id].core is None:
            node.core.snapshot_failed(self.now)
            return
        node.snapshot = Snapshot(source.end, list(source.entries), source.voters)
        node.base, node.entries, node.synced = source.end.offset, [], 0
        node.core.snapshot_installed(source.end, source.voters, self.now)
        self._perform(node)

    # -- Raft's safety properties (figure 3 of the paper) -----------------------------------------------------

    def _commit(self, node: Node, high_watermark: int) -> None:
        """Check state machine safety: no two nodes ever apply different entries at the same offset."""
        node.committed = high_watermark
        for batch in self.whole_log(node):
            if batch.last_offset < high_watermark:
                known = self.committed.setdefault(batch.base_offset, batch)
                assert node.core is not None
                self.committed_in.setdefault(batch.base_offset, node.core.epoch)
                must(known == batch, f"state machine safety at offset {batch.base_offset}")

    def _check_completeness(self, node: Node) -> None:
        """Check leader completeness: the leader of an epoch has every entry that was committed in an earlier epoch.

        The votes for a leader may arrive late, when a later leader has committed entries. It may lack these entries,
        and commits nothing any more.
        """
        assert node.core is not None
        mine = {batch.base_offset: batch for batch in self.whole_log(node)}
        for offset, batch in self.committed.items():
            if self.committed_in[offset] < node.core.epoch:
                must(mine.get(offset) == batch, f"leader completeness at offset {offset}")

    def check_log_matching(self) -> None:
        """Check log matching: if two logs have the same entry, all entries before it are equal, too."""
        logs = [self.whole_log(node) for node in self.nodes.values()]
        for at, first in enumerate(logs):
            for second in logs[at + 1 :]:
                shared = {(each.base_offset, each.epoch) for each in second}
                last = max(
                    (each.base_offset for each in first if (each.base_offset, each.epoch) in shared),
                    default=-1,
                )
                theirs = [each for each in second if each.base_offset <= last]
                must([each for each in first if each.base_offset <= last] == theirs, "log matching")
