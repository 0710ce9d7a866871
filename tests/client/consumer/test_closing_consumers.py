"""Listeners, callbacks and blocks that raise.

The consumer still commits and leaves its group, and the error is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import trio

import odradek.trio
from odradek import Consumer, RebalanceListener, TopicPartition
from odradek.wire.messages.leave_group import LeaveGroupRequest
from tests.client.consumer.consumers import fill
from tests.client.consumer.fake_group import GroupBroker
from tests.client.consumer.test_iteration import COUNT, T0, Failed, committed, settings
from tests.client.fake_broker import LoopbackBroker


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker whose topic `t` has records in its only partition."""
    with LoopbackBroker(GroupBroker) as found:
        found.broker.add_topic("t", 1)
        assert isinstance(found.broker, GroupBroker)
        fill(found.broker, COUNT)
        yield found


def leaves(broker: LoopbackBroker) -> int:
    return sum(isinstance(request, LeaveGroupRequest) for request in broker.broker.requests)


class Stubborn(RebalanceListener):
    """A rebalance listener that raises when partitions are revoked."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> NoReturn:
        raise Failed("in the listener")


def member(broker: LoopbackBroker, **keys: Any) -> Consumer:
    """Make a consumer that has joined a group and read all records."""
    consumer = Consumer(**settings(broker, **keys))
    consumer.subscribe("t", listener=Stubborn())
    read = 0
    while read < COUNT:
        read += len(consumer.poll(5))
    return consumer


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_a_listener_that_raises_keeps_no_member_in_its_group(broker: LoopbackBroker, way: str) -> None:
    """The listener raises in `close`. Offsets are committed, the member leaves, and the error is raised."""
    consumer = member(broker)
    with pytest.raises(Failed, match="in the listener"):
        getattr(consumer, way)()
    assert leaves(broker) == 1
    assert committed(broker) == {T0: COUNT}
    consumer.close()


def test_a_block_that_raises_leaves_the_group(broker: LoopbackBroker) -> None:
    """A `with` block raises, and so does the listener. The consumer still leaves its group."""
    with pytest.raises(Failed, match="in the listener") as caught, member(broker):
        raise ValueError("in the block")
    assert isinstance(caught.value.__context__, ValueError)
    assert leaves(broker) == 1


def _ask_thrice(consumer: Any, commit: Any, told: list[int]) -> None:
    def note(offsets: Any, error: Exception | None) -> None:
        assert error is None
        told.append(offsets[T0].offset)
        if offsets[T0].offset < 3:
            raise Failed(str(offsets[T0].offset))

    for offset in (1, 2, 3):
        commit({T0: offset}, callback=note)


def test_callbacks_that_raise_in_close_stop_no_other(broker: LoopbackBroker) -> None:
    """Callbacks of commits raise in `close`.

    Each is called once, and the first error is raised after the consumer has left.
    """
    told: list[int] = []
    consumer = Consumer(**settings(broker, enable_auto_commit=False))
    consumer.assign([T0])
    _ask_thrice(consumer, consumer.commit_async, told)
    with pytest.raises(Failed, match="1"):
        consumer.close()
    assert told == [1, 2, 3]
    assert committed(broker) == {T0: 3}
    with pytest.raises(Exception, match="closed"):
        consumer.poll(0)


def test_callbacks_that_raise_in_a_poll_lose_no_record(broker: LoopbackBroker) -> None:
    """Callbacks of commits raise in polls. Each poll raises one error, and no record is lost."""
    told: list[int] = []
    offsets: list[int] = []
    failures = 0
    with Consumer(**settings(broker, enable_auto_commit=False, max_poll_records=7)) as consumer:
        consumer.assign([T0])
        _ask_thrice(consumer, consumer.commit_async, told)
        while len(offsets) < COUNT or failures < 2:
            try:
                offsets += [record.offset for record in consumer.poll(0.1)]
            except Failed:
                failures += 1
    assert told == [1, 2, 3]
    assert offsets == list(range(COUNT))


def test_an_async_consumer_leaves_too(broker: LoopbackBroker) -> None:
    """An async consumer's listener and callbacks raise. Offsets are committed, and the member leaves its group."""
    told: list[int] = []

    async def main() -> None:
        async with odradek.trio.open_consumer(**settings(broker, enable_auto_commit=False)) as consumer:
            consumer.subscribe("t", listener=Stubborn())
            read = 0
            while read < COUNT:
                read += len(await consumer.poll(5))
            _ask_thrice(consumer, consumer.commit_soon, told)
            with pytest.raises(Failed, match="1") as caught:
                await consumer.close()
            assert "in the listener" in str(caught.value.__context__)

    trio.run(main)
    assert leaves(broker) == 1
    assert told == [1, 2, 3]
    assert committed(broker) == {T0: 3}
