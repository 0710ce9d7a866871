"""The log `odradek.client`: its lines about trouble, and how log handlers may use the client."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek import Consumer, Producer
from odradek.client.core.notes import AGAIN_SECONDS, INFO, WARNING, Notes
from odradek.client.errors import ClientError
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode
from tests.client.producer.test_producer import LoopbackBroker, broker
from tests.node_process import RunningNode

__all__ = ["broker"]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as claimed:
        claimed.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{claimed.getsockname()[1]}"


class Lines(logging.Handler):
    """A log handler that keeps its lines. It sets `heard` at the first line that contains `words`."""

    def __init__(self, words: str) -> None:
        super().__init__(logging.DEBUG)
        self.words = words
        self.heard = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        if self.words in record.getMessage():
            self.heard.set()


@pytest.fixture
def log() -> Iterator[Callable[[logging.Handler], Any]]:
    """A function that adds handlers to the log until the test ends."""
    logger = logging.getLogger("odradek.client")
    level, handlers = logger.level, list(logger.handlers)
    logger.setLevel(logging.DEBUG)

    def add(handler: logging.Handler) -> logging.Handler:
        logger.addHandler(handler)
        return handler

    yield add
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_a_consumer_says_at_once_that_nobody_can_be_reached(nobody: str, log: Any) -> None:
    """No broker can be reached.

    The log and the statistics name the address and the cause, and `poll` returns nothing.
    """
    lines = log(Lines("refused"))
    with Consumer(bootstrap_servers=nobody, group_id="g") as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(0.2) == []
        assert lines.heard.wait(10)
        assert nobody in str(consumer.statistics()["last_error"])
    assert any(line.startswith("WARNING") and nobody in line for line in lines.lines)


def test_trouble_that_lasts_is_said_once_a_minute_and_anew_when_it_was_over() -> None:
    """A repeated message is logged once a minute, with the count of the omitted ones.

    After the trouble is settled, it is logged at once.
    """
    now = 0.0
    notes = Notes(lambda: now)
    for _ in range(5):
        notes.add(WARNING, "no connection to a:1", key="a:1")
    notes.add(WARNING, "no connection to b:1", key="b:1")
    assert [note.text for note in notes.take()] == ["no connection to a:1", "no connection to b:1"]
    now = AGAIN_SECONDS
    notes.add(WARNING, "no connection to a:1", key="a:1")
    assert [note.text for note in notes.take()] == [
        "no connection to a:1 (and 4 times more in the last 60 s)"
    ]
    assert notes.settled("a:1")
    notes.add(WARNING, "no connection to a:1", key="a:1")
    notes.add(INFO, "without a key")
    assert [note.text for note in notes.take()] == ["no connection to a:1", "without a key"]
    assert not notes.take()


def test_records_that_are_given_up_are_in_the_log(broker: LoopbackBroker, log: Any) -> None:
    """When a producer gives up records, the log says how many and why, but not their contents."""
    lines = log(Lines("not delivered"))
    broker.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        future = producer.send("t", b"a secret")
        assert future.exception(10) is not None
        assert lines.heard.wait(10)
    text = "\n".join(lines.lines)
    assert "1 records for t-0 were not delivered: INVALID_TIMESTAMP" in text
    assert "secret" not in text


def test_a_handler_that_fails_or_sends_by_the_same_client_harms_nobody(
    broker: LoopbackBroker, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log handler may raise, and may send through the client that logs. Handlers run outside of the client's lock."""
    broker.broker.add_topic("log")

    class Sends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sent.append(producer.send("log", record.getMessage().encode()))
            raise OSError("this handler is broken")

    sent: list[Any] = []
    lines = log(Lines("connected"))
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        producer.send("log", b"first").result(10)
        assert lines.heard.wait(10)
        log(Sends())
        broker.broker.trouble[ApiKey.PRODUCE].append(int(ErrorCode.INVALID_TIMESTAMP))
        assert producer.send("t", b"bad").exception(10) is not None
        for number in range(100):
            producer.send("t", b"%d" % number).result(10)
        assert [future.result(10).topic for future in sent] == ["log"]
    assert broker.broker.values("t") == [[b"%d" % number for number in range(100)]]
    assert "this handler is broken" in capsys.readouterr().err


def test_a_rebalance_is_in_the_log(node: RunningNode, fresh_topic: Callable[[str], str], log: Any) -> None:
    """The log says which partitions were assigned and revoked, and names the group and the member."""
    topic = fresh_topic("rebalanced")
    lines = log(Lines("partitions revoked"))
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        producer.send(topic, b"v").result(20)
    with Consumer(bootstrap_servers=node.bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(1):
            pass
    text = "\n".join(lines.lines)
    assert f"INFO partitions assigned: {topic}-0" in text
    assert f"INFO partitions revoked: {topic}-0" in text
    assert f"INFO group {topic}: member" in text


def test_a_bug_in_the_sender_names_itself_everywhere(broker: LoopbackBroker, log: Any) -> None:
    """The sender fails by a bug. Each waiting record, each later call and the log name the cause."""
    lines = log(Lines("the producer failed"))
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        producer.partitions_for("t")
        future = producer.send("t", b"v")
        cause = AssertionError("two batches have one number")

        def broken() -> float:
            raise cause

        producer._sender._step = broken  # type: ignore[method-assign]
        with producer.lock:
            producer._sender.signal.notify()
        producer._io.wake()
        error = future.exception(10)
        assert isinstance(error, ClientError)
        assert error.__cause__ is cause
        assert lines.heard.wait(10)
        with pytest.raises(ClientError, match="two batches have one number") as caught:
            producer.send("t", b"later")
        assert caught.value.__cause__ is cause
