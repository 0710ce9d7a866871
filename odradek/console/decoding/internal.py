"""Decodes records of internal topics: committed offsets, groups, transactions; and the markers of transactions."""

from __future__ import annotations

from odradek.cli.coordinator_records import decoded_record
from odradek.console.decoding.decoded import DecodingError, Json
from odradek.wire.batches.transaction_markers import EndMarker

__all__ = ["INTERNAL_TOPICS", "internal_record", "marker_value"]

INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))


def internal_record(topic: str, key: bytes | None, value: bytes | None) -> tuple[Json, Json]:
    """Decode key and value of a record in an internal topic. Raises `DecodingError`."""
    found = decoded_record(topic, key, value)
    if "undecodable" in found:
        raise DecodingError(f"the record cannot be decoded: {found['undecodable']}")
    if not found:
        raise DecodingError(f"records of {topic} have a key, and this one has none")
    decoded_key = {"record": found["record"], **found["decoded_key"]}
    return decoded_key, found["decoded_value"]


def marker_value(marker: EndMarker | None) -> Json:
    """Describe the end marker of a transaction; None is a marker that compaction has removed."""
    if marker is None:
        return {"marker": "removed"}
    return {
        "marker": "abort" if marker.is_abort else "commit",
        "coordinator_epoch": marker.coordinator_epoch,
    }
