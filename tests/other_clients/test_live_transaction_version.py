"""`transaction.version` changes while unmodified clients work. Each transaction ends in the version in which it began.

`make test-transactions` runs all clients, and `make test` two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from odradek import Client
from odradek.client.admin import NewTopic
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from testkit.kafka_server import KafkaUnavailable, ensure_jars
from testkit.odradek_server import start_odradek
from testkit.raw_requests import RawClient
from tests.cluster.copiers.api import PARTITIONS
from tests.cluster.copiers.clients import CLASSES
from tests.kafka_jars import TRANSACTIONS
from tests.other_clients.test_transactional_producers import SECONDS_MAX, Transactors, offset_of, transact

SHORT = ("confluent", "odradek")
UPGRADE, SAFE_DOWNGRADE = 1, 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" in metafunc.fixturenames:
        names = CLASSES if metafunc.config.getoption("--matrix") else SHORT
        java = {"java": [pytest.mark.java]}
        metafunc.parametrize("client", [pytest.param(name, marks=java.get(name, ())) for name in names])


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a node whose feature level the tests may change."""
    server = start_odradek(tmp_path_factory.mktemp("levels"), settings=TRANSACTIONS)
    yield server.bootstrap
    server.stop()


def set_level(bootstrap: str, level: int, kind: int) -> None:
    """Change the feature level, and wait until the broker reports it."""
    with RawClient(bootstrap) as client:
        wanted = [FeatureUpdateKey("transaction.version", level, upgrade_type=kind)]
        answer = client.request(UpdateFeaturesRequest(10_000, wanted, False), 1)
        assert not answer.error_code
        assert [each.error_code for each in answer.results] == [0]
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            told = client.request(ApiVersionsRequest("test", "1"), 3).finalized_features
            found = {each.name: each.max_version_level for each in told}
            if found.get("transaction.version", 0) == level:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.02)


def commit_over(of: Transactors, expected: list[bytes], level: int, kind: int) -> None:
    """Commit one transaction, change the level during the next one, and commit a third one."""
    producer = of.started[-1]
    for crosses in (False, True, False):
        expected.append(b"%d" % len(expected))
        producer.begin()
        producer.write(0, expected[-1])
        producer.flush()
        if crosses:
            set_level(of.bootstrap, level, kind)
        producer.send_offsets({0: len(expected)})
        producer.commit()


def test_open_transactions_cross_a_change_of_the_level(
    client: str, bootstrap: str, fresh_topic: Callable[[str], str]
) -> None:
    """KIP-890: after an upgrade or a downgrade clients go on, open transactions are committed, and no record is
    doubled."""
    if client == "java":
        try:
            ensure_jars()
        except KafkaUnavailable as reason:
            pytest.skip(f"Apache Kafka is unavailable: {reason}")
    of = Transactors(client, bootstrap, fresh_topic("live-source"), fresh_topic("live-target"))
    with Client(bootstrap) as admin:
        topics = [NewTopic(name, PARTITIONS, 1) for name in (of.source, of.target)]
        assert not any(created.error for created in admin.admin.create_topics(topics))

    expected: list[bytes] = []
    set_level(bootstrap, 0, SAFE_DOWNGRADE)
    of.start()
    commit_over(of, expected, 1, UPGRADE)
    commit_over(of, expected, 2, UPGRADE)
    second = of.start()
    commit_over(of, expected, 1, SAFE_DOWNGRADE)
    commit_over(of, expected, 2, UPGRADE)
    commit_over(of, expected, 0, SAFE_DOWNGRADE)
    transact(second, b"aborted", 99, is_commit=False)
    set_level(bootstrap, 2, UPGRADE)
    of.start()
    commit_over(of, expected, 2, UPGRADE)
    assert offset_of(of) == len(expected)
    assert of.values() == expected
    for each in of.started:
        each.close()
