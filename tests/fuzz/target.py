"""The parts of a fuzz target: a function that takes any bytes, seeds, and a reader that splits bytes into fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs


@attrs.frozen
class Target:
    """One place where bytes enter.

    `run` returns if the code under test accepts the input, or refuses it with a proper error. It raises any other error
    of that code, and `AssertionError` if a rule of the target is broken.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    """Returns inputs that are valid or nearly so, from which a fuzzer starts. Each run makes them again; none are
    stored."""


@attrs.define
class Input:
    """Reads an input from its front. If bytes are missing, it returns zeros, or fewer bytes than asked for."""

    data: bytes
    position: int = 0

    def byte(self) -> int:
        """Take one byte."""
        value = self.data[self.position] if self.position < len(self.data) else 0
        self.position += 1
        return value

    def short(self) -> int:
        """Take an unsigned number of two bytes."""
        return self.byte() << 8 | self.byte()

    def take(self, count: int) -> bytes:
        """Take `count` bytes, or all that are left."""
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def rest(self) -> bytes:
        """Take all bytes that are left."""
        start, self.position = self.position, len(self.data)
        return self.data[start:]

    @property
    def is_empty(self) -> bool:
        """True if all bytes have been taken."""
        return self.position >= len(self.data)
