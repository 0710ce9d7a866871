"""The core in a thread of its own: operations from several threads, interruptions, and the end of the thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from odradek import Producer
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import BrokerUnavailable, ClientClosed, RequestTimedOut
from odradek.client.shells.io_thread import IoThread
from odradek.client.shells.sockets import Sockets
from odradek.wire.api import ApiKey
from tests.client.fake_broker import SILENCE, LoopbackBroker


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker that listens on a real socket."""
    with LoopbackBroker() as opened:
        yield opened


@pytest.fixture
def client(broker: LoopbackBroker) -> Iterator[IoThread]:
    """An IO thread with a core that is connected to the broker."""
    opened = IoThread([("127.0.0.1", broker.broker.port)], ClientConfig(), "test client")
    yield opened
    opened.close()


def forever() -> Operation[None]:
    """Wait forever, as an operation."""
    yield Wait(until=float("inf"))


def test_operations_of_several_threads(broker: LoopbackBroker, client: IoThread) -> None:
    """Several threads run operations, and each gets its own result."""
    for number in range(8):
        broker.broker.add_topic(f"t{number}", number + 1)
    found: dict[int, int] = {}

    def ask(number: int) -> None:
        cluster = client.run(refresh_metadata(client.core, [f"t{number}"], timeout=10))
        with client.lock:
            found[number] = len(cluster.topic(f"t{number}").partitions)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number + 1 for number in range(8)}


def test_an_operation_that_is_given_up_ends(client: IoThread) -> None:
    """An operation times out. Its generator is closed, and the thread goes on."""
    ended = threading.Event()

    def operation() -> Operation[None]:
        try:
            yield from forever()
        finally:
            ended.set()

    with pytest.raises(RequestTimedOut):
        client.run(operation(), timeout_seconds=0.01)
    assert ended.wait(10)
    assert client.run(refresh_metadata(client.core, [], timeout=10)).brokers


def test_an_error_of_an_operation_is_its_callers(client: IoThread) -> None:
    """An operation raises. The error reaches its caller, and the thread goes on."""

    def failing() -> Operation[None]:
        raise KeyError("x")
        yield Wait()

    with pytest.raises(KeyError):
        client.run(failing())
    assert client.run(refresh_metadata(client.core, [], timeout=10)).brokers


def test_nobody_there() -> None:
    """With `fail_fast` the first operation fails at once if the connection is refused."""
    client = IoThread([("127.0.0.1", 1)], ClientConfig(fail_fast=True), "test client")
    try:
        with pytest.raises(BrokerUnavailable, match="cannot connect"):
            client.run(refresh_metadata(client.core, [], timeout=10))
    finally:
        client.close()


def test_close_ends_what_runs_and_what_comes(client: IoThread) -> None:
    """`close` ends waiting operations with `ClientClosed`, and refuses later ones. A second `close` is allowed."""
    running = client.start(forever())
    over = threading.Event()
    running.on_done = over.set
    client.close()
    client.close()
    assert over.is_set()
    with pytest.raises(ClientClosed):
        running.result()
    with pytest.raises(ClientClosed):
        client.run(forever())


def test_a_bug_in_the_thread_ends_the_client() -> None:
    """The thread fails by a bug. Waiting callers get the reason, and do not wait forever."""
    client = IoThread([("127.0.0.1", 1)], ClientConfig(), "test client")
    reported = threading.Event()
    hook, threading.excepthook = threading.excepthook, lambda _: reported.set()
    try:
        running = client.start(forever())
        client.post(lambda: random.Random(1).choice([]))
        assert reported.wait(10)
        with pytest.raises(ClientClosed, match="IndexError"):
            running.result()
        with pytest.raises(ClientClosed, match="IndexError"):
            client.run(forever())
    finally:
        threading.excepthook = hook
        client.close()


def test_no_waiting_in_callbacks(client: IoThread) -> None:
    """A callback that waits for its own client would wait forever, so its call is refused."""
    caught: list[BaseException] = []
    called = threading.Event()

    def callback() -> None:
        try:
            client.run(forever())
        except RuntimeError as error:
            caught.append(error)
        called.set()

    client.post(callback)
    assert called.wait(10)
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, SystemExit])
def test_every_record_and_call_names_what_ended_the_thread(
    broker: LoopbackBroker, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """A producer's thread dies. Waiting records and later calls raise the cause, and `close` returns."""

    def fail(*_: object) -> None:
        raise kind("in the thread")

    broker.broker.add_topic("t", 1)
    producer = Producer(bootstrap_servers=broker.bootstrap)
    producer.send("t", b"0").result(60)
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    waiting = producer.send("t", b"1")
    monkeypatch.setattr(Sockets, "handle", fail)
    with pytest.raises(ClientClosed, match="in the thread") as caught:
        producer.send("t", b"2").result(60)
    assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(ClientClosed, match="in the thread") as caught:
        waiting.result(60)
    assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(ClientClosed, match="in the thread") as caught:
        producer.send("t", b"3")
    assert isinstance(caught.value.__cause__, kind)
    producer.close()
