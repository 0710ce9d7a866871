"""Rules for the contents of a broker's or controller's registration: ids, names, listeners, features, sizes.
PURE.

A registration is written to the metadata log without changes. From the log its contents get into every node's
memory, disk and Metadata responses. Kafka 4.3 checks little: it accepts a negative id, a missing incarnation,
names of 30 KB or 3,000 features. An unknown security protocol even makes Kafka's controller stop, now and at
each later start. Odradek answers all of these with INVALID_REGISTRATION. An invalid range of feature levels
gets UNSUPPORTED_VERSION, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from odradek.wire.errors import ErrorCode, KafkaError

NAME_CHARACTERS_MAX = 255
"""The longest name of a host (253 by DNS), listener, feature or rack, in characters."""
LISTENERS_MAX = 64
FEATURES_MAX = 256
LOG_DIRS_MAX = 1024
SECURITY_PROTOCOLS = (0, 1, 2, 3)
"""Kafka's numbers of the security protocols PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL."""
_ZERO_ID = bytes(16)


class ListenerLike(Protocol):
    """The interface that listeners in registrations of brokers and of controllers have in common."""

    name: str
    host: str
    port: int
    security_protocol: int


class FeatureLike(Protocol):
    """The interface that features in registrations of brokers and of controllers have in common."""

    name: str
    min_supported_version: int
    max_supported_version: int


def check_contents(
    node_id: int,
    incarnation_id: bytes,
    listeners: Sequence[ListenerLike],
    features: Sequence[FeatureLike],
    *,
    rack: str | None = None,
    log_dirs: int = 0,
) -> None:
    """Check the contents of a registration. Raises `KafkaError` INVALID_REGISTRATION or UNSUPPORTED_VERSION."""
    if node_id < 0:
        raise _invalid(f"the node id {node_id} is negative")
    if incarnation_id == _ZERO_ID:
        raise _invalid("the incarnation id of the registration is zero")
    if not 0 < len(listeners) <= LISTENERS_MAX:
        raise _invalid(
            f"the registration has {len(listeners)} listeners, but 1 to {LISTENERS_MAX} are allowed"
        )
    if len(features) > FEATURES_MAX:
        raise _invalid(
            f"the registration has {len(features)} features, but at most {FEATURES_MAX} are allowed"
        )
    if log_dirs > LOG_DIRS_MAX:
        raise _invalid(
            f"the registration has {log_dirs} log directories, but at most {LOG_DIRS_MAX} are allowed"
        )
    for listener in listeners:
        _check_name("listener", listener.name)
        _check_name("host", listener.host)
        if not listener.port:
            raise _invalid(f"the listener {listener.name} has no port")
        if listener.security_protocol not in SECURITY_PROTOCOLS:
            raise _invalid(
                f"the listener {listener.name} has the unknown security protocol {listener.security_protocol}"
            )
    if len({listener.name for listener in listeners}) < len(listeners):
        raise _invalid("two listeners of the registration have the same name")
    if rack is not None and len(rack) > NAME_CHARACTERS_MAX:
        raise _invalid(f"the rack has {len(rack)} characters, but at most {NAME_CHARACTERS_MAX} are allowed")
    for feature in features:
        _check_name("feature", feature.name)
        if not 0 <= feature.min_supported_version <= feature.max_supported_version:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the feature {feature.name} has the invalid range of levels "
                f"{feature.min_supported_version} to {feature.max_supported_version}",
            )


def _check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise _invalid(
            f"the name of a {what} has {len(name)} characters, but 1 to {NAME_CHARACTERS_MAX} are allowed"
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGISTRATION, message)
