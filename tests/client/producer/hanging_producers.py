"""Transactions that stay open: of a process that was killed, and of a producer that no coordinator knows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from odradek.client.admin import AlterConfig, ConfigResource, ResourceType
from odradek.client.core.requests import request
from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from odradek.wire.record_batch import RecordBatchBuilder

_VERIFICATION = "transaction.partition.verification.enable"
_PRODUCE_VERSION_MAX = 11
"""The newest version of Produce for which the broker asks no coordinator about the transaction."""
_KILLED = """
import os, signal, sys, confluent_kafka
bootstrap, transactional_id, topic, count, timeout_ms = sys.argv[1:]
producer = confluent_kafka.Producer(
    {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "transaction.timeout.ms": int(timeout_ms)}
)
producer.init_transactions(30)
producer.begin_transaction()
for number in range(int(count)):
    producer.produce(topic, b"%d" % number, partition=0)
assert producer.flush(30) == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_open(
    bootstrap: str, transactional_id: str, topic: str, count: int = 3, timeout_ms: int = 600_000
) -> None:
    """Run a process that writes records to partition 0 in a transaction, and is killed before the transaction ends."""
    words = [sys.executable, "-c", _KILLED, bootstrap, transactional_id, topic, str(count), str(timeout_ms)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == -9, done.stderr


@contextmanager
def on_trust(client: Client) -> Iterator[None]:
    """Let leaders accept transactions without asking coordinators until the block ends, as before KIP-890."""
    every_broker = ConfigResource(ResourceType.BROKER, "")
    client.admin.incremental_alter_configs({every_broker: [AlterConfig(_VERIFICATION, "false")]})
    try:
        yield
    finally:
        client.admin.incremental_alter_configs({every_broker: [AlterConfig(_VERIFICATION, None)]})


def write_unknown(client: Client, topic: str, producer_id: int, producer_epoch: int = 0) -> None:
    """Write a batch of three records to partition 0, in a transaction that no coordinator knows."""
    builder = RecordBatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0, is_transactional=True
    )
    now_ms = time.time_ns() // 1_000_000
    for number in range(3):
        builder.append(now_ms, None, b"unknown %d" % number)
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, builder.build())])]
    client.metadata([topic])
    deadline = time.monotonic() + 60
    while True:
        asked = request(
            client.core,
            ProduceRequest("unknown", -1, 5_000, data),
            node=client.core.cluster.leader(topic, 0),
            timeout=20,
            version_max=_PRODUCE_VERSION_MAX,
        )
        response: Any = client.run(asked)
        code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            return
        # Kafka answers the request of `on_trust` before its brokers apply the change, so a refusal may still come.
        assert code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING), code
        assert time.monotonic() < deadline


def write_marker(
    client: Client, topic: str, producer_id: int, producer_epoch: int, *, coordinator_epoch: int
) -> None:
    """Write an abort marker to partition 0, as a coordinator of this epoch would."""
    client.metadata([topic])
    marker = WritableTxnMarker(
        producer_id, producer_epoch, False, [WritableTxnMarkerTopic(topic, [0])], coordinator_epoch
    )
    node = client.core.cluster.leader(topic, 0)
    response: Any = client.run(request(client.core, WriteTxnMarkersRequest([marker]), node=node, timeout=20))
    assert response.markers[0].topics[0].partitions[0].error_code == 0
