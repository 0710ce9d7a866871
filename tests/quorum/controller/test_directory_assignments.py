"""AssignReplicasToDirs: how the controller uses a broker's report.

The broker repeats the report until it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest

from odradek.data_plane.disks.directory_assignments import ASSIGNMENTS_PER_REQUEST, DirectoryAssignments
from odradek.data_plane.newest_image import NewestImage
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.brokers.directories import assign_replicas_to_dirs
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.features import ELIGIBLE_LEADER_REPLICAS
from odradek.metadata_quorum.image.image_builder import merge_partition
from odradek.metadata_quorum.image.metadata_image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.metadata_quorum.state_machine import DecisionContext
from odradek.serving.layered_map import LayeredMap
from odradek.wire.config_resources import RESOURCE_TOPIC
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from testkit.by_hand import KeptLog, ManualClock

TOPIC_ID, UNKNOWN_ID = b"t" * 16, b"u" * 16
ONE, TWO, GONE = b"1" * 16, b"2" * 16, b"9" * 16
EPOCH = 7


def broker(broker_id: int, *log_dirs: bytes) -> BrokerImage:
    return BrokerImage(broker_id, EPOCH, bytes(16), (), (), None, False, False, log_dirs)


def image(partition: PartitionImage, min_isr: int = 0) -> MetadataImage:
    """Make an image of two brokers and one partition. With `min_isr`, the cluster keeps eligible leader replicas."""
    topic = TopicImage("t", TOPIC_ID, {0: partition})
    topics_by_id: LayeredMap[bytes, TopicImage] = LayeredMap({TOPIC_ID: topic})
    found = MetadataImage(
        topics_by_id=topics_by_id, brokers={1: broker(1, ONE, TWO), 2: broker(2, b"x" * 16)}
    )
    if not min_isr:
        return found
    return attrs.evolve(
        found,
        features={ELIGIBLE_LEADER_REPLICAS: 1},
        configs=LayeredMap({(RESOURCE_TOPIC, "t"): {"min.insync.replicas": str(min_isr)}}),
    )


def ask(
    partition: PartitionImage,
    directory: bytes,
    *,
    topic_id: bytes = TOPIC_ID,
    number: int = 0,
    broker_id: int = 1,
    epoch: int = EPOCH,
    min_isr: int = 0,
) -> tuple[ErrorCode, PartitionImage | None]:
    """Decide one assignment. Return the error code, and the partition after it, or None if there is no record."""
    topic = AssignReplicasToDirsRequestTopicData(topic_id, [AssignReplicasToDirsRequestPartitionData(number)])
    request = AssignReplicasToDirsRequest(
        broker_id, epoch, [AssignReplicasToDirsRequestDirectoryData(directory, [topic])]
    )
    context = DecisionContext(0, 1, 100, 1, Random(1), lambda: bytes(16))
    basis = DecisionBasis(ControllerSettings(), BrokerSessions(9000))
    decision = assign_replicas_to_dirs(image(partition, min_isr), request, context, basis)
    response = decision.response
    if response.error_code:
        assert response.directories == []
        code = response.error_code
    else:
        code = response.directories[0].topics[0].partitions[0].error_code
    records: list[Any] = list(decision.records)
    return ErrorCode(code), merge_partition(partition, records[0]) if records else None


NEW = PartitionImage(1, 0, 0, (1, 2), (1, 2), (UNASSIGNED_DIRECTORY, b"x" * 16))


def test_the_word_is_recorded() -> None:
    """An assignment changes only the replica's directory. If it is repeated, no record is written."""
    code, after = ask(NEW, TWO)
    assert (code, after) == (
        ErrorCode.NONE,
        attrs.evolve(NEW, partition_epoch=1, directories=(TWO, b"x" * 16)),
    )
    assert after is not None
    assert ask(after, TWO) == (ErrorCode.NONE, None)


@pytest.mark.parametrize("directory", [GONE, LOST_DIRECTORY])
def test_a_replica_outside_the_registration_is_offline(directory: bytes) -> None:
    """The new directory is not registered, so the replica is offline.

    The replica leaves the ISR, and another replica leads. If it is alone in the ISR, it stays there, and the
    partition has no leader.
    """
    code, after = ask(NEW, directory)
    assert code is ErrorCode.NONE
    assert after is not None
    assert (after.leader, after.isr, after.directories[0]) == (2, (2,), directory)
    _, after = ask(attrs.evolve(NEW, isr=(1,)), directory)
    assert after is not None
    assert (after.leader, after.isr) == (NO_LEADER, (1,))


def test_a_lost_replica_is_not_eligible_and_its_fetches_count_no_more() -> None:
    """A replica's directory is lost, so the replica will be empty.

    It is no longer eligible, and the leader epoch rises, so that the leader forgets the replica's fetches.
    """
    followed = attrs.evolve(NEW, leader=2, isr=(2, 1))
    for directory, elr, leader_epoch in ((GONE, (1,), 0), (LOST_DIRECTORY, (), 1)):
        _, after = ask(followed, directory, min_isr=2)
        assert after is not None
        assert (after.leader, after.isr, after.elr, after.leader_epoch) == (2, (2,), elr, leader_epoch)


@pytest.mark.parametrize("before", [UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY, TWO])
def test_a_replica_that_is_found_leads_again(before: bytes) -> None:
    """A partition waits for its last in-sync replica.

    The broker reports this replica in a valid directory, and the replica leads again.
    """
    waiting = attrs.evolve(NEW, leader=NO_LEADER, isr=(1,), directories=(before, b"x" * 16))
    _, after = ask(waiting, ONE)
    assert after is not None
    assert (after.leader, after.leader_epoch) == (1, 1)


def test_a_replica_in_the_place_of_one_that_is_gone_begins_anew() -> None:
    """A replica's directory is gone, and the replica is assigned to another directory, where it begins empty.

    It leaves the ISR, the ELR and the last known ELR, and is not elected. If another replica leads, the leader epoch
    rises, so that the leader forgets the fetches of the lost replica.
    """
    waiting = attrs.evolve(NEW, leader=NO_LEADER, isr=(1,), directories=(GONE, b"x" * 16))
    _, after = ask(waiting, ONE)
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (NO_LEADER, (), (), ())
    last_known = attrs.evolve(waiting, isr=(), last_known_elr=(1,))
    _, after = ask(last_known, ONE)
    assert after is not None
    assert (after.leader, after.last_known_elr, after.replicas) == (NO_LEADER, (), (2, 1))
    followed = attrs.evolve(NEW, leader=2, directories=(GONE, b"x" * 16))
    _, after = ask(followed, ONE)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 1)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"topic_id": UNKNOWN_ID}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"number": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"epoch": EPOCH - 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_id": 9}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_what_is_not_there_is_refused(asked: dict[str, Any], code: ErrorCode) -> None:
    """An unknown topic, partition, broker or replica gets its own error code, and no record is written."""
    assert ask(NEW, ONE, **asked) == (code, None)
    assert ask(attrs.evolve(NEW, replicas=(2,), directories=(b"x" * 16,)), ONE) == (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        None,
    )


class Stop(Exception):
    """Raised when all scripted answers are used."""


class Controller:
    """A `PeerChannel` with scripted answers.

    Each is an exception, an error code of the request, or a function from partition to error code.
    """

    def __init__(self, *script: Exception | ErrorCode | Callable[[int], ErrorCode]) -> None:
        self.script = list(script)
        self.asked: list[dict[tuple[bytes, int], bytes]] = []

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        self.asked.append(
            {
                (topic.topic_id, partition.partition_index): directory.id
                for directory in message.directories
                for topic in directory.topics
                for partition in topic.partitions
            }
        )
        if not self.script:
            raise Stop
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, ErrorCode):
            return AssignReplicasToDirsResponse(0, step, [])
        return AssignReplicasToDirsResponse(
            0,
            0,
            [
                AssignReplicasToDirsResponseDirectoryData(
                    directory.id,
                    [
                        AssignReplicasToDirsResponseTopicData(
                            topic.topic_id,
                            [
                                AssignReplicasToDirsResponsePartitionData(
                                    partition.partition_index, step(partition.partition_index)
                                )
                                for partition in topic.partitions
                            ],
                        )
                        for topic in directory.topics
                    ],
                )
                for directory in message.directories
            ],
        )


class Flag:
    """An event that ends the tested loop when the loop waits for it."""

    def set(self) -> None:
        """Do nothing. The loop finds its work without this event."""

    def is_set(self) -> bool:
        return False

    async def wait(self) -> None:
        raise Stop


def tell(controller: Controller, noted: dict[tuple[bytes, int], bytes]) -> DirectoryAssignments:
    """Run the assignments until all are reported or the script ends."""
    assignments = DirectoryAssignments(
        1, controller, ManualClock(), Flag, NewestImage(image(NEW)), request_timeout_ms=1000, log=KeptLog()
    )
    for replica, directory in noted.items():
        assignments.note(*replica, directory)
    with pytest.raises(Stop):
        assignments.run().send(None)
    return assignments


@pytest.mark.reaches("disks.assignments_not_sent")
def test_it_is_told_until_the_controller_has_it() -> None:
    """An assignment is repeated after a lost connection, a stale epoch or another passing error.

    It is dropped if its partition is gone.
    """
    noted = {(TOPIC_ID, index): ONE for index in range(3)}
    codes = {0: ErrorCode.NONE, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 2: ErrorCode.NOT_CONTROLLER}
    controller = Controller(
        ConnectionLost("once"),
        ErrorCode.STALE_BROKER_EPOCH,
        codes.__getitem__,
        lambda index: ErrorCode.NONE,
    )
    assignments = tell(controller, noted)
    assert assignments.pending == {}
    assert controller.asked == [noted, noted, noted, {(TOPIC_ID, 2): ONE}]


def test_one_request_has_a_limit() -> None:
    """A request has at most 2250 replicas, as in Kafka."""
    controller = Controller(lambda index: ErrorCode.NONE, lambda index: ErrorCode.NONE)
    tell(controller, {(TOPIC_ID, index): TWO for index in range(ASSIGNMENTS_PER_REQUEST + 3)})
    assert [len(asked) for asked in controller.asked] == [ASSIGNMENTS_PER_REQUEST, 3]
