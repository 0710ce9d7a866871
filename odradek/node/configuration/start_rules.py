"""Rules of a properties file that are only enforced when a node starts.

`odradek storage` does not enforce them, because a node is often formatted before its certificates and
passwords exist. It checks what Kafka's own tool checks: keys, listeners, roles, the quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigError, ConfigValue, broker_defs
from odradek.security.acls.authorizer import AuthorizerSettings, parse_principals

__all__ = [
    "ALLOW_EVERYONE",
    "AUTHORIZERS",
    "REPLICA_SELECTORS",
    "SUPER_USERS",
    "StartRules",
    "authorizer_of",
    "broken_relations",
    "unsupported",
]

T = TypeVar("T")
SUPER_USERS = "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"
AUTHORIZERS = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer",)
"""Kafka's names for the authorizer that is built in here. Any other name is refused as an unknown Java class."""
REPLICA_SELECTORS = (
    "org.apache.kafka.common.replica.LeaderSelector",
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)
"""Names of Kafka's own replica selectors. Any other name is refused as an unknown Java class."""
_NOT_SUPPORTED = (
    "create.topic.policy.class.name",
    "alter.config.policy.class.name",
    "client.quota.callback.class",
    "config.providers",
    "early.start.listeners",
)
"""Keys of unsupported features. Setting such a key is an error, because the operator would rely on the
feature.
"""


@attrs.define
class StartRules:
    """Checks rules that must hold when a node starts. If no start is planned (`starts` is false), a broken rule is a
    warning.
    """

    starts: bool
    warnings: list[str]
    refusals: list[str] = attrs.field(factory=list)
    """The error texts of broken rules, without an introduction."""

    def judge(self, part: Callable[[], T], instead: T) -> T:
        """Return the result of `part()`. If `part()` raises `ConfigError` and a start is planned, raise this error. If
        no start is planned, record the error and return `instead`.
        """
        try:
            return part()
        except ConfigError as error:
            self._refuse(error)
            return instead

    def judge_all(self, errors: Iterable[ConfigError]) -> None:
        """Record all of these errors; at a start, raise the first."""
        for error in errors:
            self._refuse(error)

    def _refuse(self, error: ConfigError) -> None:
        if self.starts:
            raise error
        self.refusals.append(str(error))
        self.warnings.append(f"the node will not start with this file: {error}")


def authorizer_of(values: Mapping[str, ConfigValue]) -> AuthorizerSettings | None:
    """Return the authorizer that `authorizer.class.name` names. Raises `ConfigError` for a Java class other than
    Kafka's.
    """
    key = "authorizer.class.name"
    name = values[key]
    if not name:
        return None
    if name not in AUTHORIZERS:
        raise ConfigError(
            key,
            name,
            f"this node runs no Java classes: name {AUTHORIZERS[0]}, or leave the value empty for "
            "no authorizer",
        )
    try:
        super_users = parse_principals(str(values[SUPER_USERS] or ""))
    except ValueError as error:
        raise ConfigError(SUPER_USERS, values[SUPER_USERS], str(error)) from error
    return AuthorizerSettings(super_users, values[ALLOW_EVERYONE] is True)


def broken_relations(values: Mapping[str, ConfigValue]) -> Iterator[ConfigError]:
    """Yield an error for each broken rule between several keys. The rules are Kafka's, for keys that this version
    uses.

    One rule is ours: the interval of heartbeats must be below the session timeout, or the broker would be fenced for
    ever.
    """

    def number(key: str) -> float:
        value = values[key]
        return value if isinstance(value, int | float) else 0

    session, heartbeat = number("broker.session.timeout.ms"), number("broker.heartbeat.interval.ms")
    if not 1 <= heartbeat < session:
        yield ConfigError(
            "broker.heartbeat.interval.ms",
            int(heartbeat),
            f"the value must be at least 1 and less than broker.session.timeout.ms ({int(session)})",
        )
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        value = values[key]
        if isinstance(value, int) and value != -1 and value < 1:
            yield ConfigError(key, value, "must be unlimited (-1) or, greater than or equal to 1")
    roll, jitter = values["log.roll.ms"], values["log.roll.jitter.ms"]
    if isinstance(roll, int) and roll < 1:
        yield ConfigError("log.roll.ms", roll, "must be greater than or equal to 1")
    if isinstance(jitter, int) and jitter < 0:
        yield ConfigError("log.roll.jitter.ms", jitter, "must be greater than or equal to 0")
    queued = number("queued.max.request.bytes")
    if 0 < queued < number("socket.request.max.bytes"):
        yield ConfigError(
            "queued.max.request.bytes",
            int(queued),
            "the value must be at least socket.request.max.bytes, or -1",
        )
    if number("replica.fetch.wait.max.ms") > number("replica.socket.timeout.ms"):
        yield ConfigError(
            "replica.socket.timeout.ms",
            values["replica.socket.timeout.ms"],
            "should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket timeouts",
        )
    if number("replica.fetch.wait.max.ms") > number("replica.lag.time.max.ms"):
        yield ConfigError(
            "replica.fetch.wait.max.ms",
            values["replica.fetch.wait.max.ms"],
            "should always be less than or equal to replica.lag.time.max.ms to prevent frequent changes in ISR",
        )


def unsupported(explicit: Mapping[str, str], values: Mapping[str, ConfigValue]) -> Iterator[ConfigError]:
    """Yield an error for each key that is set although its feature is not supported."""
    for key in _NOT_SUPPORTED:
        if key in explicit and values[key]:
            shown = "[hidden]" if broker_defs()[key].sensitive else explicit[key]
            yield ConfigError(key, shown, "this version does not support the key: remove it")
    selector = values["replica.selector.class"]
    if selector is not None and selector not in REPLICA_SELECTORS:
        yield ConfigError(
            "replica.selector.class", selector, f"the value must be one of {', '.join(REPLICA_SELECTORS)}"
        )
    for key in ("remote.log.storage.system.enable", "controller.quorum.auto.join.enable"):
        if values[key] is True:
            yield ConfigError(
                key, "true", "this version does not support the feature: the value must be false"
            )
