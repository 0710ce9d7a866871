"""Counts the work of decoders, so that hostile values cost bounded time. PURE.

A step is a value, a character of a name, 32 bytes of a text, or 8 bytes of a large JSON document. The limit of a value
depends on how it is shown: lists have many values. A stream has a limit of its own for all of its values.
"""

from __future__ import annotations

import attrs

from odradek.console.decoding.decoded import DecodingError

__all__ = ["STREAM_STEPS_MAX", "Steps", "may_parse_json", "steps_for"]

STEPS_MAX = 2_000_000
"""The most steps for a value that is shown as a whole."""
LISTED_STEPS_MAX = 200_000
"""The most steps for a value of which a list, or a filter, takes the beginning."""
STREAM_STEPS_MAX = 20_000_000
_LISTED_CHARACTERS_MAX = 1 << 16
_BYTES_SHIFT = 5
_JSON_SHIFT = 3
_SMALL_JSON_BYTES = 1 << 16
"""The bytes of a JSON document that costs no steps: a list has a thousand of them at most."""


@attrs.define
class Steps:
    """The steps that are left for a value, or for a stream."""

    left: int = STEPS_MAX
    reason: str = "the value is too large to show"
    stream: Steps | None = None
    """The steps of the stream that this value belongs to."""

    def spend(self, count: int) -> None:
        """Spend steps. Raises `DecodingError` if there are not so many."""
        self.left -= count
        if self.left < 0:
            raise DecodingError(self.reason)
        if self.stream is not None:
            self.stream.spend(count)

    def spend_bytes(self, count: int) -> None:
        """Spend the steps for bytes that are copied. Raises `DecodingError` if there are not so many."""
        self.spend(count >> _BYTES_SHIFT)


def may_parse_json(stream: Steps | None, size: int) -> bool:
    """True if a stream may parse so many bytes of JSON. Their steps are spent then. None stands for no stream."""
    if stream is None or size <= _SMALL_JSON_BYTES:
        return True
    count = size >> _JSON_SHIFT
    if count > stream.left:
        return False
    stream.spend(count)
    return True


def steps_for(characters_max: int, stream: Steps | None = None) -> Steps:
    """Return the steps for a value of which so many characters are shown."""
    if characters_max > _LISTED_CHARACTERS_MAX:
        return Steps(stream=stream)
    return Steps(LISTED_STEPS_MAX, "the value is too large to show here: open the record", stream)
