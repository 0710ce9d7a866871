"""The filters of `odradek consume` and of the console: which records are shown, by key, value and headers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odradek.serving.patterns import CompiledPattern

__all__ = ["FilteredRecord", "filter_by", "filter_of", "pattern"]


class FilteredRecord(Protocol):
    """The parts of a record that filters look at."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


Filter = Callable[[FilteredRecord], bool]


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
    return filter_by(key, [(name, value.encode()) for name, value in args.header], args.match)


def filter_by(
    key: bytes | None, headers: Sequence[tuple[str, bytes]], found: CompiledPattern | None
) -> Filter | None:
    """Make a filter by an exact key, exact headers, and a pattern in the value; None if there are no conditions."""
    if key is None and not headers and found is None:
        return None

    def fits(record: FilteredRecord) -> bool:
        if key is not None and record.key != key:
            return False
        if headers and not all(header in record.headers for header in headers):
            return False
        return found is None or (
            record.value is not None and found.search(record.value.decode(errors="replace")) is not None
        )

    return fits
