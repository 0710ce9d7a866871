"""The async admin client: the operations of `odradek.client.admin` over `AsyncClient`. PORTED.

Trio programs open this client by `odradek.trio.open_admin`. The simulator also runs this client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.client.admin import PartitionLag
from odradek.client.admin.admin_methods import AsyncAdminMethods
from odradek.client.core.client_keys import AdminSettings, merged_properties
from odradek.client.shells.aio import AsyncClient
from odradek.client.shells.familiar_calls import FamiliarFace
from odradek.env.ports import Env, TaskGroup

__all__ = ["AsyncAdmin"]


class AsyncAdmin(AsyncAdminMethods, FamiliarFace, known_as="Admin"):
    """An async client that administers a cluster; its tasks run in `tasks`. `config` has Kafka's keys; keyword
    arguments are the same keys with underscores.

    The client ends when `close` is called or the task group ends. Raises `ValueError` for a bad
    configuration.
    """

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keys: Any
    ) -> None:
        self.settings = AdminSettings.from_properties(merged_properties(config, keys), on_trio=True)
        self._env = env
        client_config = self.settings.client_config(fail_fast=True)
        self.client = AsyncClient(env, tasks, self.settings.bootstrap_servers, client_config)
        super().__init__(self.client.core, self.client.run)

    async def describe_group_lag(
        self, group_id: str, *, now_ms: int | None = None, timeout: float | None = None
    ) -> list[PartitionLag]:
        """Describe a group's progress, as `Admin.describe_group_lag` does. If `now_ms` is None, the present
        time of the client's clock is used.
        """
        present = self._env.clock.wall_ms() if now_ms is None else now_ms
        return await super().describe_group_lag(group_id, now_ms=present, timeout=timeout)

    def close(self) -> None:
        """End all running calls, and close all connections. A second `close` has no effect."""
        self.client.close()
