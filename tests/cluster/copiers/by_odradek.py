"""Our own producer and consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from odradek import Consumer, Producer
from odradek.client.errors import RequestTimedOut, TransactionAbortableError, TransactionFatalError
from tests.cluster.copiers.api import (
    CALL_SECONDS,
    PARTITIONS,
    RECORDS,
    TRANSACTION_TIMEOUT_MS,
    Abortable,
    Fatal,
    at_the_last,
    say,
)

T = TypeVar("T")


class ByOdradek:
    """Our own clients, which use the second version of the transaction protocol (KIP-890) if the cluster supports it."""

    def __init__(
        self, bootstrap: str, source: str, target: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self.target = target
        self.source = source
        self.keys = [(source, partition) for partition in range(PARTITIONS)]
        self.producer = Producer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self.call(self.producer.init_transactions)
        self.consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            max_poll_records=RECORDS,
        )

    def call(self, make: Callable[[], T]) -> T:
        """Repeat the call until its outcome is known. Raises `Abortable` or `Fatal`."""
        while True:
            try:
                return make()
            except TransactionFatalError as error:
                raise Fatal(f"{error!r} {error.__cause__!r}") from error
            except TransactionAbortableError as error:
                raise Abortable(f"{error!r} {error.__cause__!r}") from error
            except RequestTimedOut as error:
                say("again", error)

    def subscribe(self) -> None:
        self.consumer.subscribe([self.source])

    def poll(self) -> list[tuple[int, int, bytes]]:
        return [(each.partition, each.offset, each.value) for each in self.consumer.poll(0.5)]

    def begin(self) -> None:
        self.call(self.producer.begin_transaction)

    def write(self, partition: int, value: bytes) -> None:
        self.call(lambda: self.producer.send(self.target, value, partition=partition))

    def flush(self) -> None:
        self.producer.flush(CALL_SECONDS)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {(self.source, partition): offset for partition, offset in positions.items()}
        member = self.consumer.group_metadata()
        self.call(lambda: self.producer.send_offsets_to_transaction(offsets, member))

    def commit(self) -> None:
        self.call(self.producer.commit_transaction)

    def abort(self) -> None:
        with at_the_last():
            self.call(self.producer.abort_transaction)
        for key, offset in self._offsets(list(self.consumer.assignment())).items():
            self.consumer.seek(key, offset)

    def _offsets(self, keys: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets, with 0 where there are none."""
        found = self.call(lambda: self.consumer.committed(keys))
        return {key: 0 if (told := found.get(key)) is None else told.offset for key in keys}  # type: ignore[call-overload]

    def committed(self) -> int:
        return sum(self._offsets(self.keys).values())

    def close(self) -> None:
        self.consumer.close()
        self.producer.close(0)
