"""DescribeConfigs: values, sources, synonyms, and resources that do not exist."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tests.conformance.asking.configs import ALWAYS_SET, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from tests.conformance.asking.talk import Talk, case

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


# -- whole resources ---------------------------------------------------------------------------------------------------

DEFAULT = 5
OF_THE_MACHINE = ("listeners", "log.dir", "node.id", "process.roles", "quorum", "cordoned")
"""Parts of key names. The values of such keys come from each server's own file."""


def _facts(response: DescribeConfigsResponse) -> DescribeConfigsResponse:
    """Remove values that a server's own file sets, and the key that only Kafka's format sets."""
    for result in response.results:
        result.configs = [config for config in result.configs if config.name != ALWAYS_SET]
        for config in result.configs:
            if config.config_source != DEFAULT or any(part in config.name for part in OF_THE_MACHINE):
                config.value = None
            config.synonyms = [synonym for synonym in config.synonyms if synonym.source != DEFAULT]
            for synonym in config.synonyms:
                synonym.value = None
    return response


def _whole(talk: Talk, *, kind: int, resource: str, synonyms: bool) -> None:
    asked = DescribeConfigsResource(kind, resource, None)
    talk.ask(DescribeConfigsRequest([asked], synonyms, False), 4, _facts)


for _label, _kind, _resource in (
    ("the whole broker", BROKER, "1"),
    ("all brokers", BROKER, ""),
    ("a group that nobody knows", GROUP, "no-such-group"),
    ("a group without a name", GROUP, ""),
    ("client metrics that nobody knows", CLIENT_METRICS, "no-such-subscription"),
    ("client metrics without a name", CLIENT_METRICS, ""),
    ("the loggers of another broker", BROKER_LOGGER, "2"),
    ("the loggers of no broker", BROKER_LOGGER, ""),
    ("the loggers of a broker that is no number", BROKER_LOGGER, "x"),
    ("a broker with a sign", BROKER, "+1"),
    ("a broker of many digits", BROKER, "99999999999"),
    ("an internal topic", TOPIC, "__consumer_offsets"),
):
    for _synonyms in (False, True):
        case(f"describe_configs of {_label}{', with synonyms' if _synonyms else ''}")(
            partial(_whole, kind=_kind, resource=_resource, synonyms=_synonyms)
        )


@case("describe_configs of the root logger")
def _(talk: Talk) -> None:
    asked = DescribeConfigsResource(BROKER_LOGGER, "1", ["root", "no.such.logger"])
    talk.ask(DescribeConfigsRequest([asked], True, False), 4, _without_levels)


def _without_levels(response: DescribeConfigsResponse) -> DescribeConfigsResponse:
    for config in response.results[0].configs:
        config.value = None
    return response


@case("describe_configs of several resources")
def _(talk: Talk) -> None:
    name, _ = talk.topic("configs-several")
    asked = [
        DescribeConfigsResource(TOPIC, name, ["retention.ms"]),
        DescribeConfigsResource(TOPIC, talk.name("configs-unknown"), ["retention.ms"]),
        DescribeConfigsResource(BROKER, "1", ["message.max.bytes"]),
        DescribeConfigsResource(99, name, None),
    ]
    for version in (1, 4):
        talk.ask(DescribeConfigsRequest(asked, True, False), version)


@case("describe_configs of nothing")
def _(talk: Talk) -> None:
    for version in (1, 4):
        talk.ask(DescribeConfigsRequest([], False, False), version)
