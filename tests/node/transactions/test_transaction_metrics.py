"""Transaction metrics of a real node: open, ended, timed out and refused transactions, and the lag of readers."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek import Producer
from odradek.client.admin import NewTopic
from odradek.client.errors import ProducerFencedError
from odradek.client.shells.blocking import Client
from testkit.odradek_server import start_odradek
from testkit.processes import free_ports

pytestmark = pytest.mark.long
WAIT_SECONDS = 60.0
TOPIC = "orders"


class Metered:
    """A node and the numbers on its metrics page."""

    def __init__(self, bootstrap: str, address: str) -> None:
        self.bootstrap = bootstrap
        self._url = f"http://{address}/metrics"

    def values(self, name: str) -> list[float]:
        """Return all samples of a metric, whatever their labels."""
        with urllib.request.urlopen(self._url, timeout=WAIT_SECONDS) as answer:
            text = answer.read().decode()
        return [float(each) for each in re.findall(rf"^odradek_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)]

    def value(self, name: str) -> float:
        """Return the only sample of a metric."""
        (found,) = self.values(name)
        return found

    def wait_for(self, name: str, holds: Callable[[float], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds(self.value(name)):
            assert time.monotonic() < deadline, (name, self.value(name))
            time.sleep(0.05)

    def producer(self, name: str, **keys: object) -> Producer:
        made = Producer(bootstrap_servers=self.bootstrap, transactional_id=name, **keys)
        made.init_transactions()
        return made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Metered]:
    """A node with a topic. It checks for timed-out transactions ten times a second."""
    (port,) = free_ports(1)
    settings = {
        "odradek.metrics.listener": f"127.0.0.1:{port}",
        "transaction.state.log.num.partitions": "3",
        "transaction.two.phase.commit.enable": "true",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    server = start_odradek(tmp_path / "node", settings=settings)
    with Client(server.bootstrap) as client:
        client.admin.create_topics([NewTopic(TOPIC, 1)])
    yield Metered(server.bootstrap, f"127.0.0.1:{port}")
    assert server.stop() == 0, server.log_tail()


def test_an_open_transaction_shows_with_its_age_and_what_it_keeps_from_readers(node: Metered) -> None:
    """When a transaction opens, the gauges rise, and when it ends they fall. Commits and aborts are counted
    separately."""
    with node.producer("one") as producer, node.producer("two"):
        assert node.value("transactional_ids") == 2
        assert node.value("transaction_shards") == 3
        producer.begin_transaction()
        for number in range(3):
            producer.send(TOPIC, b"%d" % number).result(WAIT_SECONDS)
        assert node.value("transactions_open") == 1
        assert node.value("open_transaction_partitions") == 1
        assert node.value("last_stable_offset_lag_max") == 3
        (age,) = node.values("transaction_age_seconds")
        node.wait_for("transaction_age_seconds", lambda now: now > age)
        assert node.values("prepared_transaction_age_seconds") == []
        producer.commit_transaction()
        node.wait_for("transactions_committed_total", lambda count: count == 1)
        assert node.value("transactions_aborted_total") == 0
        producer.begin_transaction()
        producer.send(TOPIC, b"void").result(WAIT_SECONDS)
        producer.abort_transaction()
        node.wait_for("transactions_aborted_total", lambda count: count == 1)
        assert node.value("transactions_committed_total") == 1
        for gauge in ("transactions_open", "open_transaction_partitions", "last_stable_offset_lag_max"):
            assert node.value(gauge) == 0, gauge
        assert node.values("transaction_age_seconds") == []


def test_late_fenced_and_prepared_transactions_are_counted(node: Metered) -> None:
    """A timed-out transaction is aborted and its producer refused; both are counted. The age of prepared transactions
    has its own metric."""
    late = node.producer("late", transaction_timeout_ms=500)
    late.begin_transaction()
    late.send(TOPIC, b"late").result(WAIT_SECONDS)
    node.wait_for("transactions_timed_out_total", lambda count: count == 1)
    node.wait_for("transactions_aborted_total", lambda count: count == 1)
    assert node.value("transaction_producers_refused_total") == 0
    node.producer("late").close(5)
    with pytest.raises(ProducerFencedError):
        late.commit_transaction()
    assert node.value("transaction_producers_refused_total") == 1
    with node.producer("prepared", transaction_two_phase_commit_enable=True) as producer:
        producer.begin_transaction()
        producer.send(TOPIC, b"held").result(WAIT_SECONDS)
        producer.prepare()
        (age,) = node.values("prepared_transaction_age_seconds")
        node.wait_for("prepared_transaction_age_seconds", lambda now: now > age)
        assert node.values("transaction_age_seconds") == []
        assert node.value("transactions_open") == 1
        producer.abort_transaction()
    late.close(5)
