"""An operator that recovers a quorum after most voters have lost their metadata disks, as `odradek quorum recover`
does. PORTED.

All nodes are stopped. The operator reads their directories with the product's own code, makes a plan, and applies
it on each machine. Now and then the command is interrupted, and the operator repeats it with the same plan, as its
documentation says.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from random import Random

import attrs

from odradek.client.admin import delete_topics
from odradek.client.admin.admin_partitions import ElectionType, elect_leaders
from odradek.client.errors import ClientError
from odradek.env.ports import DiskError
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import ReplicaKey, VoterSet
from odradek.metadata_quorum.recovery.choice import Choice, Named, choose, rebuild
from odradek.metadata_quorum.recovery.copies import read_copy
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundNode
from odradek.metadata_quorum.recovery.plan import RecoveryPlan, make_plan
from odradek.metadata_quorum.recovery.recovered_image import Holdings
from odradek.metadata_quorum.recovery.recovery_files import (
    decode_plan,
    decode_report,
    encode_plan,
    encode_report,
)
from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.operations.recovery.applying import apply_plan, begin_anew, set_aside_name
from odradek.operations.recovery.node_reading import NodeFacts, NotReadable, read_node
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.machine.cluster_members import CLUSTER_ID, Cluster
from sim.machine.members import Member

CALL_SECONDS = 1.0
"""The time limit of one request, in seconds. It is shorter than a storm, so that no request reaches the cluster that
the next recovery makes.
"""
LOOK_AGAIN_SECONDS = 1.0
DIES_PROBABILITY = 0.4
"""The probability that the operator's command is interrupted on a machine."""
OPERATIONS_MAX = 120
"""An upper limit for the number of disk operations that a recovery needs on one machine."""

__all__ = ["QuorumRecovery", "Recovered", "facts_of"]


@attrs.frozen
class Recovered:
    """The result of a recovery: the plan, the metadata with which the new log begins, and the topics and partitions
    that are on no disk.
    """

    plan: RecoveryPlan
    image: MetadataImage
    chosen_end: OffsetAndEpoch
    """The end of the chosen copy of the metadata log."""
    is_rebuilt: bool
    empty_topics: tuple[str, ...]
    empty_partitions: tuple[TopicPartition, ...]


def facts_of(member: Member) -> NodeFacts:
    """Return the facts about a node that a recovery needs, from the node's configuration."""
    config = member.config
    return NodeFacts(
        node_id=config.node_id,
        is_broker=config.is_broker,
        is_controller=config.is_controller,
        endpoints=tuple((each.listener, each.host, each.port) for each in config.controller_endpoints),
        static_voters=tuple(each.node_id for each in config.static_voters),
        servers=(*((each.host, each.port) for each in config.static_voters), *config.bootstrap_servers),
        log_dirs=tuple(config.log_dirs),
        metadata_path=config.metadata_log_dir,
    )


class QuorumRecovery:
    """The operator that recovers one cluster's quorum."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self.broken_off = 0
        """How often a recovery was interrupted on a machine."""
        self._latest: Recovered | None = None

    def read(self, members: Sequence[Member]) -> list[FoundNode]:
        """Read the directories of stopped nodes. Return the reports after an encoding and decoding, as if they had
        been stored in files.
        """
        found = [read_node(facts_of(each), self._cluster.world.node_env(each.name)) for each in members]
        return decode_report(encode_report(found))

    def recover(self, members: Sequence[Member], absent: Sequence[Member]) -> Recovered:
        """Recover the quorum on these machines. The machines in `absent` are left out. Raises `SafetyViolation` if
        the recovery is refused.
        """
        nodes = self.read(members)
        away = tuple(each.config.node_id for each in absent)
        first = choose(nodes, Named(absent=away))
        is_rebuilt = first.chosen is None
        if is_rebuilt:
            choice = rebuild(nodes, Named(absent=away, topics=_newest(nodes, first)))
        else:
            choice = choose(nodes, Named(lost=_lost(first, nodes), absent=away, topics=_newest(nodes, first)))
        if choice.refusals or choice.chosen is None:
            raise SafetyViolation(f"a recovery is refused: {'; '.join(choice.refusals)}")
        env = self._cluster.world.node_env(members[0].name)
        made = make_plan(
            choice.chosen,
            choice.copies,
            nodes,
            absent=away,
            topics=choice.topics,
            new_uuid=env.new_uuid,
            timestamp_ms=env.clock.wall_ms(),
        )
        plan = decode_plan(encode_plan(made))
        if plan != made:
            raise SafetyViolation("a plan differs after it was written and read")
        for member in self._random.sample(list(members), len(members)):
            self._carry_out(plan, member)
        self._latest = _recovered(plan, choice.chosen.end, is_rebuilt=is_rebuilt)
        return self._latest

    def _carry_out(self, plan: RecoveryPlan, member: Member) -> None:
        """Apply the plan on a machine, sometimes after an attempt that is interrupted. Check that a plan is applied
        only once, and that the old log is kept.
        """
        env = self._cluster.world.node_env(member.name)
        disk = self._cluster.world.machine(member.name).disk
        facts = facts_of(member)
        log = f"{facts.metadata_path}/{METADATA_LOG_DIRECTORY}"
        before = disk.peek(log)
        if self._random.random() < DIES_PROBABILITY:
            disk.fail_at(disk.operation_count + self._random.randint(1, OPERATIONS_MAX), errno.EIO)
            try:
                apply_plan(plan, facts, env)
            except (DiskError, NotReadable):
                self.broken_off += 1
            disk.forget_faults()
        apply_plan(plan, facts, env)
        if apply_plan(plan, facts, env):
            raise SafetyViolation(f"{member.name}: a plan that was already applied was applied again")
        aside = disk.peek(f"{facts.metadata_path}/{set_aside_name(plan.end.epoch)}")
        if before and aside != before:
            raise SafetyViolation(f"{member.name}: the old metadata log was not kept as it was")
        self._cluster.world.crash(member.name, "all")  # The command is over, so its process ends.

    def begin_anew(self, member: Member) -> None:
        """Set aside the metadata of a node that was left out of the recovery."""
        begin_anew(facts_of(member), self._cluster.world.node_env(member.name), has_no_vote=True)
        self._cluster.world.crash(member.name, "all")

    def end_settling(self) -> None:
        """Let `settle` return after the request that is under way."""
        self._latest = None

    async def settle(self, recovered: Recovered) -> None:
        """Delete the topics that no disk has, and elect leaders for single partitions that were lost with the disks,
        until `end_settling`.

        The recovery command reports both, and leaves these decisions to an operator. Stop at the next recovery, which
        reports other partitions. An election by the old report could lose the records of a node that is not back yet.
        """
        client = self._cluster.observer
        while recovered is self._latest:
            await self._cluster.world.sleep(LOOK_AGAIN_SECONDS)
            if recovered is not self._latest:
                return
            for name in recovered.empty_topics:
                try:
                    await client.run(delete_topics(client.core, [name], timeout=CALL_SECONDS))
                except (KafkaError, ClientError):
                    continue
            if recovered.empty_partitions:
                elect = elect_leaders(
                    client.core, recovered.empty_partitions, ElectionType.UNCLEAN, timeout=CALL_SECONDS
                )
                try:
                    await client.run(elect)
                except (KafkaError, ClientError):
                    continue


def _lost(choice: Choice, nodes: Sequence[FoundNode]) -> tuple[ReplicaKey, ...]:
    """List the voters whose metadata was not read from any disk."""
    copies = {each.node_id: each for each in nodes if each.copy is not None}
    keys = dict.fromkeys(voter.key for voters in choice.voter_sets for voter in voters.voters)
    return tuple(key for key in keys if key.node_id not in copies or not _is_of(key, copies[key.node_id]))


def _is_of(key: ReplicaKey, node: FoundNode) -> bool:
    return not any(key.directory_id) or key.directory_id == node.metadata_directory_id


def _newest(nodes: Sequence[FoundNode], choice: Choice) -> dict[str, bytes]:
    """Choose a topic id for each name for which the disks have several ids. Prefer an id that the chosen copy of the
    metadata lacks, since it is newer. Without a chosen copy take the first id.
    """
    known: Mapping[bytes, TopicImage] = {} if choice.chosen is None else choice.chosen.image.topics_by_id
    chosen = {}
    holdings = Holdings(nodes)
    for name, ids in holdings.names.items():
        if len(ids) > 1:
            later = [each for each in ids if each not in known]
            chosen[name] = (later or list(ids))[0]
    return chosen


def _recovered(plan: RecoveryPlan, chosen_end: OffsetAndEpoch, *, is_rebuilt: bool) -> Recovered:
    image = read_copy(CopyFiles(plan.end, plan.snapshot, b""), "the plan", None, CLUSTER_ID).image
    empty: list[str] = []
    partitions: list[TopicPartition] = []
    for name, topic in sorted(image.topics.items()):
        waiting = [number for number, each in topic.partitions.items() if each.last_known_elr]
        if not waiting:
            empty.append(name)
        else:
            partitions += [
                TopicPartition(name, number) for number in topic.partitions if number not in waiting
            ]
    return Recovered(plan, image, chosen_end, is_rebuilt, tuple(empty), tuple(partitions))


def majority_is_lost(voters: VoterSet, lost: Sequence[int]) -> bool:
    """True if the remaining voters are less than a majority."""
    return len([each for each in voters.node_ids if each not in lost]) < voters.majority
