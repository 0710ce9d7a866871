"""The interface that each client under test implements: transactions, and copying in transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

RECORDS = 100
PARTITIONS = 3
CALL_SECONDS = 20.0
TRANSACTION_TIMEOUT_MS = 30_000


class Fatal(Exception):
    """Raised if this producer cannot continue."""


class Abortable(Exception):
    """Raised if the current transaction must be aborted."""


class Transactor(Protocol):
    """A client's transactional producer, and the consumer group whose offsets it commits.

    It is made with a bootstrap address, a source topic, a target topic, and a name, which becomes the transactional id
    and the group. `timeout_ms` is the transaction timeout. Each call raises `Abortable` or `Fatal`.
    """

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def write(self, partition: int, value: bytes) -> None:
        """Write one record to the target."""
        ...

    def flush(self) -> None:
        """Wait until the outcome of all written records is known. Some clients report it only with the commit."""
        ...

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        """Add the group's offsets, by partition of the source, to the transaction."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def abort(self) -> None:
        """Abort the transaction. A copier then reads again from the committed offsets. Raises only `Fatal`."""
        ...

    def close(self) -> None:
        """Close the client. Its open transaction is left to its successor."""
        ...


class Copier(Transactor, Protocol):
    """A transactor that also reads the source."""

    def subscribe(self) -> None:
        """Become a member of the group."""
        ...

    def poll(self) -> list[tuple[int, int, bytes]]:
        """Return the partition, offset and value of each new record, at most `RECORDS` of them."""
        ...

    def committed(self) -> int:
        """Return the number of records below the group's committed offsets."""
        ...


def say(event: str, about: object) -> None:
    """Print one line for the supervising test."""
    print(event, str(about).replace("\n", " "), flush=True)


@contextmanager
def at_the_last() -> Iterator[None]:
    """Turn `Abortable` into `Fatal` within the block. Wrap an abort with it, since nothing is left to try when an abort
    fails."""
    try:
        yield
    except Abortable as error:
        raise Fatal(f"the abort failed: {error}") from error
