"""Reads the lines of a file or of standard input, as many at a time as one read call returns."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from odradek.cli.failure import CliError
from odradek.cli.streams.standard_streams import is_closed

__all__ = ["LINE_BYTES_MAX", "line_source", "lines"]

LINE_BYTES_MAX = 100 << 20
_READ_BYTES = 1 << 20

Read = Callable[[], bytes]


@contextmanager
def line_source(path: str | None) -> Iterator[Read]:
    """Yield a function that reads some bytes of the file, or of standard input (None). At the end of the
    input the function returns b"". Raises `CliError`.
    """
    if path is None and is_closed(sys.stdin):
        raise CliError("standard input is closed, so there is nothing to read (--file reads a file)")
    try:
        file = sys.stdin.buffer if path is None else open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    try:
        descriptor = file.fileno()
    except OSError:
        descriptor = -1  # a stream in memory has no descriptor

    def read() -> bytes:
        try:
            return file.read(_READ_BYTES) if descriptor < 0 else _read(descriptor)
        except OSError as error:
            raise CliError(f"cannot read {path or 'standard input'}: {error.strerror}") from error

    try:
        yield read
    finally:
        if isinstance(file, io.FileIO):
            file.close()


def _read(descriptor: int) -> bytes:
    """Read some bytes; wait if another process has made the descriptor non-blocking. (In that case, Python's
    file objects would wrongly report the end of the file.)
    """
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()


def lines(read: Read, waiting: Callable[[], AbstractContextManager[None]]) -> Iterator[list[bytes]]:
    """Yield whole lines, as many as one read returns: one line from a terminal, up to a mebibyte from a file.

    `waiting` makes a context manager that is entered during each read. Raises `CliError` for a line that is
    too long for a record.
    """
    rest = bytearray()
    count = 0
    while True:
        with waiting():
            data = read()
        if not data:
            break
        rest += data
        end = rest.rfind(b"\n", len(rest) - len(data)) + 1
        if end:
            found = bytes(rest[: end - 1]).split(b"\n")
            del rest[:end]
            count += len(found)
            yield found
        elif len(rest) > LINE_BYTES_MAX:
            raise CliError(f"line {count + 1} is longer than {LINE_BYTES_MAX} bytes")
    if rest:
        yield [bytes(rest)]
