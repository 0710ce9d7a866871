"""All strings, numbers and lists of a record type by its schema, and values at the bounds of each.

A path names a field: `RegisterBrokerRecord.end_points.host`. A string has at most 32,767 bytes. A number is bounded by
its type. A list has no bound of its own: a request names at most `NAMED_PER_REQUEST_MAX` things.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from odradek.metadata_quorum.controller.limits import NAMED_PER_REQUEST_MAX
from odradek.wire.structure import Structure

STRING_BYTES_MAX = 32_767
PREFIX_CHARACTERS = 64
"""How many ASCII letters each string begins with. A table may replace them by other letters."""
LIST_BOUND = NAMED_PER_REQUEST_MAX
NUMBERS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
WITHOUT_BOUND = ("bool", "uuid", "float64", "bytes")
"""Types that need no test: all values of the first three have the same width, and bytes may fill a frame."""


@attrs.frozen
class Field:
    """One field of a record type."""

    path: str
    kind: str
    """`string`, `list`, or the name of a numeric type."""

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values at the bounds.

        Numbers go from `low - 1` to `high + 1`, strings and lists from `bound - 1` to `bound + 1`. For a list the value
        is its length. Each string comes in letters of one byte, and in letters of two.
        """
        if self.kind == "string":
            for offset in (-1, 0, 1):
                size = STRING_BYTES_MAX + offset
                yield f"bound{offset:+d}", "x" * size
                ascii_bytes = PREFIX_CHARACTERS + size % 2
                two_bytes = "\u00e9" * ((size - ascii_bytes) // 2)
                yield f"bound{offset:+d} in two bytes", "x" * ascii_bytes + two_bytes
        elif self.kind == "list":
            for offset in (-1, 0, 1):
                yield f"bound{offset:+d}", LIST_BOUND + offset
        else:
            low, high = NUMBERS[self.kind]
            for offset in (-1, 0, 1):
                yield f"low{offset:+d}", low + offset
            for offset in (-1, 0, 1):
                yield f"high{offset:+d}", high + offset


def fields_of(cls: type[Structure], prefix: str = "") -> Iterator[Field]:
    """Yield the fields of a record type that have a bound, including fields of nested structures."""
    prefix = prefix or cls.__name__
    for field in attrs.fields(cls):
        kind: Any = field.metadata["kafka"].type
        path = f"{prefix}.{field.name}"
        if isinstance(kind, list):
            yield Field(path, "list")
            kind = kind[0]
            if kind in NUMBERS or kind == "string":
                yield Field(f"{path}[]", kind)
                continue
        if isinstance(kind, type):
            yield from fields_of(kind, path)
        elif kind not in WITHOUT_BOUND:
            assert kind == "string" or kind in NUMBERS, f"{path} has the unknown type {kind}"
            yield Field(path, kind)


def values_at(record: Structure, path: str) -> Iterator[Any]:
    """Return all values that a record has at a path. If the path names a list, return the lengths."""
    names = path.split(".")[1:]
    found: list[Any] = [record]
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        attribute, is_element = name.removesuffix("[]"), name.endswith("[]")
        found = [getattr(each, attribute) for each in found]
        if is_last and not is_element:
            break
        found = [
            one for each in found for one in (each if isinstance(each, list) else [each]) if one is not None
        ]
    for each in found:
        yield len(each) if isinstance(each, list) else each
