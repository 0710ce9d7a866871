"""Closing the connections of principals on all brokers. A command requests this by a new value of a dynamic
configuration. Once a broker has closed the connections, it shows the new value in its configuration.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.cli.failure import CliError

if TYPE_CHECKING:
    from odradek.client.shells.blocking import Client

__all__ = ["disconnect"]

CONFIRMED_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.05


def disconnect(client: Client, principals: Iterable[str], timeout_seconds: float) -> list[int]:
    """Make all brokers close the connections of `principals`. Return the ids of the brokers that have closed
    them.

    The command writes the present time into a dynamic configuration of all brokers. A broker closes the connections in
    the same step in which it adopts this new value. So a broker whose configuration has the new value has closed the
    connections. Raises `CliError` if the configuration of some broker lacks the new value after the time limit.
    """
    from odradek.client.admin import AlterConfig, ConfigResource, ResourceType
    from odradek.metadata_quorum.config.config_defs import DISCONNECT_PREFIX

    value = str(time.time_ns() // 1_000_000)
    keys = [f"{DISCONNECT_PREFIX}{each}" for each in principals]
    changes = {ConfigResource(ResourceType.BROKER, ""): [AlterConfig(key, value) for key in keys]}
    for _, error in client.admin.incremental_alter_configs(changes):
        if error is not None:
            raise error
    brokers = [each.node_id for each in client.admin.describe_cluster().brokers]
    silent = [ConfigResource(ResourceType.BROKER, str(each)) for each in brokers]
    deadline = time.monotonic() + min(timeout_seconds, CONFIRMED_SECONDS_MAX)
    while silent:
        described = client.admin.describe_configs(silent, keys)
        silent = [
            each.resource
            for each in described
            if each.error is not None
            or {entry.name for entry in each.entries if entry.value == value} < set(keys)
        ]
        if silent and time.monotonic() >= deadline:
            names = ", ".join(each.name for each in silent)
            raise CliError(
                f"the change is made, but brokers {names} did not confirm in time that they closed the "
                "connections. An Odradek broker that lags behind closes them later; an Apache Kafka "
                "broker closes none"
            )
        if silent:
            time.sleep(LOOK_SECONDS)
    return brokers
