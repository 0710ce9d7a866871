"""Two-phase commit (KIP-939) with our client. The node is killed between the two phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import odradek.trio
from odradek import Producer
from odradek.client.admin import NewTopic
from odradek.client.errors import ProducerFencedError
from odradek.client.shells.blocking import Client
from odradek.wire.api_keys import ApiKey
from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from testkit.odradek_server import launch_odradek, start_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient
from tests.conformance.asking.talk import wait_until_ready

pytestmark = pytest.mark.long
TOPIC = "payments"
READ_COMMITTED = 1
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.two.phase.commit.enable": "true",
    "transaction.max.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
KEYS: dict[str, Any] = {"transactional.id": "ledger", "transaction.two.phase.commit.enable": "true"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node with two-phase commit enabled. Other transactions time out after a second."""
    made = start_odradek(tmp_path / "node", settings=SETTINGS)
    try:
        with Client(made.bootstrap) as client:
            client.admin.create_topics([NewTopic(TOPIC, 1)])
        wait_until_ready(made.bootstrap)
        yield made
    finally:
        made.kill()


def stable_end(bootstrap: str) -> int:
    """Return the last stable offset."""
    with Client(bootstrap) as client:
        found = client.admin.list_offsets({(TOPIC, 0): -1}, isolation_level=READ_COMMITTED)
        return next(iter(found.values())).offset


def prepared(server: ServerProcess) -> str:
    """Prepare a transaction of one record; return the state that an application would store in the other system."""
    with Producer({"bootstrap.servers": server.bootstrap, **KEYS}) as producer:
        assert producer.resume() is None
        producer.begin_transaction()
        producer.send(TOPIC, b"100")
        return producer.prepare()


def test_a_prepared_transaction_outlives_its_producer_and_kill_9_of_the_node(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A prepared transaction survives a kill of the node and has no timeout. Another producer resumes and commits it,
    and fences the first producer."""
    zombie = Producer({"bootstrap.servers": server.bootstrap, **KEYS})
    zombie.init_transactions()
    zombie.begin_transaction()
    zombie.send(TOPIC, b"100")
    stored = zombie.prepare()
    server.kill()
    again = launch_odradek(tmp_path / "node" / "server.properties")
    try:
        with Client(again.bootstrap) as client:
            # Once this transaction has timed out, the coordinator has checked the prepared transaction, too.
            beside = Producer(
                bootstrap_servers=again.bootstrap, transactional_id="beside", transaction_timeout_ms=100
            )
            beside.init_transactions()
            beside.begin_transaction()
            beside.send(TOPIC, b"too late")
            beside.flush()
            while client.admin.describe_transactions(["beside"])[0].state != "CompleteAbort":
                time.sleep(0.05)
            (found,) = client.admin.describe_transactions(["ledger"])
            assert found.state == "Ongoing"
        assert stable_end(again.bootstrap) == 0
        with Producer({"bootstrap.servers": again.bootstrap, **KEYS}) as heir:
            assert heir.resume() == stored
            with pytest.raises(ProducerFencedError):
                zombie.abort_transaction()
            heir.commit_transaction()
            with heir.transaction():
                heir.send(TOPIC, b"next")
        assert (
            stable_end(again.bootstrap) == 6
        )  # two records of the ledger, one that timed out, and their markers
    finally:
        zombie.close(0)
        beside.close(0)
        again.kill()


def test_the_async_producer_resumes_and_aborts(server: ServerProcess) -> None:
    """If the other system did not commit, the async producer resumes the prepared transaction and aborts it."""
    stored = prepared(server)

    async def main() -> None:
        async with odradek.trio.open_producer({"bootstrap.servers": server.bootstrap, **KEYS}) as heir:
            assert await heir.resume() == stored
            await heir.abort_transaction()
        async with odradek.trio.open_producer({"bootstrap.servers": server.bootstrap, **KEYS}) as next_one:
            assert await next_one.resume() is None

    trio.run(main)
    with Client(server.bootstrap) as client:
        (found,) = client.admin.describe_transactions(["ledger"])
    assert found.state == "Empty"


def test_version_6_is_advertised_where_two_phases_are_enabled(server: ServerProcess, tmp_path: Path) -> None:
    """Version 6 of InitProducerId (KIP-939) is advertised only if two-phase commit is enabled. Kafka 4.3 never
    advertises it."""
    plain = start_odradek(tmp_path / "plain")
    try:
        assert [newest_version(each) for each in (server, plain)] == [6, 5]
    finally:
        plain.kill()
    with RawClient(server.bootstrap) as client:
        answer = client.request(InitProducerIdRequest("id", 60_000), 6)
        assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        answer = client.request(InitProducerIdRequest("id", 60_000, enable2_pc=True), 6)
        assert (answer.error_code, answer.ongoing_txn_producer_id) == (ErrorCode.NONE, -1)


def newest_version(server: ServerProcess) -> int:
    """Return the newest version of InitProducerId that the node advertises."""
    with RawClient(server.bootstrap) as client:
        served = client.request(ApiVersionsRequest("s", "1"), 3).api_keys
    return next(int(each.max_version) for each in served if each.api_key == ApiKey.INIT_PRODUCER_ID)
