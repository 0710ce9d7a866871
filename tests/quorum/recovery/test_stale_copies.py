"""Random histories of a partition, an older copy of the metadata log, and a recovery with it.

Brokers, disks and the controller are those of `power_world.py`. The copy may lack later ISRs, leaders and eligible
replicas.
"""

from __future__ import annotations

from random import Random

import pytest

from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.recovery.copies import MetadataCopy, read_copy
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundDirectory, FoundNode, FoundReplica
from odradek.metadata_quorum.recovery.plan import RecoveryPlan, make_plan
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from odradek.wire.messages.metadata_records import ConfigRecord
from tests.quorum.controller.controller_script import InstantLog
from tests.quorum.controller.power_world import NODES, PowerWorld
from tests.schedule import seeds

CONTROLLER = 9


class LaterLog(InstantLog):
    """A decision log that begins at the end of a recovery's snapshot."""

    def __init__(self, plan: RecoveryPlan) -> None:
        super().__init__()
        self._base = plan.end.offset
        self.epoch = plan.end.epoch + 1

    @property
    def log_end_offset(self) -> int:
        return self._base + len(self.records)

    @property
    def high_watermark(self) -> int:
        return self.log_end_offset

    def append_batch(self, batch: object) -> int:
        return self._base + super().append_batch(batch)  # type: ignore[arg-type]  # as the class above encodes it


def node(world: PowerWorld, node_id: int) -> FoundNode:
    """Describe the disks of a stopped node."""
    directory = bytes([64 + node_id]) * 16
    replicas: tuple[FoundReplica, ...] = ()
    if node_id != CONTROLLER:
        epoch, end = world.nodes[node_id].rank
        replicas = (FoundReplica("t", 0, world.image.topics["t"].topic_id, directory, epoch, end),)
    return FoundNode(
        node_id=node_id,
        cluster_id="c",
        is_broker=node_id != CONTROLLER,
        is_controller=node_id == CONTROLLER,
        endpoints=(("CONTROLLER", "h", 1),),
        static_voters=(),
        metadata_path="/m",
        directories=(FoundDirectory("/m", directory),),
        quorum_epoch=world.log.epoch,
        replicas=replicas,
    )


def recover(world: PowerWorld, image: MetadataImage, read: list[int], absent: list[int]) -> RecoveryPlan:
    """Recover the metadata from this image while all brokers are stopped, and begin the controller's new log."""
    copy = MetadataCopy(
        "node 9", CONTROLLER, OffsetAndEpoch(image.offset + 1, max(image.epoch, 0)), (), image
    )
    plan = make_plan(
        copy,
        [copy],
        [node(world, each) for each in (*read, CONTROLLER)],
        absent=absent,
        topics={name: topic.topic_id for name, topic in image.topics.items()},
        new_uuid=world.new_uuid,
        timestamp_ms=1,
    )
    recovered = read_copy(CopyFiles(plan.end, plan.snapshot, b""), "the plan", None, "c").image
    world.log = LaterLog(plan)
    builder = ImageBuilder(recovered)
    builder.replay(
        plan.end.offset - 1, ConfigRecord(2, "t", "unclean.leader.election.enable", "true"), plan.end.epoch
    )
    world.machine = world._activate(builder.build()[0])
    return plan


def step(world: PowerWorld, random: Random) -> None:
    """Do a random step in which processes may die, but no machine loses power."""
    node_id = random.choice(NODES)
    lives = world.nodes[node_id].lives
    kind = random.choices(
        ("produce", "fetch", "beat", "see", "propose", "tick", "die", "start", "fail_over"),
        (10, 14, 14, 4, 6, 6, 2, 6, 0.5),
    )[0]
    if kind in ("produce", "propose", "fail_over"):
        getattr(world, kind)()
    elif kind == "tick":
        world.tick(random.choice((500, 1000, 4000, 10_000)))
    elif kind == "start":
        if not lives:
            world.start(node_id)
    elif lives and kind == "die":
        if random.random() < 0.5:
            world.kill(node_id)
        else:
            world.stop(node_id, announced=random.random() < 0.5)
    elif lives:
        getattr(world, kind)(node_id)


def stopped(random: Random) -> tuple[PowerWorld, MetadataImage]:
    """Run a random history, and stop all brokers. Return the world and a copy of the metadata from a random moment.

    Histories with an unclean election are skipped, since a recovery assumes that the lost part of the log has none.
    """
    while True:
        world = PowerWorld(random, min_isr=random.choice((1, 2, 2, 3)), assignment=random.sample(NODES, 3))
        images = [world.image]
        for _ in range(120):
            step(world, random)
            images.append(world.image)
        for each in world.living():
            world.kill(each.node_id)
        if not world.unclean and world.partition.isr and world.acknowledged:
            return world, random.choice(images)


@pytest.mark.parametrize("seed", seeds(60))
def test_what_was_acknowledged_outlives_a_stale_copy(seed: int) -> None:
    """At least one in-sync replica is left.

    The elected leader has all acknowledged records, after any order of return.
    """
    random = Random(seed)
    world, image = stopped(random)
    true = world.partition
    acknowledged = list(world.acknowledged)
    left = random.sample(NODES, random.choice((1, 2, 3, 3)))
    if not set(left) & set(true.isr):
        left.append(random.choice(true.isr))
    before = {each: world.nodes[each].rank for each in left}
    plan = recover(world, image, sorted(left), [])
    assert plan.end.offset > world.image.offset
    for node_id in left:
        # After a leader is elected, the topic's own rule for unclean elections applies again. So the last broker to
        # return must not be fenced.
        world.tick(random.choice((0, 500, 20_000)))
        assert world.partition.leader == NO_LEADER, "a leader was elected before all brokers had reported"
        world.start(node_id)
        for living in world.living():
            world.beat(living.node_id)
    for node_id in (*left, *left):
        world.beat(node_id)
    leader = world.partition.leader
    assert world.nodes[leader].rank == max(before.values())
    assert world.nodes[leader].log[: len(acknowledged)] == acknowledged
    assert world.partition.leader_epoch > max(epoch for epoch, _ in before.values())
    assert all(world.nodes[each].broker_epoch >= plan.end.offset for each in left)


def absent_world(random: Random) -> PowerWorld:
    """Recover while the replica with all records is absent, and start the other brokers."""
    world = PowerWorld(random)
    for _ in range(3):
        world.produce()
        for node_id in (2, 3):
            world.fetch(node_id)
    image = world.image
    for node_id in NODES:
        world.kill(node_id)
    del world.nodes[1].log[1:], world.nodes[2].log[2:]
    recover(world, image, [1, 2], [3])
    for node_id in (1, 2):
        world.start(node_id)
    for _ in range(3):
        for node_id in (1, 2):
            world.beat(node_id)
        world.tick(400_000)
    for node_id in (1, 2):
        if not world.nodes[node_id].lives:
            world.start(node_id)
        world.beat(node_id)
    return world


def test_an_absent_node_is_waited_for_without_a_limit() -> None:
    """A complete replica is absent.

    No shorter log leads before it is back, whatever the keys for unclean elections say.
    """
    world = absent_world(Random(1))
    assert world.partition.leader == NO_LEADER
    world.start(3)
    for node_id in (3, 1, 2, 3):
        world.beat(node_id)
    assert world.partition.leader == 3
    assert len(world.nodes[3].log) == 3


def test_an_operator_may_call_the_rest_lost() -> None:
    """The operator asks for an unclean election.

    It waits for no replica, and the longest log of the returned ones leads.
    """
    world = absent_world(Random(1))
    assert not world.ask(ElectLeadersRequest(1, None)).error_code
    assert world.partition.leader == 2
