"""A second encoder and decoder, which interpret the metadata of the fields. They are written as short as
possible.

Tests compare the generated codecs with this one. On purpose it shares no code with the code generators. It is
slow. When encoding, it refuses every structure that a generated encoder refuses. It also checks more, for
example the size of a UUID.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

from odradek.wire.errors import LocalProtocolError, MalformedMessage
from odradek.wire.primitives import Buffer, read_uvarint, write_uvarint
from odradek.wire.structure import Message, Structure, WireField, version_range

M = TypeVar("M", bound=Message)

_FIXED = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "uuid": struct.Struct(">16s"),
}
_STRING_BYTES_MAX = 32767


def _in(text: str, version: int) -> bool:
    first, last = version_range(text)
    return first <= version <= last


def _flexible(cls: type[Message], version: int) -> bool:
    first, last = cls.VALID_VERSIONS
    if not first <= version <= last:
        raise LocalProtocolError(f"{cls.__name__} has no version {version}")
    return cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE


class _Reader:
    """Reads the values of one message from a buffer, at a moving offset."""

    def __init__(self, buf: Buffer, offset: int, version: int, flexible: bool) -> None:
        self.buf = memoryview(buf)
        self.offset = offset
        self.version = version
        self.flexible = flexible

    def take(self, size: int) -> memoryview:
        if size < 0 or size > len(self.buf) - self.offset:
            raise MalformedMessage("a value is null, or runs past the end of the message")
        start = self.offset
        self.offset += size
        return self.buf[start : self.offset]

    def uvarint(self) -> int:
        value, self.offset = read_uvarint(self.buf, self.offset)
        return value

    def length(self, fact: WireField, width: str) -> int:
        """Read a length or count; -1 stands for null."""
        if self.flexible and fact.flexible:
            return self.uvarint() - 1
        size = struct.calcsize(width)
        return max(-1, int(struct.unpack(f">{width}", self.take(size))[0]))

    def value(self, fact: WireField, kind: str | type[Structure], nullable: bool) -> Any:
        if not isinstance(kind, str):
            if not nullable:
                return self.structure(kind)
            # A null structure is -1 as a plain field, and 0 as a tagged field.
            mark = self.take(1)[0]
            is_null = mark == 0 if _in(fact.tagged, self.version) else mark > 127
            return None if is_null else self.structure(kind)
        if kind in _FIXED:
            return _FIXED[kind].unpack(self.take(_FIXED[kind].size))[0]
        length = self.length(fact, "h" if kind == "string" else "i")
        if length < 0 and nullable:
            return None
        data = self.take(length)
        if kind == "records":
            return data
        if kind == "bytes":
            return bytes(data)
        if length > _STRING_BYTES_MAX:
            raise MalformedMessage("a string is too long")
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as fault:
            raise MalformedMessage(str(fault)) from None

    def field(self, fact: WireField) -> Any:
        nullable = _in(fact.nullable, self.version)
        if isinstance(fact.type, (str, type)):
            return self.value(fact, fact.type, nullable)
        count = self.length(fact, "i")
        if count < 0 and nullable:
            return None
        # Refuse a count above the number of bytes, because every element takes at least a byte.
        if not 0 <= count <= len(self.buf) - self.offset:
            raise MalformedMessage("an array is null or has more elements than the message has bytes")
        return [self.value(fact, fact.type[0], False) for _ in range(count)]

    def structure(self, cls: type[Structure]) -> Any:
        values: dict[str, Any] = {}
        tagged: dict[int, tuple[str, WireField]] = {}
        for attribute in cls.__attrs_attrs__:
            fact: WireField = attribute.metadata["kafka"]
            if not _in(fact.versions, self.version):
                continue
            if _in(fact.tagged, self.version):
                tagged[fact.tag] = attribute.name, fact
            else:
                values[attribute.name] = self.field(fact)
        for _ in range(self.uvarint() if self.flexible else 0):
            tag, size = self.uvarint(), self.uvarint()
            end = self.offset + size
            if tag not in tagged:
                self.take(size)
                continue
            name, fact = tagged[tag]
            values[name] = self.field(fact)
            if self.offset != end:
                raise MalformedMessage(f"the tagged field {name} does not have its stated size")
        return cls(**values)


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def length(self, w: bytearray, fact: WireField, length: int, width: str) -> None:
        """Write a length or count; -1 stands for null."""
        if self.flexible and fact.flexible:
            write_uvarint(w, length + 1)
        else:
            w += struct.pack(f">{width}", length)

    def value(
        self, w: bytearray, fact: WireField, kind: str | type[Structure], nullable: bool, x: Any
    ) -> None:
        if not isinstance(kind, str):
            if nullable:
                null = b"\x00" if _in(fact.tagged, self.version) else b"\xff"
                w += null if x is None else b"\x01"
            if x is not None or not nullable:
                self.structure(w, x)
        elif kind in _FIXED:
            if kind == "uuid" and len(x) != 16:
                raise LocalProtocolError("a UUID must have 16 bytes")
            w += _FIXED[kind].pack(x)
        elif x is None and nullable:
            self.length(w, fact, -1, "h" if kind == "string" else "i")
        else:
            data = x.encode() if kind == "string" else x
            if kind == "string" and len(data) > _STRING_BYTES_MAX:
                raise LocalProtocolError("a string is too long for its field")
            self.length(w, fact, len(data), "h" if kind == "string" else "i")
            w += data

    def field(self, w: bytearray, fact: WireField, x: Any) -> None:
        nullable = _in(fact.nullable, self.version)
        if isinstance(fact.type, (str, type)):
            self.value(w, fact, fact.type, nullable, x)
        elif x is None and nullable:
            self.length(w, fact, -1, "i")
        else:
            self.length(w, fact, len(x), "i")
            for element in x:
                self.value(w, fact, fact.type[0], False, element)

    def structure(self, w: bytearray, message: Structure) -> None:
        default = type(message)()
        tagged: dict[int, tuple[WireField, Any]] = {}
        for attribute in message.__attrs_attrs__:
            fact: WireField = attribute.metadata["kafka"]
            x = getattr(message, attribute.name)
            if not _in(fact.versions, self.version):
                continue
            if not _in(fact.tagged, self.version):
                self.field(w, fact, x)
            elif x != getattr(default, attribute.name):
                tagged[fact.tag] = fact, x
        if not self.flexible:
            return
        write_uvarint(w, len(tagged))
        for tag, (fact, x) in sorted(tagged.items()):
            data = bytearray()
            self.field(data, fact, x)
            write_uvarint(w, tag)
            write_uvarint(w, len(data))
            w += data


def decode(cls: type[M], version: int, buf: Buffer, offset: int = 0, exact: bool = True) -> M:
    """Decode one message, like `odradek.wire.codec.decode`."""
    reader = _Reader(buf, offset, version, _flexible(cls, version))
    message: M = reader.structure(cls)
    if exact and reader.offset != len(buf):
        raise MalformedMessage(f"{len(buf) - reader.offset} unexpected bytes follow the message")
    return message


def encode(message: Message, version: int) -> bytes:
    """Encode one message, like `odradek.wire.codec.encode`."""
    w = bytearray()
    try:
        _Writer(version, _flexible(type(message), version)).structure(w, message)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as fault:
        raise LocalProtocolError(f"{type(message).__name__} version {version}: {fault}") from fault
    return bytes(w)
