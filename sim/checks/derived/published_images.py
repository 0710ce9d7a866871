"""Check of published metadata images: a snapshot of an image gives the image again, and subscribers hear of each change. PURE.

1. The records that a node would write as a snapshot of an image, folded by a model of the metadata log, give the image.
   So the check needs no snapshot at the right moment.
2. The delta that comes with an image names each entry in which the image differs from the one before. A node that has
   loaded a leader's snapshot gets many changes at once, among them removals without a record.
3. The product's own comparison of two images names each difference, as if a snapshot had been loaded. Each node's image
   is compared with an image that is tens of offsets older. Both are exchanged, too, so each addition is also a removal.

An image is checked with the probability `SHARE`, and always if it is `JUMP` offsets or more behind the one before. The
older image is replaced when it is `REACH` offsets behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from random import Random
from typing import TypeVar

from odradek.metadata_quorum.image.image_records import records_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from odradek.metadata_quorum.replica.publisher import difference
from sim.checks.folds.metadata_difference import metadata_difference
from sim.checks.folds.metadata_fold import MetadataFold
from sim.history import SafetyViolation

__all__ = ["PublishedImages"]

K = TypeVar("K")

SHARE = 0.05
JUMP = 25
REACH = 60


class PublishedImages:
    """The check of all nodes' images."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"{seed}/published images")
        self._before: dict[str, MetadataImage] = {}
        self._older: dict[str, MetadataImage] = {}
        self.images_seen = self.jumps_seen = 0

    def begin(self, node: str, image: MetadataImage) -> None:
        """Note the image of a process that has just started."""
        self._before[node] = self._older[node] = image

    def published(self, node: str, image: MetadataImage, delta: MetadataDelta) -> None:
        """Check an image that a node publishes, and what it says of the changes. Raises `SafetyViolation`."""
        before, self._before[node] = self._before[node], image
        if image.offset - before.offset < JUMP and self._random.random() >= SHARE:
            return
        self.images_seen += 1
        fold = MetadataFold()
        fold.take(image.offset, image.epoch, records_of(image))
        difference = metadata_difference(fold, image)
        if difference is not None:
            raise SafetyViolation(
                f"published images: a snapshot of {node} at offset {image.offset} would have another image: {difference}"
            )
        for each in _untold(before, image, delta):
            raise SafetyViolation(
                f"published images: {node} went from offset {before.offset} to {image.offset}, and tells nobody of {each}"
            )
        self._jump(node, image)

    def _jump(self, node: str, image: MetadataImage) -> None:
        """Check the changes that a node would publish if a snapshot took it from an older image to this one, or back."""
        older = self._older[node]
        self.jumps_seen += 1
        for start, end in ((older, image), (image, older)):
            for each in _untold(start, end, difference(start, end)):
                raise SafetyViolation(
                    f"published images: a snapshot takes {node} from offset {start.offset} to {end.offset}, "
                    f"and would tell nobody of {each}"
                )
        if image.offset - older.offset >= REACH:
            self._older[node] = image


def _untold(before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Iterator[str]:
    """Describe the changes that a delta leaves out."""
    for configs in ("configs", "unreadable_configs"):
        for resource in _changed(getattr(before, configs), getattr(image, configs)):
            if resource not in delta.changed_configs:
                yield f"the configuration of {resource}"
    old, new = before.access, image.access
    for acl_id in _changed(old.acls, new.acls):
        if acl_id not in delta.changed_acls:
            yield f"the rule {old.acls.get(acl_id)}, now {new.acls.get(acl_id)}"
    for quota in _changed(old.client_quotas, new.client_quotas):
        if quota not in delta.changed_quotas:
            yield f"the quota {quota}"
    if old != new and not delta.access_changed:
        yield "a change of access"
    for broker_id in _changed(before.brokers, image.brokers):
        if broker_id not in delta.changed_brokers:
            yield f"broker {broker_id}"
    if before.features != image.features and not delta.features_changed:
        yield "a feature"
    for topic_id, topic in before.topics_by_id.items():
        if topic_id not in image.topics_by_id and topic_id not in delta.deleted_topics:
            yield f"the deletion of topic {topic.name}"
    for name, now in image.topics.items():
        known = before.topics_by_id.get(now.topic_id)
        told = delta.changed_topics.get(name, ())
        for number in _changed({} if known is None else known.partitions, now.partitions):
            # Partitions are only added. But in an exchange of two images, the later image may lack some.
            if number in now.partitions and number not in told:
                yield f"partition {name}-{number}"


def _changed(before: Mapping[K, object], after: Mapping[K, object]) -> Iterator[K]:
    """Yield the keys whose values differ, or that only one side has."""
    for key in dict.fromkeys(chain(before, after)):
        old, new = before.get(key), after.get(key)
        if old is not new and old != new:
            yield key
