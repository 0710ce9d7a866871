"""`min.insync.replicas` and the ISR change: the high watermark passes no record that an eligible leader may lack
(KIP-966).

A replica that leaves an ISR below the minimum becomes an eligible leader, since the high watermark cannot move from
then on. So a leader that accepts a smaller ISR must not use an older, lower minimum.
"""

from __future__ import annotations

import attrs
import pytest

from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import MetadataDelta
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from tests.replication.brokers import LAG_MS_MAX, TOPIC, ReplicatedTopic


async def settled(cluster: ReplicatedTopic) -> Partition:
    """Wait until broker 1 leads with one committed record and knows all decisions of the controller."""
    await cluster.in_sync(1, 2, 3)
    assert (await cluster.produce(1, b"a"))[0] == 0
    partition = cluster.members[1].partition()
    known = cluster.controller.partitions[0]
    await cluster.until(lambda: partition.image is known and partition.log.high_watermark == 1)
    return partition


@pytest.mark.parametrize("seed", range(3))
def test_a_smaller_isr_counts_with_the_minimum_by_which_it_was_decided(seed: int) -> None:
    """If the answer to AlterPartition overtakes a change of the minimum, the leader commits nothing by the old
    minimum."""

    async def script(cluster: ReplicatedTopic) -> None:
        partition = await settled(cluster)
        cluster.metadata_seconds = 1000.0
        cluster.crash(2)
        cluster.crash(3)
        cluster.controller.min_isr = 2
        assert (await cluster.produce(1, b"b", acks=1))[0] == 0
        await cluster.until(lambda: cluster.controller.partitions[0].isr == (1,))
        await cluster.world.sleep(1.0)
        assert partition.effective_min_isr == 1, "the minimum has been heard of too soon for this test"
        assert partition.log.high_watermark == 1

    ReplicatedTopic(seed).play(script)


@pytest.mark.parametrize("kind", [RESOURCE_TOPIC, RESOURCE_BROKER])
def test_a_raised_minimum_holds_for_the_smaller_isr_that_comes_with_it(kind: int) -> None:
    """If one image raises the minimum and shrinks the ISR, the new minimum applies to the smaller ISR."""

    async def script(cluster: ReplicatedTopic) -> None:
        partition = await settled(cluster)
        cluster.metadata_seconds = 1000.0
        cluster.controller.is_deaf = True
        cluster.crash(2)
        cluster.crash(3)
        assert (await cluster.produce(1, b"b", acks=1))[0] == 0
        await cluster.world.sleep(2 * LAG_MS_MAX / 1000)
        if kind == RESOURCE_TOPIC:
            cluster.controller.min_isr = 2
        else:
            cluster.controller.broker_configs["min.insync.replicas"] = "2"
        cluster.controller.alter(0, isr=(1,))
        image = cluster.controller.image()
        if kind == RESOURCE_BROKER:
            image = attrs.evolve(image, configs=image.configs.changed({(RESOURCE_TOPIC, TOPIC): None}))
        name = TOPIC if kind == RESOURCE_TOPIC else ""
        delta = MetadataDelta(changed_topics={TOPIC: (0,)}, changed_configs=((kind, name),))
        cluster.members[1].broker.apply_metadata(image, delta)
        assert (partition.isr_state.isr, partition.effective_min_isr) == ((1,), 2)
        assert partition.log.high_watermark == 1

    ReplicatedTopic().play(script)


def test_a_lowered_minimum_does_not_hold_for_a_leadership_that_ends_with_it() -> None:
    """If an image ends a leadership and lowers the minimum, the old leader commits nothing by the lower minimum."""

    async def script(cluster: ReplicatedTopic) -> None:
        partition = await settled(cluster)
        for node_id in (2, 3):
            cluster.crash(node_id)
            cluster.controller.fence(node_id)
        await cluster.until(lambda: partition.isr_state.isr == (1,))
        assert (await cluster.produce(1, b"b", acks=1))[0] == 0
        cluster.controller.min_isr = 1
        cluster.controller.elect(0, 2, isr=(2,))
        await cluster.until(lambda: not partition.is_leader)
        assert partition.log.high_watermark == 1

    ReplicatedTopic(min_isr=2).play(script)
