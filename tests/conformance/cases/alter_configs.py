"""AlterConfigs: replaces all overrides of a resource at once. KIP-339 deprecated it, but clients still use it."""

from __future__ import annotations

from functools import partial

from tests.conformance.asking.configs import BROKER, GROUP, LOGGER, METRICS, TOPIC, has, replace
from tests.conformance.asking.talk import Talk, case

Values = list[tuple[str, str | None]]


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"ac-v{version}", flush_ms="7")
    replace(talk, (TOPIC, name, [("retention.ms", "1000"), ("segment.bytes", "2000000")]), version=version)
    has(talk, TOPIC, name, retention_ms="1000", flush_ms="9223372036854775807", segment_bytes="2000000")
    replace(talk, (TOPIC, name, [("retention.ms", "2000")]), version=version, validate_only=True)
    replace(talk, (TOPIC, name, [("retention.ms", "x")]), version=version)
    has(talk, TOPIC, name, retention_ms="1000")
    replace(talk, (TOPIC, name, []), version=version)
    has(talk, TOPIC, name, retention_ms="604800000", segment_bytes="1073741824")
    replace(talk, version=version)


for _version in range(3):
    case(f"alter_configs v{_version}")(partial(_versions, version=_version))
_TOPIC_VALUES: dict[str, Values] = {
    "an unknown key": [("no.such.key", "1")],
    "no value": [("retention.ms", None)],
    "two without values": [("retention.ms", None), ("flush.ms", None)],
    "a key twice": [("retention.ms", "1"), ("retention.ms", "2")],
    "lags that contradict": [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")],
    "an empty value": [("cleanup.policy", "")],
    "tiered storage": [("remote.storage.enable", "true")],
}
for _number, (_label, _values) in enumerate(_TOPIC_VALUES.items()):

    def _topic(talk: Talk, *, stem: str, values: Values) -> None:
        name, _ = talk.topic(stem)
        replace(talk, (TOPIC, name, values), validate_only=True)
        replace(talk, (TOPIC, name, values))

    case(f"alter_configs of a topic: {_label}")(partial(_topic, stem=f"ac-topic{_number}", values=_values))
for _label, _name in {"unknown": "no-such-topic", "empty": "", "bad": "a b", "too long": "x" * 250}.items():

    def _named(talk: Talk, *, name: str) -> None:
        replace(talk, (TOPIC, name, [("retention.ms", "1")]))
        replace(talk, (TOPIC, name, [("retention.ms", "x")]))
        replace(talk, (TOPIC, name, []))

    case(f"alter_configs of a topic whose name is {_label}")(partial(_named, name=_name))


@case("alter_configs of several, some refused")
def _(talk: Talk) -> None:
    one, _ = talk.topic("ac-one")
    other, _ = talk.topic("ac-other")
    replace(
        talk,
        (TOPIC, one, [("retention.ms", "x")]),
        (TOPIC, "no-such-topic", [("retention.ms", "5")]),
        (99, "x", []),
        (TOPIC, other, [("retention.ms", "5000")]),
        (BROKER, "7", []),
    )
    has(talk, TOPIC, other, retention_ms="5000")


for _kind in (0, 1, 3, LOGGER, 99):

    def _unknown(talk: Talk, *, kind: int) -> None:
        replace(talk, (kind, "1", [("root", "INFO")]))
        replace(talk, (kind, "", []))

    case(f"alter_configs of type {_kind}")(partial(_unknown, kind=_kind))
_BROKER_VALUES: dict[str, Values] = {
    "a good value": [("log.retention.ms", "5000000")],
    "a key that is fixed": [("node.id", "1")],
    "an unknown key": [("no.such.key", "1")],
    "no number": [("log.retention.ms", "x")],
    "no value": [("log.retention.ms", None)],
    "a key twice": [("log.retention.ms", "1"), ("log.retention.ms", "1")],
    "many threads": [("num.io.threads", "100")],
    "min.insync.replicas": [("min.insync.replicas", "2")],
}
for _label, _values in _BROKER_VALUES.items():

    def _broker(talk: Talk, *, values: Values) -> None:
        replace(talk, (BROKER, "1", values), validate_only=True)

    case(f"alter_configs of a broker: {_label}")(partial(_broker, values=_values))


@case("alter_configs of all brokers")
def _(talk: Talk) -> None:
    replace(talk, (BROKER, "", [("min.insync.replicas", "1"), ("listeners", "x")]), validate_only=True)
    replace(talk, (BROKER, "", [("min.insync.replicas", "1"), ("log.retention.ms", "9")]), validate_only=True)
    replace(talk, (BROKER, "", [("min.insync.replicas", "1"), ("node.id", "9")]), validate_only=True)


@case("alter_configs of brokers that are not asked")
def _(talk: Talk) -> None:
    for name in ("2", "x", "-1"):
        replace(talk, (BROKER, name, [("log.retention.ms", "5000000")]), validate_only=True)


@case("alter_configs of a group and a subscription, and back")
def _(talk: Talk) -> None:
    name = talk.name("ac")
    replace(
        talk,
        (GROUP, name, [("consumer.session.timeout.ms", "50000")]),
        (METRICS, name, [("interval.ms", "5000"), ("metrics", "a")]),
    )
    has(talk, GROUP, name, consumer_session_timeout_ms="50000")
    has(talk, METRICS, name, interval_ms="5000", metrics="a", match="")
    replace(talk, (GROUP, name, []), (METRICS, name, []))
    has(talk, GROUP, name, consumer_session_timeout_ms="45000")
    has(talk, METRICS, name, interval_ms="300000", metrics="", match="")
    replace(talk, (GROUP, "", []), (METRICS, "", []))
    replace(talk, (GROUP, name, [("x", "1")]), (METRICS, name, [("x", "1")]))
