"""Clients in a forked child: no thread of theirs is there, so they must refuse, and leave the parent's alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import pytest

from odradek.client.errors import ClientClosed
from odradek.client.shells.consumer import Consumer
from odradek.client.shells.producer import Producer
from tests.client.fake_broker import LoopbackBroker

CHILD_SECONDS_MAX = 30

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(refused: Sequence[Callable[[], object]], close: Callable[[], None]) -> int:
    """Return the exit status of a child in which each call is refused and `close` returns; 0 when they do."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        # A call that waits for ever ends with the child.
        signal.alarm(CHILD_SECONDS_MAX)
        for number, call in enumerate(refused):
            try:
                call()
            except ClientClosed as error:
                if "forked" not in str(error):
                    os._exit(50 + number)
            else:
                os._exit(10 + number)
        close()
        status = 0
    finally:
        os._exit(status)


def test_a_producer_in_a_child_refuses() -> None:
    """Send, flush and what was sent before the fork; the parent goes on."""
    with LoopbackBroker() as server:
        server.broker.add_topic("t", 1)
        with Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 60_000}) as producer:
            waiting = producer.send("t", b"before")
            calls: list[Callable[[], object]] = [
                lambda: producer.send("t", b"child"),
                producer.flush,
                lambda: waiting.result(60),
            ]
            assert in_child(calls, producer.close) == 0
            producer.flush(CHILD_SECONDS_MAX)
            assert waiting.result(0).offset == 0


def test_a_consumer_in_a_child_refuses() -> None:
    """Poll and commit; the parent goes on."""
    with LoopbackBroker() as server:
        server.broker.add_topic("t", 1)
        with Consumer({"bootstrap.servers": server.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("t", 0)])
            calls = [lambda: consumer.poll(60), lambda: consumer.position(("t", 0))]
            assert in_child(calls, consumer.close) == 0
            assert consumer.position(("t", 0)) == 0
