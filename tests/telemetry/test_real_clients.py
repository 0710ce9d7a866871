"""Unmodified clients push metrics once a command has made a subscription, and other commands show the figures.

The first test has a long interval, so that a client pushes only as it ends.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer

from testkit.kafka_server import java_arguments
from testkit.odradek_server import start_odradek
from testkit.processes import command_prefix, free_ports
from tests.cli.running import odradek_here
from tests.node.test_metrics import parsed

PATIENCE_SECONDS = 60.0


class Watched:
    """A node with a metrics page, and its view of its clients."""

    def __init__(self, bootstrap: str, page: str) -> None:
        self.bootstrap = bootstrap
        self._page = page

    def subscribe(self, name: str, client_id: str, interval_ms: int) -> None:
        """Make a subscription of all metrics for one client id."""
        keys = [f"interval.ms={interval_ms}", "metrics=*", f"match=client_id={client_id}"]
        assert (
            odradek_here("config", "set", "client-metrics", name, *keys, bootstrap=self.bootstrap).code == 0
        )

    def known(self, client_id: str) -> dict[str, Any]:
        """Return what `odradek client describe` prints about a client."""
        answer = odradek_here("client", "describe", client_id, "--json", bootstrap=self.bootstrap)
        if answer.code:
            return {}
        (client,) = answer.json()["clients"]
        return dict(client)

    def wait_until(self, client_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the node lists a client that fulfils a condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (known := self.known(client_id)) or not condition(known):
            assert time.monotonic() < deadline, known
        return known

    def samples(self, client_id: str) -> dict[str, float]:
        """Return a client's samples on the metrics page, by family and role."""
        with urlopen(self._page) as answer:
            found = parsed(answer.read().decode())
        return {
            name.partition("{")[0]: value
            for name, value in found.items()
            if f"client_id={client_id}," in name
        }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    (port,) = free_ports(1)
    settings = {"odradek.metrics.listener": f"127.0.0.1:{port}"}
    server = start_odradek(tmp_path_factory.mktemp("watched"), settings=settings)
    try:
        yield Watched(server.bootstrap, f"http://127.0.0.1:{port}/metrics")
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def config(watched: Watched, client_id: str, **more: str) -> dict[str, Any]:
    keys = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": watched.bootstrap, "client.id": client_id, **keys}


def test_librdkafka_pushes_as_it_ends(watched: Watched) -> None:
    """KIP-714: librdkafka pushes for the last time as it closes, however long its interval is."""
    watched.subscribe("ending", "ending", 3_600_000)
    producer = Producer(config(watched, "ending"))
    producer.produce("ends", b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    watched.wait_until("ending", lambda known: known["instances"] == 1)
    assert watched.known("ending")["pushes"] == 0
    del producer
    known = watched.wait_until("ending", lambda known: known["pushes"] == 1)
    assert known["software_name"] == "confluent-kafka-python"
    assert known["user"] == "ANONYMOUS"
    assert known["figures"]["producer"]["request_latency_max_seconds"] > 0


def test_librdkafka_pushes_in_turns(watched: Watched) -> None:
    """A librdkafka consumer pushes at each interval, and the command and the page show the same figures."""
    watched.subscribe("reading", "reading", 200)
    producer = Producer(config(watched, "writing"))
    producer.produce("read", b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer(config(watched, "reading", group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["read"])
    while (record := consumer.poll(1.0)) is None or record.error():
        pass
    known = watched.wait_until(
        "reading",
        lambda known: known["pushes"] > 2 and known["figures"]["consumer"].get("assigned_partitions") == 1,
    )
    assert known["push_interval_ms"] == 200
    shown = watched.samples("reading")
    assert {f"odradek_client_{name}" for name in known["figures"]["consumer"]} <= set(shown)
    assert shown["odradek_client_info"] == 1
    assert shown["odradek_client_assigned_partitions"] == 1
    listed = odradek_here("client", "list", bootstrap=watched.bootstrap)
    assert any(
        line.startswith("reading ") and "confluent-kafka-python" in line for line in listed.out.splitlines()
    )
    assert not watched.known("writing").get("figures")
    consumer.close()
    watched.wait_until("reading", lambda known: known["instances"] == 0)


@pytest.mark.java
@pytest.mark.usefixtures("kafka_jars")
def test_java_pushes_as_it_ends(watched: Watched) -> None:
    """Kafka's console producer and consumer push their numbers of records as they end."""
    for client_id in ("java-writer", "java-reader"):
        watched.subscribe(client_id, client_id, 3_600_000)
    tool(
        watched,
        "ConsoleProducer",
        "--topic",
        "java",
        "--command-property",
        "client.id=java-writer",
        stdin="a\nb\nc\n",
    )
    known = watched.wait_until("java-writer", lambda known: known["pushes"] == 1)
    assert known["software_name"] == "apache-kafka-java"
    assert known["figures"]["producer"]["records_sent_total"] == 3
    assert known["figures"]["producer"]["record_errors_total"] == 0
    reading = ("--from-beginning", "--max-messages", "3", "--command-property", "client.id=java-reader")
    tool(watched, "consumer.ConsoleConsumer", "--topic", "java", *reading)
    known = watched.wait_until("java-reader", lambda known: known["pushes"] == 1)
    assert known["figures"]["consumer"]["records_consumed_total"] == 3
    assert watched.samples("java-writer")["odradek_client_records_sent_total"] == 3


def tool(watched: Watched, name: str, *arguments: str, stdin: str = "") -> None:
    """Run one of Kafka's tools."""
    command = [*java_arguments(), f"org.apache.kafka.tools.{name}", "--bootstrap-server", watched.bootstrap]
    subprocess.run(
        [*command_prefix(), *command, *arguments],
        input=stdin,
        text=True,
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
