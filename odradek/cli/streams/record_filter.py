"""The filters of `odradek consume`: which records are printed, by key, value and headers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odradek.serving.patterns import CompiledPattern

__all__ = ["filter_of", "pattern"]


class _Record(Protocol):
    """The parts of a `ConsumerRecord` that filters look at."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


Filter = Callable[[_Record], bool]


def pattern(text: str) -> CompiledPattern:
    """Parse a regular expression of RE2."""
    import re2

    from odradek.serving.patterns import compile_pattern

    try:
        return compile_pattern(text)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be read"
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise argparse.ArgumentTypeError(
            f"{text[:100]!r} is not a regular expression of RE2: {shown}"
        ) from None


def filter_of(args: argparse.Namespace) -> Filter | None:
    """Make the filter that the options of a command describe; None if they let every record pass."""
    key = None if args.key is None else args.key.encode()
    headers = [(name, value.encode()) for name, value in args.header]
    found: CompiledPattern | None = args.match
    if key is None and not headers and found is None:
        return None

    def fits(record: _Record) -> bool:
        if key is not None and record.key != key:
            return False
        if headers and not all(header in record.headers for header in headers):
            return False
        return found is None or (
            record.value is not None and found.search(record.value.decode(errors="replace")) is not None
        )

    return fits
