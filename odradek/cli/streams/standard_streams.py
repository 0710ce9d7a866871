"""Handling of standard streams with a defect: the caller has closed them, their encoding lacks characters, or
they accept no more bytes.

A closed descriptor is replaced by `/dev/null`. Otherwise the next file that this process opens would become a
standard stream. A character that the encoding lacks is written as an escape.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["complain", "give_up", "is_closed", "output_failure", "prepare_streams"]


class _Nowhere(io.TextIOWrapper):
    """A standard stream that the caller has closed (`<&-`, `>&-`): reads return nothing, and writes are dropped."""


def prepare_streams() -> None:
    """Make all three standard streams usable. Call this once, before a command runs."""
    # Replace the streams in the order of their descriptors' numbers, because the system assigns the lowest
    # free number.
    if sys.stdin is None:
        sys.stdin = _Nowhere(io.BufferedReader(io.FileIO(os.devnull, "r")), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return _Nowhere(io.BufferedWriter(io.FileIO(os.devnull, "w")), encoding="utf-8")


def is_closed(stream: TextIO) -> bool:
    """True if the caller has closed this standard stream."""
    return isinstance(stream, _Nowhere)


def give_up(stream: TextIO) -> None:
    """Redirect a stream that accepts no more bytes to `/dev/null`; otherwise the flush at exit would fail."""
    with suppress(io.UnsupportedOperation):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def output_failure(error: OSError) -> str:
    """Describe in one sentence why the output cannot be written."""
    where = "" if error.filename is None else f" ({error.filename})"
    reason = "the device has no space left" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return f"the output cannot be written: {reason}{where}"


def complain(text: str) -> None:
    """Print one line for people on standard error. If the stream accepts no bytes, the line is dropped."""
    from odradek.cli.output import plain

    try:
        print(f"odradek: {plain(text)}", file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)
