"""The levels of a node's loggers, which can be changed while the node runs (KIP-412).

There is one logger: `root`.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.metadata_quorum.config.config_resources import Operation
from odradek.wire.errors import ErrorCode, KafkaError

ROOT = "root"
LEVELS = {"TRACE": 0, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


class LogLevels:
    """The level from which on lines are logged. As in Kafka, a change lasts until the node stops."""

    def __init__(self, level: str = "INFO") -> None:
        self._level = level

    def described(self) -> dict[str, str]:
        """Return the name of each logger's level, as DescribeConfigs lists them."""
        return {ROOT: self._level}

    def shows(self, severity: int) -> bool:
        """True if lines of this severity (10 debug, 20 info, 30 warning, ...) are logged."""
        return severity >= LEVELS[self._level]

    def alter(self, changes: Iterable[tuple[str, int, str | None]], validate_only: bool) -> None:
        """Apply changes of the form (logger, operation, level): all of them, or none if one is invalid.

        With `validate_only` they are only checked. Raises `KafkaError` with Kafka's messages.
        """
        level = self._level
        for logger, operation, value in changes:
            if operation == Operation.SET:
                if value not in LEVELS:
                    raise KafkaError(
                        ErrorCode.INVALID_CONFIG,
                        f"Cannot set the log level of {logger} to {value} as it is not a supported log level. "
                        f"Valid log levels are {', '.join(sorted(LEVELS))}",
                    )
                self._check_exists(logger)
                level = value
            elif operation == Operation.DELETE:
                self._check_exists(logger)
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
                )
            elif operation in (Operation.APPEND, Operation.SUBTRACT):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource",
                )
            else:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
        if not validate_only:
            self._level = level

    def _check_exists(self, logger: str) -> None:
        if logger != ROOT:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
