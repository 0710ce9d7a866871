"""ApiVersions, Metadata, DescribeCluster, InitProducerId, DescribeConfigs: what a server says about itself."""

from __future__ import annotations

import struct
from functools import partial

from tests.conformance.talk import Talk, case
from wire.api import ApiKey
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.structure import ZERO_UUID

NOBODYS_ID = bytes(range(16))
OURS = (0, 1, 2, 3, 18, 19, 20, 22, 23, 32, 60)
TOPIC, BROKER = 2, 4

# -- ApiVersions -------------------------------------------------------------------------------------------------------


def _ours(response: ApiVersionsResponse) -> ApiVersionsResponse:
    """Only the APIs that both serve; which others exist is no matter of theirs."""
    response.api_keys = [entry for entry in response.api_keys if entry.api_key in OURS]
    return response


def _api_versions(talk: Talk, *, version: int, name: str = "conformance", software: str = "1.0") -> None:
    talk.ask(ApiVersionsRequest(name, software), version, _ours)


for _version in range(5):
    case(f"api_versions v{_version}")(partial(_api_versions, version=_version))
for _label, _name, _software in (
    ("empty name", "", "1.0"),
    ("empty version", "x", ""),
    ("blank in name", "a b", "1.0"),
    ("starts with dash", "-x", "1.0"),
    ("ends with dot", "x.", "1.0"),
    ("not ascii", "ü", "1.0"),
    ("one character", "x", "1"),
    ("dots and dashes", "a.b-c", "1.0-rc.1"),
    ("underscore", "a_b", "1"),
    ("line feed", "a\n", "1"),
):
    case(f"api_versions client software: {_label}")(
        partial(_api_versions, version=3, name=_name, software=_software)
    )


@case("api_versions of a version to come")
def _(talk: Talk) -> None:
    body = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, 3) + b"raw" + b"\0"
    talk.send(struct.pack(">i", len(body)) + body, ApiKey.API_VERSIONS, 0)


@case("produce of a version that is only advertised")
def _(talk: Talk) -> None:
    body = struct.pack(">hhih", ApiKey.PRODUCE, 2, 7, 3) + b"raw" + struct.pack(">hii", 1, 1000, 0)
    talk.send(struct.pack(">i", len(body)) + body, ApiKey.PRODUCE, 3)


# -- Metadata ----------------------------------------------------------------------------------------------------------


def _metadata(*topics: str | bytes | None, auto_create: bool = False) -> MetadataRequest:
    asked = [
        MetadataRequestTopic(topic, None)
        if isinstance(topic, bytes)
        else MetadataRequestTopic(ZERO_UUID, topic)
        for topic in topics
    ]
    return MetadataRequest(asked, auto_create)


def _known_and_unknown(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"metadata{version}", 3)
    request = _metadata(name, talk.name("unknown"), "bad name", "")
    request.include_topic_authorized_operations = version >= 8
    request.include_cluster_authorized_operations = 8 <= version <= 10
    if version < 4:
        request.allow_auto_topic_creation = True
        request.topics = [MetadataRequestTopic(ZERO_UUID, name), MetadataRequestTopic(ZERO_UUID, "bad name")]
    talk.ask(request, version)


def _no_topics(talk: Talk, *, version: int) -> None:
    talk.topic(f"metadata-none{version}")

    def how_many(response: object) -> str:
        return "none" if not response.topics else "some"  # type: ignore[attr-defined]  # any version's response

    talk.ask(MetadataRequest([], True), version, how_many)
    if version:
        talk.ask(MetadataRequest(None, True), version, how_many)


for _version in range(14):
    case(f"metadata v{_version}")(partial(_known_and_unknown, version=_version))
    case(f"metadata v{_version} of no topics and of all")(partial(_no_topics, version=_version))


@case("metadata by id")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("metadata-by-id")
    for version in (12, 13):
        talk.ask(_metadata(topic_id, NOBODYS_ID), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, name)], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, "other")], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(ZERO_UUID, None)], False), version)
        talk.ask(_metadata(topic_id, name), version)


@case("metadata by id before version 12")
def _(talk: Talk) -> None:
    name, topic_id = talk.topic("metadata-by-id-early")
    for version in (10, 11):
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, name)], False), version)
        talk.ask(MetadataRequest([MetadataRequestTopic(topic_id, None)], False), version)


@case("metadata names a topic twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("metadata-twice")
    talk.ask(_metadata(name, name), 12)


@case("metadata creates a topic on first use")
def _(talk: Talk) -> None:
    name = talk.name("auto")
    talk.ask(_metadata(name, auto_create=True), 9)
    talk.wait_for_topic(name)
    talk.ask(_metadata(name), 9)


@case("metadata does not create what has no good name")
def _(talk: Talk) -> None:
    talk.ask(_metadata("bad name", "", ".", "x" * 250, auto_create=True), 12)


@case("metadata creates nothing that collides")
def _(talk: Talk) -> None:
    talk.topic("auto.collides")
    talk.ask(_metadata(talk.name("auto_collides"), auto_create=True), 12)


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


def _cluster_without_id(response: object) -> object:
    response.cluster_id = "CLUSTER"  # type: ignore[attr-defined]  # any version's response
    return response


def _describe_cluster(talk: Talk, *, version: int, endpoint: int = 1, operations: bool = False) -> None:
    fenced = version >= 2
    talk.ask(DescribeClusterRequest(operations, endpoint, fenced), version, _cluster_without_id)


for _version in range(3):
    case(f"describe_cluster v{_version}")(partial(_describe_cluster, version=_version))
    case(f"describe_cluster v{_version} with operations")(
        partial(_describe_cluster, version=_version, operations=True)
    )
for _version, _endpoint in ((1, 0), (1, 2), (2, 2), (2, 9), (1, -1)):
    case(f"describe_cluster v{_version} at endpoint type {_endpoint}")(
        partial(_describe_cluster, version=_version, endpoint=_endpoint)
    )

# -- InitProducerId ----------------------------------------------------------------------------------------------------


def _init_producer_id(
    talk: Talk, *, version: int, transactional_id: str | None = None, producer: tuple[int, int] = (-1, -1)
) -> None:
    talk.ask(InitProducerIdRequest(transactional_id, 60_000, *producer), version)


for _version in range(6):
    case(f"init_producer_id v{_version}")(partial(_init_producer_id, version=_version))
case("init_producer_id with an empty transactional id")(
    partial(_init_producer_id, version=4, transactional_id="")
)
case("init_producer_id with a transactional id")(partial(_init_producer_id, version=4, transactional_id="t"))
for _producer in ((5, -1), (-1, 5), (5, 5), (-2, -1), (-1, -2), (-2, -2), (5, -2)):
    case(f"init_producer_id of producer {_producer[0]} epoch {_producer[1]}")(
        partial(_init_producer_id, version=4, producer=_producer)
    )

# -- DescribeConfigs ---------------------------------------------------------------------------------------------------

BROKER_KEYS = [
    "num.partitions",
    "log.retention.ms",
    "log.retention.hours",
    "log.segment.bytes",
    "min.insync.replicas",
    "ssl.keystore.password",
    "message.max.bytes",
    "compression.type",
    "node.id",
    "process.roles",
    "controller.listener.names",
    "default.replication.factor",
    "log.cleanup.policy",
    "num.io.threads",
    "log.flush.interval.ms",
]


def _describe_configs(
    talk: Talk,
    *,
    version: int,
    kind: int,
    resource: str,
    keys: list[str] | None,
    synonyms: bool = False,
) -> None:
    asked = DescribeConfigsResource(kind, resource, keys)
    talk.ask(DescribeConfigsRequest([asked], synonyms, False), version)


for _version in range(1, 5):
    case(f"describe_configs v{_version} of a broker")(
        partial(
            _describe_configs, version=_version, kind=BROKER, resource="1", keys=BROKER_KEYS, synonyms=True
        )
    )
for _label, _kind, _resource, _keys in (
    ("the default broker", BROKER, "", BROKER_KEYS),
    ("another broker", BROKER, "2", None),
    ("a broker that is no number", BROKER, "x", None),
    ("an unknown topic", TOPIC, "no-such-topic", None),
    ("a bad topic name", TOPIC, "bad name", None),
    ("an empty topic name", TOPIC, "", None),
    ("an unknown type", 99, "x", None),
    ("type 0", 0, "x", None),
    ("type any", 1, "x", None),
    ("type cluster", 3, "x", None),
    ("unknown keys of a broker", BROKER, "1", ["no.such.key"]),
    ("no keys of a broker", BROKER, "1", []),
):
    if _label != "no keys of a broker":
        case(f"describe_configs of {_label}")(
            partial(_describe_configs, version=4, kind=_kind, resource=_resource, keys=_keys)
        )


def _describe_topic(talk: Talk, *, version: int, synonyms: bool) -> None:
    name, _ = talk.topic(
        f"configs{version}{synonyms}", cleanup_policy="compact", retention_ms="1000", segment_ms="5000"
    )
    talk.ask(DescribeConfigsRequest([DescribeConfigsResource(TOPIC, name, None)], synonyms, False), version)
    talk.ask(
        DescribeConfigsRequest(
            [DescribeConfigsResource(TOPIC, name, ["retention.ms", "x"])], synonyms, False
        ),
        version,
    )


for _version in range(1, 5):
    for _synonyms in (False, True):
        case(f"describe_configs v{_version} of a topic{', with synonyms' if _synonyms else ''}")(
            partial(_describe_topic, version=_version, synonyms=_synonyms)
        )


@case("describe_configs with documentation")
def _(talk: Talk) -> None:
    name, _ = talk.topic("configs-documented")
    asked = DescribeConfigsResource(TOPIC, name, ["retention.ms"])
    talk.ask(
        DescribeConfigsRequest([asked], False, True),
        4,
        lambda response: response.results[0].configs[0].documentation is not None,
    )


@case("describe_configs with an empty list of keys")
def _(talk: Talk) -> None:
    name, _ = talk.topic("configs-no-keys")
    asked = DescribeConfigsResource(TOPIC, name, [])
    talk.ask(
        DescribeConfigsRequest([asked], False, False),
        4,
        lambda response: len(response.results[0].configs) > 0,
    )


@case("describe_configs names a resource twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("configs-twice")
    asked = DescribeConfigsResource(TOPIC, name, ["retention.ms"])
    talk.ask(DescribeConfigsRequest([asked, asked], False, False), 4)
