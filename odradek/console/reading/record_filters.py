"""The filter of a reader: exact key, exact headers, and a pattern that the value, or the text that is shown for it,
matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from odradek.cli.streams.record_filter import FilteredRecord, filter_by
from odradek.console.shapes.view_errors import ViewError

if TYPE_CHECKING:
    from odradek.console.decoding.decoders import Decoders
    from odradek.serving.patterns import CompiledPattern

__all__ = ["RecordFilter", "record_filter"]

RecordFilter: TypeAlias = "Callable[[FilteredRecord], bool]"
PATTERN_CHARACTERS_MAX = 1000
_SHOWN_CHARACTERS = 1 << 16
"""The characters of the text of a value that the pattern is compared with."""


def record_filter(
    topic: str, pattern: str, key: str | None, headers: Sequence[str], decoders: Decoders
) -> RecordFilter | None:
    """Make the filter; None lets every record pass. A header is `name=value`. Raises `ViewError`.

    The pattern is RE2's, so that the time of a match is bounded. It is compared with the bytes of the value as UTF-8,
    and also with its shown text, if a schema makes that text.
    """
    named = []
    for each in headers:
        name, equals, text = each.partition("=")
        if not equals:
            raise ViewError(400, "INVALID_FILTER", f"the header {each[:100]!r} is not of the form name=value")
        named.append((name, text.encode()))
    compiled = _compiled(pattern) if pattern else None
    exact = filter_by(None if key is None else key.encode(), named, None)
    if compiled is None:
        return exact

    def fits(record: FilteredRecord) -> bool:
        if record.value is None or (exact is not None and not exact(record)):
            return False
        if compiled.search(record.value.decode(errors="replace")) is not None:
            return True
        if not decoders.is_structured(topic, record.value):
            return False
        _, shown = decoders.key_and_value(topic, record.key, record.value, characters_max=_SHOWN_CHARACTERS)
        return compiled.search(shown.text or "") is not None

    return fits


def _compiled(pattern: str) -> CompiledPattern:
    import re2

    from odradek.serving.patterns import compile_pattern

    try:
        return compile_pattern(pattern)
    except (re2.error, ValueError) as error:
        reason = error.args[0] if error.args else "it cannot be read"
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ViewError(
            400, "INVALID_FILTER", f"the filter is not a regular expression of RE2: {shown[:200]}"
        ) from None
