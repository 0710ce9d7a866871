"""Configuration changes that a running broker accepts or refuses. The messages are those of Apache Kafka 4.3."""

from __future__ import annotations

import pytest

from odradek.metadata_quorum.config.dynamic_broker_config import check_broker_change
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.wire.errors import ErrorCode, KafkaError

LAYERS = BrokerConfigLayers({"node.id": "1", "log.dirs": "/data"})
_PART = "Invalid value org.apache.kafka.common.config.ConfigException: {} for configuration Invalid dynamic configuration"
_THREADS = _PART.format("Dynamic thread count update validation failed for {}")

REFUSED = [
    ("node.id=1", "Cannot update these configs dynamically: [node.id]"),
    ("node.id=1 broker.id=1", "Cannot update these configs dynamically: [node.id, broker.id]"),
    ("log.retention.hours=5", "Cannot update these configs dynamically: [log.retention.hours]"),
    ("odradek.disk.full.ms=9", "Cannot update these configs dynamically: [odradek.disk.full.ms]"),
    ("odradek.no.such.key=9", "Cannot update these configs dynamically: [odradek.no.such.key]"),
    ("group.max.size=5", "Cannot update these configs dynamically: [group.max.size]"),
    (
        "log.retention.ms=bad",
        "Invalid value bad for configuration log.retention.ms: Not a number of type LONG",
    ),
    (
        "log.segment.bytes=1",
        "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
    ),
    (
        "log.retention.ms=0",
        "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    ),
    ("log.roll.ms=0", "requirement failed: log.roll.ms must be greater than or equal to 1"),
    ("log.roll.jitter.ms=-1", "requirement failed: log.roll.jitter.ms must be greater than or equal to 0"),
    (
        "log.local.retention.ms=100000000000",
        _PART.format(
            "Invalid value 100000000000 for configuration log.local.retention.ms: "
            "Value must not be more than log.retention.ms property value: 604800000"
        ),
    ),
    (
        "log.retention.bytes=1000 log.local.retention.bytes=-1",
        _PART.format(
            "Invalid value -1 for configuration log.local.retention.bytes: "
            "Value must not be -1 as log.retention.bytes value is set as 1000."
        ),
    ),
    (
        "log.cleaner.dedupe.buffer.size=1",
        "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    ),
    (
        "log.cleaner.threads=4",
        _PART.format("Log cleaner threads cannot be increased to more than double the current value 1"),
    ),
    (
        "num.io.threads=1",
        _THREADS.format("num.io.threads=1, value should be at least half the current value 8"),
    ),
    (
        "num.io.threads=100",
        _THREADS.format("num.io.threads=100, value should not be greater than double the current value 8"),
    ),
    (
        "max.connections.per.ip=0",
        "requirement failed: max.connections.per.ip can be set to zero only if "
        "max.connections.per.ip.overrides property is set.",
    ),
    ("max.connection.creation.rate=0", _PART.format("Invalid max.connection.creation.rate 0")),
    (
        "cordoned.log.dirs=zip",
        "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
        "Missing entries : zip",
    ),
    (
        "ssl.keystore.password=x",
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "[ssl.keystore.password]",
    ),
    (
        "leader.replication.throttled.rate=-1",
        "Invalid value -1 for configuration leader.replication.throttled.rate: Value must be at least 0",
    ),
    (
        "listener.name.plaintext.max.connections=x",
        "Invalid value x for configuration max.connections: Not a number of type INT",
    ),
]
REFUSED_TO_ALL = [
    f"{name}={value}"
    for name, value in (
        ("listeners", "PLAINTEXT://:1"),
        ("cordoned.log.dirs", "/data"),
        ("ssl.protocol", "x"),
        ("sasl.enabled.mechanisms", "x"),
        ("listener.name.x.ssl.protocol", "x"),
    )
]
ACCEPTED = [
    "log.retention.ms=1000000",
    "log.retention.ms=-2",
    "nonsense=1",
    "odradek.disconnect.alice=1",
    "odradek.troubled.log.dirs=",
    "odradek.retiring.log.dirs=/data",
    "odradek.recovery.awaited.brokers=1,2",
    "num.io.threads=16",
    "num.network.threads=1",
    "cordoned.log.dirs=*",
    "cordoned.log.dirs=/data",
    "max.connections.per.ip.overrides=localhost:5",
    "max.connections.per.ip=0 max.connections.per.ip.overrides=localhost:5",
    "leader.replication.throttled.rate=5",
    "log.cleanup.policy=compact,delete",
    "metric.reporters=",
    "unclean.leader.election.enable=true",
]


def _check(words: str, *, per_broker: bool = True, layers: BrokerConfigLayers = LAYERS) -> None:
    after = dict(word.split("=", 1) for word in words.split())
    check_broker_change(after, layers, per_broker=per_broker, log_dirs=["/data"])


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_a_broker_refuses(words: str, message: str) -> None:
    """A change that Kafka refuses gets INVALID_REQUEST with Kafka's message."""
    with pytest.raises(KafkaError) as refused:
        _check(words)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize("words", ACCEPTED)
def test_what_a_broker_takes(words: str) -> None:
    """A broker accepts these changes, even of unknown keys, which may belong to a plugin."""
    _check(words)


def test_a_value_that_an_earlier_release_accepted_does_not_disturb() -> None:
    """Earlier releases stored keys of ours that are read only at the start. Other changes are still accepted."""
    layers = BrokerConfigLayers({}, {"odradek.disk.full.ms": "9"})
    _check("odradek.disk.full.ms=9 log.retention.ms=1000000", layers=layers)
    with pytest.raises(KafkaError, match="Cannot update these configs dynamically"):
        _check("odradek.disk.full.ms=8", layers=layers)


@pytest.mark.parametrize("words", REFUSED_TO_ALL)
def test_what_only_one_broker_can_be_told(words: str) -> None:
    """Keys that differ from broker to broker, such as listeners and directories, cannot be set for all brokers."""
    name = words.partition("=")[0]
    with pytest.raises(KafkaError) as refused:
        _check(words, per_broker=False)
    assert refused.value.message == (
        f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]"
    )


@pytest.mark.parametrize(
    "words", ["sasl.kerberos.min.time.before.relogin=58000", "sasl.enabled.mechanisms=x", "ssl.protocol=TLS"]
)
def test_what_is_for_security_that_there_is_not_is_stored(words: str) -> None:
    """Security keys of listeners without security are stored, as in Kafka, since tools set them for any listener."""
    _check(words)


@pytest.mark.parametrize(
    "words", ["listeners=PLAINTEXT://:1", "config.providers=x", "ssl.engine.factory.class=x"]
)
def test_what_this_version_cannot_change_is_refused(words: str) -> None:
    """A key that Kafka can change dynamically is refused when the change would have no effect here."""
    with pytest.raises(KafkaError, match="This version cannot update these configs dynamically"):
        _check(words)


def test_a_broker_is_judged_with_what_all_brokers_are_told() -> None:
    """A change is checked against the current value: the broker's own first, then that of all brokers, then the
    file's."""
    layers = BrokerConfigLayers({"num.io.threads": "4"}, {}, {"num.io.threads": "8"})
    _check("num.io.threads=16", layers=layers)
    with pytest.raises(KafkaError, match="current value 8"):
        _check("num.io.threads=3", layers=layers)
    with pytest.raises(KafkaError, match="current value 8"):
        _check("num.io.threads=17", per_broker=False, layers=layers)
