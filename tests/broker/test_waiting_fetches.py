"""Parked fetches: which ones an append wakes, when they have enough bytes, and how much work they cause an append."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.handlers.fetching.fetch_job import FetchJob, FetchRound
from odradek.data_plane.handlers.fetching.fetch_waits import what_to_wait_for
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.file_names import file_name
from odradek.data_plane.replication.waiting_fetches import Mark, Ticket, Until, WaitingFetches
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.world import World
from testkit.lone_node import answer_to, create_topic, play, produce, request
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.log.support import ROOT, batch, new_disk, open_log

small = st.integers(0, 6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(Until), st.tuples(small, small)),
        st.tuples(st.just("remove"), small, small),
        st.tuples(st.just("grow"), st.tuples(small, small), st.tuples(small, small)),
        st.tuples(st.just("all"), small, small),
    ),
    max_size=40,
)


def log_at(
    high_watermark: int, log_end_offset: int, stable: int, base_offset: int, size: int
) -> PartitionLog:
    """Make a stub of a log with the fields that parked fetches read."""
    active = SimpleNamespace(base_offset=base_offset, size=size)
    return cast(
        "PartitionLog",
        SimpleNamespace(
            high_watermark=high_watermark,
            log_end_offset=log_end_offset,
            last_stable_offset=stable,
            active=active,
        ),
    )


def test_a_fetch_that_was_woken_leaves_those_of_a_later_queue_alone() -> None:
    """If a fetch that was woken in one queue is removed from another queue, other fetches stay there."""
    queues = [WaitingFetches(), WaitingFetches()]
    (woken, waiting) = (queue.add(Until.HIGH_WATERMARK, (5, 0), lambda: None) for queue in queues)
    assert queues[0].take_all() == [woken]
    queues[1].remove(woken)
    assert queues[1].take_all() == [waiting]


@given(steps)
def test_whoever_has_reached_its_mark_is_woken_once(script: list[tuple[Any, Any, Any]]) -> None:
    """An append wakes the fetches that have reached their mark, each once. Those with equal marks wake in the order of
    arrival."""
    fetches = WaitingFetches()
    waiting: dict[int, tuple[Until, Mark, Ticket]] = {}
    woken: list[int] = []
    serial = 0

    def wake(who: int) -> Callable[[], None]:
        return lambda: woken.append(who)

    for action, first, second in script:
        before = list(waiting)
        if action == "add":
            mark = second if first is Until.SIZE else (second[0], 0)
            waiting[serial] = (first, mark, fetches.add(first, mark, wake(serial)))
            serial += 1
        elif action == "remove" and waiting:
            who = list(waiting)[first % len(waiting)]
            _, _, ticket = waiting.pop(who)
            fetches.remove(ticket)
            fetches.remove(ticket)
        elif action in ("grow", "all"):
            if action == "grow":
                (high, end), place = first, second
                stable, end = min(high, end), max(high, end)
                taken = fetches.take_reached(log_at(high, end, stable, *place))
                values = {
                    Until.HIGH_WATERMARK: (high, 0),
                    Until.LOG_END: (end, 0),
                    Until.SIZE: place,
                    Until.STABLE: (stable, 0),
                }
                due = [who for who in before if waiting[who][1] <= values[waiting[who][0]]]
            else:
                taken, due = fetches.take_all(), before
            woken.clear()
            for ticket in taken:
                ticket[3]()
            assert sorted(woken) == due
            for one, other in pairwise(woken):
                assert waiting[one][:2] != waiting[other][:2] or one < other
            for who in due:
                del waiting[who]
        assert len(fetches) == len(waiting)


def batch_of(size: int) -> bytes:
    builder = RecordBatchBuilder()
    builder.append(1, None, bytes(size))
    return bytes(builder.build())


def fetch_of(*partitions: tuple[int, int], min_bytes: int, limit: int = 1 << 20) -> FetchRequest:
    """Make a fetch of topic t from these (partition, offset) pairs. It waits longer than a test lasts."""
    asked = [FetchPartition(index, -1, offset, -1, -1, limit) for index, offset in partitions]
    return FetchRequest(
        max_wait_ms=2**31 - 1,
        min_bytes=min_bytes,
        max_bytes=1 << 22,
        session_epoch=-1,
        topics=[FetchTopic("t", bytes(16), asked)],
    )


@pytest.mark.reaches("fetch.answered_at_segment_end")
def test_a_fetch_in_a_gap_up_to_the_end_waits_for_records() -> None:
    """A fetch from a gap at the end of a log, which compaction may leave, waits for records instead of
    returning empty."""
    directory = new_disk().open_dir(ROOT, create=True)
    directory.open(file_name(0, ".log"), create=True).append(batch(3, base_offset=0, leader_epoch=0))
    directory.open(file_name(10, ".log"), create=True)
    log = open_log(directory, recovery_point=10)
    log.advance_high_watermark(10)
    job = SimpleNamespace(
        hosted=lambda fetched: SimpleNamespace(log=log),
        upper_bound=lambda log: log.high_watermark,
        min_bytes=1,
        bounded_by=Until.HIGH_WATERMARK,
    )

    def wait(offset: int, records: bytes) -> object:
        fetched, answer = SimpleNamespace(fetch_offset=offset, key=0), SimpleNamespace(records=records)
        attempt = SimpleNamespace(answers=[(fetched, answer)], full=[], bytes_read=0, bytes_cut_off=0)
        return what_to_wait_for(cast("FetchJob", job), cast("FetchRound", attempt))

    assert wait(0, b"some") is None
    assert wait(2, b"") is None
    for offset in (3, 7, 10):
        waits = wait(offset, b"")
        assert isinstance(waits, list)
        assert [each[1:] for each in waits] == [(Until.HIGH_WATERMARK, (11, 0))]


Connect = Callable[[], Awaitable[Client]]


def test_a_fetch_is_answered_by_the_append_with_which_there_is_enough() -> None:
    """A fetch returns with the append that reaches `fetch.min.bytes`, counted over all of its partitions."""
    size = len(batch_of(1000))

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        created = CreateTopicsRequest([CreatableTopic("t", 3, 1, [], [])], 10_000, False)
        assert (await request(client, created, 5)).topics[0].error_code == 0
        await append(client, 0)
        for batches_wanted in (1, 2, 3, 7):
            for from_start in (0, 1):
                ends = await log_ends(client)
                fetches = await connect()
                asked = [(0, ends[0] - from_start), (1, ends[1]), (2, ends[2])]
                await fetches.send(bytes(frame(fetch_of(*asked, min_bytes=size * batches_wanted), 11)))
                await world.sleep(0.1)
                for serial in range(batches_wanted - from_start):
                    assert not fetches.conn.recv_into(memoryview(bytearray(1)))
                    await append(client, (0, 1, 1, 2)[serial % 4])
                    await world.sleep(0.1)
                answer = await answer_to(fetches, fetch_of(min_bytes=1), 11)
                read = sum(len(each.records) for topic in answer.responses for each in topic.partitions)
                assert read == size * batches_wanted
                fetches.conn.close()

    async def append(client: Client, index: int) -> None:
        data = [TopicProduceData("t", bytes(16), [PartitionProduceData(index, batch_of(1000))])]
        answer = await request(client, ProduceRequest(None, -1, 5000, data), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    async def log_ends(client: Client) -> list[int]:
        asked = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            session_epoch=-1,
            topics=[
                FetchTopic("t", bytes(16), [FetchPartition(index, -1, 0, -1, -1, 1) for index in range(3)])
            ],
        )
        answer = await request(client, asked, 11)
        return [each.high_watermark for each in answer.responses[0].partitions]

    play(script)


def test_an_append_costs_the_same_beside_many_parked_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append reads nothing for parked fetches that still lack bytes. Once there are enough, each fetch reads
    once."""
    reads: list[int] = []
    read = PartitionLog.read

    def counted(log: PartitionLog, offset: int, *args: Any, **kwargs: Any) -> Any:
        reads.append(offset)
        return read(log, offset, *args, **kwargs)

    monkeypatch.setattr(PartitionLog, "read", counted)
    clients, appends = 30, 20

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, batch_of(1000))
        size = len(batch_of(1000))
        wanted = fetch_of((0, 0), min_bytes=size * (appends + 2))
        waiting = [await connect() for _ in range(clients)]
        for each in waiting:
            await each.send(bytes(frame(wanted, 11)))
        await world.sleep(1)
        reads.clear()
        for _ in range(appends):
            await produce(client, batch_of(1000))
        assert reads == []
        await produce(client, batch_of(1000))
        for each in waiting:
            answer = await answer_to(each, wanted, 11)
            assert len(answer.responses[0].partitions[0].records) == size * (appends + 2)
        assert len(reads) == clients

    play(script)


def test_a_range_that_ends_with_its_segment_is_an_answer() -> None:
    """A range that ends with its segment is returned at once, as in Kafka's DelayedFetch: no append can add to it."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        topic = CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("segment.bytes", str(1 << 20))])
        assert (await request(client, CreateTopicsRequest([topic], 10_000, False), 5)).topics[
            0
        ].error_code == 0
        for _ in range(3):
            await produce(client, batch_of(700_000))
        answer = await request(client, fetch_of((0, 0), min_bytes=1 << 22, limit=1 << 22), 11)
        assert len(answer.responses[0].partitions[0].records) == len(batch_of(700_000))
        # A fetch from the start of the last segment waits until that segment ends.
        fetches = await connect()
        await fetches.send(bytes(frame(fetch_of((0, 2), min_bytes=1 << 22, limit=1 << 22), 11)))
        await world.sleep(1)
        assert not fetches.conn.recv_into(memoryview(bytearray(1)))
        await produce(client, batch_of(700_000))
        answer = await answer_to(fetches, fetch_of(min_bytes=1), 11)
        assert len(answer.responses[0].partitions[0].records) == len(batch_of(700_000))

    play(script)


def test_what_a_limit_cuts_off_counts_up_to_the_limit() -> None:
    """As in Kafka: a fetch has 1000 bytes as minimum and as limit. It returns at once with the first of two batches of
    700 bytes."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, batch_of(700))
        await produce(client, batch_of(700))
        answer = await request(client, fetch_of((0, 0), min_bytes=1000, limit=1000), 11)
        assert len(answer.responses[0].partitions[0].records) == len(batch_of(700))

    play(script)
