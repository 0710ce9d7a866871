"""Clients in a forked child process.

Their threads do not exist there, so they refuse calls, and the parent's clients go on.
"""

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
    """Fork, and return the child's exit status: 0 if each call is refused and `close` returns."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        # If a call hangs, the alarm ends the child.
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
    """In a forked child a producer refuses send, flush and waiting for earlier records.

    The parent's producer goes on.
    """
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
    """In a forked child a consumer refuses poll and commit. The parent's consumer goes on."""
    with LoopbackBroker() as server:
        server.broker.add_topic("t", 1)
        with Consumer({"bootstrap.servers": server.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("t", 0)])
            calls = [lambda: consumer.poll(60), lambda: consumer.position(("t", 0))]
            assert in_child(calls, consumer.close) == 0
            assert consumer.position(("t", 0)) == 0
