"""The position of a streaming query, as it is stored in Spark's checkpoint. PURE.

Offsets have the format of the JVM connector (`{"flights": {"0": 23, "1": 5}}`), so that a query can continue
from the JVM connector's checkpoints. Further facts have names that no topic can have:

* `@id` has the topics' ids. If a topic has another id now, it was deleted and created again.
* `@epoch` has the leader epoch of each offset. It shows whether a log was truncated (KIP-320).
* `@group` is the consumer group for which offsets are committed.
* `@initial` marks the position from which the query starts for the first time. Spark requests this position
  more than once and does not store it.
* `@from` is part of the end of the first batch, and has the start of that batch. Spark stores only ends. A
  start of `latest` would mean another offset after a restart. So the start is stored with the end, and after
  a crash in the first batch, the same records are read again.

Spark treats two offsets as equal if their JSON is equal.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import attrs

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.spark.reading.read_errors import ReadError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["StreamOffset"]


@attrs.frozen
class StreamOffset:
    """The position of a streaming query: the offset of each partition, and the facts with which a changed log is
    detected.
    """

    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, bytes] = attrs.field(factory=dict)
    epochs: dict[TopicPartition, int] = attrs.field(factory=dict)
    group: str | None = None
    is_initial: bool = False
    begun: dict[TopicPartition, int] | None = None
    """The offsets at which the first batch starts (`@from` in JSON); None in all other positions."""

    def topic_id(self, topic: str) -> bytes:
        """Return the topic's id; zero if it is unknown."""
        return self.topic_ids.get(topic, NO_TOPIC_ID)

    def to_json(self) -> dict[str, Any]:
        """Make the JSON object for Spark. Equal positions give equal objects."""
        written: dict[str, Any] = _nested(self.offsets)
        if self.topic_ids:
            ids = {name: base64.b64encode(each).decode() for name, each in self.topic_ids.items()}
            written["@id"] = dict(sorted(ids.items()))
        if self.epochs:
            written["@epoch"] = _nested(self.epochs)
        if self.group is not None:
            written["@group"] = self.group
        if self.is_initial:
            written["@initial"] = True
        if self.begun is not None:
            written["@from"] = _nested(self.begun)
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> StreamOffset:
        """Parse a position. Raises `ReadError` for JSON that neither this source nor the JVM connector has written."""
        try:
            return cls(
                offsets=_flat({name: each for name, each in written.items() if not name.startswith("@")}),
                topic_ids={name: base64.b64decode(each) for name, each in written.get("@id", {}).items()},
                epochs=_flat(written.get("@epoch", {})),
                group=written.get("@group"),
                is_initial=bool(written.get("@initial", False)),
                begun=_flat(written["@from"]) if "@from" in written else None,
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ReadError(
                f"the checkpoint holds offsets that are not of the format odradek: {written!r}"
            ) from error


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, by_partition in nested.items()
        for partition, offset in by_partition.items()
    }
