"""kill -9 of the coordinator, or of a written partition's leader, between any two calls of one transaction."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from jepsen_tests.real_cluster import Cluster
from odradek import Client
from tests.cluster.copier import CLIENTS, PARTITIONS, Abortable, Copier, Fatal
from tests.cluster.exactly_once import (
    SOURCE,
    TARGET,
    has_no_open_transaction,
    is_in_sync,
    read,
    tails,
    three_nodes,
    until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)"),
]
RECORDS = 30
NEW_FOR_EACH = ("confluent",)
"""Clients of which each transaction gets a new producer of the same id.

librdkafka 2.16 remembers the coordinator of a group. Once Metadata leaves that broker out, it waits for it without end
(its issues 5511 and 5456).
"""
GAPS = 5
"""Before the begin, behind it, behind the records, behind the offsets, behind the commit."""


def values_of(number: int, partition: int) -> list[bytes]:
    """The values that a transaction writes to a partition."""
    return [b"%d-%d" % (number, at) for at in range(partition, RECORDS, PARTITIONS)]


def calls_of(copier: Copier, number: int) -> Sequence[Callable[[], None]]:
    """The calls of one transaction, which moves the group's offset to `number`."""

    def write() -> None:
        for partition in range(PARTITIONS):
            for value in values_of(number, partition):
                copier.write(partition, value)
        copier.flush()

    return copier.begin, write, partial(copier.send_offsets, {0: number}), copier.commit


def leader_of(bootstrap: str, topic: str) -> int:
    with Client(bootstrap, timeout_ms=5_000) as client:
        (found,) = client.admin.describe_topics([topic])
        return found.partitions[0].leader


@pytest.mark.parametrize("client", ["confluent", "odradek"])
def test_a_transaction_commits_or_aborts_whole(client: str, tmp_path: Path) -> None:
    """KIP-98: whichever leader dies at whichever point, records and offsets count together, and the producer goes on."""
    settings = {
        "broker_session_timeout_ms": "2000",
        "broker_heartbeat_interval_ms": "200",
        "transaction_state_log_num_partitions": "1",
        "offsets_topic_num_partitions": "1",
    }
    with three_nodes(tmp_path, **settings) as cluster:
        kill_between_calls(cluster, client)


def kill_between_calls(cluster: Cluster, client: str) -> None:
    """One transaction for each victim and gap; then compare what is read with what was told."""
    bootstrap = cluster.bootstrap
    begun = time.monotonic()

    def start() -> Copier:
        return CLIENTS[client](bootstrap, SOURCE, TARGET, f"mover-{client}")

    copier = start()
    whole: list[int] = []
    cases = [(topic, gap) for topic in ("__transaction_state", TARGET) for gap in range(GAPS)]
    for number, (topic, gap) in enumerate(cases, 1):
        victim = leader_of(bootstrap, topic)
        outcome = "committed"
        try:
            for at, call in enumerate(calls_of(copier, number)):
                if at == gap:
                    cluster.kill(victim)
                call()
        except Abortable as error:
            outcome = f"aborted: {error}"
            try:
                copier.abort()
            except Fatal as fatal:
                outcome = f"fatal after an abort: {fatal}"
        except Fatal as error:
            outcome = f"fatal: {error}"
        if gap == GAPS - 1:
            cluster.kill(victim)
        if outcome.startswith("fatal") or client in NEW_FOR_EACH:
            copier.close()
            copier = start()
        told = copier.committed()
        print(f"{time.monotonic() - begun:.1f} s: {topic} at {gap}, node {victim}: {outcome}", flush=True)
        assert told in (number, whole[-1] if whole else 0)
        assert told == number or not outcome.startswith("committed")
        assert told != number or not outcome.startswith("aborted")
        if told == number:
            whole.append(number)
        cluster.start(victim)
        cluster.wait_until_whole()
        with Client(bootstrap, timeout_ms=5_000) as admin:
            until("all in sync", partial(is_in_sync, admin), partial(tails, cluster))
    copier.close()
    until("no open transaction", partial(has_no_open_transaction, bootstrap), partial(tails, cluster))
    for partition, values in read(bootstrap, "read_committed").items():
        assert values == [value for number in whole for value in values_of(number, partition)], partition
    print(f"{time.monotonic() - begun:.1f} s: {len(whole)} of {len(cases)} committed")
