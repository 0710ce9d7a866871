"""The blocking client: the core over non-blocking sockets and a selector, in the caller's thread. SHELL.

Every method runs one operation to its end and returns its result. It raises `odradek.wire.errors.KafkaError`
when a broker answered with an error code, and `odradek.client.errors.ClientError` when no broker answered.
One client serves one thread at a time. Nothing runs between calls. If a broker has closed a connection in the
time between, the next call opens another connection.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.client.core import partition_offsets as offsets
from odradek.client.core.bootstrap import parse_bootstrap
from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore
from odradek.client.core.known_cluster import Cluster
from odradek.client.core.operation import Operation, Task
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.shells.sockets import Sockets
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Client"]

if TYPE_CHECKING:
    from odradek.client.admin.admin_methods import BlockingAdminMethods

T = TypeVar("T")


class Client:
    """A client without a background thread. It is suitable for single requests, and for operations that you
    write yourself.

    `bootstrap` has the addresses of some brokers ("host:port,host:port"). All work is done in the thread that calls a
    method; only one thread at a time may call methods. Use the client as a context manager, or call `close`. Raises
    `ValueError` for a bad address, and `TypeError` for an address that is not a string.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "odradek",
        timeout_ms: int = 30000,
        config: ClientConfig | None = None,
    ) -> None:
        """Make the client. It opens no connection yet. Raises `ValueError` for a bad address in `bootstrap`,
        and `TypeError` if `bootstrap` is not a string.
        """
        if not isinstance(bootstrap, str):
            raise TypeError(
                "Client needs addresses as text, as in Client('127.0.0.1:9092'), not "
                f"{type(bootstrap).__name__} (Producer, Consumer and Admin need a mapping)"
            )
        if config is None:
            timeout = timeout_ms / 1000
            config = ClientConfig(client_id=client_id, request_timeout=timeout, api_timeout=timeout)
        self.timeout = timeout_ms / 1000
        self.core = ClientCore(
            parse_bootstrap(bootstrap), config, random.Random(os.urandom(16)), now=time.monotonic()
        )
        self._sockets = Sockets(self.core)

    @cached_property
    def admin(self) -> BlockingAdminMethods:
        """An object with all methods of `Admin`. It is imported at first use, so that a process that only reads
        starts faster.
        """
        from odradek.client.admin.admin_methods import BlockingAdminMethods

        return BlockingAdminMethods(self.core, self.run)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A second `close` has no effect."""
        self.core.close()
        self._sockets.perform_effects()
        self._sockets.close()

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the core (`odradek.client.core.operation`) to its end, and return its result."""
        self.core.tick(time.monotonic())
        task = self.core.start(operation, time.monotonic())
        try:
            self._run_until_done(task)
        finally:
            if not task.done:
                self.core.abandon(task)
        return task.result()

    def begin(self, operation: Operation[T]) -> Task[T]:
        """Start an operation, and return when its first requests are sent; `finish` waits for its end.

        Its further steps run in `finish`, or in any other call of this client. If an operation will not be finished,
        it must be abandoned (`core.abandon`).
        """
        self.core.tick(time.monotonic())
        task = self.core.start(operation, time.monotonic())
        self._sockets.perform_effects()
        return task

    def finish(self, task: Task[T]) -> T:
        """Wait for the end of an operation that `begin` started, and return its result.

        An answer that arrived in time counts, even if `finish` is called after the deadline.
        """
        self._sockets.handle(self._sockets.select(0))
        try:
            self._run_until_done(task)
        finally:
            if not task.done:
                self.core.abandon(task)
        return task.result()

    def request(self, message: Any, *, node: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send one request message (of `odradek.wire.messages`) to the broker `node` (None: any), and return the
        response.

        Raises `ClientError` if no answer arrives within `timeout_ms`.
        """
        timeout = self.timeout if timeout_ms is None else timeout_ms / 1000
        if node is not None and node not in self.core.cluster.brokers:
            self.metadata([])
        return self.run(request(self.core, message, node=node, timeout=timeout))

    def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """Fetch the metadata of these topics (None: of all) and of the brokers."""
        return self.run(refresh_metadata(self.core, topics, timeout=self.timeout))

    def list_offsets(
        self, wanted: ByPartition[int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, offsets.ListedOffset]:
        """Look up an offset in each partition. `wanted` has a time in milliseconds since 1970, or -2 for the
        start offset, or -1 for the end offset.

        With `isolation_level` 1, only committed records count. Raises `KafkaError` and `ClientError`.
        """
        return self.run(
            offsets.list_offsets(self.core, wanted, timeout=self.timeout, isolation_level=isolation_level)
        )

    # Waiting for sockets

    def _run_until_done(self, task: Task[Any]) -> None:
        self._sockets.perform_effects()
        while not task.done:
            deadline = self.core.next_deadline()
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._sockets.handle(self._sockets.select(wait))
            self.core.tick(time.monotonic())
            self._sockets.perform_effects()
