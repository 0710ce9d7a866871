"""Changes of a configuration: from the options of a command to one request, for `odradek config set` and `odradek topic
alter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.cli.connecting import call_failure
from odradek.cli.failure import USAGE, CliError

if TYPE_CHECKING:
    from odradek.client.admin import AlterConfig, ConfigResource
    from odradek.client.shells.blocking import Client

__all__ = ["change_config", "changes_of", "once_each"]

Pairs = Sequence[tuple[str, str]]


def changes_of(
    given: Pairs, unset: Sequence[str], append: Pairs = (), subtract: Pairs = ()
) -> list[AlterConfig]:
    """Make the changes that the options give: keys with values, keys to reset, and values of lists to add and to remove.

    Raises `CliError` if a key is given twice.
    """
    from odradek.client.admin import AlterConfig, ConfigOperation

    changes = [AlterConfig(key, value) for key, value in given]
    changes += [AlterConfig(key, operation=ConfigOperation.DELETE) for key in unset]
    changes += [AlterConfig(key, value, ConfigOperation.APPEND) for key, value in append]
    changes += [AlterConfig(key, value, ConfigOperation.SUBTRACT) for key, value in subtract]
    once_each([change.name for change in changes])
    return changes


def once_each(keys: Sequence[str]) -> None:
    """Raise `CliError` if a key occurs twice, since the broker would use only one of its values."""
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise CliError(f"the key {twice} is given more than once: give one change for each key", USAGE)


def change_config(
    client: Client, resource: ConfigResource, changes: Sequence[AlterConfig], *, validate_only: bool
) -> None:
    """Send the changes in one request, which the controller makes together or not at all. Raises `CliError`."""
    ((_, error),) = client.admin.incremental_alter_configs({resource: changes}, validate_only=validate_only)
    if error is not None:
        raise call_failure(error, changes=not validate_only)
