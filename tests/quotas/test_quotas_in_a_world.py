"""A node with quotas, on a virtual clock: even clients that ignore their waits keep to the quotas."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.data_plane.log.batch_work import SMALL_BYTES_MAX
from odradek.env.ports import ConnectionLost
from odradek.node.node import Node
from odradek.wire.batches.compression import CompressionType
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.network import SimConn
from sim.machine.world import World
from testkit.lone_node import (
    answer_to,
    create_topic,
    fetch_request,
    play,
    produce_request,
    request,
)
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

WARM_UP_SECONDS, MEASURED_SECONDS = 10.0, 30.0
QUOTA = 20_000.0
LARGE_FOR_THE_LOOP = 5 << 20


async def set_quota(
    client: Client, key: str, value: float | None, kind: str = "user", name: str | None = None
) -> None:
    """Alter a quota, and wait until the broker has it."""
    entry = AlterClientQuotasRequestEntryData(
        [EntityData(kind, name)], [OpData(key, value or 0.0, value is None)]
    )
    answer = await request(client, AlterClientQuotasRequest([entry], False), 1)
    assert not answer.entries[0].error_code, answer
    wanted = DescribeClientQuotasRequest([ComponentData(kind, 1 if name is None else 0, name)], True)
    while True:
        answer = await request(client, wanted, 1)
        values = [each for entry in answer.entries for each in entry.values if each.key == key]
        if bool(values) == (value is not None):
            return


async def rate(world: World, step: Any) -> float:
    """Call `step` again and again, whatever the answers say. Return the bytes per second after the burst is used up."""
    clock = world.node_env("client").clock
    began = clock.monotonic()
    while clock.monotonic() < began + WARM_UP_SECONDS:
        await step()
    began, moved = clock.monotonic(), 0
    while clock.monotonic() < began + MEASURED_SECONDS:
        moved += await step()
    return moved / (clock.monotonic() - began)


def test_a_producer_keeps_to_its_quota() -> None:
    """KIP-219: a producer that ignores its waits is muted, so its rate is within 5 % of the quota."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await create_topic(admin)
        await set_quota(admin, "producer_byte_rate", QUOTA)
        batch = good_batch(timestamp_ms=0)
        told = 0

        async def step() -> int:
            nonlocal told
            answer = await request(client, produce_request(batch), 9)
            assert not answer.responses[0].partition_responses[0].error_code
            told += answer.throttle_time_ms
            return len(batch) + 45

        measured = await rate(world, step)
        assert measured == pytest.approx(QUOTA, rel=0.05)
        assert told > 0

    play(script)


def test_a_consumer_keeps_to_its_quota() -> None:
    """KIP-219: a consumer in debt gets empty answers, and no fetch returns more than a window allows."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await create_topic(admin)
        batch = good_batch(timestamp_ms=0)
        for _ in range(300):
            await request(admin, produce_request(batch), 9)
        await set_quota(admin, "consumer_byte_rate", QUOTA)
        empty = 0

        async def step() -> int:
            nonlocal empty
            answer = await request(client, fetch_request(0), 11)
            records = [each.records for topic in answer.responses for each in topic.partitions]
            size = sum(len(each) for each in records)
            assert size <= QUOTA, "a window is a second"
            if answer.throttle_time_ms:
                assert not records
                empty += 1
            return size

        assert await rate(world, step) == pytest.approx(QUOTA, rel=0.05)
        assert empty > 0

    play(script)


def test_connections_of_one_client_id_share_its_quota_and_others_are_undisturbed() -> None:
    """KIP-55: all connections of a client id share its quota, and other client ids are not slowed down."""

    async def script(world: World, connect: Any) -> None:
        admin, *clients = [await connect() for _ in range(3)]
        clock = world.node_env("client").clock
        await create_topic(admin)
        await set_quota(admin, "producer_byte_rate", QUOTA, "client-id", "limited")
        produce = produce_request(good_batch(timestamp_ms=0))
        data = bytes(frame(produce, 9, client_id=b"limited"))
        moved = [0, 0]

        async def work(number: int, until: float) -> None:
            while clock.monotonic() < until:
                await clients[number].send(data)
                await answer_to(clients[number], produce, 9)
                moved[number] += len(data)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(work, number, clock.monotonic() + MEASURED_SECONDS)
            answer = await request(admin, produce, 9)
            assert answer.throttle_time_ms == 0, "the admin has another client id"
        burst = QUOTA * 10
        assert sum(moved) == pytest.approx(burst + QUOTA * MEASURED_SECONDS, rel=0.05)
        assert min(moved) > 0.2 * max(moved), "both had a part of it"

    play(script)


def test_a_request_percentage_slows_a_busy_client_and_spares_its_session() -> None:
    """KIP-124: a request percentage slows a busy client, but each wait lasts one window at most, so its session
    lives."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await set_quota(admin, "request_percentage", 0.01)
        waits = [
            (await request(client, MetadataRequest(None, False), 9)).throttle_time_ms for _ in range(3_000)
        ]
        assert max(waits) > 0
        assert max(waits) <= 1001

    play(script)


class CountingMeter:
    """A meter according to which each piece of work takes a second."""

    def __init__(self) -> None:
        self.readings = 0

    def cpu_seconds(self) -> float:
        return self.thread_cpu_seconds()

    def thread_cpu_seconds(self) -> float:
        self.readings += 1
        return float(self.readings)


def test_a_client_pays_for_the_decompression_of_its_batches() -> None:
    """KIP-124: the CPU time of workers for a Produce request is charged to its client."""
    nodes: list[Node] = []

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await create_topic(admin)
        await set_quota(admin, "request_percentage", 100.0)
        broker = nodes[0].broker
        assert broker is not None
        work = broker.produce_workers.large
        broker.long_work.meter = work.meter = CountingMeter()
        charged: list[float] = []
        for size in (LARGE_FOR_THE_LOOP, SMALL_BYTES_MAX + 1):
            builder = RecordBatchBuilder(compression_type=CompressionType.ZSTD)
            builder.append(0, b"k", bytes(size))
            before, large = sum(each.used for _, each in broker.quotas.accounts()), work.seconds
            answer = await request(client, produce_request(builder.build()), 9)
            assert not answer.responses[0].partition_responses[0].error_code
            charged.append(sum(each.used for _, each in broker.quotas.accounts()) - before)
        assert charged[0] == pytest.approx(1.0, abs=0.1), "one piece in a small worker"
        assert work.seconds > large, "a piece in the large worker, after the small one gave up"
        assert charged[1] == pytest.approx(2.0, abs=0.1), "a try in a small worker, a piece in the large one"

    play(script, made=nodes.append)


def test_a_quota_that_is_removed_ends_the_wait() -> None:
    """If a quota is removed, a client that had to wait for hours goes on at once."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        clock = world.node_env("client").clock
        await create_topic(admin)
        await set_quota(admin, "producer_byte_rate", 1.0, "client-id", "limited")
        produce = produce_request(good_batch(timestamp_ms=0))
        limited = bytes(frame(produce, 9, client_id=b"limited"))
        await client.send(limited)
        assert (await answer_to(client, produce, 9)).throttle_time_ms > 60_000
        await client.send(limited)
        began = clock.monotonic()
        await set_quota(admin, "producer_byte_rate", None, "client-id", "limited")
        assert (await answer_to(client, produce, 9)).throttle_time_ms == 0
        assert clock.monotonic() - began < 10

    play(script)


def test_a_fetch_takes_a_batch_however_low_the_quota_is() -> None:
    """As in Kafka, a fetch returns a whole first batch, however low the quota is. Once the quota is removed, a fetch
    returns all batches again."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await create_topic(admin)
        batch = good_batch(timestamp_ms=0)
        for _ in range(20):
            await request(admin, produce_request(batch), 9)

        async def fetched() -> int:
            answer = await request(client, fetch_request(0), 11)
            return sum(len(each.records) for topic in answer.responses for each in topic.partitions)

        await set_quota(admin, "consumer_byte_rate", 10.0)
        assert await fetched() == len(batch)
        await set_quota(admin, "consumer_byte_rate", None)
        assert await fetched() == 20 * len(batch)

    play(script)


def test_a_muted_connection_is_not_idle() -> None:
    """A muted connection is not closed as idle, however short the idle time is."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        await create_topic(admin)
        await set_quota(admin, "producer_byte_rate", 100.0)
        answer = await request(client, produce_request(good_batch(timestamp_ms=0)), 9)
        while answer.throttle_time_ms < 1_000:
            answer = await request(client, produce_request(good_batch(timestamp_ms=0)), 9)
        for _ in range(3):
            answer = await request(client, produce_request(good_batch(timestamp_ms=0)), 9)
            assert answer.throttle_time_ms > 1_500

    play(script, connections_max_idle_ms="1000")


async def in_debt(world: World, connect: Any, requests: int) -> tuple[Client, float]:
    """Make a client that has sent `requests` Produce requests at once and has read one answer. Return it, and the
    monotonic time until which it must wait."""
    admin, client = await connect(), await connect()
    await create_topic(admin)
    await set_quota(admin, "producer_byte_rate", 1.0, "client-id", "limited")
    produce = produce_request(good_batch(timestamp_ms=0))
    await client.send(bytes(frame(produce, 9, client_id=b"limited")) * requests)
    told = (await answer_to(client, produce, 9)).throttle_time_ms
    assert told > 100_000
    return client, world.node_env("client").clock.monotonic() + told / 1000


async def seconds_until_closed(world: World, nodes: list[Node], wanted: int) -> float:
    """Wait until the node has `connections` client connections. Return the seconds."""
    clock = world.node_env("client").clock
    began = clock.monotonic()
    (server,) = (each for each in nodes[0].servers if each.name == "PLAINTEXT")
    while len(list(server.connections)) > wanted:
        await clock.sleep_until(clock.monotonic() + 0.1)
    return clock.monotonic() - began


def test_a_client_that_leaves_while_it_has_to_wait_gives_its_connection_free() -> None:
    """If a client closes during a wait of days, its connection is released soon."""
    nodes: list[Node] = []

    async def script(world: World, connect: Any) -> None:
        client, _ = await in_debt(world, connect, 1)
        client.conn.close()
        assert await seconds_until_closed(world, nodes, 1) < 3.0

    play(script, made=nodes.append)


def test_a_client_that_leaves_requests_behind_is_served_unless_it_takes_too_long() -> None:
    """Requests that a client sent before it closed are served, unless the wait is longer than the idle time."""
    nodes: list[Node] = []

    async def script(world: World, connect: Any) -> None:
        client, _ = await in_debt(world, connect, 2)
        client.conn.close()
        assert 20.0 < await seconds_until_closed(world, nodes, 1) < 23.0

    play(script, made=nodes.append, connections_max_idle_ms="20000")


def test_a_half_closed_client_gets_all_its_answers() -> None:
    """A client that closes only its sending half still gets all its answers."""

    async def script(world: World, connect: Any) -> None:
        client, until = await in_debt(world, connect, 2)
        assert isinstance(client.conn, SimConn)
        client.conn.peer.end()
        await answer_to(client, produce_request(good_batch(timestamp_ms=0)), 9)
        assert world.node_env("client").clock.monotonic() == pytest.approx(until, abs=2.0)

    play(script)


def test_a_change_of_another_quota_lets_no_debtor_in() -> None:
    """A change of another quota does not let a client in debt send a request."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        clock = world.node_env("client").clock
        await create_topic(admin)
        await set_quota(admin, "producer_byte_rate", 1.0, "client-id", "limited")
        produce = produce_request(good_batch(timestamp_ms=0))
        limited = bytes(frame(produce, 9, client_id=b"limited"))
        await client.send(limited)
        told = (await answer_to(client, produce, 9)).throttle_time_ms
        assert told > 60_000
        began = clock.monotonic()
        await client.send(limited)
        for number in range(20):
            await set_quota(admin, "producer_byte_rate", 1e6 + number, "client-id", "other")
            await set_quota(admin, "producer_byte_rate", None, "client-id", "other")
        assert clock.monotonic() - began < told / 1000 - 10.0, "all of them came while it had to wait"
        await answer_to(client, produce, 9)
        assert clock.monotonic() - began == pytest.approx(told / 1000, abs=1.0)

    play(script)


def test_a_change_of_quotas_judges_many_waits_in_slices() -> None:
    """After a change of quotas the waiting clients are checked again in slices. In the end the newest quotas decide."""
    nodes: list[Node] = []
    judged: list[tuple[int, float | None]] = []

    class Waiting:
        def __init__(self, number: int) -> None:
            self.number = number

        def judge_wait(self) -> None:
            broker = nodes[0].broker
            assert broker is not None
            held = broker.quotas.holding("producer_byte_rate", "ann", "")
            judged.append((self.number, None if held is None else held.value))

    async def script(world: World, connect: Any) -> None:
        await connect()
        (broker,) = (each.broker for each in nodes)
        assert broker is not None
        services = nodes[0].services[-1]
        services.muted |= {Waiting(number): None for number in range(2_000)}
        broker.quotas.apply({((("user", None),), "producer_byte_rate"): 1000.0})
        assert 0 < len(judged) <= 250
        broker.quotas.apply({((("user", None),), "producer_byte_rate"): 500.0})
        assert 0 < len(judged) <= 250, "the work that is under way takes it up"
        clock = world.node_env("client").clock
        while {number for number, value in judged if value == 500.0} != set(range(2_000)):
            await clock.sleep_until(clock.monotonic() + 0.1)
        services.muted.clear()

    play(script, made=nodes.append)


def test_a_change_of_another_quota_lets_nobody_change_metadata() -> None:
    """KIP-599: a change of another quota does not end the wait that the controller has imposed on a client."""

    async def script(world: World, connect: Any) -> None:
        admin, client = await connect(), await connect()
        clock = world.node_env("client").clock
        await set_quota(admin, "controller_mutation_rate", 0.1, "client-id", "limited")

        async def create(name: str) -> None:
            asked = CreateTopicsRequest([CreatableTopic(name, 4, 1, [], [])], 10_000, False)
            await client.send(bytes(frame(asked, 5, client_id=b"limited")))
            answer = await answer_to(client, asked, 5)
            told.append(answer.throttle_time_ms)

        told: list[int] = []
        await create("a")
        began = clock.monotonic()
        assert told[0] > 20_000
        done = trio.Event()

        async def create_another() -> None:
            await create("b")
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_another)
            for number in range(10):
                await set_quota(admin, "producer_byte_rate", 1e6 + number, "client-id", "other")
            assert not done.is_set()
            await done.wait()
        assert clock.monotonic() - began == pytest.approx(told[0] / 1000, abs=1.0)

    play(script)


def test_an_address_that_connects_too_often_is_turned_away() -> None:
    """KIP-612: connections beyond the quota of their address are closed. Later connections are accepted again."""

    async def script(world: World, connect: Any) -> None:
        admin = await connect()
        await set_quota(admin, "connection_creation_rate", 1.0, "ip")
        served = 0
        for _ in range(20):
            try:
                await request(await connect(), MetadataRequest([], False), 9)
            except ConnectionLost:
                continue
            served += 1
        assert 9 <= served <= 11
        clock = world.node_env("client").clock
        await clock.sleep_until(clock.monotonic() + 2.5)
        await request(await connect(), MetadataRequest([], False), 9)

    play(script)


def test_a_listener_lets_so_many_in_a_second() -> None:
    """KIP-612: connections beyond a listener's rate are accepted later, and no connection is closed."""

    async def script(world: World, connect: Any) -> None:
        clock = world.node_env("client").clock
        began = clock.monotonic()
        for _ in range(7):
            await request(await connect(), MetadataRequest([], False), 9)
        assert 2.0 <= clock.monotonic() - began < 4.0

    play(script, listener_name_plaintext_max_connection_creation_rate="2")
