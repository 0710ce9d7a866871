"""The records of coordinators' topics as plain values: what `odradek log dump` shows instead of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wire.metadata_frames import CoordinatorLog

__all__ = ["TRANSACTION_STATES", "decoded_record"]

_LOGS: dict[str, CoordinatorLog] = {"__consumer_offsets": "group", "__transaction_state": "transaction"}
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
"""Kafka's names, in the order of the numbers that records have."""


def decoded_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The fields `record` (its type), `decoded_key` and `decoded_value` (None: a tombstone) of a record in `topic`.

    Records of other topics have none of them. A record of another writer has `undecodable`, the reason.
    """
    log = _LOGS.get(topic)
    if log is None or key is None:
        return {}
    from wire.errors import MalformedMessage
    from wire.metadata_frames import decode_coordinator_key, decode_coordinator_value

    try:
        key_message = decode_coordinator_key(key, log)
        value_message = None if value is None else decode_coordinator_value(key_message, value)
    except MalformedMessage as error:
        return {"undecodable": str(error)}
    told = None if value_message is None else _plain(value_message)
    if told is not None and log == "transaction":
        number = told["transaction_status"]
        if 0 <= number < len(TRANSACTION_STATES):
            told["transaction_status"] = TRANSACTION_STATES[number]
    return {
        "record": type(key_message).__name__.removesuffix("Key"),
        "decoded_key": _plain(key_message),
        "decoded_value": told,
    }


def _plain(value: Any) -> Any:
    """A message's fields by their names; bytes in hexadecimal digits."""
    import attrs

    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value
