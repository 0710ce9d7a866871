"""The blocking client over real loopback sockets. The core alone is tested without sockets in `tests/client/core`."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from odradek.client.admin import ConfigResource, NewTopic, ResourceType
from odradek.client.core.bootstrap import parse_bootstrap
from odradek.client.core.partition_offsets import LATEST
from odradek.client.core.requests import request
from odradek.client.errors import BrokerUnavailable, ClientClosed, ConnectionBroken, RequestTimedOut
from odradek.client.shells.blocking import Client
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.fetch import FetchRequest
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.fake_broker import HANG_UP, SILENCE, LoopbackBroker


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_topics_life() -> None:
    """A topic is created, written, read, described and deleted over one connection."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic("t", 2)])
        assert (created.error, created.partitions) == (None, 2)
        producing = Producing(client.core, ProduceConfig(compression_type=4))
        records = [RecordToSend("t", b"v" * 1000, key=b"%d" % n) for n in range(2000)]
        deliveries = client.run(producing.produce(records, timeout=10))
        assert all(delivery.error is None for delivery in deliveries)
        ends = client.list_offsets({("t", 0): LATEST, ("t", 1): LATEST})
        assert sum(found.offset for found in ends.values()) == 2000
        fetcher = Fetcher(client.core, FetchConfig())
        for index in range(2):
            fetcher.assign("t", index, 0)
        count = 0
        while fetcher.positions != {key: found.offset for key, found in ends.items()}:
            count += sum(len(fetched.records()) for fetched in client.run(fetcher.poll(timeout=5)))
        assert count == 2000
        assert [topic.name for topic in client.admin.describe_topics()] == ["t"]
        assert client.admin.describe_cluster().brokers[0].port == server.broker.port
        (config,) = client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")])
        assert config["retention.ms"].value == "1000"
        assert client.admin.delete_topics(["t"]) == [("t", None)]
        assert client.metadata().topics == {}
        assert server.broker.connections == 1


def test_errors_of_brokers_come_out_as_kafka_errors() -> None:
    """A record that is too large, or a broker id that does not exist, raises `KafkaError`."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        server.broker.add_topic("t")
        server.broker.max_batch_bytes = 1000
        producing = Producing(client.core, ProduceConfig())
        (delivery,) = client.run(producing.produce([RecordToSend("t", b"x" * 2000)], timeout=5))
        assert isinstance(delivery.error, KafkaError)
        assert delivery.error.code is ErrorCode.MESSAGE_TOO_LARGE
        (config,) = client.admin.describe_configs([ConfigResource(ResourceType.BROKER, "7")])
        with pytest.raises(KafkaError, match=r"there is no broker 7 \(brokers: 1\)"):
            config["node.id"]


def test_nobody_there() -> None:
    """A refused connection is reported at once, with the address and the reason of the operating system."""
    port = free_port()
    with Client(f"127.0.0.1:{port}") as client, pytest.raises(BrokerUnavailable) as caught:
        client.metadata()
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"


def test_a_host_that_does_not_exist() -> None:
    """A host name under .invalid never resolves (RFC 6761). The call fails as if the connection had failed."""
    with (
        Client("kafka.invalid:9092") as client,
        pytest.raises(BrokerUnavailable, match=r"kafka\.invalid:9092"),
    ):
        client.metadata()


def test_localhost_is_found_whichever_address_it_has() -> None:
    """`localhost` may resolve to ::1 first, while the server listens only on 127.0.0.1. The client tries both."""
    with LoopbackBroker() as server, Client(f"localhost:{server.broker.port}") as client:
        assert client.metadata().cluster_id == "fake-cluster"


def test_a_silent_broker_times_out() -> None:
    """A port accepts connections and never answers. The call fails at its deadline, and the client remains usable."""
    with socket.create_server(("127.0.0.1", 0)) as silent, LoopbackBroker() as server:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(bootstrap, timeout_ms=100) as client, pytest.raises((RequestTimedOut, BrokerUnavailable)):
            client.metadata()
        server.broker.trouble[ApiKey.DESCRIBE_CLUSTER].extend([SILENCE] * 20)
        with Client(server.bootstrap, timeout_ms=150) as client:
            client.metadata()
            with pytest.raises(RequestTimedOut, match="DescribeClusterRequest"):
                client.request(DescribeClusterRequest())


def test_a_broker_that_hangs_up_is_reconnected_to() -> None:
    """A broker closes the connection under a request. The request is repeated, or fails if it must not be repeated."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        server.broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(HANG_UP)
        assert client.admin.describe_cluster().controller_id == 1
        assert server.broker.connections == 2
        server.broker.trouble[ApiKey.CREATE_TOPICS].append(HANG_UP)
        with pytest.raises(ConnectionBroken):
            client.admin.create_topics([NewTopic("t")])


def test_a_request_to_a_named_broker() -> None:
    """A request is sent to the broker with a given id. An unknown id is an error that says so."""
    with LoopbackBroker() as server, Client(server.bootstrap, timeout_ms=3000) as client:
        assert client.request(DescribeClusterRequest(), node=1).controller_id == 1
        with pytest.raises(BrokerUnavailable, match="broker 9 is not in the cluster's metadata"):
            client.request(DescribeClusterRequest(), node=9)


def test_a_request_larger_than_the_sockets_buffers_is_sent_whole() -> None:
    """A request exceeds the buffers of the sockets. The client sends it in parts, and reads the answer meanwhile."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        server.broker.add_topic("t")
        server.broker.max_batch_bytes = 1 << 30
        producing = Producing(client.core, ProduceConfig(batch_bytes_max=1 << 25, request_bytes_max=1 << 25))
        (delivery,) = client.run(producing.produce([RecordToSend("t", bytes(20 << 20))], timeout=20))
        assert delivery.error is None
        assert len(server.broker.topics["t"].partitions[0].batches[0][1]) > 20 << 20


def test_an_answer_that_comes_byte_by_byte() -> None:
    """An answer comes byte by byte. The client waits for the whole frame."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        from tests.client.fake_broker import BrokerEnd, FakeBroker

        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = BrokerEnd(FakeBroker())
        with connection:
            while data := connection.recv(1 << 16):
                for byte in end.receive(data) or b"":
                    connection.sendall(bytes([byte]))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with listener, Client(f"127.0.0.1:{listener.getsockname()[1]}") as client:
        assert client.admin.describe_cluster().cluster_id == "fake-cluster"
    server.join()


def test_a_connection_that_ends_inside_a_frame() -> None:
    """A connection ends in the middle of an answer. The error names the broker's address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            listener.close()
            connection.sendall(b"\0\0\1\0half")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with Client(address, timeout_ms=300) as client, pytest.raises(BrokerUnavailable, match=address):
        client.metadata()
    server.join()


def test_a_closed_client_says_so() -> None:
    """A closed client refuses calls, and may be closed again."""
    client = Client("127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.metadata()


def test_an_operation_that_is_interrupted_leaves_the_client_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C interrupts a long poll. The operation is abandoned, and the connection is used again."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        client.metadata()
        select = client._sockets.select

        def interrupted(timeout: float | None = None) -> list[object]:
            monkeypatch.setattr(client._sockets, "select", select)
            raise KeyboardInterrupt

        monkeypatch.setattr(client._sockets, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.request(FetchRequest(max_wait_ms=1))
        assert client.admin.describe_cluster().controller_id == 1
        assert server.broker.connections == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    """Bootstrap addresses are host:port lists, with IPv6 hosts in brackets."""
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:9092", "h:-1"]
)
def test_bad_bootstrap_addresses(text: str) -> None:
    """The error of a bad bootstrap address names the bad part, and shows a good one."""
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        parse_bootstrap(text)


@pytest.mark.parametrize("given", [{"bootstrap.servers": "a:1"}, ["a:1"], None])
def test_a_client_is_given_text(given: Any) -> None:
    """`Client` refuses a mapping, a list and None, and says what to write instead."""
    with pytest.raises(TypeError, match=r"Client\('127.0.0.1:9092'\), not "):
        Client(given)


def test_begun_and_finished_later() -> None:
    """An operation that was begun runs beside others. `finish` returns its result or raises its error."""
    with LoopbackBroker() as server, Client(server.bootstrap) as client:
        client.metadata()
        begun = client.begin(request(client.core, DescribeClusterRequest(), timeout=30))
        assert not begun.done
        assert client.metadata().cluster_id == "fake-cluster"
        assert client.finish(begun).controller_id == 1
        assert client.finish(begun).controller_id == 1
        server.broker.trouble[ApiKey.DESCRIBE_CLUSTER].append(HANG_UP)
        lost = client.begin(
            request(client.core, DescribeClusterRequest(), timeout=30, repeat_after_loss=False)
        )
        with pytest.raises(ConnectionBroken):
            client.finish(lost)
        left = client.begin(request(client.core, DescribeClusterRequest(), timeout=30))
        client.core.abandon(left)
        assert client.metadata().cluster_id == "fake-cluster"
