"""Encodes and decodes three kinds of records that contain messages: metadata, control and coordinator
records. Each kind puts its messages into a frame of its own.

- A metadata record is the value of a record in the metadata log or in a snapshot. It consists of frame
  version (1), record type, message version, and the message. The first three are unsigned varints.
- The key of a control record is an int16 version and an int16 type. Its value is a message. The messages of
  the quorum begin with a field that repeats the version. An end-of-transaction marker has no such field, so
  its version is written before it.
- The key and the value of a coordinator record (in `__consumer_offsets` and `__transaction_state`) each begin
  with an int16. In the key this number is the record type; in the value it is the version of the message.

All decoders raise MalformedMessage. They raise `UnknownRecord` (a MalformedMessage) for types or versions
that Kafka 4.3 does not have.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from struct import Struct
from typing import Final, Literal, TypeAlias

from odradek.wire.codec import decode, encode, encoder
from odradek.wire.errors import LocalProtocolError, MalformedMessage
from odradek.wire.primitives import Buffer, read_uvarint, write_uvarint
from odradek.wire.structure import Message

CoordinatorLog: TypeAlias = Literal["group", "transaction"]
"""The log of group coordinators (`__consumer_offsets`) or of transaction coordinators
(`__transaction_state`). Each log has its own numbers of record types.
"""

_FRAME_VERSION: Final = 1
_INT16: Final = Struct(">h")
_CONTROL_KEY: Final = Struct(">hh")
_GROUP_RECORD_MODULES: Final = ("coordinator_records", "share_group_records", "streams_group_records")


class UnknownRecord(MalformedMessage):
    """Raised for a record type or version that Kafka 4.3 does not have; a newer node may have written it."""


class ControlRecordType(IntEnum):
    """The types of control records. Readers skip records of type UNKNOWN."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_CLASSES: Final = {
    ControlRecordType.ABORT: "EndTxnMarker",
    ControlRecordType.COMMIT: "EndTxnMarker",
    ControlRecordType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlRecordType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlRecordType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlRecordType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlRecordType.KRAFT_VOTERS: "VotersRecord",
}
_CONTROL_TYPES: Final = {name: type_ for type_, name in _CONTROL_CLASSES.items() if name != "EndTxnMarker"}


def _int16(data: Buffer) -> int:
    if len(data) < _INT16.size:
        raise MalformedMessage("the metadata record is cut off inside its version or type")
    return int(_INT16.unpack_from(data, 0)[0])


def _prefixed(prefix: int, message: Message, version: int) -> bytes:
    w = bytearray(_INT16.pack(prefix))
    encoder(type(message), version)(w, message, None)
    return bytes(w)


def encode_metadata_record(record: Message, version: int | None = None) -> bytes:
    """Encode a metadata record in its frame, at `version` or by default at the last version of the message."""
    cls = type(record)
    chosen = record.VALID_VERSIONS[1] if version is None else version
    prefix = _prefixes.get((cls, chosen))
    if prefix is None:
        prefix = _prefixes[cls, chosen] = _metadata_prefix(cls, chosen)
    w = bytearray(prefix)
    encoder(cls, chosen)(w, record, None)
    return bytes(w)


_prefixes: dict[tuple[type[Message], int], bytes] = {}


def _metadata_prefix(cls: type[Message], version: int) -> bytes:
    """Encode the bytes before the message in a metadata record: frame version, type and version."""
    from odradek.wire.messages.metadata_records import RECORDS

    if cls.API_KEY is None or RECORDS.get(cls.API_KEY) is not cls:
        raise LocalProtocolError(f"{cls.__name__} is no metadata record")
    w = bytearray([_FRAME_VERSION])
    write_uvarint(w, cls.API_KEY)
    write_uvarint(w, version)
    return bytes(w)


def decode_metadata_record(data: Buffer) -> Message:
    """Decode the message in a metadata record's value."""
    return decode_versioned_metadata_record(data)[0]


def decode_versioned_metadata_record(data: Buffer) -> tuple[Message, int]:
    """Decode the message in a metadata record's value. Returns the message and its version."""
    frame_version, offset = read_uvarint(data, 0)
    if frame_version != _FRAME_VERSION:
        raise UnknownRecord(f"the metadata record has the unknown frame version {frame_version}")
    api_key, offset = read_uvarint(data, offset)
    version, offset = read_uvarint(data, offset)
    from odradek.wire.messages.metadata_records import RECORDS

    cls = RECORDS.get(api_key)
    if cls is None:
        raise UnknownRecord(f"the metadata record has the unknown type {api_key}")
    return decode(cls, _known_version(cls, version), data, offset), version


def _known_version(cls: type[Message], version: int) -> int:
    first, last = cls.VALID_VERSIONS
    if not first <= version <= last:
        raise UnknownRecord(f"{cls.__name__} has the unknown version {version}")
    return version


def encode_control_record(message: Message, type: ControlRecordType | None = None) -> tuple[bytes, bytes]:
    """Encode key and value of a control record.

    `type` is needed for an EndTxnMarker (COMMIT or ABORT). Every other message has a single type. It is
    encoded at the version that its own version field names.
    """
    name = message.__class__.__name__
    chosen = _CONTROL_TYPES.get(name) if type is None else type
    if chosen is None or _CONTROL_CLASSES.get(chosen) != name:
        raise LocalProtocolError(f"{name} is not the control record of type {type!r}")
    key = _CONTROL_KEY.pack(0, chosen)
    if name == "EndTxnMarker":
        return key, _prefixed(0, message, 0)
    return key, encode(message, getattr(message, "version"))  # noqa: B009  # not every Message has the field


def decode_control_record(key: Buffer, value: Buffer) -> tuple[ControlRecordType, Message | None]:
    """Decode type and message of a control record; returns (UNKNOWN, None) for a type that Kafka 4.3 does not
    have.

    If the key or the message has a newer version, only its known fields are read, as in Kafka.
    """
    if len(key) < _CONTROL_KEY.size:
        raise MalformedMessage("the key of a control record must have at least 4 bytes")
    key_version, number = _CONTROL_KEY.unpack_from(key, 0)
    if key_version < 0:
        raise MalformedMessage(f"the key of a control record has the unknown version {key_version}")
    try:
        type_ = ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN, None
    if type_ is ControlRecordType.UNKNOWN:
        return type_, None
    name = _CONTROL_CLASSES[type_]
    cls: type[Message] = getattr(import_module("odradek.wire.messages.control_records"), name)
    version = _int16(value)
    if version < 0:
        raise MalformedMessage(f"the control record {name} has the unknown version {version}")
    offset = _INT16.size if name == "EndTxnMarker" else 0
    known = min(version, cls.VALID_VERSIONS[1])
    return type_, decode(cls, known, value, offset, exact=known == version)


def _coordinator_class(
    log: CoordinatorLog, table: Literal["KEYS", "VALUES"], record_type: int
) -> type[Message]:
    if log == "transaction":
        from odradek.wire.messages.coordinator_records import TransactionLogKey, TransactionLogValue

        if record_type == TransactionLogKey.API_KEY:
            return TransactionLogKey if table == "KEYS" else TransactionLogValue
    else:
        for name in _GROUP_RECORD_MODULES:
            classes: dict[int, type[Message]] = getattr(import_module(f"odradek.wire.messages.{name}"), table)
            if record_type in classes:
                return classes[record_type]
    raise UnknownRecord(f"the {log} coordinator's record has the unknown type {record_type}")


def encode_coordinator_key(key: Message) -> bytes:
    """Encode a coordinator record's key: record type and message."""
    if key.API_KEY is None:
        raise LocalProtocolError(f"{type(key).__name__} is not a key of a coordinator's record")
    return _prefixed(key.API_KEY, key, 0)


def decode_coordinator_key(data: Buffer, log: CoordinatorLog = "group") -> Message:
    """Decode the message in a coordinator record's key. The message's `API_KEY` is the record type."""
    return decode(_coordinator_class(log, "KEYS", _int16(data)), 0, data, _INT16.size)


def encode_coordinator_value(value: Message, version: int | None = None) -> bytes:
    """Encode a coordinator record's value: the version (by default the message's last) and the message."""
    chosen = value.VALID_VERSIONS[1] if version is None else version
    return _prefixed(chosen, value, chosen)


def decode_coordinator_value(key: Message, data: Buffer) -> Message:
    """Decode the message in a coordinator record's value; `key` is the decoded key of the same record. A
    tombstone has no value to decode.
    """
    if key.API_KEY is None:
        raise LocalProtocolError(f"{type(key).__name__} is not a key of a coordinator's record")
    log: CoordinatorLog = "transaction" if type(key).__name__ == "TransactionLogKey" else "group"
    cls = _coordinator_class(log, "VALUES", key.API_KEY)
    return decode(cls, _known_version(cls, _int16(data)), data, _INT16.size)
