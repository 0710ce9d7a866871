"""Producers with a transactional id: there are no transactions yet, and they must hear so instead of waiting."""

from __future__ import annotations

import contextlib
import subprocess

import confluent_kafka
import kafka
import kafka.errors
import pytest

from bench.kafka_server import java_arguments
from tests.node_process import RunningNode

SECONDS_MAX = 120.0
"""Longer than any test may take: a client that asks again and again runs into it, and gets another error then."""
CODE = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def test_confluent_kafka_says_why(node: RunningNode) -> None:
    """`init_transactions` fails for good, with the node's text."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": "t", "log_level": 0}
    )
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.init_transactions(SECONDS_MAX)
    error = caught.value.args[0]
    assert error.name() == CODE
    assert error.fatal()
    assert "leave transactional.id out" in error.str()


def test_kafka_python_fails(node: RunningNode) -> None:
    """`init_transactions` raises what the coordinator's answer says."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=node.bootstrap, transactional_id="t", max_block_ms=int(SECONDS_MAX * 1000)
    )
    with contextlib.closing(producer), pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()


@pytest.mark.java
def test_the_java_client_fails(node: RunningNode) -> None:
    """`initTransactions` throws, instead of the TimeoutException that comes after `max.block.ms`."""
    words = "--topic t --num-records 1 --record-size 10 --throughput -1 --transaction-duration-ms 100 --transactional-id t"
    done = subprocess.run(
        [
            *java_arguments(),
            "org.apache.kafka.tools.ProducerPerformance",
            *words.split(),
            "--bootstrap-server",
            node.bootstrap,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode != 0
    assert "TransactionalIdAuthorizationException" in done.stderr
