"""The leader's replication throttle: its partitions and its rate. In-sync replicas are never slowed down."""

from __future__ import annotations

import pytest

from odradek.data_plane.replication.throttle import (
    FOLLOWER,
    LEADER,
    ReplicationThrottle,
    rate_key,
    replicas_key,
)
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.image.metadata_image import MetadataDelta
from odradek.wire.config_resources import RESOURCE_BROKER, RESOURCE_TOPIC
from tests.replication.brokers import TOPIC as TOPIC_NAME
from tests.replication.brokers import ReplicatedTopic

TOPIC = bytes(15) + b"\x07"


def throttle(rate: int | None, replicas: str) -> ReplicationThrottle:
    made = ReplicationThrottle(1, LEADER)
    made.set_rate(BrokerConfigLayers({}, {} if rate is None else {rate_key(LEADER): str(rate)}))
    made.set_replicas(TOPIC, {replicas_key(LEADER): replicas, replicas_key(FOLLOWER): "*"})
    return made


@pytest.mark.parametrize(
    ("replicas", "slowed"),
    [("", []), ("*", [0, 1, 2]), ("0:1,1:2,2:1", [0, 2]), ("1:2", [])],
)
def test_which_partitions(replicas: str, slowed: list[int]) -> None:
    """KIP-73: the throttled partitions are all (`*`), or those listed with this broker's id."""
    made = throttle(1000, replicas)
    assert [index for index in range(3) if made.applies_to(TOPIC, index)] == slowed


@pytest.mark.parametrize("text", ["fast", "", "-1", "1e3", "²"])
def test_a_rate_that_is_no_number_is_passed_over(text: str) -> None:
    """A rate in the log that is no number, perhaps from another version, is ignored, and the node goes on."""
    made = throttle(None, "*")
    made.set_rate(BrokerConfigLayers({}, {rate_key(LEADER): text}, {rate_key(LEADER): "1000"}))
    made.note(1500)
    assert not made.has_room(0)
    assert made.has_room(1000)


def test_without_a_rate_nothing_is_slowed() -> None:
    """A list of throttled partitions has an effect only with a rate."""
    made = throttle(None, "*")
    assert not made.is_set
    assert made.has_room(0)


def test_the_rate_holds_over_time() -> None:
    """Bytes beyond the rate have to wait. After a pause, at most one second's worth of bytes may be sent at once."""
    made = throttle(1000, "*")
    made.note(3000)
    assert not made.has_room(0)
    assert not made.has_room(2000)
    assert made.has_room(2001)
    assert made.has_room(60_000)
    made.note(1000)
    assert not made.has_room(60_000)


def test_when_there_is_room_again() -> None:
    """Used bytes become available again at the rate. A rate of 0 is checked again later."""
    made = throttle(1000, "*")
    assert made.room_at_ms(0) == 0
    made.note(3000)
    assert made.room_at_ms(0) == 2001
    assert not throttle(0, "*").has_room(0)
    assert throttle(0, "*").room_at_ms(0) > 0


@pytest.mark.parametrize("lifted", ["rate", "no rate", "no list", "another broker's list"])
def test_a_follower_that_waits_for_its_rate_goes_on_once_it_is_lifted(lifted: str) -> None:
    """A follower that waits for hours because of a rate of 1 byte a second goes on as soon as the rate is lifted."""

    async def script(cluster: ReplicatedTopic) -> None:
        await cluster.in_sync(1, 2, 3)
        cluster.crash(3)
        cluster.controller.fence(3)
        await cluster.in_sync(1, 2)
        for _ in range(10):
            assert await cluster.produce(1, bytes(2000)) == (0, _)
        controller = cluster.controller
        controller.broker_configs = {rate_key(FOLLOWER): "1"}
        controller.topic_configs = {replicas_key(FOLLOWER): "*"}
        await cluster.start(3)
        await cluster.world.sleep(20.0)
        log = cluster.members[3].partition().log
        assert 0 < log.log_end_offset < 10, "it has what one fetch brings"
        match lifted:
            case "rate":
                controller.broker_configs = {rate_key(FOLLOWER): "1000000"}
            case "no rate":
                controller.broker_configs = {}
            case "no list":
                controller.topic_configs = {}
            case _:
                controller.topic_configs = {replicas_key(FOLLOWER): "0:2"}
        # An image that changes brokers makes all followers retry. This one changes only configurations.
        delta = MetadataDelta(changed_configs=((RESOURCE_TOPIC, TOPIC_NAME), (RESOURCE_BROKER, "")))
        cluster.members[3].broker.apply_metadata(controller.image(), delta)
        await cluster.in_sync(1, 2, 3)
        assert log.log_end_offset == 10

    ReplicatedTopic(replica_fetch_max_bytes="3000", replica_fetch_response_max_bytes="3000").play(script)
