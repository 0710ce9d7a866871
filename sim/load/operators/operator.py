"""The operator of a storm: moves, elections (also of partitions left without a leader), topics, voters added,
removed and replaced. PORTED.

Any action may fail, but no action may lose a record. After the storm every move must finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.admin.admin_logs import delete_records
from odradek.client.admin.admin_partitions import ElectionType, alter_partition_reassignments, elect_leaders
from odradek.client.admin.admin_quorum import (
    QuorumReplica,
    add_raft_voter,
    describe_quorum,
    remove_raft_voter,
)
from odradek.client.core.operation import Operation
from odradek.client.errors import ClientError
from odradek.metadata_quorum.replica.storage_format import find_meta_properties
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.history import History
from sim.load.operators.moves import TOPIC as MOVED
from sim.machine.cluster_members import CONTROLLER_PORT, Cluster
from sim.machine.members import Member
from sim.replicas import end_of

CALL_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 1.0
LEADERLESS_SECONDS = 20.0
"""How many seconds the operator waits for a leader. That is longer than a broker's session plus its start."""
OFFSETS_TOPIC = "__consumer_offsets"
SCRATCH_TOPICS = 3
VOTERS_MIN = 2

__all__ = ["Operator"]


class Operator:
    """The operator that acts during a storm.

    `partitions` are the workload's partitions, which the operator moves but never deletes. In the partitions `trimmed`
    it deletes old records, and records in `history` which of them may be missing.
    """

    def __init__(
        self,
        cluster: Cluster,
        partitions: Sequence[TopicPartition],
        replicas: int,
        trimmed: Sequence[TopicPartition] = (),
        history: History | None = None,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._replicas = replicas
        self._trimmed = trimmed
        self._history = history

    async def work(self, random: Random) -> str:
        """Take one random action, and return its name, with the error if it failed."""
        doing: Sequence[Callable[[Random], Operation[object]]] = (
            self._move,
            self._move,
            self._elect,
            self._create,
            self._delete,
            *((self._trim, self._trim) if self._trimmed else ()),
        )
        chosen = random.choice(doing)
        client = self._cluster.observer
        try:
            await client.run(chosen(random))
        except (KafkaError, ClientError) as error:
            return f"{chosen.__name__.strip('_')}: {type(error).__name__}"
        return chosen.__name__.strip("_")

    def _move(self, random: Random) -> Operation[object]:
        """Move a partition to other replicas, change the order of its replicas, or cancel a move."""
        ids = [member.config.node_id for member in self._cluster.brokers]
        offsets = [
            TopicPartition(OFFSETS_TOPIC, 0),
            TopicPartition(OFFSETS_TOPIC, 1),
        ]  # The coordinators of the workload's groups are on these partitions.
        # Leave out the topic `moved`: another operator moves its replicas, and checks where they are.
        key = random.choice([*(each for each in self._partitions if each.topic != MOVED), *offsets])
        replicas = None if random.random() < 0.1 else random.sample(ids, self._replicas)
        return alter_partition_reassignments(
            self._cluster.observer.core, {key: replicas}, timeout=CALL_SECONDS
        )

    def _elect(self, random: Random) -> Operation[object]:
        """Request preferred elections, of all partitions or of one."""
        one = [random.choice(self._partitions)]
        wanted = None if random.random() < 0.5 else one
        return elect_leaders(self._cluster.observer.core, wanted, timeout=CALL_SECONDS)

    def _create(self, random: Random) -> Operation[object]:
        name = f"scratch-{random.randrange(SCRATCH_TOPICS)}"
        topic = NewTopic(name, random.choice((1, 5)), self._replicas, self._cluster.shape.topic_configs)
        return create_topics(self._cluster.observer.core, [topic], timeout=CALL_SECONDS)

    def _delete(self, random: Random) -> Operation[object]:
        name = f"scratch-{random.randrange(SCRATCH_TOPICS)}"
        return delete_topics(self._cluster.observer.core, [name], timeout=CALL_SECONDS)

    def _trim(self, random: Random) -> Operation[object]:
        assert self._history is not None
        key = random.choice(self._trimmed)
        told = [each.offset for each in self._history.acknowledged if each.partition == key]
        offset = random.choice(told) if told else 0
        self._history.deleted_below[key] = max(offset, self._history.deleted_below.get(key, 0))
        return delete_records(self._cluster.observer.core, {key: offset}, timeout=CALL_SECONDS)

    # -- recovery of partitions and brokers --------------------------------------------------------

    async def recover(self) -> None:
        """Elect the replica with the longest log if a partition has no leader for `LEADERLESS_SECONDS` while all
        brokers are up. Never returns.
        """
        cluster, client = self._cluster, self._cluster.observer
        since: dict[TopicPartition, float] = {}
        while True:
            await cluster.world.sleep(LOOK_AGAIN_SECONDS)
            if not all(member.serves() for member in cluster.brokers):
                since = {}
                continue
            try:
                known = await client.metadata()
                waiting = [
                    TopicPartition(name, index)
                    for name, topic in sorted(known.topics.items())
                    for index, each in sorted(topic.partitions.items())
                    if each.leader < 0
                ]
                since = {key: since.get(key, cluster.world.now) for key in waiting}
                for key, began in since.items():
                    if cluster.world.now - began >= LEADERLESS_SECONDS:
                        replicas = known.topics[key.topic].partitions[key.partition].replicas
                        await self._elect_fullest(key, replicas)
            except (KafkaError, ClientError):
                continue

    async def return_unregistered(self) -> None:
        """Restart running brokers that were unregistered: such a broker logs a line that asks for a restart. Never
        returns.

        A late request to unregister a broker may arrive long after its sender has stopped waiting.
        """
        while True:
            await self._cluster.world.sleep(LOOK_AGAIN_SECONDS)
            for member in self._cluster.brokers:
                running = member.running
                if running is not None and member.is_up() and member.log.is_unregistered:
                    member.ask_to_stop()
                    await running.ended.wait()
                    member.launch()

    def _is_unfenced(self, broker_id: int) -> bool:
        """True if the broker is registered and unfenced in the active controller's metadata. The broker's own
        metadata may be older.
        """
        for member in self._cluster.members:
            metadata = None if member.node is None else member.node.metadata
            if metadata is not None and metadata.is_active:
                broker = metadata.committed_image.brokers.get(broker_id)
                return broker is not None and not broker.fenced
        return False

    async def _elect_fullest(self, key: TopicPartition, replicas: Sequence[int]) -> None:
        """Elect the replica with the longest log. Logs are compared as in Raft: first by the last leader epoch, then
        by the end offset.

        Do nothing while that replica's broker is fenced, since the controller would then elect another replica.
        """
        client = self._cluster.observer
        ids = {member.name: member.config.node_id for member in self._cluster.brokers}
        logs = self._cluster.replica_logs(*key)
        fullness = {
            ids[name]: (log[-1].epoch if log else -1, end_of(log))
            for name, log in logs.items()
            if ids[name] in replicas  # Skip files that a move has left on other brokers.
        }
        # Take only as many brokers as the replication factor: during a move a partition has more replicas.
        order = sorted(fullness, key=lambda broker: fullness[broker], reverse=True)[: self._replicas]
        if not order or not self._is_unfenced(order[0]):
            return
        self._cluster.world.trace.record(
            self._cluster.world.now, "operator", "log", "recover", tuple(key), order
        )
        self._cluster.recovered[key] = tuple(sorted(order))
        await client.run(alter_partition_reassignments(client.core, {key: order}, timeout=CALL_SECONDS))
        await client.run(elect_leaders(client.core, [key], ElectionType.UNCLEAN, timeout=CALL_SECONDS))

    # --- voters

    @property
    def may_change_voters(self) -> bool:
        """True if the metadata log names the voters (KIP-853), and there are enough of them to remove one."""
        return self._cluster.shape.dynamic_voters and len(self._cluster.controllers) > VOTERS_MIN

    def may_replace_voters(self, kinds: Sequence[str]) -> bool:
        """True if a voter may lose its disk in a storm of these kinds, because two other voters keep theirs."""
        return self.may_change_voters and "voters" not in kinds

    def is_voter(self, member: Member) -> bool:
        return member in self._cluster.controllers

    async def change_voters(self, random: Random) -> str:
        """Add an observer as a voter, or remove a voter. Return a word for the action, or the error's name."""
        client = self._cluster.observer
        able = {member.config.node_id for member in self._cluster.controllers}
        try:
            quorum = await client.run(describe_quorum(client.core, timeout=CALL_SECONDS))
            voting = {voter.node_id for voter in quorum.voters}
            waiting = [each for each in quorum.observers if each.node_id in able - voting]
            if waiting and (random.random() < 0.7 or len(voting) <= VOTERS_MIN):
                await self._add(random.choice(waiting))
                return "added"
            if len(voting) > VOTERS_MIN:
                gone = random.choice(quorum.voters)
                removing = remove_raft_voter(
                    client.core, gone.node_id, gone.directory_id, timeout=CALL_SECONDS
                )
                await client.run(removing)
                return "removed"
        except (KafkaError, ClientError) as error:
            return type(error).__name__
        return "left"

    async def _add(self, observer: QuorumReplica) -> None:
        client = self._cluster.observer
        (host,) = [each.name for each in self._cluster.controllers if each.config.node_id == observer.node_id]
        endpoints = {"CONTROLLER": (host, CONTROLLER_PORT)}
        adding = add_raft_voter(
            client.core, observer.node_id, observer.directory_id, endpoints, timeout=CALL_SECONDS
        )
        await client.run(adding)

    async def replace_voter(self, member: Member) -> None:
        """Remove a voter whose disk was replaced, and add its new replica. Repeats until that succeeds."""
        client, node_id = self._cluster.observer, member.config.node_id
        while True:
            try:
                quorum = await client.run(describe_quorum(client.core, timeout=CALL_SECONDS))
                # For minutes the leader lists the replica on the lost disk as an observer, too. That replica must
                # not become a voter again.
                listed = [each for each in quorum.observers if each.node_id == node_id]
                new = [each for each in listed if self._is_current(member, each)]
                old = [each for each in quorum.voters if each.node_id == node_id]
                if new and old:
                    key = (old[0].node_id, old[0].directory_id)
                    await client.run(remove_raft_voter(client.core, *key, timeout=CALL_SECONDS))
                elif new:
                    await self._add(new[0])
                    return
                elif old and self._is_current(member, old[0]):
                    return
            except (KafkaError, ClientError) as error:
                self._cluster.world.trace.record(
                    self._cluster.world.now, "operator", "log", "replace", member.name, error
                )
            await self._cluster.world.sleep(LOOK_AGAIN_SECONDS)

    def _is_current(self, member: Member, replica: QuorumReplica) -> bool:
        """True if this replica is the one on the node's present disk."""
        env = self._cluster.world.node_env(member.name)
        meta = find_meta_properties(env.open_dir(member.config.metadata_log_dir))
        return meta is not None and meta.directory_id == replica.directory_id
