"""Reads the words of a request into the attrs class of its view's query. PURE.

A word that the query does not have, a word given twice, or a value out of bounds is refused with a sentence.
"""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from odradek.console.shapes.fields import FieldAbout, about_of, public_name
from odradek.console.shapes.view_errors import ViewError

__all__ = ["TEXT_MAX", "NoQuery", "parse_query", "without_none"]

Q = TypeVar("Q")

TEXT_MAX = 1024
"""The greatest number of characters of a text, unless the field says another number."""
_NUMBER = re.compile(r"-?[0-9]{1,19}\Z")
_INT64_MAX = (1 << 63) - 1
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@attrs.frozen
class NoQuery:
    """The query of a view that takes no words."""


def parse_query(query: type[Q], words: Sequence[tuple[str, str]]) -> Q:
    """Make the query from the words of an address: pairs of a name and a value. Raises `ViewError` with status 400."""
    hints = get_type_hints(query)
    fields = {public_name(each.name): each for each in attrs.fields(query)}  # type: ignore[arg-type] # an attrs class
    values: dict[str, str | int | bool] = {}
    for name, text in words:
        field = fields.get(name)
        if field is None:
            raise _refused(name, f"there is no such word; known are {', '.join(sorted(fields)) or 'none'}")
        if field.name in values:
            raise _refused(name, "it is given twice")
        values[field.name] = _value(name, text, without_none(hints[field.name]), about_of(field.metadata))
    for name, field in fields.items():
        if field.default is attrs.NOTHING and field.name not in values:
            raise _refused(name, "it is missing")
    return query(**values)


def without_none(hint: object) -> object:
    """Return the type of a hint such as `int | None` without None."""
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = [each for each in get_args(hint) if each is not type(None)]
        return kind
    return hint


def _value(name: str, text: str, kind: object, about: FieldAbout) -> str | int | bool:
    if kind is bool:
        if text not in _BOOLEANS:
            raise _refused(name, "it is 1 or 0")
        return _BOOLEANS[text]
    if kind is int:
        if not _NUMBER.match(text):
            raise _refused(name, "it is a whole number")
        number = int(text)
        low = -_INT64_MAX - 1 if about.minimum is None else about.minimum
        high = _INT64_MAX if about.maximum is None else about.maximum
        if not low <= number <= high:
            raise _refused(name, f"it is between {low} and {high}")
        return number
    assert kind is str, f"a query has no field of the type {kind}"
    most = TEXT_MAX if about.maximum is None else about.maximum
    if len(text) > most:
        raise _refused(name, f"it is longer than {most} characters")
    if about.choices and text not in about.choices:
        raise _refused(name, f"it is one of {', '.join(about.choices)}")
    # Python's `$` also matches before a line break at the end.
    if about.pattern is not None and not re.fullmatch(about.pattern[1:-1], text):
        raise _refused(name, f"it is {about.text}")
    return text


def _refused(name: str, reason: str) -> ViewError:
    # A hostile name may be long, and is no use in a message.
    return ViewError(400, "INVALID_QUERY", f"the word {name[:64]!r} of the address: {reason}")
