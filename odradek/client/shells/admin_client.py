"""`Admin`: the blocking client that administers a cluster. It starts a thread. SHELL."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from odradek.client.admin import PartitionLag
from odradek.client.admin.admin_methods import BlockingAdminMethods
from odradek.client.core.client_keys import AdminSettings, merged_properties
from odradek.client.shells.familiar_calls import FamiliarFace
from odradek.client.shells.io_thread import IoThread
from odradek.client.shells.leaving import NothingToLeave, leave_when_dropped

__all__ = ["Admin"]


class Admin(BlockingAdminMethods, FamiliarFace, known_as="Admin"):
    """A client that administers a cluster; its methods may be called from any thread.

    `config` has Kafka's keys, `bootstrap.servers` at least. The keys may also be given as keyword arguments,
    with `_` for `.`. Use the client as a context manager, or call `close`. Raises `ValueError` for a bad
    configuration. A call raises `KafkaError` when a broker answered with an error code, and `ClientError`
    when no broker answered. A call about several items returns the error of each item instead.

        with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
            admin.create_topics([NewTopic("words", partitions=3)])
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keys: Any) -> None:
        """Create the client. It opens no connection yet. Raises `ValueError` for an unknown key or a bad value."""
        self.settings = AdminSettings.from_properties(merged_properties(config, keys))
        self._io = IoThread(
            list(self.settings.bootstrap_servers),
            self.settings.client_config(fail_fast=True),
            "odradek-admin",
        )
        leave_when_dropped(self, self._io, NothingToLeave())
        super().__init__(self._io.core, self._io.run)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all running calls, and close all connections. A second `close` has no effect."""
        self._io.close()

    def describe_group_lag(
        self, group_id: str, *, now_ms: int | None = None, timeout: float | None = None
    ) -> list[PartitionLag]:
        """Describe a group's progress in every partition for which it committed an offset, or that is assigned to a
        member.

        `now_ms` is the present in milliseconds since 1970 (None: by this machine's clock). Raises the `KafkaError` of
        the group, and `ClientError`.
        """
        present = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return super().describe_group_lag(group_id, now_ms=present, timeout=timeout)

    def statistics(self) -> dict[str, int]:
        """Return counters by name: connections, calls in flight and waiting, running operations."""
        with self._io.lock:
            return self._io.core.statistics()
