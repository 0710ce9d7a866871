"""The calls of a transaction, and of a copier, as the tests make them of any client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

RECORDS = 100
PARTITIONS = 3
CALL_SECONDS = 20.0
TRANSACTION_TIMEOUT_MS = 30_000


class Fatal(Exception):
    """This producer can do no more."""


class Abortable(Exception):
    """This transaction can only be aborted."""


class Transactor(Protocol):
    """One client's transactional producer, and the group whose offsets it moves.

    It is made with a bootstrap address, a source, a target, and a name for the transactional id and the group. With
    `timeout_ms`, the coordinator aborts what is open for longer. Each call raises `Abortable` or `Fatal`.
    """

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def write(self, partition: int, value: bytes) -> None:
        """Write one record to the target."""
        ...

    def flush(self) -> None:
        """Wait until all records have their outcome, which the client tells at the latest with the commit."""
        ...

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        """Commit the group's offsets, by partition of the source, with the transaction."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abort(self) -> None:
        """Abort the transaction; one that copies reads again from the committed offsets. Raises `Fatal` alone."""
        ...

    def close(self) -> None:
        """End it; what is open stays to its successor."""
        ...


class Copier(Transactor, Protocol):
    """A transactor that reads the source, too."""

    def subscribe(self) -> None:
        """Become a member of the group."""
        ...

    def poll(self) -> list[tuple[int, int, bytes]]:
        """The partition, offset and value of each record that has come, at most `RECORDS`."""
        ...

    def committed(self) -> int:
        """The number of records behind the group's committed offsets."""
        ...


def say(event: str, about: object) -> None:
    """One line for the program that watches."""
    print(event, str(about).replace("\n", " "), flush=True)


@contextmanager
def at_the_last() -> Iterator[None]:
    """An abort, behind which there is no other way out: raises `Fatal` for `Abortable`."""
    try:
        yield
    except Abortable as error:
        raise Fatal(f"the abort failed: {error}") from error
