"""IncrementalAlterConfigs: single keys of topics, brokers, loggers, subscriptions and groups."""

from __future__ import annotations

from functools import partial

from tests.conformance.asking.configs import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    LOGGER,
    METRICS,
    SET,
    SUBTRACT,
    TOPIC,
    Change,
    alter,
    has,
)
from tests.conformance.asking.talk import Talk, case


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"iac-v{version}")
    alter(talk, (TOPIC, name, [("retention.ms", SET, "1000")]), version=version)
    has(talk, TOPIC, name, retention_ms="1000")
    alter(talk, (TOPIC, name, [("retention.ms", DELETE, None)]), version=version)
    has(talk, TOPIC, name, retention_ms="604800000")
    alter(talk, (TOPIC, name, [("retention.ms", SET, "x")]), version=version)
    alter(talk, version=version)


for _version in range(2):
    case(f"incremental_alter_configs v{_version}")(partial(_versions, version=_version))


def _of_topic(talk: Talk, *, stem: str, changes: list[Change]) -> None:
    name, _ = talk.topic(stem)
    alter(talk, (TOPIC, name, changes), validate_only=True)
    alter(talk, (TOPIC, name, changes))


_TOPIC_CHANGES: dict[str, list[Change]] = {
    "an unknown key": [("no.such.key", SET, "1")],
    "an unknown key to take away": [("no.such.key", DELETE, None)],
    "an empty key": [("", SET, "1")],
    "no value": [("retention.ms", SET, None)],
    "several without values": [("retention.ms", SET, None), ("segment.bytes", APPEND, None), ("x", SET, "1")],
    "a value to take away": [("retention.ms", DELETE, "5")],
    "a key twice": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
    "a key twice, with different operations": [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
    "nothing": [],
    "an empty number": [("retention.ms", SET, "")],
    "a number with blanks": [("retention.ms", SET, " 77 ")],
    "a number with a sign": [("retention.ms", SET, "+77")],
    "a fraction": [("retention.ms", SET, "1.5")],
    "a number that is too large": [("segment.bytes", SET, "2147483648")],
    "a number that is too small": [("segment.bytes", SET, "1048575")],
    "a ratio that is too large": [("min.cleanable.dirty.ratio", SET, "1.1")],
    "no boolean": [("preallocate", SET, "yes")],
    "a boolean in capitals": [("preallocate", SET, "TRUE")],
    "no choice": [("compression.type", SET, "zip")],
    "a choice in capitals": [("compression.type", SET, "GZIP")],
    "a bad level": [("compression.gzip.level", SET, "0")],
    "min.insync.replicas of 0": [("min.insync.replicas", SET, "0")],
    "more in-sync replicas than there are": [("min.insync.replicas", SET, "2")],
    "one bad value of two": [("flush.ms", SET, "7"), ("retention.ms", SET, "-2")],
    "lags that contradict": [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
    "tiered storage": [("remote.storage.enable", SET, "true")],
    "no tiered storage": [("remote.storage.enable", SET, "false")],
    "an empty list": [("cleanup.policy", SET, "")],
    "a list with an empty item": [("cleanup.policy", SET, "delete,,compact")],
    "a list with an item twice": [("cleanup.policy", SET, "delete,delete")],
    "a list with a bad item": [("cleanup.policy", SET, "delete,shred")],
    "bad throttled replicas": [("leader.replication.throttled.replicas", SET, "x")],
    "all throttled replicas": [("leader.replication.throttled.replicas", SET, "*")],
    "an item more for no list": [("retention.ms", APPEND, "1")],
    "an item less for no list": [("retention.ms", SUBTRACT, "1")],
    "an item more for an unknown key": [("no.such.key", APPEND, "1")],
    "a bad item more": [("cleanup.policy", APPEND, "shred")],
    "an unknown operation": [("retention.ms", 9, "1")],
    "a negative operation": [("retention.ms", -1, "1")],
    "an internal key": [("internal.segment.bytes", SET, "5000")],
}
for _number, (_label, _changes) in enumerate(_TOPIC_CHANGES.items()):
    case(f"incremental_alter_configs of a topic: {_label}")(
        partial(_of_topic, stem=f"iac-topic{_number}", changes=_changes)
    )
for _label, _name in {
    "unknown": "no-such-topic",
    "empty": "",
    "bad": "a b",
    "too long": "x" * 250,
    "that of the metadata": "__cluster_metadata",
}.items():

    def _named(talk: Talk, *, name: str) -> None:
        alter(talk, (TOPIC, name, [("retention.ms", SET, "1")]))
        alter(talk, (TOPIC, name, [("retention.ms", SET, "x")]))
        alter(talk, (TOPIC, name, []))

    case(f"incremental_alter_configs of a topic whose name is {_label}")(partial(_named, name=_name))


@case("incremental_alter_configs adds to a list and takes from it")
def _(talk: Talk) -> None:
    name, _ = talk.topic("iac-list")
    alter(talk, (TOPIC, name, [("cleanup.policy", APPEND, "compact")]))
    has(talk, TOPIC, name, cleanup_policy="delete,compact")
    alter(talk, (TOPIC, name, [("cleanup.policy", APPEND, "compact")]))
    alter(talk, (TOPIC, name, [("cleanup.policy", SUBTRACT, "delete")]))
    has(talk, TOPIC, name, cleanup_policy="compact")
    alter(talk, (TOPIC, name, [("cleanup.policy", SUBTRACT, "compact,delete")]))
    has(talk, TOPIC, name, cleanup_policy="")


@case("incremental_alter_configs validates and changes nothing")
def _(talk: Talk) -> None:
    name, _ = talk.topic("iac-validate", retention_ms="1000")
    alter(talk, (TOPIC, name, [("retention.ms", SET, "2000")]), validate_only=True)
    alter(talk, (TOPIC, name, [("flush.ms", SET, "2000")]))
    has(talk, TOPIC, name, retention_ms="1000", flush_ms="2000")


@case("incremental_alter_configs of several, some refused")
def _(talk: Talk) -> None:
    one, _ = talk.topic("iac-one")
    other, _ = talk.topic("iac-other")
    alter(
        talk,
        (TOPIC, one, [("retention.ms", SET, "x")]),
        (TOPIC, "no-such-topic", [("retention.ms", SET, "5")]),
        (99, "x", []),
        (TOPIC, other, [("retention.ms", SET, "5000")]),
        (BROKER, "7", []),
    )
    has(talk, TOPIC, other, retention_ms="5000")


@case("incremental_alter_configs names a resource twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("iac-twice")
    other, _ = talk.topic("iac-beside")
    change: Change = ("retention.ms", SET, "5000")
    alter(talk, (TOPIC, name, [change]), (TOPIC, other, [change]), (TOPIC, name, [("flush.ms", SET, "1")]))


for _kind in (0, 1, 3, 5, 99, -1):

    def _unknown(talk: Talk, *, kind: int) -> None:
        alter(talk, (kind, "x", [("a", SET, "1")]))
        alter(talk, (kind, "", []))

    case(f"incremental_alter_configs of type {_kind}")(partial(_unknown, kind=_kind))


@case("incremental_alter_configs of values that are too long")
def _(talk: Talk) -> None:
    name, _ = talk.topic("iac-long")
    key = "leader.replication.throttled.replicas"
    alter(talk, (TOPIC, name, [(key, SET, ",".join(f"{number}:1" for number in range(4_000)))]))
    alter(talk, (TOPIC, name, [(key, APPEND, ",".join(f"{number}:1" for number in range(4_000, 6_500)))]))


_BROKER_CHANGES: dict[str, list[Change]] = {
    "a key that is fixed": [("node.id", SET, "1")],
    "two keys that are fixed": [("node.id", SET, "1"), ("broker.id", SET, "1")],
    "a key of the file": [("log.dirs", SET, "/x")],
    "a synonym that is fixed": [("log.retention.hours", SET, "5")],
    "an unknown key": [("no.such.key", SET, "1")],
    "nothing": [],
    "no value": [("log.retention.ms", SET, None)],
    "a key twice": [("log.retention.ms", SET, "1"), ("log.retention.ms", SET, "1")],
    "a good value": [("log.retention.ms", SET, "5000000")],
    "no number": [("log.retention.ms", SET, "x")],
    "no retention at all": [("log.retention.ms", SET, "0")],
    "a segment that is too small": [("log.segment.bytes", SET, "1")],
    "segments without time": [("log.roll.ms", SET, "0")],
    "a negative jitter": [("log.roll.jitter.ms", SET, "-1")],
    "no choice": [("compression.type", SET, "zip")],
    "an item more": [("log.cleanup.policy", APPEND, "compact")],
    "an item less": [("log.cleanup.policy", SUBTRACT, "delete")],
    "a bad item more": [("log.cleanup.policy", APPEND, "shred")],
    "an item more for no list": [("log.retention.ms", APPEND, "1")],
    "an item less for no list": [("log.retention.ms", SUBTRACT, "1")],
    "an item more for an unknown key": [("no.such.key", APPEND, "1")],
    "an unknown operation": [("log.retention.ms", 9, "1")],
    "few threads": [("num.io.threads", SET, "1")],
    "many threads": [("num.io.threads", SET, "100")],
    "no threads": [("num.io.threads", SET, "0")],
    "many background threads": [("background.threads", SET, "21")],
    "many fetchers": [("num.replica.fetchers", SET, "3")],
    "many cleaners": [("log.cleaner.threads", SET, "4")],
    "a small cleaner": [("log.cleaner.dedupe.buffer.size", SET, "1")],
    "negative connections": [("max.connections", SET, "-1")],
    "some connections": [("max.connections", SET, "70")],
    "no connections per address": [("max.connections.per.ip", SET, "0")],
    "overrides of addresses": [("max.connections.per.ip.overrides", SET, "127.0.0.1:5")],
    "no new connections": [("max.connection.creation.rate", SET, "0")],
    "a key store": [("ssl.keystore.password", SET, "x")],
    "a value of a listener that is bad": [("listener.name.plaintext.max.connections", SET, "x")],
    "a throttle": [("leader.replication.throttled.rate", SET, "5")],
    "a negative throttle": [("follower.replication.throttled.rate", SET, "-1")],
    "a throttle that is no number": [("replica.alter.log.dirs.io.max.bytes.per.second", SET, "x")],
    "cordoned directories": [("cordoned.log.dirs", SET, "*")],
    "unknown cordoned directories": [("cordoned.log.dirs", SET, "/nowhere")],
    "local retention beyond retention": [
        ("log.retention.bytes", SET, "1000"),
        ("log.local.retention.bytes", SET, "100000"),
    ],
    "local retention without end": [
        ("log.retention.bytes", SET, "1000"),
        ("log.local.retention.bytes", SET, "-1"),
    ],
    "min.insync.replicas": [("min.insync.replicas", SET, "2")],
    "min.insync.replicas to take away": [("min.insync.replicas", DELETE, None)],
    "unclean elections": [("unclean.leader.election.enable", SET, "true")],
    "producers' time": [("producer.id.expiration.ms", SET, "0")],
}


def _of_broker(talk: Talk, *, changes: list[Change]) -> None:
    """Validate the changes without making them, since changed values would stay for all later cases."""
    alter(talk, (BROKER, "1", changes), validate_only=True)
    alter(talk, (BROKER, "", changes), validate_only=True)


for _label, _changes in _BROKER_CHANGES.items():
    case(f"incremental_alter_configs of a broker: {_label}")(partial(_of_broker, changes=_changes))
for _name in ("2", "x", "-1", "1.0", "99999999999", " 1"):

    def _broker(talk: Talk, *, name: str) -> None:
        alter(talk, (BROKER, name, [("log.retention.ms", SET, "5000000")]), validate_only=True)
        alter(talk, (BROKER, name, [("node.id", SET, "1")]), validate_only=True)
        alter(talk, (BROKER, name, []), validate_only=True)

    case(f"incremental_alter_configs of broker {_name!r}")(partial(_broker, name=_name))


@case("incremental_alter_configs of a broker and of all, and back")
def _(talk: Talk) -> None:
    name, _ = talk.topic("iac-broker")
    alter(talk, (BROKER, "", [("log.flush.interval.messages", SET, "70000")]))
    has(talk, TOPIC, name, flush_messages="70000")
    alter(talk, (BROKER, "1", [("log.flush.interval.messages", SET, "80000")]))
    has(talk, TOPIC, name, flush_messages="80000")
    has(talk, BROKER, "1", log_flush_interval_messages="80000")
    has(talk, BROKER, "", log_flush_interval_messages="70000")
    alter(talk, (BROKER, "1", [("log.flush.interval.messages", DELETE, None)]))
    has(talk, TOPIC, name, flush_messages="70000")
    alter(talk, (BROKER, "", [("log.flush.interval.messages", DELETE, None)]))
    has(talk, TOPIC, name, flush_messages="9223372036854775807")


_LOGGER_CHANGES: dict[str, list[Change]] = {
    "the level it has": [("root", SET, "INFO")],
    "no level": [("root", SET, "LOUD")],
    "a level in small letters": [("root", SET, "warn")],
    "OFF": [("root", SET, "OFF")],
    "an unknown logger": [("no.such.logger", SET, "INFO")],
    "the root to take away": [("root", DELETE, None)],
    "an unknown logger to take away": [("no.such.logger", DELETE, None)],
    "an item more": [("root", APPEND, "INFO")],
    "an item less": [("root", SUBTRACT, "INFO")],
    "an unknown operation": [("root", 9, "INFO")],
    "nothing": [],
}
for _label, _changes in _LOGGER_CHANGES.items():

    def _logger(talk: Talk, *, changes: list[Change]) -> None:
        alter(talk, (LOGGER, "1", changes), validate_only=True)

    case(f"incremental_alter_configs of loggers: {_label}")(partial(_logger, changes=_changes))


@case("incremental_alter_configs of the loggers of others")
def _(talk: Talk) -> None:
    for name in ("", "7", "x"):
        alter(talk, (LOGGER, name, [("root", SET, "INFO")]), validate_only=True)


_GROUP_CHANGES: dict[str, list[Change]] = {
    "a session": [("consumer.session.timeout.ms", SET, "50000")],
    "a session that is too short": [("consumer.session.timeout.ms", SET, "44999")],
    "a session that is too long": [("consumer.session.timeout.ms", SET, "60001")],
    "no number": [("consumer.session.timeout.ms", SET, "x")],
    "rare heartbeats": [("consumer.heartbeat.interval.ms", SET, "15001")],
    "frequent heartbeats": [("consumer.heartbeat.interval.ms", SET, "4999")],
    "an unknown key": [("no.such.key", SET, "1")],
    "nothing": [],
    "a duration": [("share.auto.offset.reset", SET, "by_duration:PT1H")],
    "a bad reset": [("share.auto.offset.reset", SET, "first")],
    "a short lock": [("share.record.lock.duration.ms", SET, "1")],
    "a long lock": [("share.record.lock.duration.ms", SET, "60001")],
    "many deliveries": [("share.delivery.count.limit", SET, "11")],
    "many locks": [("share.partition.max.record.locks", SET, "4001")],
    "bad isolation": [("share.isolation.level", SET, "serializable")],
    "many standbys": [("streams.num.standby.replicas", SET, "3")],
    "rare assignments": [("consumer.assignment.interval.ms", SET, "15001")],
}
for _label, _changes in _GROUP_CHANGES.items():

    def _group(talk: Talk, *, changes: list[Change]) -> None:
        alter(talk, (GROUP, "iac", changes), validate_only=True)

    case(f"incremental_alter_configs of a group: {_label}")(partial(_group, changes=_changes))


@case("incremental_alter_configs of a group, and back")
def _(talk: Talk) -> None:
    group = talk.name("iac")
    alter(talk, (GROUP, group, [("consumer.session.timeout.ms", SET, "50000")]))
    has(talk, GROUP, group, consumer_session_timeout_ms="50000")
    alter(talk, (GROUP, group, [("consumer.session.timeout.ms", DELETE, None)]))
    has(talk, GROUP, group, consumer_session_timeout_ms="45000")
    alter(talk, (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]))


_METRICS_CHANGES: dict[str, list[Change]] = {
    "all keys": [("interval.ms", SET, "5000"), ("metrics", SET, "a.b,c"), ("match", SET, "client_id=x.*")],
    "a short interval": [("interval.ms", SET, "99")],
    "a long interval": [("interval.ms", SET, "3600001")],
    "no number": [("interval.ms", SET, "x")],
    "a bad pattern": [("match", SET, "client_id")],
    "a bad expression": [("match", SET, "client_id=(")],
    "a match of what there is not": [("match", SET, "shoe_size=44")],
    "an item more": [("metrics", APPEND, "d")],
    "an unknown key": [("no.such.key", SET, "1")],
    "nothing": [],
}
for _label, _changes in _METRICS_CHANGES.items():

    def _subscription(talk: Talk, *, changes: list[Change]) -> None:
        alter(talk, (METRICS, "iac", changes), validate_only=True)

    case(f"incremental_alter_configs of a subscription: {_label}")(partial(_subscription, changes=_changes))


@case("incremental_alter_configs of a subscription, and back")
def _(talk: Talk) -> None:
    name = talk.name("iac")
    alter(talk, (METRICS, name, [("interval.ms", SET, "5000")]))
    has(talk, METRICS, name, interval_ms="5000")
    alter(talk, (METRICS, name, [("interval.ms", DELETE, None)]))
    has(talk, METRICS, name, interval_ms="300000")
    alter(talk, (METRICS, "", [("interval.ms", SET, "5000")]))
