"""Any program may write any text into the metadata log. A broker still applies it, and all nodes use the same
values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.data_plane.broker import Broker
from odradek.metadata_quorum.config.config_defs import THROTTLE_DEFS, broker_defs, group_defs, topic_defs
from odradek.metadata_quorum.controller.broker_sessions import BrokerSessions
from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.partitions.topic_rules import topic_rules
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.node.configuration.dynamic_config import DynamicConfig
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.wire.messages.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from odradek.wire.structure import Message
from tests.config.test_any_topic_config import VALUES
from tests.replication.brokers import CLUSTER_ID, TOPIC, TOPIC_ID, ReplicatedTopic
from tests.schedule import examples

ON_TOPIC, ON_ALL, ON_BROKER, ON_GROUP, ON_METRICS, ON_LOGGER, ON_NOBODY = (
    (2, TOPIC),
    (4, ""),
    (4, "1"),
    (32, "g"),
    (16, "m"),
    (8, "1"),
    (99, "x"),
)
BROKER_KEYS = sorted([*broker_defs(), *THROTTLE_DEFS, "listener.name.x.ssl.protocol", "nobody.knows"])
KEYS = {
    ON_TOPIC: [*sorted(topic_defs()), "nobody.knows"],
    ON_ALL: BROKER_KEYS,
    ON_BROKER: BROKER_KEYS,
    ON_GROUP: sorted(group_defs()),
    ON_METRICS: ["interval.ms", "match", "metrics", "nobody.knows"],
    ON_LOGGER: ["root"],
    ON_NOBODY: ["any"],
}
TEXTS = (
    "lz5",
    "",
    "0",
    "-5",
    "0:1,",
    ",0:1",
    "*,",
    "1" * 5000 + ":1",
    "9" * 5000,
    "1_0",
    "٣",
    "\x00",
    "localhost:+-5",
    "a:1,b",
    "NaN",
    "1e999",
)
BASE: tuple[Message, ...] = (
    FeatureLevelRecord("metadata.version", 30),
    FeatureLevelRecord("eligible.leader.replicas.version", 1),
    TopicRecord(TOPIC, TOPIC_ID),
    PartitionRecord(0, TOPIC_ID, [1, 2, 3], [1, 2, 3], [], [], 1, 0, 9, 9),
)
CONTROLLER = ControllerSettings(static_config={"min.insync.replicas": "2"})
BASIS = DecisionBasis(CONTROLLER, BrokerSessions(CONTROLLER.broker_session_timeout_ms))


def replayed(*messages: Message) -> MetadataImage:
    """Return the image of a node that starts with these records."""
    builder = ImageBuilder(MetadataImage.empty(CLUSTER_ID))
    for offset, message in enumerate(messages):
        builder.replay(offset, message, 1)
    return builder.build()[0]


def with_broker(script: Callable[[Broker, ConnectionLimits], Awaitable[None]]) -> None:
    async def play(cluster: ReplicatedTopic) -> None:
        await cluster.in_sync(1, 2, 3)
        limits = ConnectionLimits()
        broker = cluster.members[1].broker
        DynamicConfig(broker, limits, {}, "", lambda: None).apply()
        await script(broker, limits)

    ReplicatedTopic(min_insync_replicas="3").play(play)


def applied(broker: Broker, changes: Sequence[ConfigRecord]) -> MetadataImage:
    """Apply one image for each change to a running broker. Return the last image."""
    builder = ImageBuilder(replayed(*BASE))
    broker.apply_metadata(*builder.build())
    for offset, change in enumerate(changes, len(BASE)):
        builder.replay(offset, change, 1)
        image, delta = builder.build()
        broker.apply_metadata(image, delta)
        assert broker.topics[TOPIC].config.min_insync_replicas == min_isr_of_controller(image) >= 1
    return image


def min_isr_of_controller(image: MetadataImage) -> int:
    """Return the minimum that a controller uses. The controller's file says 2 and the brokers' file says 3, but with
    eligible leaders only the metadata log counts."""
    return topic_rules(image, BASIS, image.topics[TOPIC]).min_isr


def in_force(broker: Broker, limits: ConnectionLimits) -> str:
    """Return the values that a broker uses, as text, so that NaN can be compared."""
    both = broker.replication.leader_throttle, broker.replication.follower_throttle
    throttles = [(each.is_set, each.applies_to(TOPIC_ID, 0)) for each in both]
    figures = (limits.connections_max, limits.per_ip_max, limits.creation_rate_max, limits.per_ip_overrides)
    return repr((broker.topics[TOPIC].config, throttles, figures))


@pytest.mark.parametrize(("kind", "name"), list(KEYS))
def test_every_key_with_every_text(kind: int, name: str) -> None:
    """No text as the value of any key stops a broker."""

    async def script(broker: Broker, limits: ConnectionLimits) -> None:
        for text in TEXTS:
            image = replayed(*BASE, *(ConfigRecord(kind, name, key, text) for key in KEYS[kind, name]))
            broker.apply_metadata(image, MetadataDelta.everything(image))
            assert broker.topics[TOPIC].config.min_insync_replicas == min_isr_of_controller(image) >= 1

    with_broker(script)


RECORDS = st.lists(
    st.sampled_from(list(KEYS)).flatmap(
        lambda resource: st.builds(
            lambda key, text: ConfigRecord(*resource, key, text),
            st.sampled_from(KEYS[resource]),
            st.none() | VALUES | st.sampled_from(TEXTS),
        )
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(30), deadline=None)
@given(RECORDS, st.integers(0, 12))
def test_one_log_gives_all_nodes_the_same_values(changes: list[ConfigRecord], cut: int) -> None:
    """A running node, a newly started one, and a node that loads a snapshot have the same values."""

    async def script(broker: Broker, limits: ConnectionLimits) -> None:
        running = applied(broker, changes)
        before = in_force(broker, limits)
        snapshot = records_of(replayed(*BASE, *changes[:cut]))
        for image in (replayed(*BASE, *changes), replayed(*snapshot, *changes[cut:])):
            assert list(records_of(image)) == list(records_of(running))
            broker.apply_metadata(image, MetadataDelta.everything(image))
            assert in_force(broker, limits) == before

    with_broker(script)


def test_what_cannot_be_read_leaves_the_value_before_it_in_force() -> None:
    """If a value cannot be read, the one before it stays in force, on running and on starting nodes."""
    told = [ConfigRecord(2, TOPIC, "retention.ms", "-1"), ConfigRecord(2, TOPIC, "retention.ms", "for ever")]

    async def script(broker: Broker, _: ConnectionLimits) -> None:
        for changes, retention_ms in (
            (told, -1),
            (told[1:], 604_800_000),
            ([*told, ConfigRecord(2, TOPIC, "retention.ms", "5")], 5),
            ([*told, ConfigRecord(2, TOPIC, "retention.ms", None)], 604_800_000),
        ):
            applied(broker, changes)
            assert broker.topics[TOPIC].config.retention_ms == retention_ms

    with_broker(script)
