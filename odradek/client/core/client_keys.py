"""Kafka's client configuration keys, checked and typed. PURE.

`ProducerSettings.from_properties({"linger.ms": "20", ...})` gives an attrs object with one field per key that has an
effect here; the field's name is the key with underscores. Values may be texts, as in a properties file, or Python's
own. Names, types, ranges and defaults are those of Apache Kafka 4.3's Java clients.

Three kinds of keys:

* with an effect: the fields of the classes below;
* `WITHOUT_EFFECT`: they tune what this client does not have (metric samples, socket buffers); any value is accepted, and a
  warning names those that were set. docs/client.md says why each has none;
* `NEUTRAL_ONLY`: they switch on what this client does not have, such as KIP-848. Only the value that leaves it
  off is accepted: otherwise a user might rely on something that is missing.

Anything else is a `ValueError` that names the key and the nearest known ones.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from odradek.client.core.bootstrap import parse_bootstrap
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_security import PROTOCOLS, ClientSecurity, LoginKeys, client_security
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
Parser = Callable[[Any], Any]

_LOGGER = logging.getLogger("odradek.client")
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1

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
"""Keys of Kafka's clients that are accepted with any value and have no effect."""

NEUTRAL_ONLY: dict[str, tuple[str, ...]] = {
    "bootstrap.controllers": ("",),
    "group.protocol": ("classic",),
    "group.remote.assignor": ("",),
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
"""Keys that are accepted only with these values (in lower case; empty also stands for None)."""


# Values


def _integer(low: int, high: int) -> Parser:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError("expected a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number

    return parse


def _boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


def _optional_text(value: Any) -> str | None:
    if value is None:
        return None
    if not _text(value):
        raise ValueError("expected a text that is not empty, or None")
    return str(value)


def _one_of(*names: str) -> Parser:
    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return parse


def _compression(value: Any) -> str:
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    return "none" if value is None else str(_one_of(*names)(value))


def _share(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number from 0.5 to 1") from None
    if not 0.5 <= share <= 1:
        raise ValueError("expected a number from 0.5 to 1")
    return share


def _recovery(value: Any) -> str:
    return str(_one_of("none", "rebootstrap")(_text(value).lower()))


def _acks(value: Any) -> int:
    found = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(str(value))
    if found is None or isinstance(value, bool):
        raise ValueError("expected all, -1, 0 or 1")
    return found


def _addresses(value: Any) -> tuple[tuple[str, int], ...]:
    if isinstance(value, str):
        return tuple(parse_bootstrap(value))
    if not isinstance(value, Sequence) or not all(isinstance(part, str) for part in value):
        raise ValueError("expected HOST:PORT,HOST:PORT or a list of HOST:PORT")
    return tuple(parse_bootstrap(",".join(value)))


def _offset_reset(value: Any) -> str:
    text = _text(value)
    if text in ("earliest", "latest", "none"):
        return text
    if re.fullmatch(
        r"by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", text, re.IGNORECASE
    ):
        return text
    raise ValueError("expected earliest, latest, none or by_duration:PnDTnHnMn.nS")


def _assignors(value: Any) -> tuple[Any, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError("expected names of assignors, or assignors")
    return tuple(part.strip() if isinstance(part, str) else part for part in parts)


def _callable_or_none(value: Any) -> Any:
    if value is not None and not callable(value):
        raise ValueError("expected a callable or None")
    return value


def _partitioner(value: Any) -> Any:
    if isinstance(value, str) and value.rpartition(".")[2] == "RoundRobinPartitioner":
        return "RoundRobinPartitioner"
    if value is None or callable(value):
        return value
    raise ValueError("expected a callable, RoundRobinPartitioner or None")


def _encode(text: Any) -> bytes | None:
    return None if text is None else str(text).encode()


def _decode(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode()


def _serializer(value: Any) -> Any:
    if isinstance(value, str):
        value = _named(value, {"ByteArraySerializer": None, "StringSerializer": _encode})
    return _callable_or_none(value)


def _deserializer(value: Any) -> Any:
    if isinstance(value, str):
        value = _named(value, {"ByteArrayDeserializer": None, "StringDeserializer": _decode})
    return _callable_or_none(value)


def _named(value: str, known: dict[str, Any]) -> Any:
    name = value.rpartition(".")[2]
    if name not in known:
        raise ValueError(f"expected a callable, None, or one of {', '.join(known)}")
    return known[name]


def _protocol(value: Any) -> str:
    text = _text(value).upper()
    if text not in PROTOCOLS:
        raise ValueError(f"expected one of {', '.join(PROTOCOLS)}")
    return text


def _mechanism(value: Any) -> str:
    return "GSSAPI" if value is None else _text(value)


def _upper(value: Any) -> str:
    return _text(value).upper()


def _texts(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(_text(part).strip() for part in parts or () if part)


def _key(default: Any, parse: Parser) -> Any:
    return attrs.field(default=default, metadata={"parse": parse})


_AT_LEAST_0 = _integer(0, _INT_MAX)
_AT_LEAST_1 = _integer(1, _INT_MAX)
_LONG = _integer(0, _LONG_MAX)
_ANY_LONG = _integer(-_LONG_MAX - 1, _LONG_MAX)


def _timeout_or_none(value: Any) -> int | None:
    return None if value is None or value == float("inf") else int(_LONG(value))


# Settings


@attrs.frozen(kw_only=True)
class CommonSettings:
    """The keys that all clients have. Times in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[tuple[str, int], ...] = attrs.field(metadata={"parse": _addresses})
    client_id: str = _key("", _text)
    odradek_on_error: Callable[[int, str], object] | None = attrs.field(
        default=None, repr=False, metadata={"parse": _callable_or_none}
    )
    """Called with level and text of each line of the log from WARNING on."""
    metadata_max_age_ms: int = _key(300_000, _LONG)
    request_timeout_ms: int = _key(30_000, _AT_LEAST_0)
    reconnect_backoff_ms: int = _key(50, _LONG)
    reconnect_backoff_max_ms: int = _key(1_000, _LONG)
    retry_backoff_ms: int = _key(100, _LONG)
    retry_backoff_max_ms: int = _key(1_000, _LONG)
    connections_max_idle_ms: int = _key(540_000, _ANY_LONG)
    """An idle connection is closed after so long; a negative value keeps it open."""
    metadata_recovery_rebootstrap_trigger_ms: int = _key(300_000, _LONG)
    metadata_recovery_strategy: str = _key("rebootstrap", _recovery)
    security_protocol: str = _key("PLAINTEXT", _protocol)
    sasl_mechanism: str = _key("GSSAPI", _mechanism)
    sasl_jaas_config: str | None = attrs.field(default=None, repr=False, metadata={"parse": _optional_text})
    odradek_sasl_username: str | None = _key(None, _optional_text)
    """With the password, it stands instead of a login module."""
    odradek_sasl_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": _optional_text}
    )
    sasl_oauthbearer_token_endpoint_url: str | None = _key(None, _optional_text)
    sasl_oauthbearer_client_credentials_client_id: str | None = _key(None, _optional_text)
    sasl_oauthbearer_client_credentials_client_secret: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": _optional_text}
    )
    sasl_oauthbearer_scope: str | None = _key(None, _optional_text)
    sasl_login_refresh_window_factor: float = _key(0.8, _share)
    sasl_login_retry_backoff_ms: int = _key(100, _LONG)
    sasl_login_retry_backoff_max_ms: int = _key(10_000, _LONG)
    odradek_sasl_oauthbearer_token_callback: Callable[[], str] | None = attrs.field(
        default=None, repr=False, metadata={"parse": _callable_or_none}
    )
    """The application's own way to a token: it is called beside the client, for each login, and may block."""
    ssl_truststore_location: str | None = _key(None, _optional_text)
    ssl_truststore_type: str = _key("JKS", _upper)
    ssl_truststore_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": _optional_text}
    )
    ssl_truststore_certificates: str | None = _key(None, _optional_text)
    ssl_keystore_location: str | None = _key(None, _optional_text)
    ssl_keystore_type: str = _key("JKS", _upper)
    ssl_keystore_password: str | None = attrs.field(
        default=None, repr=False, metadata={"parse": _optional_text}
    )
    ssl_keystore_key: str | None = attrs.field(default=None, repr=False, metadata={"parse": _optional_text})
    ssl_keystore_certificate_chain: str | None = _key(None, _optional_text)
    ssl_key_password: str | None = attrs.field(default=None, repr=False, metadata={"parse": _optional_text})
    ssl_endpoint_identification_algorithm: str = _key("https", _text)
    """Empty: the name in the server's certificate may be any."""
    odradek_ssl_keystore_key_location: str | None = _key(None, _optional_text)
    """A PEM file with the private key, where `ssl.keystore.location` has only certificates."""
    ssl_enabled_protocols: tuple[str, ...] = _key(("TLSv1.2", "TLSv1.3"), _texts)
    ssl_cipher_suites: tuple[str, ...] = _key((), _texts)
    socket_connection_setup_timeout_ms: int = _key(10_000, _LONG)
    socket_connection_setup_timeout_max_ms: int = _key(30_000, _LONG)

    @classmethod
    def from_properties(cls: type[S], properties: Mapping[str, Any], *, on_trio: bool = False) -> S:
        """Check and take in Kafka's keys ("linger.ms"), and those of other clients (`familiar_names`).

        Raises:
            ValueError: an unknown key, a bad value, keys that contradict each other, or no `bootstrap.servers`.
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
        """Encryption and login. Raises `ValueError` for keys that contradict each other."""
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
        """Check and adjust keys that depend on each other; `values` has those that were given, by field name."""

    @classmethod
    def _value(cls, values: dict[str, Any], name: str) -> Any:
        return values[name] if name in values else getattr(attrs.fields(cls), name).default

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """The core's configuration. With `fail_fast`, a client that has never reached a broker fails calls at once."""
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

    acks: int = _key(-1, _acks)
    batch_size: int = _key(16_384, _AT_LEAST_0)
    buffer_memory: int = _key(32 << 20, _LONG)
    compression_gzip_level: int = _key(-1, _integer(-1, 9))
    compression_lz4_level: int = _key(9, _integer(1, 17))
    compression_type: str = _key("none", _compression)
    compression_zstd_level: int = _key(3, _integer(-131_072, 22))
    delivery_timeout_ms: int = _key(120_000, _AT_LEAST_0)
    enable_idempotence: bool = _key(True, _boolean)
    key_serializer: Callable[[Any], bytes | None] | None = attrs.field(
        default=None, metadata={"parse": _serializer}
    )
    linger_ms: int = _key(5, _LONG)
    max_block_ms: int = _key(60_000, _LONG)
    max_in_flight_requests_per_connection: int = _key(5, _AT_LEAST_1)
    max_request_size: int = _key(1 << 20, _AT_LEAST_0)
    partitioner_adaptive_partitioning_enable: bool = _key(True, _boolean)
    partitioner_availability_timeout_ms: int = _key(0, _AT_LEAST_0)
    """The time after which a leader that takes nothing is left out when a partition is drawn; 0 switches that off."""
    partitioner_class: Any = attrs.field(default=None, metadata={"parse": _partitioner})
    """The partitioner. None: murmur2 of the key, sticky without; "RoundRobinPartitioner"; or a callable `(topic, key,
    value, partition_count, available) -> partition`."""
    partitioner_ignore_keys: bool = _key(False, _boolean)
    retries: int = _key(_INT_MAX, _AT_LEAST_0)
    transaction_timeout_ms: int = _key(60_000, _AT_LEAST_0)
    """The coordinator aborts a transaction that is open for longer."""
    transaction_two_phase_commit_enable: bool = _key(False, _boolean)
    """True if another system decides whether transactions commit (KIP-939): then none ends by a timeout."""
    transactional_id: str | None = _key(None, _optional_text)
    """The name under which transactions go on in the next producer; None: a producer without transactions."""
    value_serializer: Callable[[Any], bytes | None] | None = attrs.field(
        default=None, metadata={"parse": _serializer}
    )

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Kafka's rules: idempotence gives way unless it was asked for; the delivery has time for one request."""
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
                raise ValueError("transaction.two.phase.commit.enable=true has no transaction.timeout.ms")
        if cls._value(values, "transactional_id") is not None:
            if not cls._value(values, "enable_idempotence"):
                obstacle = "enable.idempotence must be true"
            if obstacle is not None:
                raise ValueError(f"transactional.id={values['transactional_id']!r}: {obstacle}")
        if obstacle is not None:
            if values.get("enable_idempotence"):
                raise ValueError(f"enable.idempotence=true: {obstacle}")
            values["enable_idempotence"] = False
        least = min(_INT_MAX, cls._value(values, "linger_ms") + cls._value(values, "request_timeout_ms"))
        if cls._value(values, "delivery_timeout_ms") < least:
            if "delivery_timeout_ms" in values:
                raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
            values["delivery_timeout_ms"] = least

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """The base's configuration, with the producer's pipeline."""
        return attrs.evolve(
            super().client_config(fail_fast=fail_fast),
            in_flight_max=self.max_in_flight_requests_per_connection,
        )


@attrs.frozen(kw_only=True)
class ConsumerSettings(CommonSettings):
    """The typed values of Kafka's consumer keys, with underscores for dots."""

    allow_auto_create_topics: bool = _key(True, _boolean)
    auto_commit_interval_ms: int = _key(5_000, _AT_LEAST_0)
    auto_offset_reset: str = _key("latest", _offset_reset)
    check_crcs: bool = _key(True, _boolean)
    client_rack: str = _key("", _text)
    default_api_timeout_ms: int = _key(60_000, _AT_LEAST_0)
    enable_auto_commit: bool = _key(True, _boolean)
    exclude_internal_topics: bool = _key(True, _boolean)
    fetch_max_bytes: int = _key(50 << 20, _AT_LEAST_0)
    fetch_max_wait_ms: int = _key(500, _AT_LEAST_0)
    fetch_min_bytes: int = _key(1, _AT_LEAST_0)
    group_id: str | None = _key(None, _optional_text)
    group_instance_id: str | None = _key(None, _optional_text)
    heartbeat_interval_ms: int = _key(3_000, _AT_LEAST_1)
    isolation_level: str = _key("read_uncommitted", _one_of("read_uncommitted", "read_committed"))
    key_deserializer: Callable[[bytes | None], Any] | None = attrs.field(
        default=None, metadata={"parse": _deserializer}
    )
    max_partition_fetch_bytes: int = _key(1 << 20, _AT_LEAST_0)
    odradek_consumer_timeout_ms: int | None = _key(None, _timeout_or_none)
    """The silence after which a loop over the consumer ends; None: it goes on for ever."""
    max_poll_interval_ms: int = _key(300_000, _AT_LEAST_1)
    max_poll_records: int = _key(500, _AT_LEAST_1)
    partition_assignment_strategy: tuple[Any, ...] = attrs.field(
        default=("range", "cooperative-sticky"), metadata={"parse": _assignors}
    )
    """Names (`range`, or Kafka's class names) or assignors of your own, the preferred first."""
    session_timeout_ms: int = _key(45_000, _AT_LEAST_1)
    value_deserializer: Callable[[bytes | None], Any] | None = attrs.field(
        default=None, metadata={"parse": _deserializer}
    )

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Kafka's rules: commits need a group, a session outlives its heartbeats."""
        if cls._value(values, "group_id") is None:
            if values.get("enable_auto_commit"):
                raise ValueError("enable.auto.commit=true needs a group.id")
            values["enable_auto_commit"] = False
        if cls._value(values, "heartbeat_interval_ms") >= cls._value(values, "session_timeout_ms"):
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms")
        if cls._value(values, "fetch_max_wait_ms") > cls._value(values, "request_timeout_ms"):
            raise ValueError("fetch.max.wait.ms must not be above request.timeout.ms")


@attrs.frozen(kw_only=True)
class AdminSettings(CommonSettings):
    """The typed values of Kafka's admin client keys, with underscores for dots."""

    connections_max_idle_ms: int = _key(300_000, _ANY_LONG)
    default_api_timeout_ms: int = _key(60_000, _AT_LEAST_0)
    retries: int = _key(_INT_MAX, _AT_LEAST_0)

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """A call lasts at least as long as one of its requests, as in Kafka."""
        least = cls._value(values, "request_timeout_ms")
        if cls._value(values, "default_api_timeout_ms") < least:
            if "default_api_timeout_ms" in values:
                raise ValueError("default.api.timeout.ms must not be below request.timeout.ms")
            values["default_api_timeout_ms"] = least

    def client_config(self, *, fail_fast: bool = False) -> ClientConfig:
        """The base's configuration, with the time of a whole call."""
        return attrs.evolve(
            super().client_config(fail_fast=fail_fast), api_timeout=self.default_api_timeout_ms / 1000
        )


def merged_properties(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration and keyword arguments (`linger_ms=5`) as one mapping of Kafka's keys; keywords win."""
    return {**(config or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}


def _shown(key: str, value: Any) -> str:
    shown = shown_value(key, value)
    return HIDDEN if shown is HIDDEN else repr(value)


def _check_other(key: str, value: Any, fields: Mapping[str, Any]) -> None:
    """A key that is no field. Raises `ValueError` unless its value changes nothing."""
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
