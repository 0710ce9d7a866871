"""A row of a table of fields: which request leads to a field, and what becomes of it at each bound. Or why none does.

The outcome of a value is one of
* `unsendable`: no request holds it, since the request's own field is as narrow as the record's;
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
"""Makes the requests that lead to a value; what becomes of the last one counts."""


@attrs.frozen
class Sent:
    """A field that requests lead to."""

    make: Make
    outcomes: tuple[str, ...]
    """By value, in the order of `Field.values`: three for a string and a list, six for a number."""
    stored: Callable[[Any], Any] = lambda value: value
    """The value in the record."""
    before: Callable[[Any], Sequence[Message]] = lambda value: ()
    """Records that the log holds already."""


Row: TypeAlias = Sent | str
"""A text says why no request leads to the field."""


def freely(make: Make) -> Sent:
    """A string of a request that is written as it is."""
    return Sent(make, (WRITTEN, WRITTEN, UNSENDABLE))


def refused(code: ErrorCode, make: Make) -> Sent:
    """A string or a list that is refused long before its bound."""
    return Sent(make, (code.name, code.name, UNSENDABLE))


def number(make: Make, low: str, high: str, beyond: str = UNSENDABLE) -> Sent:
    """A number of a request that has the same type: `low` and `high` are the outcomes at either end of its range."""
    return Sent(make, (beyond, low, low, high, high, beyond))


def expected(row: Sent, field: Field) -> list[tuple[str, Any, str]]:
    """Name, value and outcome of each value at a bound."""
    values = list(field.values())
    assert len(values) % len(row.outcomes) == 0, f"{field.path} wants {len(values)} outcomes"
    each = len(values) // len(row.outcomes)
    return [(name, value, row.outcomes[number // each]) for number, (name, value) in enumerate(values)]


def sent(message: Message, version: int | None = None) -> Message | None:
    """A request as it arrives; None where no bytes hold it."""
    chosen = message.VALID_VERSIONS[1] if version is None else version
    try:
        return decode(type(message), chosen, encode(message, chosen))
    except LocalProtocolError:
        return None


def first_error(response: Any) -> str:
    """The first error code in a response, `nothing` if all is well."""
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
    """The fields that lack a row, and the rows of fields that are gone."""
    paths = [field.path for field in fields]
    return [path for path in paths if path not in rows], [path for path in rows if path not in paths]
