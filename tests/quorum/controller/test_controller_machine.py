"""The controller under random events: leaders and in-sync replicas are always valid, and no committed record is lost.

Brokers register, fall silent, stop, lose disks, and return with or without their data. Leaders report in-sync replicas.
Clients move replicas, hold elections and change configurations. A model knows which replicas certainly have every
committed record. While the ISR has at least `min.insync.replicas` members, records are committed all the time, so only
in-sync replicas have all of them. With fewer members nothing is committed.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from odradek.metadata_quorum.controller.broker_sessions import NEVER
from odradek.metadata_quorum.controller.brokers.broker_registration import FenceExpiredBrokers
from odradek.metadata_quorum.controller.controller import Activate, Controller
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.elect_leaders import BalanceLeaders, ElectLeaderless
from odradek.metadata_quorum.controller.partitions.partition_change import acceptable_leaders
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import (
    NO_LEADER,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionImage,
)
from odradek.metadata_quorum.replica.storage_format import bootstrap_records
from odradek.metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from odradek.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.unregister_broker import UnregisterBrokerRequest
from tests.quorum.controller.controller_script import InstantLog
from tests.schedule import examples

BROKERS = range(5)
TOPIC = "t"
BROKER = st.sampled_from(BROKERS)
SUBSET = st.sets(BROKER)
PARTITION = st.integers(0, 2)


class ControllerMachine(RuleBasedStateMachine):
    """A controller, five brokers, and a topic of three partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.log = InstantLog()
        self.now_ms = 0
        self.uuids = 0
        self.settings = ControllerSettings()
        self.machine: ReplicatedStateMachine[Any, Any] = self._lead(MetadataImage.empty("c"))
        self.before: dict[int, PartitionImage] = {}
        self.complete: dict[int, set[int]] = {}
        self.lost: set[int] = set()
        self.disks = {
            broker_id: [bytes([65 + broker_id, number]) * 8 for number in (1, 2)] for broker_id in BROKERS
        }
        self.empty: dict[int, set[int]] = {}
        """The replicas of each partition that are on a new, empty disk and have fetched nothing yet."""
        self.may_lose = False
        """True if this step may elect an empty replica."""

    def _lead(self, image: MetadataImage) -> ReplicatedStateMachine[Any, Any]:
        self.controller = Controller(self.settings)
        self.machine = ReplicatedStateMachine(
            self.controller, self.log, image, random=Random(7), new_uuid=self._new_uuid
        )
        self.ask(Activate(bootstrap_records()))
        return self.machine

    def _new_uuid(self) -> bytes:
        self.uuids += 1
        return self.uuids.to_bytes(16, "big")

    def ask(self, request: Any) -> Any:
        deferred = self.machine.submit(request, self.now_ms)
        self.log.commit()
        return deferred.response

    @property
    def image(self) -> MetadataImage:
        image: MetadataImage = self.machine.committed_state
        return image

    @initialize(factor=st.integers(1, 4), min_isr=st.integers(1, 3))
    def begin(self, factor: int, min_isr: int) -> None:
        for broker_id in BROKERS:
            self.register(broker_id, clean=False)
            self.heartbeat(broker_id, want="run", loses=False)
        self.lost = set()
        topic = CreatableTopic(TOPIC, 3, factor, [], [])
        assert self.ask(CreateTopicsRequest([topic])).topics[0].error_code == ErrorCode.NONE
        self.set_min_isr(min_isr)
        self.check()

    # -- brokers -----------------------------------------------------------------------------------------------

    @rule(broker_id=BROKER, clean=st.booleans())
    def register(self, broker_id: int, clean: bool) -> None:
        """Register a new incarnation of a broker with its present disks."""
        known = self.image.brokers.get(broker_id)
        response = self.ask(
            BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id="c",
                incarnation_id=self._new_uuid(),
                listeners=[Listener("PLAINTEXT", f"h{broker_id}", 9092, 0)],
                features=[
                    Feature("metadata.version", 30, 30),
                    Feature("eligible.leader.replicas.version", 0, 1),
                    Feature("transaction.version", 0, 2),
                    Feature("group.version", 0, 1),
                ],
                log_dirs=self.disks[broker_id],
                previous_broker_epoch=known.epoch if clean and known is not None else -1,
            )
        )
        if known is not None and set(known.log_dirs).isdisjoint(self.disks[broker_id]):
            # All of the broker's disks are new, so it may be another node. It is refused while the old session lasts.
            assert response.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        else:
            assert response.error_code == ErrorCode.NONE
        if response.error_code == ErrorCode.NONE and (not clean or known is None):
            self.lost.add(broker_id)

    @rule(broker_id=BROKER, want=st.sampled_from(["run", "run", "run", "fence", "stop"]), loses=st.booleans())
    def heartbeat(self, broker_id: int, want: str, loses: bool) -> None:
        known = self.image.brokers.get(broker_id)
        if known is None:
            return
        offline = self.disks[broker_id][:1] if loses else []
        self.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=known.epoch,
                current_metadata_offset=self.image.offset,
                want_fence=want == "fence",
                want_shut_down=want == "stop",
                offline_log_dirs=offline,
            )
        )

    @rule(broker_id=BROKER, number=PARTITION, disk=st.integers(1, 2))
    def assign(self, broker_id: int, number: int, disk: int) -> None:
        """Report the disk to which a broker has assigned a replica. The replica's old disk may be gone."""
        known = self.image.brokers.get(broker_id)
        if known is None:
            return
        to = self.disks[broker_id][disk - 1]
        held = self.image.topics[TOPIC].partitions[number]
        before = held.directory_of(broker_id)
        if before not in (UNASSIGNED_DIRECTORY, to) and before not in known.log_dirs:
            self.empty.setdefault(number, set()).add(broker_id)
            self.complete[number].discard(broker_id)
        partition = AssignReplicasToDirsRequestPartitionData(number)
        topic = AssignReplicasToDirsRequestTopicData(self.image.topics[TOPIC].topic_id, [partition])
        directory = AssignReplicasToDirsRequestDirectoryData(to, [topic])
        self.ask(AssignReplicasToDirsRequest(broker_id, known.epoch, [directory]))

    @rule(broker_id=BROKER, disk=st.integers(0, 1), clean=st.booleans())
    def replace_disk(self, broker_id: int, disk: int, clean: bool) -> None:
        """Replace a broker's disk by an empty one. With `clean`, its other disk still proves a clean stop."""
        self.disks[broker_id][disk] = b"d" + self._new_uuid()[1:]
        self.register(broker_id, clean)
        self.heartbeat(broker_id, want="run", loses=False)
        registered = self.image.brokers[broker_id].log_dirs if broker_id in self.image.brokers else ()
        for number, partition in self.image.topics[TOPIC].partitions.items():
            if broker_id in partition.replicas and partition.directory_of(broker_id) not in registered:
                self.assign(broker_id, number, 1 + disk)

    @rule(seconds=st.integers(1, 12), alive=SUBSET)
    def time_passes(self, seconds: int, alive: set[int]) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            for broker_id in sorted(alive):
                self.heartbeat(broker_id, want="run", loses=False)
            while self.ask(FenceExpiredBrokers()):
                self.note()
            self.note()

    @rule(broker_id=BROKER)
    def unregister(self, broker_id: int) -> None:
        self.ask(UnregisterBrokerRequest(broker_id))

    @rule()
    def another_controller(self) -> None:
        image = self.image
        self.machine.resign()
        self.log.epoch += 1
        self._lead(image)

    # -- leaders ----------------------------------------------------------------------------------------------------

    @rule(number=PARTITION, members=SUBSET, late=st.booleans())
    def alter_isr(self, number: int, members: set[int], late: bool) -> None:
        """Report a leader's in-sync replicas: the leader, and replicas that have caught up with it."""
        topic = self.image.topics[TOPIC]
        partition = topic.partitions[number]
        leader = self.image.brokers.get(partition.leader)
        if leader is None:
            return
        isr = [each for each in partition.replicas if each in members or each == partition.leader]
        states = [
            BrokerState(each, self.image.brokers[each].epoch) for each in isr if each in self.image.brokers
        ]
        data = AlterPartitionRequestPartitionData(
            number, partition.leader_epoch, [], states, 0, partition.partition_epoch - late
        )
        request = AlterPartitionRequest(
            leader.broker_id, leader.epoch, [AlterPartitionRequestTopicData(topic.topic_id, [data])]
        )
        answer = self.ask(request).topics[0].partitions[0]
        if late:
            assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        elif answer.error_code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            self.empty.setdefault(number, set()).difference_update(state.broker_id for state in states)
            # A replica that joins the ISR has all records of the leader.
            if partition.leader in self.complete[number]:
                self.complete[number].update(state.broker_id for state in states)
        else:
            assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA

    # -- clients ----------------------------------------------------------------------------------------------------

    @rule(number=PARTITION, replicas=st.lists(BROKER, unique=True, min_size=1, max_size=4))
    def reassign(self, number: int, replicas: list[int]) -> None:
        self._reassign(number, replicas)

    @rule(number=PARTITION)
    def cancel(self, number: int) -> None:
        self._reassign(number, None)

    def _reassign(self, number: int, replicas: list[int] | None) -> None:
        topic = ReassignableTopic(TOPIC, [ReassignablePartition(number, replicas)])
        self.ask(AlterPartitionReassignmentsRequest(topics=[topic]))

    @rule(unclean=st.booleans())
    def elect(self, unclean: bool) -> None:
        self.may_lose = unclean
        self.ask(ElectLeadersRequest(int(unclean), None))

    @rule(request=st.sampled_from([BalanceLeaders(), ElectLeaderless()]))
    def timer(self, request: Any) -> None:
        self.ask(request)

    @rule(value=st.integers(1, 3))
    def set_min_isr(self, value: int) -> None:
        self._configure("min.insync.replicas", str(value))

    @rule(value=st.booleans())
    def set_unclean(self, value: bool) -> None:
        self._configure("unclean.leader.election.enable", str(value).lower())

    def _configure(self, key: str, value: str) -> None:
        resource = AlterConfigsResource(2, TOPIC, [AlterableConfig(key, 0, value)])
        response = self.ask(IncrementalAlterConfigsRequest([resource]))
        assert response.responses[0].error_code == ErrorCode.NONE

    # -- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        """Check the invariants after every step."""
        if TOPIC in self.image.topics:
            self.note()

    def note(self) -> None:
        topic = self.image.topics[TOPIC]
        rules = topic_rules(self.image, DecisionBasis(self.settings, self.controller.sessions), topic)
        for number, partition in topic.partitions.items():
            before = self.before.get(number, partition)
            self.complete.setdefault(number, set(partition.isr))
            self.complete[number] -= self.lost
            min_isr = min(rules.min_isr, len(partition.replicas))
            self._check_shape(partition, min_isr)
            self._check_change(before, partition)
            self._check_completeness(number, before, partition, min_isr)
            self._check_empty(number, partition, rules.unclean_election)
        self.before = dict(topic.partitions)
        self.lost = set()
        self.may_lose = False

    def _check_empty(self, number: int, partition: PartitionImage, unclean_election: bool) -> None:
        """Check that only an unclean election makes an empty replica the leader."""
        empty = self.empty.setdefault(number, set())
        empty &= set(partition.replicas)
        assert empty.isdisjoint(partition.elr)
        assert empty.isdisjoint(partition.last_known_elr)
        if not empty.isdisjoint(partition.isr):
            assert self.may_lose or unclean_election, f"an empty replica of partition {number} was elected"
            empty -= set(partition.isr)

    def _check_shape(self, partition: PartitionImage, min_isr: int) -> None:
        isr, elr, replicas = set(partition.isr), set(partition.elr), set(partition.replicas)
        acceptable = acceptable_leaders(self.image)
        assert len(replicas) == len(partition.replicas) == len(partition.directories)
        assert len(isr) == len(partition.isr)
        assert isr <= replicas
        assert elr <= replicas
        assert elr.isdisjoint(isr)
        assert not elr or len(isr) < min_isr
        assert set(partition.adding_replicas) <= replicas
        assert set(partition.removing_replicas) <= replicas
        able = {each for each in isr if acceptable(partition, each)}
        # A broker that has stopped stays in the ISR until the remaining brokers have sent heartbeats.
        assert all(self.controller.sessions.waits_since(each) != NEVER for each in isr - able)
        assert (partition.leader in able) == (partition.leader != NO_LEADER) == bool(able)
        if not isr:
            assert not any(acceptable(partition, each) for each in elr)
        if partition.leader != NO_LEADER:
            assert not partition.last_known_elr

    def _check_change(self, before: PartitionImage, after: PartitionImage) -> None:
        assert after.leader_epoch >= before.leader_epoch
        assert after.partition_epoch >= before.partition_epoch
        if after.leader != before.leader or not set(before.replicas) <= set(after.replicas):
            assert after.leader_epoch > before.leader_epoch
        if after.leader_epoch == before.leader_epoch and after.partition_epoch == before.partition_epoch:
            assert after == before

    def _check_completeness(
        self, number: int, before: PartitionImage, after: PartitionImage, min_isr: int
    ) -> None:
        complete = self.complete[number]
        if after.leader != NO_LEADER and after.leader not in complete:
            assert after.leader_recovery_state == RECOVERING, (
                "the leader may lack records, but its partition is not RECOVERING"
            )
            self.complete[number] = complete = {after.leader}
        assert set(after.isr) <= complete
        assert set(after.elr) <= complete
        if after.leader != NO_LEADER and len(after.isr) >= min_isr:
            self.complete[number] = set(after.isr)

    def teardown(self) -> None:
        """Check that replaying the whole log gives the same image."""
        builder = ImageBuilder(MetadataImage.empty("c"))
        for offset, record in enumerate(self.log.records):
            builder.replay(offset, record, 1)
        image, _ = builder.build()
        assert image.topics == self.image.topics
        assert image.brokers == self.image.brokers
        assert image.configs == self.image.configs


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
