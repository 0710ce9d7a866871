"""A broker's own configuration for its log directories: retired and cordoned paths, and the rate of copies
between directories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.cli.connecting import call_failure

if TYPE_CHECKING:
    from odradek.client.admin import AlterConfig, LogDirDescription
    from odradek.client.shells.blocking import Client

__all__ = [
    "CORDONED_KEY",
    "RATE_KEY",
    "CopyThrottle",
    "append",
    "broker_configs",
    "cordoned_paths",
    "is_no_throttle",
    "listed_paths",
    "put_rate_back",
    "replace",
    "set_broker_configs",
    "subtract",
]

RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
CORDONED_KEY = "cordoned.log.dirs"
_NO_RATE = "none"


def broker_configs(client: Client, broker: int) -> dict[str, str]:
    """Read a broker's configuration keys that concern directories; a key without a value is empty. Raises `CliError`."""
    from odradek.client.admin import ConfigResource, ResourceType
    from odradek.serving.disk_troubles import RATE_BEFORE, RELEASED_LOG_DIRS, RETIRING_LOG_DIRS

    keys = [CORDONED_KEY, RETIRING_LOG_DIRS, RELEASED_LOG_DIRS, RATE_KEY, RATE_BEFORE]
    keys += ["log.dirs", "log.dir", "metadata.log.dir"]
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    (described,) = client.admin.describe_configs([resource], keys)
    if described.error is not None:
        raise call_failure(described.error)
    return {entry.name: entry.value or "" for entry in described.entries}


def set_broker_configs(client: Client, broker: int, changes: Sequence[AlterConfig]) -> None:
    """Change dynamic configuration values of a broker, all or none. Raises `KafkaError`."""
    from odradek.client.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.BROKER, str(broker))
    for _, error in client.admin.incremental_alter_configs({resource: list(changes)}):
        if error is not None:
            raise error


def append(key: str, path: str) -> AlterConfig:
    """Make the change that adds a path to the list `key`. The controller edits the list, because another
    command may change it at the same time.
    """
    from odradek.client.admin import AlterConfig, ConfigOperation

    return AlterConfig(key, path, ConfigOperation.APPEND)


def subtract(key: str, path: str) -> AlterConfig:
    """Make the change that removes a path from the list `key`."""
    from odradek.client.admin import AlterConfig, ConfigOperation

    return AlterConfig(key, path, ConfigOperation.SUBTRACT)


def replace(key: str, value: str | None) -> AlterConfig:
    """Make the change that sets `key` to a new value; None resets the key to its default."""
    from odradek.client.admin import AlterConfig, ConfigOperation

    if value is None:
        return AlterConfig(key, operation=ConfigOperation.DELETE)
    return AlterConfig(key, value)


def listed_paths(text: str) -> list[str]:
    """Parse a list of paths, separated by commas."""
    return [path.strip() for path in text.split(",") if path.strip()]


def cordoned_paths(configs: Mapping[str, str], disks: Sequence[LogDirDescription]) -> list[str]:
    """List the directories that get no new replicas; `*` stands for all directories."""
    listed = listed_paths(configs.get(CORDONED_KEY, ""))
    return [disk.path for disk in disks] if listed == ["*"] else listed


def is_no_throttle(rate: str | None) -> bool:
    """True if the rate is the default, which does not limit copies."""
    return rate in (None, "", str((1 << 63) - 1))


def put_rate_back(client: Client, broker: int, configs: Mapping[str, str]) -> None:
    """Restore the broker's rate of copies to its value before the first `--throttle`. If another command with
    `--throttle` still runs, it sets its own rate again. Raises `KafkaError`.
    """
    before = configs.get(_before_key())
    if before:
        rate = replace(RATE_KEY, None if is_no_throttle(before) or before == _NO_RATE else before)
        set_broker_configs(client, broker, [rate, replace(_before_key(), None)])


class CopyThrottle:
    """The rate of copies between directories that a command sets until it ends.

    The broker has one rate. Several commands may set it at the same time, and one of them may be killed. So the rate
    that was set before the first of these commands is kept in the broker's configuration (`RATE_BEFORE`). When a
    command ends while its own rate is in force, it restores the kept rate. Other running commands notice this within a
    second, and set their own rates again.
    """

    def __init__(self, client: Client, broker: int, rate: int | None) -> None:
        """`rate` is in bytes per second; None leaves the broker's rate unchanged."""
        self._client = client
        self._broker = broker
        self._rate = None if rate is None else str(rate)

    def begin(self) -> None:
        """Set the rate of this command. Raises `KafkaError`."""
        if self._rate is not None:
            self._set(broker_configs(self._client, self._broker))

    def hold(self) -> None:
        """Set this command's rate again if another command has restored the former rate. Raises `KafkaError`."""
        if self._rate is None:
            return
        configs = broker_configs(self._client, self._broker)
        if not configs.get(_before_key()):
            self._set(configs)

    def end(self) -> None:
        """Restore the former rate, unless another command's rate is in force. Raises `KafkaError`."""
        if self._rate is None:
            return
        configs = broker_configs(self._client, self._broker)
        if configs.get(RATE_KEY) == self._rate:
            put_rate_back(self._client, self._broker, configs)

    def _set(self, configs: Mapping[str, str]) -> None:
        changes = [replace(RATE_KEY, self._rate)]
        if not configs.get(_before_key()):
            changes.append(replace(_before_key(), configs.get(RATE_KEY) or _NO_RATE))
        set_broker_configs(self._client, self._broker, changes)


def _before_key() -> str:
    from odradek.serving.disk_troubles import RATE_BEFORE

    return RATE_BEFORE
