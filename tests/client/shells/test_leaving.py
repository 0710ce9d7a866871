"""Clients that are never closed: dropped by the program, or open when the process ends."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek import Admin, Consumer, Producer
from odradek.client.shells.leaving import EXIT_SECONDS
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode
from tests.client.fake_broker import SILENCE
from tests.client.producer.test_producer import LoopbackBroker, broker
from tests.node_process import RunningNode

__all__ = ["broker"]

HEAD = """
import os, signal, sys, threading, time
from odradek import Admin, Consumer, Producer
bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap_servers=bootstrap, linger_ms=60_000)
for number in range(100):
    producer.send(topic, b"%d" % number, partition=0)
"""
WAYS = {
    "a return": "",
    "an exception": "raise KeyError('the program is wrong')",
    "sys.exit": "sys.exit(3)",
    "sys.exit in a thread": "thread = threading.Thread(target=sys.exit); thread.start(); thread.join()",
    "a child that exits": "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)",
}


def run(program: str, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a short program in its own process."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[3],
        check=False,
    )


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """Read the values in partition 0."""
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        found: list[bytes | None] = []
        while consumer.position((topic, 0)) < end:
            found += [record.value for record in consumer.poll(1)]
    return found


@pytest.mark.parametrize("way", list(WAYS))
def test_records_of_a_producer_that_is_open_at_the_end_are_written(
    way: str, node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A process ends in each of Python's ways with an open producer.

    Each record is written once, and no warning is printed.
    """
    topic = fresh_topic("exit")
    done = run(HEAD + WAYS[way], node.bootstrap, topic)
    assert values(node.bootstrap, topic) == [b"%d" % number for number in range(100)]
    assert "not delivered" not in done.stderr


def test_what_cannot_be_sent_at_the_end_is_counted_once(broker: LoopbackBroker) -> None:
    """The broker is silent when the process ends.

    The process ends in time, and one warning counts the records of all producers.
    """
    broker.broker.trouble[ApiKey.PRODUCE].extend([SILENCE] * 100)
    program = HEAD + "other = Producer(bootstrap_servers=bootstrap)\nother.send(topic, b'one more')\n"
    done = run(program, broker.bootstrap, "t", seconds=EXIT_SECONDS + 60)
    assert done.returncode == 0
    assert done.stderr.count("records were not delivered") == 1
    assert "101 records were not delivered: the process ended" in done.stderr


def test_a_consumer_that_is_open_at_the_end_leaves_and_commits_nothing(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A process ends with an open consumer.

    It leaves its group, and commits no offsets, since its records may still be unprocessed.
    """
    topic = fresh_topic("left")
    program = (
        HEAD
        + """
producer.flush()
consumer = Consumer(bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", auto_commit_interval_ms=600_000)
consumer.subscribe([topic])
while not consumer.poll(1):
    pass
"""
    )
    assert run(program, node.bootstrap, topic).returncode == 0
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        (group,) = admin.describe_groups([topic])
        assert not group.members
        (offsets,) = admin.list_group_offsets({topic: None})
        assert not offsets.offsets


def test_an_open_transaction_is_not_committed_at_the_end(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """A process ends with an open transaction.

    The process does not commit it, as the program may have stopped halfway.
    """
    topic = fresh_topic("open")
    program = """
import sys
from odradek import Producer
bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap_servers=bootstrap, transactional_id=topic, linger_ms=60_000)
producer.init_transactions()
producer.begin_transaction()
producer.send(topic, b"half", partition=0)
"""
    assert run(program, node.bootstrap, topic).returncode == 0
    with Producer(bootstrap_servers=node.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()  # aborts the transaction that the program left open
    keys = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=node.bootstrap, **keys) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        while consumer.position((topic, 0)) < end:
            assert not consumer.poll(1)


def test_a_process_that_is_terminated_leaves_no_half_commit(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """SIGTERM without a handler ends a process at once. The open transaction is lost as a whole."""
    topic = fresh_topic("term")
    done = run(HEAD + "os.kill(os.getpid(), signal.SIGTERM)", node.bootstrap, topic)
    assert done.returncode == -signal.SIGTERM
    assert values(node.bootstrap, topic) in ([], [b"%d" % number for number in range(100)])


def test_a_dropped_producer_sends_what_it_has_and_its_thread_ends(broker: LoopbackBroker) -> None:
    """A producer is dropped without `close`. It sends its records, then its thread ends."""
    producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000)
    thread = producer._io._thread
    for number in range(10):
        producer.send("t", b"%d" % number)
    dropped = weakref.ref(producer)
    del producer
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert dropped() is None
    assert broker.broker.values("t") == [[b"%d" % number for number in range(10)]]


def test_dropped_clients_leave_no_threads(broker: LoopbackBroker) -> None:
    """Sixty clients of each kind are dropped without `close`. None of their threads remain."""
    before = set(threading.enumerate())
    for kind in (Producer, Admin, Consumer):
        for _ in range(20):
            kind(bootstrap_servers=broker.bootstrap)
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_close_warns_of_failures_that_nobody_has_heard_of(
    broker: LoopbackBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """`close` logs one warning with the number of failed records whose outcome the application has not asked for."""
    for asks in (False, True):
        caplog.clear()
        # On a busy machine, each record may be in a batch of its own.
        broker.broker.trouble[ApiKey.PRODUCE].extend([int(ErrorCode.INVALID_TIMESTAMP)] * 3)
        with (
            caplog.at_level(logging.WARNING, "odradek.client"),
            Producer(bootstrap_servers=broker.bootstrap) as producer,
        ):
            futures = [producer.send("t", b"v", partition=0) for _ in range(3)]
            if asks:
                assert all(future.exception(20) is not None for future in futures)
        found = [line for line in caplog.messages if "the application has not asked" in line]
        assert [line[:20] for line in found] == ([] if asks else ["3 records were not w"])


def test_flush_says_how_many_are_left(broker: LoopbackBroker) -> None:
    """`flush` times out. Its error counts the records that were not sent."""
    producer = Producer(
        bootstrap_servers=broker.bootstrap, linger_ms=0, delivery_timeout_ms=20_000, request_timeout_ms=10_000
    )
    broker.broker.trouble[ApiKey.PRODUCE].extend([SILENCE] * 5)
    for _ in range(3):
        producer.send("t", b"v")
    with pytest.raises(Exception, match=r"^3 records were not sent within 0\.1 s$"):
        producer.flush(0.1)
    producer.close(0.1)


def _send_and_return(servers: str) -> None:
    global _left_open
    _left_open = Producer(bootstrap_servers=servers, linger_ms=60_000)
    _left_open.send("t", b"from a child")


_left_open: Producer | None = None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_process_of_multiprocessing_sends_what_it_has(method: str) -> None:
    """A process of multiprocessing, which ends without `atexit`, sends its records. The parent's open clients go on."""
    with LoopbackBroker() as server, Producer(bootstrap_servers=server.bootstrap) as parents:
        server.broker.add_topic("t", 1)
        parents.send("t", b"from the parent").result(60)
        context: Any = multiprocessing.get_context(method)
        child = context.Process(target=_send_and_return, args=(server.bootstrap,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        parents.send("t", b"from the parent").result(60)
        assert server.broker.values("t") == [[b"from the parent", b"from a child", b"from the parent"]]
