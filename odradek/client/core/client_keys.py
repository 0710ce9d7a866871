"""Kafka's client configuration keys, checked, typed and with defaults; rules between keys. PURE.

`ProducerSettings.from_properties({"linger.ms": "20", ...})` makes an attrs object with one field for each key that
has an effect. The field's name is the key with underscores. Values may be strings, as in a properties file, or Python
values. Names, types, ranges and defaults are those of Apache Kafka 4.3's Java clients.

Three kinds of keys:

* with an effect: the fields of the classes below;
* `WITHOUT_EFFECT`: they tune parts that this client does not have (metric samples, socket buffers). Any value is
  accepted, and a warning lists the keys that were set. docs/client.md says why each key has no effect;
* `NEUTRAL_ONLY`: they enable features that this client does not have, such as interceptors. Only the value
  that disables the feature is accepted. Otherwise a user might rely on a feature that is missing.

Any other key raises a `ValueError` that names the key and the most similar known keys.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from odradek.client.core import key_parsers as parse
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_security import ClientSecurity, LoginKeys, client_security
from odradek.client.core.familiar_names import resolved
from odradek.client.core.retry import RetryPolicy
from odradek.env.tls_ports import TlsSettings
from odradek.wire.secret_fields import HIDDEN, is_key_name, shown_value

__all__ = [
    "NEUTRAL_ONLY",
    "WITHOUT_EFFECT",
    "AdminSettings",
    "CommonSettings",
    "ConsumerSettings",
    "ProducerSettings",
    "merged_properties",
]

S = TypeVar("S", bound="CommonSettings")

_LOGGER = logging.getLogger("odradek.client")

WITHOUT_EFFECT = frozenset(
    {
        "client.dns.lookup",
        "config.providers",
        "enable.metrics.push",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.jitter",
        "security.providers",
        "send.buffer.bytes",
    }
)
"""The keys of Kafka's clients that are accepted with any value, but have no effect here."""

NEUTRAL_ONLY: dict[str, tuple[str, ...]] = {
    "bootstrap.controllers": ("",),
    "interceptor.classes": ("",),
    "sasl.client.callback.handler.class": ("",),
    "sasl.login.callback.handler.class": (
        "",
        "org.apache.kafka.common.security.oauthbearer.oauthbearerlogincallbackhandler",
        "org.apache.kafka.common.security.oauthbearer.secured.oauthbearerlogincallbackhandler",
    ),
    "sasl.login.class": ("",),
    "sasl.oauthbearer.jwt.retriever.class": tuple(
        f"org.apache.kafka.common.security.oauthbearer.{name}jwtretriever"
        for name in ("default", "clientcredentials", "file")
    ),
    "sasl.oauthbearer.jwt.validator.class": tuple(
        f"org.apache.kafka.common.security.oauthbearer.{name}jwtvalidator" for name in ("default", "client")
    ),
    "share.acknowledgement.mode": ("implicit",),
}
"""Keys that are accepted only with the values listed here. Values are compared in lower case, and an empty value also
stands for None.
"""


_CLASSIC_ONLY = ("heartbeat_interval_ms", "partition_assignment_strategy", "session_timeout_ms")
"""Consumer settings that are refused together with `group.protocol=consumer`, as in Kafka's client."""

# Settings


def _key(default: Any, parser: parse.Parser) -> Any:
    return attrs.field(default=default, metadata={"parse": parser})


@attrs.frozen(kw_only=True)
class CommonSettings:
    """The configuration keys that all clients have. Times are in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[tuple[str, int], ...] = attrs.field(metadata={"parse": parse.addresses})
    """Addresses of some brokers, HOST:PORT with commas between them, or a list of them. Required."""
    client_id: str = _key("", parse.text)
    """The client's name in the brokers' quotas, logs and metrics."""
    odradek_on_error: Callable[[int, str], object] | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.callable_or_none}
    )
    """A function that is called with the level (as in `logging`) and the text of each log line from WARNING on."""
    metadata_max_age_ms: int = _key(300_000, parse.LONG)
    """The age at which metadata is fetched again, even if there was no error."""
    request_timeout_ms: int = _key(30_000, parse.AT_LEAST_0)
    """The timeout of one request, until its answer."""
    reconnect_backoff_ms: int = _key(50, parse.LONG)
    """The pause before a second attempt to connect to a broker; it doubles with each failure."""
    reconnect_backoff_max_ms: int = _key(1_000, parse.LONG)
    """The longest pause between reconnects."""
    retry_backoff_ms: int = _key(100, parse.LONG)
    """The pause before a request is repeated; it doubles with each failure."""
    retry_backoff_max_ms: int = _key(1_000, parse.LONG)
    """The longest pause before a request is repeated."""
    connections_max_idle_ms: int = _key(540_000, parse.ANY_LONG)
    """The time after which an idle connection is closed; a negative value keeps it open."""
    metadata_recovery_rebootstrap_trigger_ms: int = _key(300_000, parse.LONG)
    """The time without metadata after which the client starts again with `bootstrap.servers` (KIP-1102)."""
    metadata_recovery_strategy: str = _key("rebootstrap", parse.recovery)
    """`rebootstrap` or `none`. With `rebootstrap`, the client starts again with `bootstrap.servers` if no known
    broker answers (KIP-899).
    """
    security_protocol: str = _key("PLAINTEXT", parse.protocol)
    """`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    sasl_mechanism: str = _key("GSSAPI", parse.mechanism)
    """`SCRAM-SHA-256`, `SCRAM-SHA-512`, `PLAIN` or `OAUTHBEARER`."""
    sasl_jaas_config: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The login module with its options, in Java's form (docs/logins.md)."""
    odradek_sasl_username: str | None = _key(None, parse.optional_text)
    """The user name of a login. With `odradek.sasl.password` it replaces `sasl.jaas.config`."""
    odradek_sasl_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The password for `odradek.sasl.username`."""
    sasl_oauthbearer_token_endpoint_url: str | None = _key(None, parse.optional_text)
    """The URL of a token issuer, or of a file that contains a token (`file:`)."""
    sasl_oauthbearer_client_credentials_client_id: str | None = _key(None, parse.optional_text)
    """The client id with which this client identifies itself to the token issuer."""
    sasl_oauthbearer_client_credentials_client_secret: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The secret that belongs to the client id at the token issuer."""
    sasl_oauthbearer_scope: str | None = _key(None, parse.optional_text)
    """The scope that is requested from the token issuer."""
    sasl_login_refresh_window_factor: float = _key(0.8, parse.share)
    """The share of a token's lifetime after which the client fetches a new token."""
    sasl_login_retry_backoff_ms: int = _key(100, parse.LONG)
    """The pause before the next request to the token issuer; it doubles with each failure."""
    sasl_login_retry_backoff_max_ms: int = _key(10_000, parse.LONG)
    """The longest pause before the next request to the token issuer."""
    odradek_sasl_oauthbearer_token_callback: Callable[[], str] | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.callable_or_none}
    )
    """A function that returns a token. It is called for each login in a separate thread, so it may block."""
    ssl_truststore_location: str | None = _key(None, parse.optional_text)
    """A file with the certificates of trusted authorities; None for the system's trusted authorities."""
    ssl_truststore_type: str = _key("JKS", parse.upper)
    """The format of `ssl.truststore.location`: `PEM`; with any other type the file is read as PKCS12."""
    ssl_truststore_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The password of `ssl.truststore.location`."""
    ssl_truststore_certificates: str | None = _key(None, parse.optional_text)
    """The certificates of trusted authorities themselves, as PEM text."""
    ssl_keystore_location: str | None = _key(None, parse.optional_text)
    """A file with the client's certificate and key."""
    ssl_keystore_type: str = _key("JKS", parse.upper)
    """The format of `ssl.keystore.location`: `PEM`; with any other type the file is read as PKCS12."""
    ssl_keystore_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The password of `ssl.keystore.location`."""
    ssl_keystore_key: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The client's private key itself, as PEM text."""
    ssl_keystore_certificate_chain: str | None = _key(None, parse.optional_text)
    """The client's certificate chain itself, as PEM text."""
    ssl_key_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": parse.optional_text}
    )
    """The password of the client's private key."""
    ssl_endpoint_identification_algorithm: str = _key("https", parse.text)
    """`https` checks that the server's certificate has the name that the client connects to; an empty value accepts
    any name.
    """
    odradek_ssl_keystore_key_location: str | None = _key(None, parse.optional_text)
    """A PEM file with the private key, if `ssl.keystore.location` has only certificates."""
    ssl_enabled_protocols: tuple[str, ...] = _key(("TLSv1.2", "TLSv1.3"), parse.texts)
    """The TLS versions to use, separated by commas."""
    ssl_cipher_suites: tuple[str, ...] = _key((), parse.texts)
    """Cipher suites, separated by commas; empty for Python's defaults."""
    socket_connection_setup_timeout_ms: int = _key(10_000, parse.LONG)
    """The timeout of one attempt to connect; it doubles with each failure."""
    socket_connection_setup_timeout_max_ms: int = _key(30_000, parse.LONG)
    """The longest timeout of one attempt to connect."""

    @classmethod
    def from_properties(cls: type[S], properties: Mapping[str, Any], *, on_trio: bool = False) -> S:
        """Make settings from Kafka's keys ("linger.ms"). Some keys of other clients are accepted, too
        (`familiar_names`).

        Raises `ValueError` for an unknown key, a bad value, contradictory keys, or a missing
        `bootstrap.servers`.
        """
        fields = {each.name.replace("_", "."): each for each in attrs.fields(cls)}
        values: dict[str, Any] = {}
        given = resolved(properties, {*fields, *WITHOUT_EFFECT, *NEUTRAL_ONLY}, on_trio=on_trio)
        ignored = given.ignored
        for key, value in given.values.items():
            field = fields.get(key)
            if field is None:
                if key in WITHOUT_EFFECT:
                    ignored.append(key)
                else:
                    _check_other(key, value, fields)
                continue
            try:
                values[field.name] = field.metadata["parse"](value)
            except ValueError as error:
                shown = _shown(key, value) if field.repr else HIDDEN
                raise ValueError(f"{given.spelled.get(key, key)}={shown}: {error}") from None
        if "bootstrap_servers" not in values:
            raise ValueError("bootstrap.servers is missing (expected HOST:PORT,HOST:PORT)")
        cls._reconcile(values)
        made = cls(**values)
        made.security()
        if ignored:
            _LOGGER.warning("keys that have no effect in this client: %s", ", ".join(sorted(ignored)))
        return made

    def security(self) -> ClientSecurity | None:
        """Make the settings for encryption and login. Raises `ValueError` for keys that contradict each other."""
        return client_security(
            self.security_protocol,
            LoginKeys(
                mechanism=self.sasl_mechanism,
                jaas=self.sasl_jaas_config,
                username=self.odradek_sasl_username,
                password=self.odradek_sasl_password,
                token_endpoint=self.sasl_oauthbearer_token_endpoint_url,
                client_id=self.sasl_oauthbearer_client_credentials_client_id,
                client_secret=self.sasl_oauthbearer_client_credentials_client_secret,
                scope=self.sasl_oauthbearer_scope,
                refresh_window_factor=self.sasl_login_refresh_window_factor,
                retry_backoff_ms=self.sasl_login_retry_backoff_ms,
                retry_backoff_ms_max=self.sasl_login_retry_backoff_max_ms,
                tokens=self.odradek_sasl_oauthbearer_token_callback,
            ),
            TlsSettings(
                keystore_type=self.ssl_keystore_type,
                keystore_location=self.ssl_keystore_location,
                keystore_password=self.ssl_keystore_password,
                key_password=self.ssl_key_password,
                keystore_key=self.ssl_keystore_key,
                keystore_chain=self.ssl_keystore_certificate_chain,
                keystore_key_location=self.odradek_ssl_keystore_key_location,
                truststore_type=self.ssl_truststore_type,
                truststore_location=self.ssl_truststore_location,
                truststore_password=self.ssl_truststore_password,
                truststore_certificates=self.ssl_truststore_certificates,
                protocols=self.ssl_enabled_protocols,
                ciphers=self.ssl_cipher_suites,
                check_host=bool(self.ssl_endpoint_identification_algorithm),
            ),
        )

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Check and adjust keys that depend on each other. `values` has the values that were given, by field name."""

    @classmethod
    def _value(cls, values: dict[str, Any], name: str) -> Any:
        return values[name] if name in values else getattr(attrs.fields(cls), name).default

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """Make the configuration of the client core. With `fail_fast`, calls fail at once as long as the client has
        not reached any broker.
        """
        return ClientConfig(
            client_id=self.client_id or "odradek",
            connect_timeout=self.socket_connection_setup_timeout_ms / 1000,
            connect_timeout_max=self.socket_connection_setup_timeout_max_ms / 1000,
            connection_idle_max=None
            if self.connections_max_idle_ms < 0
            else self.connections_max_idle_ms / 1000,
            rebootstrap=self.metadata_recovery_strategy == "rebootstrap",
            rebootstrap_trigger=self.metadata_recovery_rebootstrap_trigger_ms / 1000,
            request_timeout=self.request_timeout_ms / 1000,
            security=self.security(),
            retry=RetryPolicy(self.retry_backoff_ms / 1000, self.retry_backoff_max_ms / 1000),
            reconnect=RetryPolicy(self.reconnect_backoff_ms / 1000, self.reconnect_backoff_max_ms / 1000),
            fail_fast=fail_fast,
            on_error=self.odradek_on_error,
        )


@attrs.frozen(kw_only=True)
class ProducerSettings(CommonSettings):
    """The typed values of Kafka's producer keys, with underscores for dots."""

    acks: int = _key(-1, parse.acks)
    """`all`: all in-sync replicas must acknowledge a record; `1`: the leader must; `0`: none must."""
    batch_size: int = _key(16_384, parse.AT_LEAST_0)
    """The size in bytes at which a batch is full, so that it is sent at once."""
    buffer_memory: int = _key(32 << 20, parse.LONG)
    """The maximum number of bytes of records that may wait to be sent."""
    compression_gzip_level: int = _key(-1, parse.integer(-1, 9))
    """The compression level of gzip; -1 is gzip's default."""
    compression_lz4_level: int = _key(9, parse.integer(1, 17))
    """The compression level of lz4."""
    compression_type: str = _key("none", parse.compression)
    """`none`, `gzip`, `snappy`, `lz4` or `zstd`."""
    compression_zstd_level: int = _key(3, parse.integer(-131_072, 22))
    """The compression level of zstd."""
    delivery_timeout_ms: int = _key(120_000, parse.AT_LEAST_0)
    """The time after which a record fails if it was not acknowledged."""
    enable_idempotence: bool = _key(True, parse.boolean)
    """True if the broker writes a batch only once, even if the producer sends the batch again."""
    key_serializer: Callable[[Any], bytes | None] | None = attrs.field(
        default=None, metadata={"parse": parse.serializer}
    )
    """A function from keys to bytes, or the name of Kafka's `StringSerializer` or `ByteArraySerializer`."""
    linger_ms: int = _key(5, parse.LONG)
    """The time that a batch waits for more records before it is sent."""
    max_block_ms: int = _key(60_000, parse.LONG)
    """The longest time that `send` and the transaction calls may block."""
    max_in_flight_requests_per_connection: int = _key(5, parse.AT_LEAST_1)
    """The maximum number of unanswered requests to a broker; at most 5 with idempotence."""
    max_request_size: int = _key(1 << 20, parse.AT_LEAST_0)
    """The maximum number of bytes of one record, and of one request."""
    partitioner_adaptive_partitioning_enable: bool = _key(True, parse.boolean)
    """True if records without a key go less often to partitions with many waiting batches (KIP-794)."""
    partitioner_availability_timeout_ms: int = _key(0, parse.AT_LEAST_0)
    """If a leader accepts no requests for this time, keyless records go to partitions of other leaders. 0
    disables this.
    """
    partitioner_class: Any = attrs.field(default=None, metadata={"parse": parse.partitioner})
    """The partitioner, which chooses the partition of a record. None: murmur2 of the key selects the partition, and
    records without a key go to the sticky partition. Otherwise `RoundRobinPartitioner`, or a callable `(topic, key,
    value, partition_count, available) -> partition`.
    """
    partitioner_ignore_keys: bool = _key(False, parse.boolean)
    """True if keys do not affect the choice of a partition."""
    retries: int = _key(parse.INT_MAX, parse.AT_LEAST_0)
    """The maximum number of times that a batch is sent again, within `delivery.timeout.ms`."""
    transaction_timeout_ms: int = _key(60_000, parse.AT_LEAST_0)
    """The time after which the coordinator aborts an open transaction."""
    transaction_two_phase_commit_enable: bool = _key(False, parse.boolean)
    """True if another system decides whether transactions commit (KIP-939), so that a transaction never ends by a
    timeout.
    """
    transactional_id: str | None = _key(None, parse.optional_text)
    """The name by which a later producer continues or aborts this producer's transactions; None: a producer without
    transactions.
    """
    value_serializer: Callable[[Any], bytes | None] | None = attrs.field(
        default=None, metadata={"parse": parse.serializer}
    )
    """A function from values to bytes, or the name of Kafka's `StringSerializer` or `ByteArraySerializer`."""

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Apply Kafka's rules. Keys that conflict with idempotence disable it, unless `enable.idempotence`
        was set explicitly. `delivery.timeout.ms` must be long enough for at least one request.
        """
        obstacles = {
            "acks must be all": cls._value(values, "acks") != -1,
            "retries must be above 0": cls._value(values, "retries") == 0,
            "max.in.flight.requests.per.connection must be at most 5": (
                cls._value(values, "max_in_flight_requests_per_connection") > 5
            ),
        }
        obstacle = next((text for text, broken in obstacles.items() if broken), None)
        if cls._value(values, "transaction_two_phase_commit_enable"):
            if cls._value(values, "transactional_id") is None:
                raise ValueError("transaction.two.phase.commit.enable=true needs a transactional.id")
            if "transaction_timeout_ms" in values:
                raise ValueError(
                    "transaction.timeout.ms must not be set with transaction.two.phase.commit.enable=true"
                )
        if cls._value(values, "transactional_id") is not None:
            if not cls._value(values, "enable_idempotence"):
                obstacle = "enable.idempotence must be true"
            if obstacle is not None:
                raise ValueError(
                    f"transactional.id={values['transactional_id']!r} needs other settings: {obstacle}"
                )
        if obstacle is not None:
            if values.get("enable_idempotence"):
                raise ValueError(f"enable.idempotence=true: {obstacle}")
            values["enable_idempotence"] = False
        least = min(parse.INT_MAX, cls._value(values, "linger_ms") + cls._value(values, "request_timeout_ms"))
        if cls._value(values, "delivery_timeout_ms") < least:
            if "delivery_timeout_ms" in values:
                raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
            values["delivery_timeout_ms"] = least

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """Make the configuration of the client core, with the producer's limit of requests in flight."""
        return attrs.evolve(
            super().client_config(fail_fast=fail_fast),
            in_flight_max=self.max_in_flight_requests_per_connection,
        )


@attrs.frozen(kw_only=True)
class ConsumerSettings(CommonSettings):
    """The typed values of Kafka's consumer keys, with underscores for dots."""

    allow_auto_create_topics: bool = _key(True, parse.boolean)
    """True if the broker may create a missing topic (`auto.create.topics.enable`)."""
    auto_commit_interval_ms: int = _key(5_000, parse.AT_LEAST_0)
    """The time between automatic commits."""
    auto_offset_reset: str = _key("latest", parse.offset_reset)
    """The start position without a committed offset: `earliest`, `latest`, `none` (an error), or
    `by_duration:PnDTnHnMn.nS`.
    """
    check_crcs: bool = _key(True, parse.boolean)
    """True if the consumer verifies the checksum of each batch."""
    client_rack: str = _key("", parse.text)
    """The client's rack. If the brokers select replicas by rack, records come from an in-sync replica in this rack
    (KIP-392).
    """
    default_api_timeout_ms: int = _key(60_000, parse.AT_LEAST_0)
    """The timeout of a call without the argument `timeout`."""
    enable_auto_commit: bool = _key(True, parse.boolean)
    """True if positions are committed automatically; this needs a group."""
    exclude_internal_topics: bool = _key(True, parse.boolean)
    """True if a subscribed pattern never matches internal topics, and `topics()` leaves internal topics out.
    """
    fetch_max_bytes: int = _key(50 << 20, parse.AT_LEAST_0)
    """The maximum number of bytes of a fetch response; its first batch may be larger."""
    fetch_max_wait_ms: int = _key(500, parse.AT_LEAST_0)
    """The longest time that a broker waits for `fetch.min.bytes`."""
    fetch_min_bytes: int = _key(1, parse.AT_LEAST_0)
    """The number of bytes that a broker waits for before it answers a fetch."""
    group_id: str | None = _key(None, parse.optional_text)
    """The name of the consumer group; None: a consumer without a group."""
    group_instance_id: str | None = _key(None, parse.optional_text)
    """A name that stays the same when the process restarts; it makes the consumer a static member (KIP-345)."""
    group_protocol: str = _key("classic", parse.one_of_lower("classic", "consumer", "auto"))
    """`classic`: the members assign partitions. `consumer`: the coordinator assigns (KIP-848). `auto`: `consumer` if
    the cluster supports it and the group has no classic members, otherwise `classic`.
    """
    group_remote_assignor: str | None = _key(None, parse.optional_text)
    """The coordinator's assignor (`uniform`, `range`) for a group of the new protocol; None: the coordinator's
    default.
    """
    heartbeat_interval_ms: int = _key(3_000, parse.AT_LEAST_1)
    """The time between heartbeats to the coordinator. In the new protocol the coordinator sets this time
    instead.
    """
    isolation_level: str = _key("read_uncommitted", parse.one_of("read_uncommitted", "read_committed"))
    """`read_committed` leaves out the records of open and aborted transactions; `read_uncommitted` returns all
    records.
    """
    key_deserializer: Callable[[bytes | None], Any] | None = attrs.field(
        default=None, metadata={"parse": parse.deserializer}
    )
    """A function from bytes to keys, or the name of Kafka's `StringDeserializer` or `ByteArrayDeserializer`."""
    max_partition_fetch_bytes: int = _key(1 << 20, parse.AT_LEAST_0)
    """The maximum number of bytes of one partition in a fetch response; its first batch may be larger."""
    odradek_consumer_timeout_ms: int | None = _key(None, parse.timeout_or_none)
    """The time without records after which a loop over the consumer ends; None for an endless loop."""
    max_poll_interval_ms: int = _key(300_000, parse.AT_LEAST_1)
    """The longest time between two polls; after that, a member leaves its group."""
    max_poll_records: int = _key(500, parse.AT_LEAST_1)
    """The maximum number of records that a poll returns."""
    partition_assignment_strategy: tuple[Any, ...] = attrs.field(
        default=("range", "cooperative-sticky"), metadata={"parse": parse.assignors}
    )
    """The supported assignors, the preferred one first: names (`range`, `roundrobin`, `cooperative-sticky`, or
    Kafka's class names) or assignor objects.
    """
    session_timeout_ms: int = _key(45_000, parse.AT_LEAST_1)
    """The time without a heartbeat after which the coordinator removes a member."""
    value_deserializer: Callable[[bytes | None], Any] | None = attrs.field(
        default=None, metadata={"parse": parse.deserializer}
    )
    """A function from bytes to values, or the name of Kafka's `StringDeserializer` or `ByteArrayDeserializer`."""

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Apply Kafka's rules: automatic commits need a group; the session timeout must exceed the heartbeat
        interval.
        """
        if cls._value(values, "group_id") is None:
            if values.get("enable_auto_commit"):
                raise ValueError("enable.auto.commit=true needs a group.id")
            values["enable_auto_commit"] = False
        protocol = cls._value(values, "group_protocol")
        if protocol == "consumer":
            for name in _CLASSIC_ONLY:
                if name in values:
                    key = name.replace("_", ".")
                    raise ValueError(
                        f"{key} must not be set with group.protocol=consumer: the coordinator decides"
                    )
        elif protocol == "classic" and values.get("group_remote_assignor") is not None:
            raise ValueError("group.remote.assignor needs group.protocol=consumer or auto")
        if cls._value(values, "heartbeat_interval_ms") >= cls._value(values, "session_timeout_ms"):
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms")
        if cls._value(values, "fetch_max_wait_ms") > cls._value(values, "request_timeout_ms"):
            raise ValueError("fetch.max.wait.ms must not be above request.timeout.ms")


@attrs.frozen(kw_only=True)
class AdminSettings(CommonSettings):
    """The typed values of Kafka's admin client keys, with underscores for dots."""

    connections_max_idle_ms: int = _key(300_000, parse.ANY_LONG)
    """The time after which an idle connection is closed; a negative value keeps it open."""
    default_api_timeout_ms: int = _key(60_000, parse.AT_LEAST_0)
    """The timeout of a call without the argument `timeout`."""
    retries: int = _key(parse.INT_MAX, parse.AT_LEAST_0)
    """The maximum number of times that a request is repeated within the timeout of its call."""

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Ensure that the timeout of a call is at least the timeout of one request, as in Kafka."""
        least = cls._value(values, "request_timeout_ms")
        if cls._value(values, "default_api_timeout_ms") < least:
            if "default_api_timeout_ms" in values:
                raise ValueError("default.api.timeout.ms must not be below request.timeout.ms")
            values["default_api_timeout_ms"] = least

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """Make the configuration of the client core, with the timeout of a whole call."""
        return attrs.evolve(
            super().client_config(fail_fast=fail_fast), api_timeout=self.default_api_timeout_ms / 1000
        )


def merged_properties(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a configuration and keyword arguments (`linger_ms=5`) into one mapping of Kafka's keys; keywords take
    precedence.
    """
    return {**(config or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}


def _shown(key: str, value: Any) -> str:
    shown = shown_value(key, value)
    return HIDDEN if shown is HIDDEN else repr(value)


def _check_other(key: str, value: Any, fields: Mapping[str, Any]) -> None:
    """Check a key that has no field in this class. Raises `ValueError` for an unknown key, and for a value
    that would need a missing feature.
    """
    neutral = NEUTRAL_ONLY.get(key)
    if neutral is not None:
        text = "" if value is None or value == [] else str(value).lower()
        if text not in neutral:
            raise ValueError(f"{key}={_shown(key, value)} is not supported")
        return
    near = difflib.get_close_matches(key, [*fields, *NEUTRAL_ONLY, *sorted(WITHOUT_EFFECT)], 3, 0.7)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    name = repr(key) if is_key_name(key) else HIDDEN
    raise ValueError(f"unknown configuration key {name}{hint}")
