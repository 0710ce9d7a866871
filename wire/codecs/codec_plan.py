"""Makes the plan of a structure at one version: a list of its fields, computed from the metadata of the
structure's class.

The code generators (`codec_decode`, `codec_encode`) go through plans, field by field. The reflective codec
uses no plans. So a mistake in this module becomes a difference between the generated and the reflective
codec.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from odradek.wire.errors import LocalProtocolError
from odradek.wire.structure import Message, Structure, WireField, version_range

FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""For each type of fixed size, its `struct` format (big-endian) and its size in bytes."""

STRING_LENGTH_MAX: Final = 32767
"""The most bytes of a string. Kafka refuses longer strings, even in fields whose compact length could be
greater.
"""


class PlannedField(NamedTuple):
    """One field of a structure, as it is encoded at one version."""

    name: str
    structure: type[Structure] | None
    """The class of the structure, or of an array's elements; None for primitives."""
    type: str
    """The name of a primitive type, or `struct`; for an array, the type of its elements."""
    is_array: bool
    present: bool
    """False if the version does not have the field. Decoding then gives the field its default."""
    nullable: bool
    tag: int
    """The tag of a tagged field; -1 for a field that is encoded at its place among the others."""
    compact: bool
    """True if the field's length is encoded as an unsigned varint of the length plus one."""
    default: Any
    """The default value of a primitive. For a structure this is its class instead, and for an array the type
    `list`.
    """

    @property
    def fixed(self) -> tuple[str, int] | None:
        return None if self.is_array else FIXED.get(self.type)


def _contains(text: str, version: int) -> bool:
    first, last = version_range(text)
    return first <= version <= last


def planned_fields(cls: type[Structure], version: int, flexible: bool) -> list[PlannedField]:
    """List all fields of a structure as they are at `version`, in the order of the constructor's arguments."""
    fields = []
    for attribute in cls.__attrs_attrs__:
        fact: WireField = attribute.metadata["kafka"]
        if isinstance(fact.type, (str, type)):
            is_array, element = False, fact.type
        else:
            is_array, element = True, fact.type[0]
        fields.append(
            PlannedField(
                name=attribute.name,
                structure=None if isinstance(element, str) else element,
                type=element if isinstance(element, str) else "struct",
                is_array=is_array,
                present=_contains(fact.versions, version),
                nullable=_contains(fact.nullable, version),
                tag=fact.tag if _contains(fact.tagged, version) else -1,
                compact=flexible and fact.flexible,
                default=getattr(attribute.default, "factory", attribute.default),
            )
        )
    return fields


def untagged(fields: list[PlannedField]) -> list[PlannedField]:
    """Return the fields that are encoded at their place, without a tag."""
    return [field for field in fields if field.present and field.tag < 0]


def tagged(fields: list[PlannedField]) -> list[PlannedField]:
    """Return the fields that are encoded with a tag, in the order of their tags."""
    return sorted(
        (field for field in fields if field.present and field.tag >= 0), key=lambda field: field.tag
    )


def is_flexible(cls: type[Message], version: int) -> bool:
    """True if this version has compact lengths and tagged fields. Raises LocalProtocolError for unknown
    versions.
    """
    first, last = cls.VALID_VERSIONS
    if not first <= version <= last:
        raise LocalProtocolError(
            f"{cls.__name__} has the versions {first} to {last}, so version {version} cannot be used"
        )
    return cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE


def size_min(cls: type[Structure], version: int, flexible: bool) -> int:
    """Compute the fewest bytes that an encoded structure can have. This bounds the element count of an array
    before the array is read.
    """
    return int(flexible) + sum(
        _field_size_min(f, version, flexible) for f in untagged(planned_fields(cls, version, flexible))
    )


def _field_size_min(field: PlannedField, version: int, flexible: bool) -> int:
    if field.fixed is not None:
        return field.fixed[1]
    if field.is_array:
        return 1 if field.compact else 4
    if field.structure is not None:
        return 1 if field.nullable else size_min(field.structure, version, flexible)
    if field.compact:
        return 1
    return 2 if field.type == "string" else 4


def element_size_min(field: PlannedField, version: int, flexible: bool) -> int:
    """Compute the fewest bytes that an encoded element of an array field can have.

    Raises LocalProtocolError for 0, since the array's bytes would then not bound its count.
    """
    if field.structure is not None:
        size = size_min(field.structure, version, flexible)
    else:
        size = _field_size_min(field._replace(is_array=False), version, flexible)
    if size == 0:
        raise LocalProtocolError(
            f"elements of {field.name} may take no bytes, so their number in a message cannot be bounded"
        )
    return size
