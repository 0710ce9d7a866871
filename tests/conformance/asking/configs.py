"""Requests and waits that the cases about configurations share."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.wire.messages import alter_configs as absolute
from odradek.wire.messages import incremental_alter_configs as incremental
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.conformance.asking.talk import Talk

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
ALWAYS_SET = "min.insync.replicas"
"""A key that Kafka's format sets for all brokers. Our format does not, which is a deliberate difference."""
LOGGER, METRICS = BROKER_LOGGER, CLIENT_METRICS
SET, DELETE, APPEND, SUBTRACT = range(4)

Change = tuple[str, int, str | None]
"""A change: key, operation, value."""
Resource = tuple[int, str, Sequence[Change]]


def alter(talk: Talk, *resources: Resource, version: int = 1, validate_only: bool = False) -> None:
    """Send IncrementalAlterConfigs."""
    asked = [
        incremental.AlterConfigsResource(
            kind,
            name,
            [incremental.AlterableConfig(key, operation, value) for key, operation, value in changes],
        )
        for kind, name, changes in resources
    ]
    talk.ask(incremental.IncrementalAlterConfigsRequest(asked, validate_only), version)


def replace(
    talk: Talk,
    *resources: tuple[int, str, Sequence[tuple[str, str | None]]],
    version: int = 2,
    validate_only: bool = False,
) -> None:
    """Send AlterConfigs."""
    asked = [
        absolute.AlterConfigsResource(
            kind, name, [absolute.AlterableConfig(key, value) for key, value in values]
        )
        for kind, name, values in resources
    ]
    talk.ask(absolute.AlterConfigsRequest(asked, validate_only), version)


def has(talk: Talk, kind: int, name: str, **values: str | None) -> None:
    """Wait until the keys have these values, then keep their description. '_' in a name stands for '.'."""
    keys = {key.replace("_", "."): value for key, value in values.items()}
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, list(keys))], True, False)
    talk.ask_until(
        request, 4, lambda found: {each.name: each.value for each in found.results[0].configs} == keys
    )
