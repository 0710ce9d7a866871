"""The base of all messages: attrs classes whose fields carry the versions in which they are encoded.

Every class in `odradek.wire.messages` is a `Structure`; the top-level ones (a request, a response, a header, a
record) are also a `Message`. A field's wire type and versions are in its attrs metadata, which `kafka(...)` makes.
Both codecs use only this metadata.

`__eq__` and `__repr__` are written here once, for all message classes, so that attrs need not compile them
for each class. attrs compiles only `__init__`, and only when a class is first used (`schema/lazy_attrs.py`).
This saves time: a node loads some 430 classes at its start, but uses only a few dozen of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from odradek.wire.secret_fields import shown

Records: TypeAlias = bytes | bytearray | memoryview
"""The bytes of record batches. A decoder returns a `memoryview` of its buffer. As a *spill*, an encoder also
accepts any object with a length (see `odradek.wire.codec`). Since this type does not include spills, callers pass a
spill through a `cast`.
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
    """The description of one field on the wire, as the generated message classes state it."""

    type: str | type[Structure] | Sequence[str | type[Structure]]
    """The name of a primitive type, or a structure class. For an array, it is a list with the type of the
    elements as its only item.
    """
    versions: str
    nullable: str
    tagged: str
    tag: int
    flexible: bool
    """False if the field has its old encoding even in flexible versions. The only such field is the client id
    in a request's header.
    """


def kafka(
    type: str | type[Structure] | Sequence[str | type[Structure]],
    versions: str,
    *,
    nullable: str = "",
    tagged: str = "",
    tag: int = -1,
    flexible: bool = True,
) -> dict[str, WireField]:
    """Make the attrs metadata of a field. Version ranges stay text (`3+`, `0-2`) until a codec is made for
    the class.
    """
    return {"kafka": WireField(type, versions, nullable, tagged, tag, flexible)}


class UnmadeAttributes:
    """The descriptor for `__attrs_attrs__` of a message class: at the first read, the attrs library makes the
    attributes.
    """

    def __get__(self, instance: object, owner: type[Structure]) -> tuple[Any, ...]:
        return owner._make_attributes()


class Structure:
    """A group of message fields. It compares by value and is mutable, so it is not hashable."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[tuple[Any, ...]]
    _unmade_fields: ClassVar[dict[str, Any]] = {}
    """The attrs fields by name, as declared in the class and in its base classes."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """Let attrs make the real `__init__` of the class, and call it. This runs only once, because the real
        `__init__` then replaces this one.
        """
        cls = type(self)
        cls._make_attributes()
        cls.__init__(self, *values, **named)

    @classmethod
    def _make_attributes(cls) -> tuple[Any, ...]:
        """Let attrs make the attributes and the `__init__` of the class. Returns the attributes.

        Two threads may call this at the same time, because both make equal results.
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
        """Return a copy in which the fields named in `changes` have these values. All other values are shared
        with the original.
        """
        kept = {name: getattr(self, name) for name in self._names() if name not in changes}
        return type(self)(**kept, **changes)

    __hash__ = None  # type: ignore[assignment]  # the interpreter's own way to say "not hashable"

    def __repr__(self) -> str:
        """Show all fields. Hides secrets, because values appear in tracebacks and logs."""
        values = ", ".join(f"{name}={shown(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({values})"

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)


class Message(Structure):
    """A structure that is encoded on its own (a request, a response, a header, a record), in one of its
    versions.
    """

    __slots__ = ()

    API_KEY: ClassVar[int | None]
    """The API key of a request or response; the record type of a metadata or coordinator record; None for
    other messages.
    """
    VALID_VERSIONS: ClassVar[tuple[int, int]]
    """The first and the last version of the message in Kafka 4.3."""
    FLEXIBLE_SINCE: ClassVar[int | None]
    """The first version with compact lengths and tagged fields (KIP-482); None if the message has no such
    version.
    """
    LATEST_VERSION_UNSTABLE: ClassVar[bool]
    """True if the last version is offered only when unstable versions are enabled."""
