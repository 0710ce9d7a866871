"""Keeps a client's metadata up to date: fetches it after its maximum age, after a leader has moved, and for
unknown topics. PURE.

`run` fetches metadata after `metadata.max.age.ms`, when a caller calls `ask` (a leader moved), and when an unknown
topic is needed. After a failure, or while a topic stays unknown, it waits for a backoff before the next request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.client.core.operation import Operation, Signal, Wait
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import ClientError, is_retriable
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["MetadataKeeper"]


class MetadataKeeper:
    """Keeps the metadata of topics up to date.

    `wanted()` returns the topics' names, None for all. `updated()` is called after every answer. `refused(error)` is
    called after an error that a repetition cannot solve.
    """

    def __init__(
        self,
        core: ClientCore,
        news: Signal,
        *,
        wanted: Callable[[], list[str] | None],
        updated: Callable[[], None],
        refused: Callable[[Exception], None],
        max_age: float,
        auto_create: bool = False,
    ) -> None:
        self._core = core
        self._news = news
        self._wanted = wanted
        self._updated = updated
        self._refused = refused
        self._max_age = max_age
        self._auto_create = auto_create
        self._asked = False
        self._fresh_until = 0.0
        self._not_before = 0.0
        self._attempt = 0
        self.last_error: Exception | None = None
        """The error of the last refresh that failed; None before the first failure."""

    def ask(self) -> None:
        """Request fresh metadata, because the current metadata may be out of date."""
        if not self._asked:
            self._asked = True
            self._news.notify()

    def run(self) -> Operation[None]:
        """Fetch metadata whenever needed, until the operation is stopped."""
        core = self._core
        while True:
            wanted = self._wanted()
            if wanted == [] or not self._is_due(wanted):
                until = None if wanted == [] else self._fresh_until
                yield Wait(until=until, signals=[self._news])
                continue
            if core.now < self._not_before:
                yield Wait(until=self._not_before)
                continue
            self._asked = False
            yield from self._refresh(wanted)

    def _is_due(self, wanted: list[str] | None) -> bool:
        if self._asked or self._core.now >= self._fresh_until:
            return True
        return any(name not in self._core.cluster.topics for name in wanted or ())

    def _refresh(self, wanted: list[str] | None) -> Operation[None]:
        core = self._core
        try:
            yield from refresh_metadata(
                core, wanted, timeout=core.config.request_timeout, auto_create=self._auto_create
            )
        except (KafkaError, ClientError) as error:
            self._asked = True
            self.last_error = error
            self._back_off()
            if not is_retriable(error):
                self._refused(error)
            return
        self._fresh_until = core.now + self._max_age
        missing = [name for name in wanted or () if name not in core.cluster.topics]
        if missing or self._asked:
            self._back_off()
        else:
            self._attempt = 0
            self._not_before = core.now + core.backoff(0)
        for name in missing:
            code = core.cluster.topic_errors.get(name)
            if code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                self._refused(KafkaError(code, f"topic {name}: {code.message}"))
        self._updated()
        self._news.notify()

    def _back_off(self) -> None:
        self._not_before = self._core.now + self._core.backoff(self._attempt)
        self._attempt += 1
