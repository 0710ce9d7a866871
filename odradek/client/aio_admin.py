"""The async administrator: the operations of `admin.py` over `AsyncClient`. PORTED; the simulator runs it.

`odradek.trio.open_admin` opens one in a trio program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.client.admin_methods import AsyncAdminMethods
from odradek.client.aio import AsyncClient
from odradek.client.settings import AdminSettings, merged_properties
from odradek.env.ports import Env, TaskGroup

__all__ = ["AsyncAdmin"]


class AsyncAdmin(AsyncAdminMethods):
    """An administrator whose tasks run in `tasks`; `config` has Kafka's keys, keywords the same with underscores.

    Ends with `close`, or with the task group. Raises `ValueError` for a bad configuration.
    """

    def __init__(
        self, env: Env, tasks: TaskGroup, config: Mapping[str, Any] | None = None, /, **keys: Any
    ) -> None:
        self.settings = AdminSettings.from_properties(merged_properties(config, keys))
        client_config = self.settings.client_config(fail_fast=True)
        self.client = AsyncClient(env, tasks, self.settings.bootstrap_servers, client_config)
        super().__init__(self.client.core, self.client.run)

    def close(self) -> None:
        """End all calls and connections. Safe to call twice."""
        self.client.close()
