"""Transactions for an administrator (KIP-664), against our own node and Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from odradek.client.admin import FencedProducer, NewTopic, Prospect
from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from tests.client.fresh_topics import wait_until_known
from tests.client.producer.hanging_producers import leave_open, on_trust, write_unknown


@pytest.fixture(
    params=[
        pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
        pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
    ]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of one of the servers."""
    address: str = request.getfixturevalue(request.param).bootstrap
    return address


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    """A client of that server."""
    with Client(bootstrap, timeout_ms=30_000) as opened:
        yield opened


@pytest.fixture
def topic(client: Client, fresh_topic: Callable[[str], str]) -> str:
    """A topic with two partitions."""
    name = fresh_topic("txn")
    (created,) = client.admin.create_topics([NewTopic(name, 2)])
    assert created.error is None
    wait_until_known(client, name)
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_an_open_transaction_is_listed_described_and_fenced(
    bootstrap: str, client: Client, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """An open transaction is found by every filter of ListTransactions. Fencing its producer aborts it."""
    name = fresh_topic("id")
    leave_open(bootstrap, name, topic)
    admin = client.admin
    (listed,) = admin.list_transactions(
        states=["Ongoing"], running_longer_than_ms=0, transactional_id_pattern=f"{name[:-1]}."
    )
    assert (listed.transactional_id, listed.state) == (name, "Ongoing")
    assert admin.list_transactions(producer_ids=[listed.producer_id]) == [listed]
    assert not admin.list_transactions(states=["PrepareAbort"], transactional_id_pattern=name)
    assert not admin.list_transactions(running_longer_than_ms=10**9, transactional_id_pattern=name)
    with pytest.raises(KafkaError, match="does not know the transaction state Odd"):
        admin.list_transactions(states=["Odd"])
    found, missing = admin.describe_transactions([name, "no-such-id"])
    assert (found.state, found.coordinator, found.timeout_ms) == ("Ongoing", listed.coordinator, 600_000)
    assert found.partitions == (TopicPartition(topic, 0),)
    assert found.start_ms is not None
    assert abs(found.start_ms - now_ms()) < 600_000
    assert isinstance(missing.error, KafkaError)
    assert missing.error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    (told,) = admin.describe_producers([(topic, 0)]).values()
    assert [each.current_transaction_start_offset for each in told.producers] == [0]

    fenced = admin.fence_producer(name)
    assert isinstance(fenced, FencedProducer)
    assert fenced.before == found
    assert fenced.producer_epoch > found.producer_epoch
    (told,) = admin.describe_producers([(topic, 0)]).values()
    assert [each.current_transaction_start_offset for each in told.producers] == [-1]
    assert admin.describe_transactions([name])[0].start_ms is None
    with pytest.raises(KafkaError, match="no-such-id does not exist"):
        admin.fence_producer("no-such-id")
    assert not admin.list_transactions(transactional_id_pattern="no-such-id")


def test_a_transaction_that_no_coordinator_knows_is_found_and_aborted(client: Client, topic: str) -> None:
    """A transaction that is unknown to all coordinators hangs for ever.

    `abort_transaction` ends it even if later markers have a greater epoch (KIP-890).
    """
    with on_trust(client):
        write_unknown(client, topic, producer_id=7_000_001)
    search = client.admin.find_hanging_transactions(
        now_ms=now_ms() + 60_000, older_than_ms=1_000, topic=topic
    )
    (found,) = search.found
    assert (search.partition_count, search.errors) == (2, {})
    assert (found.topic, found.partition, found.holds, found.held_back) == (topic, 0, True, 3)
    assert (found.prospect, found.transaction) == (Prospect.NEVER, None)
    with pytest.raises(KafkaError, match=f"{topic}-0 has no open transaction that begins at 1"):
        client.admin.abort_transaction(topic, 0, 1)
    aborted = client.admin.abort_transaction(topic, 0, 0)
    assert aborted.producer_id == 7_000_001
    assert not client.admin.find_hanging_transactions(
        now_ms=now_ms() + 60_000, older_than_ms=1_000, topic=topic
    ).found


def test_an_open_transaction_is_told_from_one_that_hangs(
    bootstrap: str, client: Client, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """A coordinator will time out an open transaction, while a hanging transaction stays for ever.

    The report tells the two apart, and says which of them keeps the last stable offset from rising.
    """
    name = fresh_topic("id")
    leave_open(bootstrap, name, topic)
    with on_trust(client):
        write_unknown(client, topic, producer_id=7_000_002)

    def found(**where: int) -> list[tuple[int, bool, int | None, Prospect]]:
        search = client.admin.find_hanging_transactions(
            now_ms=now_ms() + 60_000, older_than_ms=1_000, topic=topic, **where
        )
        return [
            (each.producer.current_transaction_start_offset, each.holds, each.held_back, each.prospect)
            for each in search.found
        ]

    expected = [(0, True, 6, Prospect.TIMES_OUT), (3, False, 3, Prospect.NEVER)]
    assert found() == found(partition=0) == expected
    assert found(partition=1) == []
    assert not client.admin.find_hanging_transactions(
        now_ms=now_ms(), older_than_ms=3_600_000, topic=topic
    ).found
    with pytest.raises(KafkaError, match="has no partition 9"):
        found(partition=9)
    client.admin.fence_producer(name)
    assert found() == [(3, True, 4, Prospect.NEVER)]
    client.admin.abort_transaction(topic, 0, 3)
    assert found() == []
