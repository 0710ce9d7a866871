"""A broker answers a change only when its own image includes it, so a client can see the change there at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.request import urlopen

import attrs
import pytest

from jepsen_tests.network import Loopback
from jepsen_tests.real_cluster import Cluster, free_ports
from jepsen_tests.systems import Odradek
from odradek.wire.api import api_versions
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_acls import DescribeAclsRequest
from odradek.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from testkit.raw_requests import RawClient

ROUNDS = 60
TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@attrs.define
class Nodes:
    """Three nodes with an authorizer that allows everything here, and their metrics ports."""

    cluster: Cluster
    metrics: dict[int, int]

    def waits(self, numbers: Iterable[int]) -> tuple[int, int]:
        """Count the answers of these nodes that waited for the image, and those sent at the time limit without it."""
        found = [0, 0]
        for number in numbers:
            with urlopen(f"http://127.0.0.1:{self.metrics[number]}/metrics", timeout=10) as page:
                text = page.read().decode()
            for place, name in enumerate(("image_waits", "image_waits_cut")):
                value = re.search(rf"^odradek_controller_channel_{name} ([\d.]+)$", text, re.MULTILINE)
                assert value is not None
                found[place] += int(float(value[1]))
        return found[0], found[1]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    cluster = Cluster(Odradek(), Loopback(), tmp_path_factory.mktemp("images") / "nodes", AUTHORIZER)
    cluster.prepare()
    found = Nodes(cluster, dict(zip(cluster.nodes, free_ports(3), strict=True)))
    for number, node in cluster.nodes.items():
        with node.properties.open("a") as file:
            file.write(f"odradek.metrics.listener=127.0.0.1:{found.metrics[number]}\n")
    try:
        cluster.start_all()
        yield found
        assert not cluster.unexpected_ends()
    finally:
        cluster.close()


class Broker:
    """A broker that is not the active controller. Changes and look-ups use two connections."""

    def __init__(self, address: str) -> None:
        self._asking, self._looking = RawClient(address), RawClient(address)

    def ask(self, message: Any) -> Any:
        return self._asking.request(message, api_versions(message.API_KEY)[1])

    def look(self, message: Any) -> Any:
        return self._looking.request(message, api_versions(message.API_KEY)[1])

    def create(self, topic: str) -> None:
        wanted = CreatableTopic(topic, 1, 3, [], [])
        (made,) = self.ask(CreateTopicsRequest([wanted], 10_000, False)).topics
        assert made.error_code == ErrorCode.NONE

    def topic(self, name: str) -> Any:
        wanted = MetadataRequestTopic(name=name)
        (found,) = self.look(MetadataRequest([wanted], allow_auto_topic_creation=False)).topics
        return found

    def rights(self, topic: str) -> int:
        found = self.look(DescribeAclsRequest(TOPIC, topic, LITERAL, None, None, 1, 1))
        return len(found.resources)


def make_topic(broker: Broker, name: str) -> bool:
    broker.create(name)
    return bool(broker.topic(name).error_code == ErrorCode.NONE)


def delete_topic(broker: Broker, name: str) -> bool:
    broker.create(name)
    (gone,) = broker.ask(DeleteTopicsRequest([DeleteTopicState(name)], [], 10_000)).responses
    assert gone.error_code == ErrorCode.NONE
    return bool(broker.topic(name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def add_partitions(broker: Broker, name: str) -> bool:
    broker.create(name)
    more = CreatePartitionsTopic(name, 3, None)
    (grown,) = broker.ask(CreatePartitionsRequest([more], 10_000, False)).results
    assert grown.error_code == ErrorCode.NONE
    return len(broker.topic(name).partitions) == 3


def set_config(broker: Broker, name: str) -> bool:
    broker.create(name)
    change = AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", 0, "12345")])
    (changed,) = broker.ask(IncrementalAlterConfigsRequest([change])).responses
    assert changed.error_code == ErrorCode.NONE
    wanted = DescribeConfigsResource(TOPIC, name, ["retention.ms"])
    (found,) = broker.look(DescribeConfigsRequest([wanted])).results
    return bool(found.configs[0].value == "12345")


def give_right(broker: Broker, name: str) -> bool:
    rule = AclCreation(TOPIC, name, LITERAL, "User:someone", "*", READ, ALLOW)
    (given,) = broker.ask(CreateAclsRequest([rule])).results
    assert given.error_code == ErrorCode.NONE
    return broker.rights(name) == 1


def take_right(broker: Broker, name: str) -> bool:
    assert give_right(broker, name)
    rule = DeleteAclsFilter(TOPIC, name, LITERAL, None, None, 1, 1)
    (taken,) = broker.ask(DeleteAclsRequest([rule])).filter_results
    assert len(taken.matching_acls) == 1
    return broker.rights(name) == 0


def set_quota(broker: Broker, name: str) -> bool:
    entry = AlterClientQuotasRequestEntryData(
        [EntityData("user", name)], [OpData("producer_byte_rate", 1e6, False)]
    )
    (done,) = broker.ask(AlterClientQuotasRequest([entry])).entries
    assert done.error_code == ErrorCode.NONE
    found = broker.look(DescribeClientQuotasRequest([ComponentData("user", 0, name)]))
    return len(found.entries) == 1


def add_user(broker: Broker, name: str) -> bool:
    user = ScramCredentialUpsertion(name, 1, 4096, b"salt-of-a-user", b"x" * 32)
    (done,) = broker.ask(AlterUserScramCredentialsRequest([], [user])).results
    assert done.error_code == ErrorCode.NONE
    (found,) = broker.look(DescribeUserScramCredentialsRequest([UserName(name)])).results
    return bool(found.error_code == ErrorCode.NONE)


CHANGES = (
    make_topic,
    delete_topic,
    add_partitions,
    set_config,
    give_right,
    take_right,
    set_quota,
    add_user,
)


@pytest.mark.parametrize("change", CHANGES, ids=[each.__name__ for each in CHANGES])
def test_what_a_broker_has_answered_it_knows(nodes: Nodes, change: Callable[[Broker, str], bool]) -> None:
    """Directly after its answer, a broker shows the change on another connection, too."""
    cluster = nodes.cluster
    active = cluster.active_controller()
    others = [number for number in cluster.nodes if number != active]
    brokers = [Broker(f"{node.host}:{node.port}") for node in map(cluster.nodes.__getitem__, others)]
    before = nodes.waits(others)
    known = [
        change(brokers[number % 2], f"{change.__name__}-{number}".replace("_", "-"))
        for number in range(ROUNDS)
    ]
    waited, cut = (now - then for now, then in zip(nodes.waits(others), before, strict=True))
    assert known.count(True) >= ROUNDS - cut
    assert cut <= waited / 10
