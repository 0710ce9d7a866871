"""A model of three brokers, their disks and one partition, under the real state machine of the controller. PURE.

A replica is a list of (leader epoch, record). A leader acts by the metadata that it has seen, which may be old. A
record is acknowledged when all members of its ISR have it. A loss of power removes some or all records after the last
sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import attrs

from odradek.metadata_quorum.controller.brokers.broker_registration import FenceExpiredBrokers
from odradek.metadata_quorum.controller.controller import Activate, Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.features import THIS_RELEASE, Release
from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage, PartitionImage
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode
from odradek.wire.messages import controller_registration as controllers
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from odradek.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    PartitionLogInfo,
    TopicPartitionLogInfo,
)
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.quorum.controller.controller_script import InstantLog

NODES = (1, 2, 3)
Record = tuple[int, int]


@attrs.define
class Replica:
    """A broker with its replica's log."""

    node_id: int
    log: list[Record] = attrs.Factory(list)
    synced: int = 0
    lives: bool = False
    broker_epoch: int = -1
    previous: int = -1
    """The broker epoch of its last clean stop, which is in a file on its disk."""
    seen: PartitionImage | None = None
    offset: int = -1
    promised: dict[int, int] = attrs.Factory(dict)
    """On a leader: the number of records that each follower has, in the leader epoch that was seen last."""

    @property
    def rank(self) -> tuple[int, int]:
        return (self.log[-1][0] if self.log else -1), len(self.log)


class PowerWorld:
    """A random history of the cluster. Times are in milliseconds."""

    def __init__(
        self,
        random: Random,
        *,
        assignment: Iterable[int] = NODES,
        min_isr: int = 2,
        release: Release = THIS_RELEASE,
        settings: ControllerSettings = ControllerSettings(),  # noqa: B008  (frozen)
    ) -> None:
        self.random, self.release, self.settings = random, release, settings
        self.is_mixed = False
        """True if nodes of several releases come and go. Then a shorter log may be elected."""
        self.now_ms = 0
        self.log = InstantLog()
        self.uuids = 0
        self.records = 0
        self.acknowledged: list[Record] = []
        self.nodes = {node_id: Replica(node_id) for node_id in NODES}
        self.unclean: list[tuple[PartitionImage, PartitionImage]] = []
        """Elections of leaders that may lack records, each with the partition before and after it."""
        self.checked_epoch = -1
        """The newest leader epoch whose leader was checked against the acknowledged records."""
        self.machine = self._activate(MetadataImage.empty("c"))
        request = controllers.ControllerRegistrationRequest(
            9,
            self.new_uuid(),
            False,
            [controllers.Listener("CONTROLLER", "h", 1, 0)],
            [controllers.Feature(name, *levels) for name, levels in release.registered_features.items()],
        )
        assert not self.ask(request).error_code
        for node_id in NODES:
            self.start(node_id)
            self.beat(node_id)
        topic = CreatableTopic(
            "t",
            -1,
            -1,
            [CreatableReplicaAssignment(0, list(assignment))],
            [CreatableTopicConfig("min.insync.replicas", str(min_isr))],
        )
        assert not self.ask(CreateTopicsRequest([topic])).topics[0].error_code
        for node_id in NODES:
            self.beat(node_id)

    # --- the controller

    def _activate(self, image: MetadataImage) -> ReplicatedStateMachine[Any, Any]:
        self.controller = Controller(self.settings)
        self.machine = ReplicatedStateMachine(
            self.controller, self.log, image, random=Random(7), new_uuid=self.new_uuid
        )
        self.ask(Activate(bootstrap_records()))
        return self.machine

    def new_uuid(self) -> bytes:
        self.uuids += 1
        return self.uuids.to_bytes(16, "big")

    def ask(self, request: Any) -> Any:
        before = self._partition()
        deferred = self.machine.submit(request, self.now_ms)
        self.log.commit()
        after = self._partition()
        if before is None or after is None or after.leader in (NO_LEADER, before.leader):
            return deferred.response
        if after.leader not in (*before.isr, *before.elr):
            self.unclean.append((before, after))
            self._check_least_loss(before, after)
        return deferred.response

    def _partition(self) -> PartitionImage | None:
        image: MetadataImage = self.machine.committed_state
        return image.partition("t", 0)

    @property
    def partition(self) -> PartitionImage:
        partition = self._partition()
        assert partition is not None
        return partition

    @property
    def image(self) -> MetadataImage:
        image: MetadataImage = self.machine.committed_state
        return image

    def fail_over(self) -> None:
        """Replace the controller by another one, which has no soft state."""
        image = self.image
        self.machine.resign()
        self.log.epoch += 1
        self._activate(image)

    def tick(self, milliseconds: int) -> None:
        """Let time pass, and check sessions as the controller's timer does."""
        end_ms = self.now_ms + milliseconds
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 500)
            while self.ask(FenceExpiredBrokers()):
                pass

    # --- brokers

    def living(self) -> list[Replica]:
        return [node for node in self.nodes.values() if node.lives]

    def start(self, node_id: int) -> None:
        """Start a broker's process, and register it."""
        node = self.nodes[node_id]
        assert not node.lives
        request = BrokerRegistrationRequest(
            node_id,
            "c",
            self.new_uuid(),
            [Listener("PLAINTEXT", f"h{node_id}", 9092, 0)],
            [Feature(name, *levels) for name, levels in self.release.registered_features.items()],
            None,
            False,
            [bytes([64 + node_id]) * 16],
            node.previous,
        )
        response = self.ask(request)
        assert response.error_code == ErrorCode.NONE
        node.lives, node.broker_epoch, node.previous = True, response.broker_epoch, -1
        node.promised = {}
        self.see(node_id)

    def see(self, node_id: int) -> None:
        """Let a broker apply the newest metadata."""
        node = self.nodes[node_id]
        newest = self._partition()
        node.offset = self.image.offset
        if newest is None:
            return
        begins = newest.leader == node_id and (
            node.seen is None or node.seen.leader_epoch < newest.leader_epoch
        )
        if node.seen is None or node.seen.leader_epoch < newest.leader_epoch:
            node.promised = {}
        node.seen = newest
        if begins:
            self._check_leader(node)

    def beat(self, node_id: int, *, stop: bool = False) -> bool:
        """Send a heartbeat of a broker that has applied all metadata. Return True if the broker may stop."""
        self.see(node_id)
        node = self.nodes[node_id]
        infos = []
        seen = node.seen
        if seen is not None and seen.leader == NO_LEADER and not seen.isr and not seen.elr:
            info = PartitionLogInfo(0, node.rank[0], seen.leader_epoch, len(node.log), 0)
            infos = [TopicPartitionLogInfo(self.image.topics["t"].topic_id, [info])]
        response = self.ask(
            BrokerHeartbeatRequest(
                node_id, node.broker_epoch, node.offset, False, stop, topic_partition_log_info_list=infos
            )
        )
        self.see(node_id)
        return bool(response.should_shut_down)

    def lose_power(self, node_id: int) -> None:
        """Cut the power of a broker's machine: some or all of the records after the last sync are lost."""
        node = self.nodes[node_id]
        del node.log[self.random.randint(node.synced, len(node.log)) :]
        self._die(node)

    def kill(self, node_id: int) -> None:
        """Kill a broker's process. Unsynced records survive, since the machine keeps its page cache."""
        self._die(self.nodes[node_id])

    def _die(self, node: Replica) -> None:
        node.lives, node.synced, node.seen, node.promised = False, len(node.log), None, {}

    def stop(self, node_id: int, *, announced: bool = False, patience: int = 3) -> None:
        """Stop a broker cleanly. With `announced` it first asks the controller, up to `patience` times."""
        node = self.nodes[node_id]
        for _ in range(patience if announced else 0):
            if self.beat(node_id, stop=True):
                break
            self.tick(500)
        previous = node.broker_epoch
        self._die(node)
        node.previous = previous

    def sync(self, node_id: int) -> None:
        self.nodes[node_id].synced = len(self.nodes[node_id].log)

    # --- records

    def leader(self) -> Replica | None:
        """Choose a living broker that believes it leads, or None. There may be several."""
        leaders = [
            each for each in self.living() if each.seen is not None and each.seen.leader == each.node_id
        ]
        return self.random.choice(leaders) if leaders else None

    def produce(self) -> None:
        """Let a leader append a record."""
        leader = self.leader()
        if leader is not None and leader.seen is not None:
            self.records += 1
            leader.log.append((leader.seen.leader_epoch, self.records))
            self._acknowledge(leader)

    def fetch(self, node_id: int) -> None:
        """Truncate a follower's log where it diverges from its leader's, and copy the rest.

        The leader then knows which records the follower has.
        """
        node = self.nodes[node_id]
        if not node.lives or node.seen is None or node.seen.leader in (NO_LEADER, node_id):
            return
        leader = self.nodes[node.seen.leader]
        if not leader.lives or leader.seen is None or leader.seen.leader_epoch != node.seen.leader_epoch:
            return
        if leader.seen.leader != leader.node_id:
            return
        same = 0
        while same < min(len(node.log), len(leader.log)) and node.log[same] == leader.log[same]:
            same += 1
        node.synced = min(node.synced, same)
        node.log[same:] = leader.log[same:]
        leader.promised[node_id] = len(node.log)
        self._acknowledge(leader)

    def _acknowledge(self, leader: Replica) -> None:
        seen = leader.seen
        assert seen is not None
        if len(seen.isr) < min(self._min_isr(), len(seen.replicas)):
            return
        others = [leader.promised.get(each, 0) for each in seen.isr if each != leader.node_id]
        end = min([len(leader.log), *others])
        known = len(self.acknowledged)
        if end > known and leader.log[:known] == self.acknowledged:
            self.acknowledged += leader.log[known:end]

    def _min_isr(self) -> int:
        return int(self.image.topic_configs("t")["min.insync.replicas"])

    def propose(self) -> None:
        """Let a leader propose an ISR: living replicas that are in the present one, or have all of its records."""
        leader = self.leader()
        if leader is None or leader.seen is None:
            return
        seen = leader.seen
        isr = [
            each
            for each in seen.replicas
            if each == leader.node_id
            or (self.nodes[each].lives and leader.promised.get(each, -1) == len(leader.log))
            or (each in seen.isr and self.nodes[each].lives)
        ]
        states = [BrokerState(each, self.nodes[each].broker_epoch) for each in isr]
        data = AlterPartitionRequestPartitionData(0, seen.leader_epoch, [], states, 0, seen.partition_epoch)
        topics = [AlterPartitionRequestTopicData(self.image.topics["t"].topic_id, [data])]
        self.ask(AlterPartitionRequest(leader.node_id, leader.broker_epoch, topics))
        # The leader uses a larger ISR at once, and a smaller one only when its metadata shows it.
        if set(isr) >= set(seen.isr) and self.partition.leader_epoch == seen.leader_epoch:
            self.see(leader.node_id)

    # --- invariants

    def _check_leader(self, node: Replica) -> None:
        """Check that a cleanly elected leader has all acknowledged records.

        After an unclean election, forget the acknowledged records that the leader lacks.
        """
        known = len(self.acknowledged)
        epoch = self.partition.leader_epoch
        # Count each unclean election since the last check, since this leader may have seen none before.
        is_unclean = any(self.checked_epoch < after.leader_epoch <= epoch for _, after in self.unclean)
        self.checked_epoch = epoch
        if not is_unclean:
            assert node.log[:known] == self.acknowledged, (
                f"node {node.node_id} was elected cleanly, and lacks acknowledged records"
            )
            return
        same = 0
        while same < min(known, len(node.log)) and node.log[same] == self.acknowledged[same]:
            same += 1
        del self.acknowledged[same:]

    def _check_least_loss(self, before: PartitionImage, after: PartitionImage) -> None:
        """Check that no living replica of the last known ELR has a longer log than the new leader."""
        if self.is_mixed or THIS_RELEASE is not self.release:
            return
        chosen = self.nodes[after.leader]
        for node_id in before.last_known_elr:
            broker = self.image.brokers[node_id]
            if self.nodes[node_id].lives and broker.is_active:
                assert chosen.rank >= self.nodes[node_id].rank, (
                    f"node {node_id} has a longer log than the elected leader {after.leader}"
                )

    def heal(self) -> None:
        """Start all brokers, and let them fetch until all are in sync."""
        for node_id, node in self.nodes.items():
            if not node.lives:
                self.start(node_id)
        for _ in range(40):
            for node_id in NODES:
                self.beat(node_id)
            for node_id in NODES:
                self.fetch(node_id)
            self.propose()
            if sorted(self.partition.isr) == list(NODES):
                return
            self.tick(500)
        raise AssertionError(f"not all replicas are in sync after 40 rounds: {self.partition}")
