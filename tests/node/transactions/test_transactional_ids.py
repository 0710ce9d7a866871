"""Settings of transaction coordinators in a whole node: state topic, timeouts, and expiration of unused ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.data_plane.broker import Broker
from odradek.node.node import Node
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client

STATE_TOPIC = "__transaction_state"
IDS = 12
AT_ONCE = 5
"""The most ids that one decision handles. They are fewer than `IDS`, so that one check needs several decisions."""
INTERVAL_MS = 20_000
SECONDS = INTERVAL_MS // 1000
TIMEOUT_MS = 1_000
NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
LONE = {"transaction_state_log_replication_factor": "1", "transaction_state_log_min_isr": "1"}
Script = Callable[[World, Client, Broker], Awaitable[None]]


def run(script: Script, **settings: str) -> None:
    """Run the script against a node that coordinates transactions, with a topic `t`."""
    nodes: list[Node] = []

    async def prepared(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        created = CreateTopicsRequest([CreatableTopic("t", 1, 1, [], [])], 10_000, False)
        assert (await request(client, created, 5)).topics[0].error_code == 0
        while (await request(client, FindCoordinatorRequest("any", 1), 2)).error_code:
            await world.sleep(0.1)
        broker = nodes[0].broker
        assert broker is not None
        await script(world, client, broker)

    play(prepared, made=nodes.append, **LONE, **settings)


async def begin(world: World, client: Client, name: str) -> tuple[str, int, int]:
    """Send InitProducerId until it succeeds; return the transactional id, producer id and epoch."""
    while (answer := await request(client, InitProducerIdRequest(name, TIMEOUT_MS), 4)).error_code in NOT_YET:
        await world.sleep(0.1)
    assert not answer.error_code
    return name, answer.producer_id, answer.producer_epoch


async def open_transaction(world: World, client: Client, name: str) -> None:
    producer = await begin(world, client, name)
    topics = [AddPartitionsToTxnTopic("t", [0])]
    answer = await request(client, AddPartitionsToTxnRequest([], *producer, topics), 3)
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0


async def until_it_changes(world: World, broker: Broker, figure: str) -> None:
    """Wait until a statistic changes, and then until the same check has made its other decisions. The next check comes
    later."""
    before = broker.transactions.statistics()[figure]
    while broker.transactions.statistics()[figure] == before:
        await world.sleep(0.1)
    await world.sleep(SECONDS / 4)


def test_ids_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ids older than `transactional.id.expiration.ms` expire in one check, except those with an open
    transaction."""
    monkeypatch.setattr("odradek.data_plane.transactions.machine.CHECKED_MAX", AT_ONCE)

    async def script(world: World, client: Client, broker: Broker) -> None:
        for number in range(IDS):
            await begin(world, client, f"idle-{number}")
        await open_transaction(world, client, "open")
        await until_it_changes(world, broker, "transactions")
        told = broker.transactions.statistics()
        assert (told["transactions"], told["open"]) == (1, 1)

    run(
        script,
        transaction_state_log_num_partitions="1",
        transactional_id_expiration_ms="2000",
        transaction_remove_expired_transaction_cleanup_interval_ms=str(INTERVAL_MS),
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000000",
    )


def test_transactions_that_time_out_together_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One check aborts all transactions that have timed out, and writes their markers."""
    monkeypatch.setattr("odradek.data_plane.transactions.machine.CHECKED_MAX", AT_ONCE)

    async def script(world: World, client: Client, broker: Broker) -> None:
        for number in range(IDS):
            await open_transaction(world, client, f"late-{number}")
        await until_it_changes(world, broker, "timed_out")
        told = broker.transactions.statistics()
        assert (told["timed_out"], told["aborted"], told["open"]) == (IDS, IDS, 0)

    run(
        script,
        transaction_state_log_num_partitions="1",
        transaction_abort_timed_out_transaction_cleanup_interval_ms=str(INTERVAL_MS),
    )


def test_the_state_topic_is_made_as_its_keys_say() -> None:
    """The state topic gets the settings `transaction.state.log.*`. Unclean election is off, because a decision must not
    be lost."""

    async def script(world: World, client: Client, broker: Broker) -> None:
        (topic,) = (
            await request(client, MetadataRequest([MetadataRequestTopic(name=STATE_TOPIC)]), 9)
        ).topics
        assert (topic.is_internal, len(topic.partitions)) == (True, 3)
        assert {len(each.replica_nodes) for each in topic.partitions} == {1}
        asked = DescribeConfigsRequest([DescribeConfigsResource(2, STATE_TOPIC, None)])
        (described,) = (await request(client, asked, 4)).results
        found = {each.name: each.value for each in described.configs}
        wanted = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "2097152",
            "unclean.leader.election.enable": "false",
        }
        assert {name: found[name] for name in wanted} == wanted

    run(
        script,
        transaction_state_log_num_partitions="3",
        transaction_state_log_segment_bytes="2097152",
    )
