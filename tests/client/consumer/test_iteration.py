"""`for record in consumer`: positions and commits when the loop is left, fails, or is disturbed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import trio

import odradek.trio
from odradek import Consumer, RebalanceListener, TopicPartition
from odradek.wire.api import ApiKey
from tests.client.consumer.consumers import fill, numbers
from tests.client.consumer.fake_group import GroupBroker
from tests.client.fake_broker import LoopbackBroker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COUNT = 30


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker whose topic `t` has 30 records in each of two partitions."""
    with LoopbackBroker(GroupBroker) as found:
        group = found.broker
        assert isinstance(group, GroupBroker)
        group.add_topic("t", 2)
        fill(group, COUNT)
        fill(group, COUNT, partition=1)
        yield found


def settings(broker: LoopbackBroker, **keys: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        "heartbeat_interval_ms": 50,
        **keys,
    }


def reader(broker: LoopbackBroker, partitions: list[TopicPartition], **keys: Any) -> Consumer:
    consumer = Consumer(**settings(broker, **keys))
    consumer.assign(partitions)
    return consumer


def committed(broker: LoopbackBroker) -> dict[TopicPartition, int]:
    group = broker.broker
    assert isinstance(group, GroupBroker)
    return {key: commit[0] for key, commit in group.commits.items()}


class Failed(Exception):
    """The error that the application raises in these tests."""


def test_an_exception_in_the_loop_commits_what_was_done_before_its_record(broker: LoopbackBroker) -> None:
    """The loop's body raises at the third of 30 polled records.

    Two records are committed, and the next consumer begins with the third.
    """
    seen = []

    def process() -> None:
        with reader(broker, [T0]) as consumer:
            for record in consumer:
                seen.append(record.offset)
                if len(seen) == 3:
                    raise Failed

    with pytest.raises(Failed):
        process()
    assert seen == [0, 1, 2]
    assert committed(broker) == {T0: 2}
    with reader(broker, [T0]) as consumer:
        assert next(iter(consumer)).offset == 2


def test_a_commit_of_the_application_is_not_taken_back_by_an_exception(broker: LoopbackBroker) -> None:
    """The application commits in the loop, and then its body raises. The commit stays."""

    def process() -> None:
        with reader(broker, [T0]) as consumer:
            for record in consumer:
                if record.offset == 3:
                    consumer.commit()
                    raise Failed

    with pytest.raises(Failed):
        process()
    assert committed(broker) == {T0: 4}


def test_close_in_finally_does_not_commit_the_record_that_failed(broker: LoopbackBroker) -> None:
    """The loop's body raises, and `finally` calls `close`. The record in hand is not committed."""

    def process() -> None:
        consumer = reader(broker, [T0])
        try:
            for record in consumer:
                if record.offset == 3:
                    raise Failed
        finally:
            consumer.close()

    with pytest.raises(Failed):
        process()
    assert committed(broker) == {T0: 3}


def test_a_loop_that_is_left_is_done_with_its_last_record(broker: LoopbackBroker) -> None:
    """After `break`, the last yielded record counts as done. Records that were only polled are not committed."""
    with reader(broker, [T0]) as consumer:
        for record in consumer:
            if record.offset == 4:
                break
        assert consumer.position(T0) == 5
        assert next(iter(consumer)).offset == 5
        assert [record.offset for record in consumer.poll(5)][:2] == [6, 7]
        consumer.seek(T0, 9)
        assert next(iter(consumer)).offset == 9
    assert committed(broker) == {T0: 10}


def test_positions_and_commits_in_the_loop_say_what_was_yielded(broker: LoopbackBroker) -> None:
    """In the loop, `position` and `commit` include the record in hand, but no record that was only polled."""
    consumer = reader(broker, [T0, T1], enable_auto_commit=False)
    yielded = dict.fromkeys((T0, T1), 0)
    for count, record in enumerate(consumer, 1):
        yielded[TopicPartition(record.topic, record.partition)] += 1
        assert {key: consumer.position(key) for key in yielded} == yielded
        if count in (7, COUNT + 3):
            assert consumer.lag(TopicPartition(record.topic, record.partition)) == COUNT - count % COUNT
            consumer.commit()
            assert committed(broker) == yielded
        if count == COUNT + 5:
            break
    consumer.close()


def test_seek_in_the_loop_moves_the_loop(broker: LoopbackBroker) -> None:
    """After `seek` in the loop, already polled records of this partition are dropped.

    Other partitions yield all of theirs.
    """
    found: list[tuple[int, int]] = []
    with reader(broker, [T0, T1]) as consumer:
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == 3:
                consumer.seek((record.topic, record.partition), 28)
            if len(found) == 3 + 2 + COUNT:
                break
    first = found[0][0]
    assert [offset for index, offset in found if index == first] == [0, 1, 2, 28, 29]
    assert [offset for index, offset in found if index != first] == list(range(COUNT))


def test_a_partition_that_is_paused_in_the_loop_goes_on_where_it_was(broker: LoopbackBroker) -> None:
    """A partition that is paused in the loop yields nothing until `resume`.

    Then it continues after its last yielded record.
    """
    found: list[tuple[int, int]] = []
    with reader(broker, [T0, T1]) as consumer:
        for record in consumer:
            key = TopicPartition(record.topic, record.partition)
            found.append((record.partition, record.offset))
            if len(found) == 3:
                paused = key
                consumer.pause(key)
            if len(found) == 3 + COUNT:
                assert key != paused
                consumer.resume(paused)
            if len(found) == 2 * COUNT:
                break
    assert [index for index, _ in found[3 : 3 + COUNT]] == [1 - paused.partition] * COUNT
    assert [offset for index, offset in found if index == paused.partition] == list(range(COUNT))
    assert committed(broker) == {T0: COUNT, T1: COUNT}


def test_closing_in_the_loop_commits_what_was_yielded(broker: LoopbackBroker) -> None:
    """`close` in the loop commits the record in hand and those before."""
    consumer = reader(broker, [T0])
    for record in consumer:
        if record.offset == 6:
            consumer.close()
            break
    assert committed(broker) == {T0: 7}


def test_automatic_commits_in_the_loop_never_run_ahead_of_it(broker: LoopbackBroker) -> None:
    """Automatic commits in the loop cover only records before the current one."""
    with reader(broker, [T0], auto_commit_interval_ms=0, max_poll_records=4) as consumer:
        for record in consumer:
            assert committed(broker).get(T0, 0) <= record.offset
            if record.offset == COUNT - 1:
                break
    assert committed(broker) == {T0: COUNT}


def test_a_rebalance_in_the_loop_commits_what_was_yielded(broker: LoopbackBroker) -> None:
    """A rebalance in the loop commits what was yielded. Records that were only polled come again."""
    offsets: list[int] = []
    commits: list[int] = []

    class Listener(RebalanceListener):
        """Remembers the committed offset when partitions are revoked."""

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            commits.append(committed(broker).get(T0, -1))

    broker.broker.add_topic("t", 1)
    fill(broker.broker, COUNT)  # type: ignore[arg-type] # it is a FakeBroker
    with Consumer(**settings(broker, max_poll_records=7)) as consumer:
        consumer.subscribe("t", listener=Listener())
        for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 10:
                consumer.enforce_rebalance()
            if record.offset == COUNT - 1:
                break
    assert sorted(set(offsets)) == list(range(COUNT))
    assert offsets == sorted(offsets)
    assert commits == [14, COUNT]


def test_positions_that_stand_still_are_committed_at_every_interval(broker: LoopbackBroker) -> None:
    """A quiet partition's position is committed at every interval.

    An offset that is not committed again would expire (KIP-211).
    """
    group = broker.broker
    assert isinstance(group, GroupBroker)
    with reader(broker, [T0], auto_commit_interval_ms=1) as consumer:
        assert [record.value for record in consumer.poll(5)] == numbers(0, COUNT - 1)
        consumer.poll(0.2)
        first = len([request for request in group.requests if request.API_KEY == ApiKey.OFFSET_COMMIT])
        while len([each for each in group.requests if each.API_KEY == ApiKey.OFFSET_COMMIT]) < first + 3:
            assert consumer.poll(0.05) == []
    assert committed(broker) == {T0: COUNT}


def test_an_async_loop_keeps_the_same_positions(broker: LoopbackBroker) -> None:
    """An async loop has the same positions. If its body raises, the record in hand is not committed."""

    async def main() -> None:
        async with odradek.trio.open_consumer(**settings(broker)) as consumer:
            consumer.assign([T0])
            async for record in consumer:
                assert await consumer.position(T0) == record.offset + 1
                if record.offset == 2:
                    consumer.seek(T0, 8)
                if record.offset == 9:
                    break
        assert committed(broker) == {T0: 10}
        async with odradek.trio.open_consumer(**settings(broker)) as consumer:
            consumer.assign([T0])
            async for record in consumer:
                if record.offset == 12:
                    raise Failed

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(Failed)
    assert committed(broker) == {T0: 10}


def test_an_async_loop_may_be_left(broker: LoopbackBroker) -> None:
    """A `break` ends an async loop without a warning, also one of trio about a generator that was left."""

    async def main() -> None:
        async with odradek.trio.open_consumer(**settings(broker)) as consumer:
            consumer.assign([T0])
            async for _ in consumer:
                break
            gc.collect()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trio.run(main)
    assert [str(each.message) for each in found] == []
