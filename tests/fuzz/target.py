"""The parts of a fuzz target: a function that takes any bytes, seeds to begin from, and a reader that splits bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs


@attrs.frozen
class Target:
    """One entrance for bytes.

    `run` returns for every input that the code under test takes or refuses properly. It raises what that code must not
    raise, and `AssertionError` where a rule of the target is broken.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    """Inputs that are valid, or nearly: a fuzzer begins with them. They are made anew at each run, and never kept."""


@attrs.define
class Input:
    """Reads an input from its front. Where bytes are missing it returns zeros, or less than was asked for."""

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
