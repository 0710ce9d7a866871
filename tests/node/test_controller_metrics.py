"""Metrics of the quorum and of the whole cluster."""

from __future__ import annotations

from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.image.metadata_image import (
    BrokerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.node.metrics.controller_metrics import ClusterFigures, cluster_figures
from odradek.node.metrics.hosted_figures import at_once
from odradek.node.metrics.image_figures import ImageCounter, ImageFigures
from odradek.serving.layered_map import LayeredMap
from sim.machine.world import World
from testkit.lone_node import create_topic
from tests.node.test_metrics import Connect, play_measured, samples


def test_the_figures_of_a_cluster() -> None:
    """The metrics page has Kafka's ActiveBrokerCount, FencedBrokerCount, OfflinePartitionsCount and
    PreferredReplicaImbalanceCount."""

    def broker(broker_id: int, *, fenced: bool = False, stopping: bool = False) -> BrokerImage:
        return BrokerImage(broker_id, 1, bytes(16), (), (), None, fenced, stopping, (bytes(16),))

    partitions = {
        0: PartitionImage(1, 0, 0, (1, 2), (1, 2)),
        1: PartitionImage(2, 0, 0, (1, 2), (2,)),
        2: PartitionImage(-1, 0, 0, (3, 2), (3,)),
    }
    topics = LayeredMap({"t": TopicImage("t", bytes(16), partitions)})
    brokers = {1: broker(1), 2: broker(2, stopping=True), 3: broker(3, fenced=True)}
    image, counter = MetadataImage(topics=topics, brokers=brokers), ImageCounter(2)
    counted = at_once(counter.count(image))
    assert cluster_figures(image, counted) == ClusterFigures(2, 1, 1, 3, 1, 2)
    assert counted.placed == 3
    changed = LayeredMap({"t": TopicImage("t", bytes(16), {0: partitions[0]}), "u": topics["t"]})
    assert at_once(counter.count(MetadataImage(topics=changed))) == ImageFigures(4, 1, 2, 4)
    nothing = MetadataImage()
    assert cluster_figures(nothing, at_once(counter.count(nothing))) == ClusterFigures()


def test_the_active_controller_tells_of_the_cluster() -> None:
    """A lone node's metrics show that it is the active controller and that all of its log is committed."""

    async def script(world: World, connect: Connect) -> None:
        await create_topic(await connect())
        found = await samples(world)
        assert found["odradek_active_controller{}"] == 1
        assert found["odradek_quorum_epoch{}"] == 1
        assert found["odradek_quorum_lag_records{}"] == 0
        assert found["odradek_quorum_high_watermark{}"] == found["odradek_quorum_log_end_offset{}"] > 0
        assert (found["odradek_cluster_brokers{}"], found["odradek_cluster_fenced_brokers{}"]) == (1, 0)
        assert (found["odradek_cluster_topics{}"], found["odradek_cluster_partitions{}"]) == (1, 1)
        assert found["odradek_cluster_offline_partitions{}"] == 0
        assert (
            found["odradek_active_controller_decisions_total{}"]
            >= found["odradek_active_controller_commits_total{}"]
            > 0
        )
        assert found["odradek_active_controller_commit_seconds_total{}"] > 0
        assert found["odradek_active_controller_unclean_elections_total{}"] == 0

    play_measured(script)


def test_elections_are_counted_by_what_the_leader_was() -> None:
    """Unclean elections and elections of eligible replicas are counted separately. An election from the ISR counts as
    neither."""

    def image(*partitions: PartitionImage) -> MetadataImage:
        topic = TopicImage("t", bytes(16), dict(enumerate(partitions)))
        return MetadataImage(topics=LayeredMap({"t": topic}))

    gone = PartitionImage(-1, 1, 1, (1, 2, 3), (), (), (2,))
    before = image(PartitionImage(1, 0, 0, (1, 2), (1, 2)), gone, gone, gone)
    after = image(
        PartitionImage(2, 1, 1, (1, 2), (2,)),
        PartitionImage(2, 2, 2, (1, 2, 3), (2,)),
        PartitionImage(3, 2, 2, (1, 2, 3), (3,)),
        gone,
    )
    figures = DecisionFigures()
    figures.committed(before, after, MetadataDelta(changed_topics={"t": (0, 1, 2, 3)}))
    assert (figures.eligible_elections, figures.unclean_elections) == (1, 1)
