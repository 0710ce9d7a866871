"""Host names of brokers: their addresses change, cannot be found, or are found too late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek import Admin, Consumer, Producer
from odradek.client.core.requests import request
from odradek.client.errors import ClientError
from odradek.client.shells.blocking import Client
from odradek.wire.messages.describe_cluster import DescribeClusterRequest
from odradek.wire.messages.metadata import MetadataResponseBroker
from testkit.processes import free_ports
from tests.client.consumer.fake_group import GroupBroker
from tests.client.fake_broker import LoopbackBroker

NAME, OTHER = "kafka.example", "other.example"
PATIENCE_SECONDS = 30.0


class Resolver:
    """A resolver with a table of names and addresses. A name may be unknown, or hang until the test ends."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.released = threading.Event()
        self._real: Callable[..., Any] = socket.getaddrinfo

    def __call__(self, host: str, port: int, *args: Any, **keys: Any) -> Any:
        self.asked.append(host)
        if host in self.hanging:
            self.released.wait(PATIENCE_SECONDS)
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [place for each in self.addresses[host] for place in self._real(each, port, *args, **keys)]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """The fake resolver, in place of the system's."""
    found = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    yield found
    found.released.set()


@pytest.fixture
def group() -> Iterator[GroupBroker]:
    """A broker whose listener is not open yet. Its port is reserved, so that no outgoing connection gets this port
    meanwhile."""
    [port] = free_ports(1)
    found = GroupBroker(NAME, port)
    found.add_topic("t", 1)
    return found


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in consumer.poll(PATIENCE_SECONDS)]
    return found


def test_a_broker_whose_address_changes_is_found_again(resolver: Resolver, group: GroupBroker) -> None:
    """A broker's name gets a new address, as after a restart of a container. The client finds the broker again."""
    resolver.addresses[NAME] = ["127.0.0.1"]
    servers = f"{NAME}:{group.port}"
    keys = {"group_id": "g", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
    with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, **keys) as consumer,
    ):
        consumer.subscribe("t")
        with LoopbackBroker(of=group):
            producer.send("t", b"0").result(PATIENCE_SECONDS)
            assert values(consumer, 1) == [b"0"]
        resolver.addresses[NAME] = ["127.0.0.2"]
        with LoopbackBroker(of=group, address="127.0.0.2"):
            producer.send("t", b"1").result(PATIENCE_SECONDS)
            assert values(consumer, 1) == [b"1"]
            consumer.commit()
            consumer.close()
    assert group.generation == 1


def test_each_address_of_a_name_is_tried(resolver: Resolver, group: GroupBroker) -> None:
    """A name has several addresses (KIP-302). If one of them refuses, the next is tried."""
    resolver.addresses[NAME] = ["127.0.0.3", "127.0.0.1"]
    with LoopbackBroker(of=group), Client(f"{NAME}:{group.port}") as client:
        assert client.metadata(["t"]).topics


@pytest.mark.parametrize("hangs", [True, False])
def test_a_name_that_is_not_found_holds_up_no_other_broker(
    resolver: Resolver, group: GroupBroker, hangs: bool
) -> None:
    """One broker's name cannot be resolved, or hangs.

    A call to this broker fails in time, and calls to others go on.
    """
    resolver.addresses[NAME] = ["127.0.0.1"]
    group.more_brokers.append(MetadataResponseBroker(2, OTHER, group.port))
    if hangs:
        resolver.hanging.add(OTHER)
    with LoopbackBroker(of=group), Client(f"{NAME}:{group.port}") as client:
        client.metadata()
        asked = client.begin(request(client.core, DescribeClusterRequest(), node=2, timeout=1))
        assert client.request(DescribeClusterRequest(), node=1).controller_id == 1
        assert not hangs or not asked.done
        with pytest.raises(ClientError):
            client.finish(asked)
        assert OTHER in resolver.asked
        assert client.metadata().cluster_id == "fake-cluster"


@pytest.mark.parametrize("hangs", [True, False])
def test_a_bootstrap_name_that_is_not_found_gives_way_to_the_next(
    resolver: Resolver, group: GroupBroker, hangs: bool
) -> None:
    """The name of a bootstrap server cannot be resolved, or hangs.

    After `socket.connection.setup.timeout.ms` the next server is tried.
    """
    resolver.addresses[NAME] = ["127.0.0.1"]
    if hangs:
        resolver.hanging.add(OTHER)
    keys = {"socket_connection_setup_timeout_ms": 100, "bootstrap_servers": f"{OTHER}:1,{NAME}:{group.port}"}
    with LoopbackBroker(of=group):
        while OTHER not in resolver.asked:  # a client begins with a random one of the two
            with Admin(**keys) as admin:
                assert admin.describe_cluster().cluster_id == "fake-cluster"
