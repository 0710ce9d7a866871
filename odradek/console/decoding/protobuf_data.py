"""Reads Protobuf messages by a compiled schema, within limits.

The runtime of Protobuf limits the depth of a message, and its memory to the size of the bytes. But a name of a
field may be long, and be shown for each of a million tiny messages. So the text is made here, and each
character of a name costs a step.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

from odradek.console.decoding.decoded import DecodingError, Json
from odradek.console.decoding.steps import Steps

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

__all__ = ["read_message_path", "read_protobuf"]

_PATH_MAX = 32
_MOMENTS = ("google.protobuf.Timestamp", "google.protobuf.Duration")


def read_message_path(data: bytes, position: int) -> tuple[list[int], int]:
    """Read the place of the message in its schema, as Confluent's serializers write it before the message.

    Returns the indexes and the position behind them. A single 0 stands for the first message.
    Raises `DecodingError`.
    """
    count, position = _varint(data, position)
    if count == 0:
        return [0], position
    if not 0 < count <= _PATH_MAX:
        raise DecodingError(f"the place of the message has {count} numbers")
    path = []
    for _ in range(count):
        index, position = _varint(data, position)
        path.append(index)
    return path, position


def read_protobuf(message_type: type[Message], data: bytes, steps: Steps | None = None) -> Json:
    """Read one message. Raises `DecodingError` if the bytes do not fit, or the message is too large to show."""
    from google.protobuf.message import DecodeError

    try:
        message = message_type.FromString(data)
    except DecodeError as error:
        raise DecodingError(f"the bytes do not fit the Protobuf schema: {error}") from None
    return _Writer(steps or Steps()).message(message)


def _moment(message: Message) -> str | None:
    """Write a moment or a duration as ISO 8601. None: it is beyond the calendar, or the schema defines it otherwise."""
    try:
        return str(message.ToJsonString())
    except (ValueError, OverflowError, TypeError, AttributeError):
        return None


class _Writer:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def message(self, message: Message) -> Json:
        self._steps.spend(1)
        # A field may have the name of a method, so methods are those of the class.
        message_type = type(message)
        if message_type.DESCRIPTOR.full_name in _MOMENTS:
            moment = _moment(message)
            if moment is not None:
                return moment
        found: dict[str, Json] = {}
        for field, value in message_type.ListFields(message):
            self._steps.spend(len(field.name))
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                entry = field.message_type.fields_by_name["value"]
                found[field.name] = {self._name(key): self._single(entry, value[key]) for key in value}
            elif field.is_repeated:
                found[field.name] = [self._single(field, each) for each in value]
            else:
                found[field.name] = self._single(field, value)
        return found

    def _name(self, key: str | int | bool) -> str:
        name = key if isinstance(key, str) else str(key).lower()
        self._steps.spend(len(name))
        return name

    def _single(self, field: FieldDescriptor, value: Message | bytes | str | bool | int | float) -> Json:
        self._steps.spend(1)
        if isinstance(value, bytes):
            self._steps.spend_bytes(len(value))
            return b64encode(value).decode()
        if isinstance(value, str):
            self._steps.spend_bytes(len(value))
            return value
        if field.enum_type is not None and isinstance(value, int):
            symbol = field.enum_type.values_by_number.get(value)
            self._steps.spend(0 if symbol is None else len(symbol.name))
            return value if symbol is None else str(symbol.name)
        if isinstance(value, bool | int | float):
            return value
        return self.message(value)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise DecodingError("the place of the message is cut off or too long")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
