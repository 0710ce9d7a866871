"""Writes answers as JSON. PURE.

An attrs object becomes an object with a member for each field. Numbers that JSON lacks (infinity, not a number) are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from odradek.console.shapes.fields import public_name

__all__ = ["encode_document"]

_NAMES: dict[type, tuple[tuple[str, str], ...]] = {}


def encode_document(value: object) -> bytes:
    """Encode an answer of a view as JSON in UTF-8. Raises `TypeError` for a value that no view may return."""
    # Lone surrogates, which no encoding has, would come from a view's bug. They are escaped as JSON allows.
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "replace"
    )


def _plain(value: object) -> object:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    names = _NAMES.get(kind)
    if names is None and attrs.has(kind):
        names = _NAMES[kind] = tuple((each.name, public_name(each.name)) for each in attrs.fields(kind))
    if names is not None:
        return {public: _plain(getattr(value, name)) for name, public in names}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each) for each in value]
    raise TypeError(f"an answer has a value of the type {kind.__name__}, which JSON does not have")
