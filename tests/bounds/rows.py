"""Rows of the tables of fields: which request leads to a field, and its outcome at each bound, or why no request does.

The outcome of a value is one of
* `unsendable`: no request can hold it, since the field of the request is as narrow as that of the record;
* `written`: a record has it;
* an error code, of the request or of the thing in it;
* `nothing`: neither a record nor an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from odradek.wire.codec import decode, encode
from odradek.wire.errors import ErrorCode, LocalProtocolError
from odradek.wire.structure import Message, Structure
from tests.bounds.fields import Field

WRITTEN, UNSENDABLE, NOTHING = "written", "unsendable", "nothing"
Make: TypeAlias = Callable[[Any], Sequence[Any]]
"""Makes the requests that lead to a value. Only the outcome of the last request counts."""


@attrs.frozen
class Sent:
    """A row for a field to which requests lead."""

    make: Make
    outcomes: tuple[str, ...]
    """The outcomes, in the order of `Field.values`: three for a string or a list, six for a number."""
    stored: Callable[[Any], Any] = lambda value: value
    """Returns the value that the record must have, given that of the request."""
    before: Callable[[Any], Sequence[Message]] = lambda value: ()
    """Returns the records that the log holds before the requests."""


Row: TypeAlias = Sent | str
"""A row of a table. A text in place of a `Sent` is the reason why no request leads to the field."""


def freely(make: Make) -> Sent:
    """Make the row of a string or list that a record takes from a request without further checks."""
    return Sent(make, (WRITTEN, WRITTEN, UNSENDABLE))


def refused(code: ErrorCode, make: Make) -> Sent:
    """Make the row of a string or list that is refused long before its bound."""
    return Sent(make, (code.name, code.name, UNSENDABLE))


def number(make: Make, low: str, high: str, beyond: str = UNSENDABLE) -> Sent:
    """Make the row of a number that has the same type in the request.

    `low` is the outcome of the two lowest values of the type, `high` that of the two highest.
    """
    return Sent(make, (beyond, low, low, high, high, beyond))


def expected(row: Sent, field: Field) -> list[tuple[str, Any, str]]:
    """Return name, value and expected outcome of each value at a bound."""
    values = list(field.values())
    assert len(values) % len(row.outcomes) == 0, f"{field.path} wants {len(values)} outcomes"
    each = len(values) // len(row.outcomes)
    return [(name, value, row.outcomes[number // each]) for number, (name, value) in enumerate(values)]


def sent(message: Message, version: int | None = None) -> Message | None:
    """Encode and decode a request, as on its way to a node. Return None if it cannot be encoded."""
    chosen = message.VALID_VERSIONS[1] if version is None else version
    try:
        return decode(type(message), chosen, encode(message, chosen))
    except LocalProtocolError:
        return None


def first_error(response: Any) -> str:
    """Return the name of the first error code in a response, or `nothing` if there is none."""
    if isinstance(response, ErrorCode):
        return response.name if response else NOTHING
    if isinstance(response, (list, tuple)):
        return next((code for code in map(first_error, response) if code != NOTHING), NOTHING)
    if isinstance(response, Structure) or attrs.has(type(response)):
        code = getattr(response, "error_code", getattr(response, "code", 0))
        if code:
            return ErrorCode(code).name
        names = (each.name for each in attrs.fields(type(response)))
        return first_error([getattr(response, name) for name in names])
    return NOTHING


def unaccounted(rows: Mapping[str, Row], fields: Sequence[Field]) -> tuple[list[str], list[str]]:
    """Return the fields that lack a row, and the rows whose fields no longer exist."""
    paths = [field.path for field in fields]
    return [path for path in paths if path not in rows], [path for path in rows if path not in paths]
