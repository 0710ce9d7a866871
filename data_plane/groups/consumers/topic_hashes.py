"""The hash of the topics that a group reads, by whose change the group's epoch rises, and the worker that
hashes large topics. PURE.

The hash covers all that an assignor may use: each topic's id, name and partitions, and the racks of each
partition's replicas. It is bit for bit the hash of Kafka 4.3.

The hash of a topic takes 50 us, and 30 us more for each of its partitions. So a worker hashes large topics
before the heartbeat that needs the hash is decided. While a topic's replicas stay the same, its hash is kept,
even if other facts about the topic change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack

import attrs

from odradek.data_plane.groups.consumers.xxh3 import xxh3_64
from odradek.env.pausing import pause
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage

__all__ = ["HashTopics", "TopicHashes"]

_MAGIC = b"\0"
KEPT_MAX = 10_000
"""The most topic names in the cache of hashes. Names of topics that do not exist count, too. The hashes of
further topics are computed each time.
"""


INLINE_UNITS_MAX = 60
"""The most work that one decision spends on hashes, in units: 2 for a topic and 1 for a partition. Work of this
size takes 2 to 3 ms.
"""


@attrs.frozen(eq=False)
class HashTopics:
    """Work for a worker: compute the hashes of these topics."""

    topics: Sequence[TopicImage]
    image: MetadataImage

    def values(self) -> list[tuple[TopicImage, int]]:
        """Compute the hashes. Returns pairs of a topic and its hash."""
        found = []
        for topic in self.topics:
            found.append((topic, xxh3_64(_hashed_bytes(topic, self.image))))
            pause()
        return found


class TopicHashes:
    """A cache of topic hashes.

    An entry is valid while the topic has the same replicas, on brokers with the same racks.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[TopicImage | None, int]] = {}
        self._racks: dict[int, str | None] = {}
        self._before_racks: set[str] = set()
        """Topics that were hashed before the brokers' racks last changed. When such a topic gets a new image,
        its hash is computed again.
        """
        self._keeps_all = True
        """True while the cache has the hash of every topic that groups read; False once it was full."""

    def of_group(self, topics: Iterable[str], image: MetadataImage) -> int:
        """Compute the hash over all topics of a group, as a signed 64-bit number; 0 for a group without topics.

        `topics` must be sorted. Missing topics are skipped.
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
        """Return those of the changed topics whose hash has changed or may have changed.

        A topic that is missing in the cache is left out, because no group reads it. But once the cache was
        too small for all topics that groups read, missing topics are returned as well.
        """
        changed = []
        for name in topics:
            kept = self._kept.get(name)
            if kept is None:
                if not self._keeps_all:
                    changed.append(name)
                continue
            topic = image.topics.get(name)
            if self._is_kept(name, topic):
                continue
            if topic is not None and 2 + len(topic.partitions) > INLINE_UNITS_MAX:
                # The topic is too large to be hashed here, so it may have changed. A worker will hash it
                # before the next heartbeat of a group that reads it.
                changed.append(name)
            elif self._of_topic(name, image) != kept[1]:
                changed.append(name)
        return changed

    def unhashed(self, topics: Iterable[str], image: MetadataImage) -> HashTopics | None:
        """Find the topics that a worker should hash before the decision. Returns None if the topics are few
        enough to be hashed in the decision.
        """
        missing: list[TopicImage] = []
        units = 0
        for name in topics:
            topic = image.topics.get(name)
            if (
                topic is not None
                and not self._is_kept(name, topic)
                and len(self._kept) + len(missing) < KEPT_MAX
            ):
                missing.append(topic)
                units += 2 + len(topic.partitions)
        return HashTopics(missing, image) if units > INLINE_UNITS_MAX else None

    def keep(self, values: Iterable[tuple[TopicImage, int]]) -> None:
        """Store the hashes that a worker has computed."""
        for topic, value in values:
            self._keep(topic.name, topic, value)

    def _keep(self, name: str, topic: TopicImage | None, value: int) -> None:
        self._kept[name] = (topic, value)
        self._before_racks.discard(name)

    def brokers_changed(self, image: MetadataImage) -> None:
        """Update the brokers' racks. The hashes depend on these racks."""
        racks = {each: image.brokers[each].rack for each in image.brokers}
        if racks != self._racks:
            self._racks = racks
            self._before_racks = set(self._kept)

    def _is_kept(self, name: str, topic: TopicImage | None) -> bool:
        """True if the topic's hash is in the cache.

        It stays valid for a new image of the topic with the same replicas.
        """
        kept = self._kept.get(name)
        if kept is None:
            return False
        if kept[0] is not topic:
            if kept[0] is None or topic is None or name in self._before_racks:
                return False
            if not _has_same_replicas(kept[0], topic):
                return False
            self._kept[name] = (topic, kept[1])
        return True

    def _of_topic(self, name: str, image: MetadataImage) -> int:
        topic = image.topics.get(name)
        if self._is_kept(name, topic):
            return self._kept[name][1]
        kept = self._kept.get(name)
        value = 0 if topic is None else xxh3_64(_hashed_bytes(topic, image))
        if kept is not None or len(self._kept) < KEPT_MAX:
            self._keep(name, topic, value)
        else:
            self._keeps_all = False
        return value


def _has_same_replicas(before: TopicImage, after: TopicImage) -> bool:
    if before.topic_id != after.topic_id or len(before.partitions) != len(after.partitions):
        return False
    known = before.partitions
    return all(each.replicas == known[index].replicas for index, each in after.partitions.items())


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
    """Encode a text for the hash as Kafka does: its UTF-16 code units, followed by their number."""
    units = text.encode("utf-16-le")
    return units + pack("<i", len(units) // 2)
