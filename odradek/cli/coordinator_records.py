"""Records of coordinators' topics and of the metadata log as plain values, which `odradek log dump` shows instead of
bytes.

Secrets in the metadata log (users' keys, passwords in configurations) stay hidden, as Kafka's own tools hide them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.wire.metadata_frames import CoordinatorLog

__all__ = ["TRANSACTION_STATES", "decoded_record"]

_LOGS: dict[str, CoordinatorLog] = {"__consumer_offsets": "group", "__transaction_state": "transaction"}
METADATA = "__cluster_metadata"
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Kafka's names of transaction states; the index of each is the state's number in records."""


def decoded_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Decode a record in `topic` into the fields `record` (its type), `decoded_key` and `decoded_value`
    (None: a tombstone).

    The result is empty unless `topic` is the metadata log or a topic of a coordinator. If the bytes cannot be
    decoded, the field `undecodable` has the reason.
    """
    if topic == METADATA:
        # A record with a key is a control record. It has no secrets, so it may be shown as it is.
        return {} if value is None or key is not None else _metadata_record(value)
    log = _LOGS.get(topic)
    if log is None or key is None:
        return {}
    from odradek.wire.errors import MalformedMessage
    from odradek.wire.metadata_frames import decode_coordinator_key, decode_coordinator_value

    try:
        key_message = decode_coordinator_key(key, log)
        value_message = None if value is None else decode_coordinator_value(key_message, value)
    except MalformedMessage as error:
        return {"undecodable": str(error)}
    decoded = None if value_message is None else _plain(value_message)
    if decoded is not None and log == "transaction":
        number = decoded["transaction_status"]
        if 0 <= number < len(TRANSACTION_STATES):
            decoded["transaction_status"] = TRANSACTION_STATES[number]
    return {
        "record": type(key_message).__name__.removesuffix("Key"),
        "decoded_key": _plain(key_message),
        "decoded_value": decoded,
    }


def _metadata_record(value: bytes) -> dict[str, Any]:
    """Decode a record of the metadata log. Its bytes are left out of the result, because they contain
    secrets.
    """
    from odradek.wire.errors import MalformedMessage
    from odradek.wire.metadata_frames import UnknownRecord, decode_metadata_record

    try:
        message = decode_metadata_record(value)
    except (MalformedMessage, UnknownRecord) as error:
        return {"undecodable": str(error), "value": None}
    return {
        "record": type(message).__name__.removesuffix("Record"),
        "decoded_key": None,
        "decoded_value": _plain(message),
        "value": None,
    }


def _plain(value: Any) -> Any:
    """Turn a message into plain values: fields by name, bytes in hexadecimal digits, secrets hidden."""
    import attrs

    from odradek.wire.secret_fields import shown

    if attrs.has(type(value)):
        return {field.name: _plain(shown(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value
