"""The names of keys and methods in other Python clients, and the equivalents in this client. PURE.

The error texts of this client and the page docs/coming-from.md are made from one table. A key of another
client is accepted only if its value, unit, default and result mean the same here (`ACCEPTED`). Keys for
settings that this client chooses itself are ignored (`IGNORED`), and one log line lists them. All other keys
(`REFUSED`) raise an error that names the replacement. In this module keys have dots, as in a configuration.
The keyword arguments have underscores instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import attrs

__all__ = [
    "AIOKAFKA",
    "CONFLUENT",
    "FAMILIAR_ARGUMENTS",
    "FAMILIAR_KEYS",
    "FAMILIAR_METHODS",
    "KAFKA_PYTHON",
    "FamiliarKey",
    "FamiliarMethod",
    "Resolved",
    "Treatment",
    "resolved",
]

KAFKA_PYTHON, AIOKAFKA, CONFLUENT = "kafka-python", "aiokafka", "confluent-kafka"
_PYTHON = (KAFKA_PYTHON, AIOKAFKA)
_ALL = (KAFKA_PYTHON, AIOKAFKA, CONFLUENT)


class Treatment(Enum):
    """The ways to treat a configuration key of another client."""

    ACCEPTED = "taken"
    IGNORED = "ignored"
    REFUSED = "an error"


@attrs.frozen
class FamiliarKey:
    """A key of other clients. `ours` is this client's equivalent key if the key is accepted, otherwise advice for the
    user.
    """

    name: str
    clients: tuple[str, ...]
    treatment: Treatment
    ours: str
    also: tuple[tuple[str, str], ...] = ()
    """Further keys of this client that the key sets, with their values."""


@attrs.frozen
class FamiliarMethod:
    """A method of other clients that has another name in this client. `of` is the name of this client's
    class. `ours` is the name of this client's method, or advice for the user.
    """

    of: str
    name: str
    clients: tuple[str, ...]
    ours: str


def _taken(clients: tuple[str, ...], name: str, ours: str, **also: str) -> FamiliarKey:
    implied = tuple((key.replace("_", "."), value) for key, value in also.items())
    return FamiliarKey(name, clients, Treatment.ACCEPTED, ours, implied)


def _ignored(clients: tuple[str, ...], name: str, why: str) -> FamiliarKey:
    return FamiliarKey(name, clients, Treatment.IGNORED, why)


def _refused(clients: tuple[str, ...], name: str, advice: str) -> FamiliarKey:
    return FamiliarKey(name, clients, Treatment.REFUSED, advice)


_C = (CONFLUENT,)
_NO_GSSAPI = "not supported: logins are by PLAIN, SCRAM and OAUTHBEARER (`sasl.mechanism`)"
_SIZED_BY_KERNEL = "not supported: the kernel sizes the buffers of sockets"
_FETCH_AHEAD = "`fetch.max.bytes` limits what is fetched ahead"
_COUNT = "`statistics()`, `metrics()` and `partition_metrics()`, which need no callback"
_VERSIONS = "the client asks each broker for its versions"

FAMILIAR_KEYS: tuple[FamiliarKey, ...] = (
    # Accepted
    _taken(_PYTHON, "sasl.plain.username", "odradek.sasl.username"),
    _taken(_PYTHON, "sasl.plain.password", "odradek.sasl.password"),
    _taken(_C, "sasl.username", "odradek.sasl.username"),
    _taken(_C, "sasl.password", "odradek.sasl.password"),
    _taken(_C, "sasl.mechanisms", "sasl.mechanism"),
    _taken((KAFKA_PYTHON,), "ssl.cafile", "ssl.truststore.location", ssl_truststore_type="PEM"),
    _taken(_C, "ssl.ca.location", "ssl.truststore.location", ssl_truststore_type="PEM"),
    _taken(_C, "ssl.ca.pem", "ssl.truststore.certificates", ssl_truststore_type="PEM"),
    _taken((KAFKA_PYTHON,), "ssl.certfile", "ssl.keystore.location", ssl_keystore_type="PEM"),
    _taken(_C, "ssl.certificate.location", "ssl.keystore.location", ssl_keystore_type="PEM"),
    _taken((KAFKA_PYTHON,), "ssl.keyfile", "odradek.ssl.keystore.key.location", ssl_keystore_type="PEM"),
    _taken(_C, "ssl.key.location", "odradek.ssl.keystore.key.location", ssl_keystore_type="PEM"),
    _taken(_C, "ssl.certificate.pem", "ssl.keystore.certificate.chain", ssl_keystore_type="PEM"),
    _taken(_C, "ssl.key.pem", "ssl.keystore.key", ssl_keystore_type="PEM"),
    _taken((KAFKA_PYTHON,), "ssl.password", "ssl.key.password"),
    _taken((KAFKA_PYTHON,), "consumer.timeout.ms", "odradek.consumer.timeout.ms"),
    _taken(_C, "metadata.broker.list", "bootstrap.servers"),
    _taken(_C, "queue.buffering.max.ms", "linger.ms"),
    _taken(_C, "compression.codec", "compression.type"),
    _taken(_C, "message.send.max.retries", "retries"),
    _taken(_C, "request.required.acks", "acks"),
    _taken(_C, "fetch.wait.max.ms", "fetch.max.wait.ms"),
    _taken(_C, "fetch.message.max.bytes", "max.partition.fetch.bytes"),
    # Ignored
    _ignored(_PYTHON, "api.version", _VERSIONS),
    _ignored((KAFKA_PYTHON,), "api.version.auto.timeout.ms", _VERSIONS),
    _ignored(_C, "api.version.request", _VERSIONS),
    _ignored(_C, "api.version.request.timeout.ms", _VERSIONS),
    _ignored(_C, "api.version.fallback.ms", _VERSIONS),
    _ignored(_C, "broker.version.fallback", _VERSIONS),
    _ignored((KAFKA_PYTHON,), "metrics.enabled", "figures are always counted"),
    _ignored((KAFKA_PYTHON,), "legacy.iterator", "there is one kind of iterator"),
    _ignored(_C, "log.connection.close", "the log says which connections are lost, idle ones at DEBUG"),
    # Refused: connections
    _refused(
        _PYTHON, "ssl.context", "`ssl.truststore.location` and `ssl.keystore.location`, of type PEM or PKCS12"
    ),
    _refused(
        (KAFKA_PYTHON,), "ssl.check.hostname", "`ssl.endpoint.identification.algorithm`, empty for no check"
    ),
    _refused(
        _C,
        "enable.ssl.certificate.verification",
        "always on; `ssl.truststore.location` names the trusted authorities",
    ),
    _refused((KAFKA_PYTHON,), "ssl.crlfile", "not supported: a certificate is valid until it expires"),
    _refused((KAFKA_PYTHON,), "ssl.ciphers", "`ssl.cipher.suites`, with Java's names"),
    _refused(_PYTHON, "sasl.kerberos.service.name", _NO_GSSAPI),
    _refused(_PYTHON, "sasl.kerberos.domain.name", _NO_GSSAPI),
    _refused((KAFKA_PYTHON,), "sasl.kerberos.name", _NO_GSSAPI),
    _refused(_C, "sasl.kerberos.principal", _NO_GSSAPI),
    _refused(_C, "sasl.kerberos.keytab", _NO_GSSAPI),
    _refused(
        _PYTHON,
        "sasl.oauth.token.provider",
        "`odradek.sasl.oauthbearer.token.callback`, a function that returns a token",
    ),
    _refused(_C, "oauth.cb", "`odradek.sasl.oauthbearer.token.callback`, a function that returns a token"),
    _refused((KAFKA_PYTHON,), "socks5.proxy", "not supported: connections are direct"),
    _refused((KAFKA_PYTHON,), "socket.options", "not supported: TCP_NODELAY is set"),
    _refused((KAFKA_PYTHON,), "sock.chunk.bytes", _SIZED_BY_KERNEL),
    _refused(_C, "socket.send.buffer.bytes", _SIZED_BY_KERNEL),
    _refused(_C, "socket.receive.buffer.bytes", _SIZED_BY_KERNEL),
    _refused(_C, "socket.timeout.ms", "`request.timeout.ms` (default 30000)"),
    _refused(_C, "socket.nagle.disable", "not supported: TCP_NODELAY is set"),
    _refused(_C, "socket.keepalive.enable", "`connections.max.idle.ms`: idle connections are closed"),
    _refused(_C, "broker.address.family", "not supported: all addresses of a name are tried"),
    _refused(_C, "topic.metadata.refresh.interval.ms", "`metadata.max.age.ms`, which cannot be switched off"),
    _refused((KAFKA_PYTHON,), "selector", "not supported: the client uses its own selector"),
    _refused((KAFKA_PYTHON,), "kafka.client", "not supported: each client makes its own connections"),
    _refused((AIOKAFKA,), "loop", "not supported: `odradek.trio` has the async clients"),
    # Refused: producers
    _refused(
        _ALL,
        "partitioner",
        "`partitioner.class`, whose callable takes (topic, key, value, partition_count, available)",
    ),
    _refused(_C, "message.timeout.ms", "`delivery.timeout.ms` (default 120000), which must be finite"),
    _refused(_C, "message.max.bytes", "`max.request.size`"),
    _refused(_C, "queue.buffering.max.messages", "`buffer.memory`, in bytes"),
    _refused(_C, "queue.buffering.max.kbytes", "`buffer.memory`, in bytes"),
    _refused(_C, "batch.num.messages", "`batch.size`, in bytes"),
    _refused(
        _C,
        "compression.level",
        "`compression.gzip.level`, `compression.lz4.level` or `compression.zstd.level`",
    ),
    _refused(_C, "max.in.flight", "`max.in.flight.requests.per.connection` (default 5)"),
    _refused(_C, "on.delivery", "an argument of each call: `send(..., on_delivery=)`"),
    _refused(_C, "dr.cb", "an argument of each call: `send(..., on_delivery=)`"),
    _refused(_C, "delivery.report.only.error", "the callback decides: `send(..., on_delivery=)`"),
    _refused(
        (KAFKA_PYTHON,),
        "bootstrap.topics.filter",
        "not needed: a producer fetches the metadata of the topics that it writes to",
    ),
    # Refused: consumers
    _refused(
        (AIOKAFKA,),
        "consumer.timeout.ms",
        "not needed, because fetches run in the background; a loop ends by `odradek.consumer.timeout.ms`",
    ),
    _refused((AIOKAFKA,), "rebalance.timeout.ms", "`max.poll.interval.ms`"),
    _refused(
        (KAFKA_PYTHON,),
        "default.offset.commit.callback",
        "an argument of each call: `commit_async(callback=)`",
    ),
    _refused((KAFKA_PYTHON,), "enable.incremental.fetch.sessions", "always on, if the broker supports them"),
    _refused(_C, "on.commit", "an argument of each call: `commit_async(callback=)`"),
    _refused(_C, "auto.commit.enable", "`enable.auto.commit`"),
    _refused(
        _C,
        "enable.auto.offset.store",
        "`enable.auto.commit=false`, with `commit(record)` for records that are done",
    ),
    _refused(_C, "enable.partition.eof", "compare `end_offsets` and `position`"),
    _refused(_C, "queued.min.messages", _FETCH_AHEAD),
    _refused(_C, "queued.max.messages.kbytes", _FETCH_AHEAD),
    _refused(_C, "fetch.error.backoff.ms", "`retry.backoff.ms`"),
    # Refused: callbacks
    _refused(_C, "error.cb", "`odradek.on.error`, which is called with a level of `logging` and a text"),
    _refused(_C, "throttle.cb", "not supported: the client itself waits when it is throttled"),
    _refused(_C, "stats.cb", _COUNT),
    _refused(_C, "statistics.interval.ms", _COUNT),
    _refused(_C, "logger", "the logger `odradek.client` of Python's `logging`"),
    _refused(_C, "log.cb", "the logger `odradek.client` of Python's `logging`"),
    _refused(_C, "log.level", "the level of the logger `odradek.client`"),
    _refused(_C, "debug", "the level DEBUG of the logger `odradek.client`"),
)

_BOTH = ("Consumer", "Producer")
FAMILIAR_METHODS: tuple[FamiliarMethod, ...] = (
    FamiliarMethod(
        "Producer", "produce", _C, "`send(topic, value, key, headers, partition, timestamp_ms, on_delivery)`"
    ),
    FamiliarMethod("Producer", "send_and_wait", (AIOKAFKA,), "`send`, and `result()` of what it returns"),
    FamiliarMethod("Producer", "poll", _C, "not needed: callbacks are called in the client's thread"),
    FamiliarMethod("Producer", "purge", _C, "`close(timeout=0)`"),
    FamiliarMethod("Producer", "list_topics", _C, "`partitions_for(topic)`, or `Admin.describe_topics`"),
    FamiliarMethod("Producer", "bootstrap_connected", (KAFKA_PYTHON,), "the log, or `odradek.on.error`"),
    FamiliarMethod("Producer", "start", (AIOKAFKA,), "`async with odradek.trio.open_producer(...)`"),
    FamiliarMethod("Producer", "stop", (AIOKAFKA,), "`close()`"),
    FamiliarMethod("Consumer", "consume", _C, "`poll(timeout)`, whose length `max.poll.records` limits"),
    FamiliarMethod("Consumer", "getone", (AIOKAFKA,), "`async for record in consumer`"),
    FamiliarMethod("Consumer", "getmany", (AIOKAFKA,), "`poll(timeout)`, with seconds"),
    FamiliarMethod(
        "Consumer",
        "partitions_for_topic",
        _PYTHON,
        "`partitions_for(topic)`, which returns a list and raises for an unknown topic",
    ),
    FamiliarMethod("Consumer", "list_topics", _C, "`topics()`"),
    FamiliarMethod(
        "Consumer", "store_offsets", _C, "`commit(record)`, or iteration, which stores what was yielded"
    ),
    FamiliarMethod("Consumer", "get_watermark_offsets", _C, "`beginning_offsets` and `end_offsets`"),
    FamiliarMethod("Consumer", "highwater", _PYTHON, "`end_offsets`, or `lag(partition)`"),
    FamiliarMethod("Consumer", "incremental_assign", _C, "`assign`, with all partitions"),
    FamiliarMethod("Consumer", "incremental_unassign", _C, "`assign`, with the partitions that stay"),
    FamiliarMethod("Consumer", "unassign", _C, "`unsubscribe()`"),
    FamiliarMethod("Consumer", "memberid", _C, "`member_id`"),
    FamiliarMethod("Consumer", "consumer_group_metadata", _C, "`group_metadata()`"),
    FamiliarMethod("Consumer", "metrics", (KAFKA_PYTHON,), "`statistics()` and `partition_metrics()`"),
    FamiliarMethod(
        "Consumer", "bootstrap_connected", (KAFKA_PYTHON,), '`statistics()["last_error"]`, or the log'
    ),
    FamiliarMethod("Consumer", "start", (AIOKAFKA,), "`async with odradek.trio.open_consumer(...)`"),
    FamiliarMethod("Consumer", "stop", (AIOKAFKA,), "`close()`"),
    FamiliarMethod("Admin", "list_topics", (KAFKA_PYTHON,), "`describe_topics()`"),
    FamiliarMethod("Admin", "list_consumer_groups", _ALL, "`list_groups()`"),
    FamiliarMethod("Admin", "describe_consumer_groups", _ALL, "`describe_groups(group_ids)`"),
    FamiliarMethod(
        "Admin", "delete_consumer_groups", (KAFKA_PYTHON, CONFLUENT), "`delete_groups(group_ids)`"
    ),
    FamiliarMethod("Admin", "list_consumer_group_offsets", _ALL, "`list_group_offsets`"),
    FamiliarMethod("Admin", "alter_consumer_group_offsets", _C, "`alter_group_offsets`"),
    FamiliarMethod("Admin", "alter_configs", _ALL, "`incremental_alter_configs`"),
)

FAMILIAR_ARGUMENTS: tuple[FamiliarMethod, ...] = (
    FamiliarMethod("Consumer.poll", "timeout_ms", _PYTHON, "`timeout`, in seconds"),
    FamiliarMethod("Consumer.poll", "max_records", _PYTHON, "the key `max.poll.records`"),
    FamiliarMethod(
        "Consumer.poll", "update_offsets", (KAFKA_PYTHON,), "not needed: iteration keeps positions by record"
    ),
    FamiliarMethod("Consumer.commit", "message", _C, "`commit(record)`"),
    FamiliarMethod("Consumer.commit", "asynchronous", _C, "`commit_async()`, while `commit()` waits"),
    FamiliarMethod("Consumer.commit", "timeout_ms", (KAFKA_PYTHON,), "`timeout`, in seconds"),
    FamiliarMethod("Consumer.subscribe", "pattern", _PYTHON, "`subscribe(re.compile(...))`"),
    FamiliarMethod("Consumer.subscribe", "on_assign", _C, "`listener`, a `RebalanceListener`"),
    FamiliarMethod("Consumer.subscribe", "on_revoke", _C, "`listener`, a `RebalanceListener`"),
    FamiliarMethod("Consumer.subscribe", "on_lost", _C, "`listener`, a `RebalanceListener`"),
    FamiliarMethod("Consumer.close", "autocommit", (KAFKA_PYTHON,), "the key `enable.auto.commit`"),
    FamiliarMethod("Consumer.close", "timeout_ms", (KAFKA_PYTHON,), "`timeout`, in seconds"),
)
"""The keyword arguments of other clients' methods that do not exist in this client's methods. `of` is the
name of the method.
"""

_BY_NAME = {(each.name, AIOKAFKA in each.clients): each for each in FAMILIAR_KEYS}


@attrs.frozen
class Resolved:
    """A configuration in which other clients' keys have been replaced by this client's keys."""

    values: dict[str, Any]
    spelled: dict[str, str]
    """The key as it was given, for each key of `values` that was given under another client's name."""
    ignored: list[str]


def resolved(given: Mapping[str, Any], known: Collection[str], *, on_trio: bool) -> Resolved:
    """Replace other clients' keys in a configuration by this client's keys. `known` are all keys of this client.

    Raises `ValueError` for a refused key, and for a setting that is given under two names. If two clients use a name
    differently, a client on trio follows aiokafka, and a blocking client follows kafka-python.
    """
    found = Resolved({}, {}, [])
    implied: dict[str, tuple[str, str]] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise TypeError(f"a configuration key is a {type(key).__name__}, expected a str")
        dotted = key.replace("_", ".")
        familiar = None if dotted in known else _familiar(dotted, on_trio)
        if familiar is None:
            _put(found, dotted, key, value)
        elif familiar.treatment is Treatment.IGNORED:
            found.ignored.append(key)
        elif familiar.treatment is Treatment.REFUSED:
            raise ValueError(
                f"unknown configuration key {key!r}. In this client: {familiar.ours.replace('`', '')}"
            )
        elif familiar.ours not in known:
            raise ValueError(
                f"unknown configuration key {key!r}: it means {familiar.ours}, which this kind of client does not have"
            )
        elif value is not None:
            _put(found, familiar.ours, key, value)
            implied.update({name: (text, key) for name, text in familiar.also})
    for name, (text, key) in implied.items():
        if str(found.values.setdefault(name, text)).upper() != text:
            raise ValueError(f"{key} means {name}={text}, which contradicts {name}={found.values[name]!r}")
    return found


def _familiar(name: str, on_trio: bool) -> FamiliarKey | None:
    return _BY_NAME.get((name, on_trio)) or _BY_NAME.get((name, not on_trio))


def _put(found: Resolved, name: str, key: str, value: Any) -> None:
    if name in found.values:
        raise ValueError(
            f"{found.spelled.get(name, name)} and {key} are two names of one key: give only one of them"
        )
    found.values[name] = value
    if key != name:
        found.spelled[name] = key
