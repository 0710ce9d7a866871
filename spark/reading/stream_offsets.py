"""The position of a streaming query, as Spark writes it into the checkpoint. PURE.

The offsets of each topic's partitions look as the JVM connector's (`{"flights": {"0": 23, "1": 5}}`), so that a
query can go on from its checkpoints. Beside them stand, under names that no topic can have:

* `@id`: the topics' ids. A topic of the same name with another id is another topic;
* `@epoch`: the leader epoch that each offset was seen in, by which a truncated log is known (KIP-320);
* `@group`: the consumer group that hears of committed offsets;
* `@initial`: this is where the query starts for the first time. Spark asks for it more than once and does not keep it;
* `@from`: in the end of the first batch, where that batch starts. Spark keeps ends alone, so a start that cannot be
  asked for again (`latest`) is kept with the end. So after a crash in the first batch the same records are read,
  whatever came since.

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
    """The position of a streaming query: offsets by partition, and the facts by which a changed log is known."""

    offsets: dict[TopicPartition, int]
    topic_ids: dict[str, bytes] = attrs.field(factory=dict)
    epochs: dict[TopicPartition, int] = attrs.field(factory=dict)
    group: str | None = None
    is_initial: bool = False
    begun: dict[TopicPartition, int] | None = None
    """The offsets at which the first batch starts; `@from` in JSON."""

    def topic_id(self, topic: str) -> bytes:
        """Return the topic's id; zero where it is not known."""
        return self.topic_ids.get(topic, NO_TOPIC_ID)

    def to_json(self) -> dict[str, Any]:
        """Make the JSON object that Spark gets. Equal offsets give equal objects."""
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
        """Parse a position. Raises `ReadError` for JSON that neither we nor the JVM connector have written."""
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
