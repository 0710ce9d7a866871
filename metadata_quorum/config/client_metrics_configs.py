"""Client metrics subscriptions as configurations (KIP-714): which metrics are pushed, how often, and by which
clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import re2

from odradek.metadata_quorum.config.config_defs import InvalidConfiguration, client_metrics_defs
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["INTERVAL_MS_MAX", "INTERVAL_MS_MIN", "Pattern", "parse_patterns", "validate_client_metrics"]

INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000

_MATCHED = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)
_QUIET = re2.Options()
_QUIET.log_errors = False


class Pattern(Protocol):
    """The interface of a compiled re2 pattern, since re2 has no type hints.

    Clients choose the texts that are matched. re2 is used because it matches any text in linear time.
    """

    def fullmatch(self, text: str, /) -> object | None: ...


def validate_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    """Check the configuration of a client metrics subscription.

    Raises `KafkaError` INVALID_REQUEST, or `ConfigError` for a malformed value.
    """
    invalid = ErrorCode.INVALID_REQUEST
    if not name:
        raise KafkaError(invalid, "Subscription name can't be empty")
    for key in configs:
        if key not in client_metrics_defs():
            raise KafkaError(invalid, f"Unknown client metrics configuration: {key}")
    values = {key: client_metrics_defs()[key].parse(text) for key, text in configs.items()}
    interval = values.get("interval.ms")
    if isinstance(interval, int) and not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
        raise KafkaError(
            invalid,
            f"Invalid value {interval} for interval.ms, interval must be between {INTERVAL_MS_MIN} and "
            f"{INTERVAL_MS_MAX} (1 hour)",
        )
    patterns = values.get("match")
    if isinstance(patterns, list):
        parse_patterns(patterns)


def parse_patterns(texts: Iterable[str]) -> dict[str, Pattern]:
    """Parse the patterns of `match`. The result maps the name of each client property to the pattern for its
    value.

    As in Kafka, a later pattern for the same property replaces an earlier one. Raises `InvalidConfiguration`.
    """
    return dict(map(_parsed, texts))


def _parsed(text: str) -> tuple[str, Pattern]:
    parameter, *expressions = text.split("=")
    refused = InvalidConfiguration("match", text, f"Illegal client matching pattern: {text}")
    if len(expressions) != 1 or not expressions[0] or parameter.strip() not in _MATCHED:
        raise refused
    try:
        pattern: Pattern = re2.compile(expressions[0].strip(), _QUIET)
    except re2.error:
        raise refused from None
    return parameter.strip(), pattern
