"""The base of all messages: attrs classes whose fields carry the versions in which they are encoded.

Every class in `odradek.wire.messages` is a `Structure`; the top-level ones (a request, a response, a header, a
record) are also a `Message`. A field's wire type and versions are in its attrs metadata, which `kafka(...)` makes.
Both codecs use only this metadata.

Comparison and representation are written once here, over the attributes, instead of being compiled into every class
by attrs. What attrs does compile, `__init__`, waits for the first use of a class (`schema/lazy_attrs.py`). A node loads some 430
classes at its start, and needs a few dozen of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from odradek.wire.secret_fields import shown

Records: TypeAlias = bytes | bytearray | memoryview
"""The bytes of record batches. A decoder gives a `memoryview` into its buffer. An encoder also takes any sized object
as a *spill* (see `odradek.wire.codec`), which callers pass through a `cast`.
"""

VersionRange: TypeAlias = tuple[int, int]
ZERO_UUID = bytes(16)
VERSION_END = 32767
NO_VERSIONS: VersionRange = (0, -1)


def version_range(text: str) -> VersionRange:
    """Read Kafka's notation of versions: `3`, `3-7`, `3+`, or `none` (also the empty text) for no version."""
    if text in ("", "none"):
        return NO_VERSIONS
    low, dash, high = text.partition("-")
    if dash:
        return int(low), int(high)
    if text.endswith("+"):
        return int(text[:-1]), VERSION_END
    return int(text), int(text)


class WireField(NamedTuple):
    """The facts about one field on the wire, as the generated source has them."""

    type: str | type[Structure] | Sequence[str | type[Structure]]
    """The name of a primitive, a structure class, or a list with one of these for an array of it."""
    versions: str
    nullable: str
    tagged: str
    tag: int
    flexible: bool
    """False for the one field that keeps its old form in a flexible version: the client id of a request."""


def kafka(
    type: str | type[Structure] | Sequence[str | type[Structure]],
    versions: str,
    *,
    nullable: str = "",
    tagged: str = "",
    tag: int = -1,
    flexible: bool = True,
) -> dict[str, WireField]:
    """Make the attrs metadata of a field; version ranges stay text until a codec is made for the class."""
    return {"kafka": WireField(type, versions, nullable, tagged, tag, flexible)}


class UnmadeAttributes:
    """The `__attrs_attrs__` of a class until attrs makes them, which it does when they are read first."""

    def __get__(self, instance: object, owner: type[Structure]) -> tuple[Any, ...]:
        return owner._make_attributes()


class Structure:
    """A group of fields. It compares by value and is mutable, so it is not hashable."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[tuple[Any, ...]]
    _unmade_fields: ClassVar[dict[str, Any]] = {}
    """The fields by name, as the sources of the class and its bases state them."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """Have attrs make the `__init__` of the class. It replaces this one, and is called at once."""
        cls = type(self)
        cls._make_attributes()
        cls.__init__(self, *values, **named)

    @classmethod
    def _make_attributes(cls) -> tuple[Any, ...]:
        """Give the class the attributes and the `__init__` that attrs makes, and return the attributes.

        Threads may do so at the same time: they make the same.
        """
        import attrs

        body = {"__annotations__": cls.__annotations__, "__module__": cls.__module__}
        made: Any = attrs.define(
            type(cls.__name__, (), body), these=cls._unmade_fields, eq=False, repr=False, slots=False
        )
        attributes: tuple[Any, ...] = made.__attrs_attrs__
        cls.__attrs_attrs__ = attributes
        cls.__init__ = made.__init__  # type: ignore[method-assign]  # see `__init__`
        return attributes

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names())

    def replaced(self, **changes: Any) -> Self:
        """Return a copy of which these fields have other values. The values of all other fields are shared."""
        kept = {name: getattr(self, name) for name in self._names() if name not in changes}
        return type(self)(**kept, **changes)

    __hash__ = None  # type: ignore[assignment]  # the interpreter's own way to say "not hashable"

    def __repr__(self) -> str:
        """Show all fields, but hide secrets, because values appear in tracebacks and logs."""
        values = ", ".join(f"{name}={shown(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({values})"

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)


class Message(Structure):
    """A structure that is encoded by itself, in one of its versions."""

    __slots__ = ()

    API_KEY: ClassVar[int | None]
    """The API key of a request or response, the record type of a metadata or coordinator record, else None."""
    VALID_VERSIONS: ClassVar[tuple[int, int]]
    """The first and the last version of Kafka 4.3."""
    FLEXIBLE_SINCE: ClassVar[int | None]
    """The first version with compact lengths and tagged fields (KIP-482); None when there is no such version."""
    LATEST_VERSION_UNSTABLE: ClassVar[bool]
    """True if the last version is offered only when unstable versions are enabled."""
