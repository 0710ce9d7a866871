"""DescribeConfigs: values, sources, synonyms, and resources that are none."""

from __future__ import annotations

from functools import partial

from tests.conformance.talk import Talk, case
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPIC, BROKER = 2, 4

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
