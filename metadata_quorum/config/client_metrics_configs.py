"""Client metrics subscriptions as configurations (KIP-714): they are stored and described, but no metrics are collected."""

from __future__ import annotations

import re
from collections.abc import Mapping

from odradek.metadata_quorum.config.config_defs import InvalidConfiguration, client_metrics_defs
from odradek.wire.errors import ErrorCode, KafkaError

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


def validate_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    """Check a subscription. Raises `KafkaError` INVALID_REQUEST, or `ConfigError` for a value of the wrong form."""
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
    for pattern in patterns if isinstance(patterns, list) else ():
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    parameter, *expressions = pattern.split("=")
    sound = len(expressions) == 1 and expressions[0] and parameter.strip() in _MATCHED
    if sound:
        try:
            re.compile(expressions[0].strip())
        except (re.error, RecursionError, OverflowError):
            sound = False
    if not sound:
        raise InvalidConfiguration("match", pattern, f"Illegal client matching pattern: {pattern}")
