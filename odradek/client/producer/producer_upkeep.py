"""Fetches a producer's id and epoch, and fresh metadata, when they are due. PURE.

Each of the two has a keeper, which runs at most one operation at a time. The keeper's method `keep` starts an operation
if a fetch is due, and returns the time at which the sender must call `keep` again. `news` is called when an operation
has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.operation import Operation, Task
from odradek.client.core.requests import refresh_metadata, request
from odradek.client.errors import UnsupportedByBroker, broker_error, is_retriable
from odradek.wire.messages.init_producer_id import InitProducerIdRequest

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Identity", "IdentityKeeper", "TopicRefresher"]

_NEVER = float("inf")
_TRANSACTION_TIMEOUT_MS = (1 << 31) - 1
"""The transaction timeout that a producer without transactions sends, as in Kafka's clients."""


@attrs.frozen
class Identity:
    """The producer id and epoch that a broker has given to this producer (KIP-98)."""

    producer_id: int
    producer_epoch: int


class _Beside:
    """Runs one operation at a time, concurrently with the sender."""

    def __init__(self, core: ClientCore, news: Callable[[], None]) -> None:
        self._core = core
        self._news = news
        self._task: Task[Any] | None = None

    def _start(self, operation: Operation[Any]) -> float:
        self._task = Task(operation)
        self._task.on_done = self._over
        self._core.adopt(self._task, self._core.now)
        return _NEVER

    def _over(self) -> None:
        task, self._task = self._task, None
        assert task is not None
        error = None
        try:
            task.result()
        except Exception as raised:  # noqa: BLE001 - `_ended` handles every error
            error = raised
        self._ended(error)
        self._news()

    def _ended(self, error: Exception | None) -> None:
        raise AssertionError("a subclass of _Beside must define _ended")


class IdentityKeeper(_Beside):
    """Fetches the producer id when it is needed (KIP-98). `current` is None until the producer id is known.
    `needed` is false if idempotence is off, or the broker does not support it.

    `refused` is called with an error that a repetition cannot solve, `troubled` with any other error.
    """

    def __init__(
        self,
        core: ClientCore,
        news: Callable[[], None],
        *,
        needed: bool,
        timeout: float,
        refused: Callable[[Exception], None],
        troubled: Callable[[Exception], None],
    ) -> None:
        super().__init__(core, news)
        self.current: Identity | None = None
        self.needed = needed
        self._timeout = timeout
        self._refused = refused
        self._troubled = troubled
        self._not_before = 0.0
        self._attempts = 0

    @property
    def missing(self) -> bool:
        """True if the sender must wait, because the producer id is not known yet."""
        return self.needed and self.current is None

    def keep(self) -> float:
        """Start fetching a producer id, unless a fetch is running or must wait for a backoff. Return the time
        at which to call `keep` again.
        """
        if self._task is not None:
            return _NEVER
        if self._not_before > self._core.now:
            return self._not_before
        return self._start(self._ask())

    def _ask(self) -> Operation[None]:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        try:
            response = yield from request(self._core, message, timeout=self._timeout)
        except UnsupportedByBroker:
            self.needed = False
            return
        if response.error_code:
            raise broker_error(response.error_code, None, "producer id")
        self.current = Identity(response.producer_id, response.producer_epoch)

    def _ended(self, error: Exception | None) -> None:
        if error is None:
            self._attempts = 0
        elif is_retriable(error):
            self._not_before = self._core.now + self._core.backoff(self._attempts)
            self._attempts += 1
            self._troubled(error)
        else:
            self._refused(error)


class TopicRefresher(_Beside):
    """Fetches the metadata of the topics that `names` returns: when `wanted` is set, and every `max_age` seconds."""

    def __init__(
        self,
        core: ClientCore,
        news: Callable[[], None],
        *,
        names: Callable[[], list[str]],
        timeout: float,
        max_age: float,
        auto_create: bool,
    ) -> None:
        super().__init__(core, news)
        self.wanted = False
        self._names = names
        self._timeout = timeout
        self._max_age = max_age
        self._auto_create = auto_create
        self._not_before = 0.0
        self._refreshed_at = core.now

    def keep(self) -> float:
        """Start refreshing metadata if that is due. Return the time at which to call `keep` again."""
        core = self._core
        if self._task is not None:
            return _NEVER
        due = self._not_before if self.wanted else self._refreshed_at + self._max_age
        if due > core.now:
            return due
        names = self._names()
        if not names:
            return _NEVER
        self.wanted = False
        self._not_before = core.now + core.backoff(0)
        return self._start(
            refresh_metadata(core, names, timeout=self._timeout, auto_create=self._auto_create)
        )

    def _ended(self, error: Exception | None) -> None:
        if error is None:
            self._refreshed_at = self._core.now
        else:
            self.wanted = True
