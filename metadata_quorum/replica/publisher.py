"""The publication of committed metadata images to the parts of a node: by replay of the log, or from the active
controller. PORTED.

A node has one image in memory. While the node is the active controller, the committed states of the
controller's state machine are published. Otherwise `replay` reads committed batches, and a worker builds the
next image. `take_over` and `image` pass the image between the state machine and `replay`. Both of these
replay the same log, so subscribers notice no difference.

Subscribers get every image once, in order, with its changes. When a leader's snapshot is loaded, subscribers
get one image, with its difference from the previous image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from odradek.env.pausing import pause
from odradek.env.ports import Env, Event, Workers
from odradek.metadata_quorum.image.image_builder import ImageBuilder, Interned
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.ports import MetadataLogCorrupt, StoredSnapshot
from odradek.metadata_quorum.replica.metadata_batches import MetadataBatch, read_batches
from odradek.metadata_quorum.replica.turns import Turns
from odradek.named_states import reached

__all__ = ["MetadataPublisher", "Observer"]

K = TypeVar("K")

READ_BYTES = 1 << 20

Observer = Callable[[MetadataImage, MetadataDelta], None]
CommittedObserver = Callable[[MetadataImage, int, int], None]
"""A function that is called with an image, the number of log bytes since the previous image, and the newest
timestamp in these bytes.
"""


class MetadataPublisher:
    """The publisher of a node.

    The image has all records below `next_offset`, where the next replay begins.
    """

    def __init__(
        self,
        cluster_id: str,
        read_committed: Callable[[int, int], bytes],
        reading: Turns,
        workers: Workers,
    ) -> None:
        """`read_committed(offset, bytes_max)` returns complete batches below the high watermark.

        This function is called while the lock `reading` is held.
        """
        self.image = MetadataImage.empty(cluster_id)
        self.next_offset = 0
        self._cluster_id = cluster_id
        self._read_committed = read_committed
        self._reading = reading
        self._workers = workers
        self._interned = Interned()
        self._builder = ImageBuilder(self.image, self._interned)
        self._observers: list[Observer] = []
        self.on_committed: CommittedObserver | None = None
        self._published = 0
        self._waiting: list[tuple[int, Event]] = []
        """Tasks that wait for an image: the offset that the image must include, and the event to set."""

    @property
    def in_transaction(self) -> bool:
        """True if the replayed part of the log ends within an open metadata transaction."""
        return self._builder.in_transaction

    def subscribe(self, observer: Observer) -> None:
        self._observers.append(observer)

    async def replay(self, high_watermark: int, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Replay committed batches below `high_watermark`, and publish the images. The replay ends early if
        `is_stopping` returns True.

        Raises `KafkaError` OFFSET_OUT_OF_RANGE if a snapshot has replaced the next batches,
        `MetadataLogCorrupt`, `InvalidMetadata`, `DiskError`.
        """
        while self.next_offset < high_watermark and not is_stopping():
            async with self._reading:
                image, delta, size, timestamp_ms = await self._workers.run(self._replay_some)
            if image is not None:
                self.publish(image, delta, size, timestamp_ms)

    def _replay_some(self) -> tuple[MetadataImage | None, MetadataDelta, int, int]:
        """Replay the next piece of the log.

        Blocks. Returns the image (None while a metadata transaction is open), its changes, the number of
        bytes that were replayed, and the newest timestamp in them.
        """
        data = self._read_committed(self.next_offset, READ_BYTES)
        if not data:
            raise MetadataLogCorrupt(f"the metadata log has no readable batch at offset {self.next_offset}")
        timestamp_ms = 0
        for batch in read_batches(data, source=f"metadata log from offset {self.next_offset}"):
            if batch.last_offset < self.next_offset:
                continue
            pause()
            self._replay_batch(batch)
            timestamp_ms = max(timestamp_ms, batch.timestamp_ms)
            self.next_offset = batch.last_offset + 1
        if self._builder.in_transaction:
            reached("quorum.image_waits_for_transaction")
            return None, MetadataDelta(), len(data), timestamp_ms
        return *self._builder.build(), len(data), timestamp_ms

    def _replay_batch(self, batch: MetadataBatch) -> None:
        for offset, record in enumerate(batch.records, batch.base_offset):
            if offset < self.next_offset:
                continue
            if batch.is_control or record is None:
                self._builder.advance(offset, batch.epoch)
            else:
                self._builder.replay(offset, record, batch.epoch)

    def publish(
        self, image: MetadataImage, delta: MetadataDelta, size: int = 0, timestamp_ms: int = 0
    ) -> None:
        """Publish the next image to all subscribers. `size` is the number of log bytes since the previous
        image.
        """
        self.image = image
        self._published += 1
        for observer in self._observers:
            observer(image, delta)
        if self.on_committed is not None:
            self.on_committed(image, size, timestamp_ms)
        if self._waiting:
            for offset, event in self._waiting:
                if offset <= image.offset:
                    event.set()

    async def image_reaches(self, offset: int, env: Env, deadline: float) -> bool:
        """Wait until an image with the record at `offset` is published. Returns False if the deadline passes
        first.
        """
        place = (offset, env.event())
        self._waiting.append(place)
        try:
            with env.clock.timeout_at(deadline):
                while self.image.offset < offset:
                    await place[1].wait()
        finally:
            self._waiting.remove(place)
        return self.image.offset >= offset

    def take_over(self, image: MetadataImage, next_offset: int) -> None:
        """Continue from an image that is already published, and that has all records below `next_offset`."""
        self.image = image
        self.next_offset = next_offset
        self._builder = ImageBuilder(image, self._interned)

    async def load(self, stored: StoredSnapshot) -> None:
        """Load a snapshot that replaces all batches replayed so far, and publish its image.

        Raises `InvalidMetadata`.
        """
        image, delta = await self._workers.run(self._loaded, self.image, stored)
        self.take_over(image, stored.end_offset)
        self.publish(image, delta)

    def _loaded(self, before: MetadataImage, stored: StoredSnapshot) -> tuple[MetadataImage, MetadataDelta]:
        image = self._image_of(stored)
        pause()
        return image, difference(before, image)

    def _image_of(self, stored: StoredSnapshot) -> MetadataImage:
        builder = ImageBuilder(MetadataImage.empty(self._cluster_id), self._interned)
        for record in stored.contents.records:
            builder.replay(stored.end_offset - 1, record, stored.epoch)
        builder.advance(stored.end_offset - 1, stored.epoch)
        return builder.build()[0]

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: the number of published images, their offsets, and the number of
        callers that wait for an image.
        """
        return {
            "images": self._published,
            "offset": self.image.offset,
            "next_offset": self.next_offset,
            "waiting": len(self._waiting),
        }


def difference(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Compute all changes from `before` to `after`, for a subscriber that gets no image in between."""
    deleted = {
        topic_id: topic
        for topic_id, topic in _sorted_items(before.topics_by_id)
        if topic_id not in after.topics_by_id
    }
    changed = {}
    created = []
    for name, topic in _sorted_items(after.topics):
        known = before.topics_by_id.get(topic.topic_id)
        if known is None:
            created.append(name)
            changed[name] = tuple(topic.partitions)
        elif known is not topic:
            numbers = tuple(
                number
                for number, partition in topic.partitions.items()
                if known.partitions.get(number) != partition
            )
            if numbers:
                changed[name] = numbers
    brokers = {**before.brokers, **after.brokers}
    configs = sorted(
        dict.fromkeys(
            [*before.configs, *after.configs, *before.unreadable_configs, *after.unreadable_configs]
        )
    )
    return MetadataDelta(
        deleted,
        changed,
        tuple(created),
        tuple(each for each in sorted(brokers) if before.brokers.get(each) != after.brokers.get(each)),
        tuple(
            each
            for each in configs
            if before.configs.get(each) != after.configs.get(each)
            or before.unreadable_configs.get(each) != after.unreadable_configs.get(each)
        ),
        before.features != after.features,
        before.access != after.access,
        _changed_keys(before.access.acls, after.access.acls),
        _changed_keys(before.access.client_quotas, after.access.client_quotas),
    )


def _changed_keys(before: Mapping[K, Any], after: Mapping[K, Any]) -> tuple[K, ...]:
    return tuple(each for each in dict.fromkeys([*before, *after]) if before.get(each) != after.get(each))


def _sorted_items(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return [(key, mapping[key]) for key in sorted(mapping)]
