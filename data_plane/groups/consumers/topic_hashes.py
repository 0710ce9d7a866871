"""The hash of the topics that a group reads: if it changes, the group's epoch rises. PURE.

It covers what an assignor may look at: id, name, partitions, and the racks of each partition's replicas. It is Kafka 4.3's
hash, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

from odradek.data_plane.groups.consumers.xxh3 import xxh3_64
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage

__all__ = ["TopicHashes"]

_MAGIC = b"\0"
KEPT_MAX = 10_000
"""Topics whose hashes are kept, also such that do not exist. Others are hashed anew each time."""


class TopicHashes:
    """The hashes of topics that groups read, kept as long as a topic's image is the same."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[TopicImage | None, int]] = {}
        self._keeps_all = True
        """False once there were more topics than are kept."""

    def of_group(self, topics: Iterable[str], image: MetadataImage) -> int:
        """Compute the hash of a group that reads these topics, as a signed number. They are named in sorted order;
        topics that do not exist are left out.
        """
        hashes = []
        for name in topics:
            value = self._of_topic(name, image)
            if name in image.topics:
                hashes.append(value)
        if not hashes:
            return 0
        value = xxh3_64(pack(f"<{len(hashes)}Q", *hashes))
        return value - (1 << 64) if value >> 63 else value

    def changed(self, topics: Iterable[str], image: MetadataImage) -> list[str]:
        """List those of the changed topics that a group may read, and whose hash is another than before."""
        changed = []
        for name in topics:
            kept = self._kept.get(name)
            if kept is None:
                if not self._keeps_all:
                    changed.append(name)
                continue
            before = kept[1]
            if self._of_topic(name, image) != before:
                changed.append(name)
        return changed

    def _of_topic(self, name: str, image: MetadataImage) -> int:
        topic = image.topics.get(name)
        kept = self._kept.get(name)
        if kept is not None and kept[0] is topic:
            return kept[1]
        value = 0 if topic is None else xxh3_64(_hashed_bytes(topic, image))
        if kept is not None or len(self._kept) < KEPT_MAX:
            self._kept[name] = (topic, value)
        else:
            self._keeps_all = False
        return value


def _hashed_bytes(topic: TopicImage, image: MetadataImage) -> bytes:
    upper, lower = int.from_bytes(topic.topic_id[:8], "big"), int.from_bytes(topic.topic_id[8:], "big")
    parts = [_MAGIC, pack("<QQ", upper, lower), _text(topic.name), pack("<i", len(topic.partitions))]
    for index in range(len(topic.partitions)):
        parts.append(pack("<i", index))
        racks = {
            broker.rack
            for replica in topic.partitions[index].replicas
            if (broker := image.brokers.get(replica)) is not None and broker.rack is not None
        }
        for rack in sorted(racks):
            parts.append(pack("<i", len(rack.encode("utf-16-le")) // 2) + _text(rack))
    return b"".join(parts)


def _text(text: str) -> bytes:
    """Write a text as Kafka's hash takes it: its UTF-16 units, then their number."""
    units = text.encode("utf-16-le")
    return units + pack("<i", len(units) // 2)
