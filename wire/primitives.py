"""Variable-length integers and other primitives, for code that reads or writes bytes outside the codecs.

Readers take a buffer and an offset and return the value and the offset behind it. They raise MalformedMessage at the
end of the buffer, and for numbers longer than their type. Writers append to a bytearray.
"""

from __future__ import annotations

from typing import TypeAlias

from odradek.wire.errors import LocalProtocolError, MalformedMessage

Buffer: TypeAlias = bytes | bytearray | memoryview

UINT32_MAX = 0xFFFFFFFF
INT32_MIN, INT32_MAX = -0x80000000, 0x7FFFFFFF
INT64_MIN, INT64_MAX = -0x8000000000000000, 0x7FFFFFFFFFFFFFFF


def _read_groups(buf: Buffer, offset: int, bits: int) -> tuple[int, int]:
    """Read a varint: groups of seven bits, least significant first, that make a number of at most `bits`
    bits. Returns the number and the offset behind it.
    """
    value = shift = 0
    try:
        while True:
            byte = buf[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise MalformedMessage(f"a variable-length number has more than {bits} bits")
    except IndexError:
        raise MalformedMessage("a variable-length number runs past the end of the bytes") from None
    if value >> bits:
        raise MalformedMessage(f"a variable-length number has more than {bits} bits")
    return value, offset


def read_uvarint(buf: Buffer, offset: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits (1 to 5 bytes). Returns the number and the offset behind it."""
    return _read_groups(buf, offset, 32)


def read_varint(buf: Buffer, offset: int) -> tuple[int, int]:
    """Read a zigzag varint of 32 bits (1 to 5 bytes). Returns the number and the offset behind it."""
    value, offset = _read_groups(buf, offset, 32)
    return (value >> 1) ^ -(value & 1), offset


def read_varlong(buf: Buffer, offset: int) -> tuple[int, int]:
    """Read a zigzag varint of 64 bits (1 to 10 bytes). Returns the number and the offset behind it."""
    value, offset = _read_groups(buf, offset, 64)
    return (value >> 1) ^ -(value & 1), offset


def read_uvarint_rest(buf: Buffer, offset: int, first: int) -> tuple[int, int]:
    """Read the further bytes of an unsigned varint whose `first` byte had its high bit set. Returns the
    number and the offset behind it.

    Raises IndexError at the end of the buffer. The generated decoders read the first byte themselves, and
    turn the IndexError into MalformedMessage.
    """
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UINT32_MAX:
                raise MalformedMessage("a length has more than 32 bits")
            return value, offset
        shift += 7
        if shift > 28:
            raise MalformedMessage("a length has more than 32 bits")


def write_uvarint(w: bytearray, value: int) -> None:
    """Append an unsigned number of at most 32 bits to `w` as a varint."""
    if not 0 <= value <= UINT32_MAX:
        raise LocalProtocolError(f"{value} is not an unsigned number of 32 bits")
    while value > 0x7F:
        w.append(value & 0x7F | 0x80)
        value >>= 7
    w.append(value)


def write_varint(w: bytearray, value: int) -> None:
    """Append a signed number of 32 bits to `w` as a zigzag varint."""
    if not INT32_MIN <= value <= INT32_MAX:
        raise LocalProtocolError(f"{value} is not a number of 32 bits")
    write_uvarint(w, (value << 1) ^ (value >> 31))


def write_varlong(w: bytearray, value: int) -> None:
    """Append a signed number of 64 bits to `w` as a zigzag varint."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise LocalProtocolError(f"{value} is not a number of 64 bits")
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        w.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    w.append(zigzag)


def uvarint_size(value: int) -> int:
    """Compute the number of bytes that `write_uvarint` appends."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_size(value: int) -> int:
    """Compute the number of bytes that `write_varint` appends."""
    return uvarint_size((value << 1) ^ (value >> 31))


def varlong_size(value: int) -> int:
    """Compute the number of bytes that `write_varlong` appends."""
    return uvarint_size((value << 1) ^ (value >> 63))
