"""Counts over the partitions of a metadata image, topic by topic. PURE.

Most topics stay what they are between two pages, and an image shares them with the image before. So the counts of a topic
are kept with the object that they were made from.
"""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage, TopicImage
from odradek.node.metrics.hosted_figures import SLICE, Slices

__all__ = ["ImageCounter", "ImageFigures"]


@attrs.frozen
class ImageFigures:
    """Counts over the partitions of an image."""

    partitions: int = 0
    offline: int = 0
    """Partitions without a leader."""
    imbalanced: int = 0
    """Partitions that their preferred replica does not lead."""
    placed: int = 0
    """Partitions with a replica on this node."""


class ImageCounter:
    """Counts the partitions of one image after the other."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._kept: dict[str, tuple[TopicImage, ImageFigures]] = {}
        self._image: MetadataImage | None = None
        self._total = ImageFigures()

    def count(self, image: MetadataImage) -> Slices[ImageFigures]:
        """Count an image, in slices."""
        if image is self._image:
            return self._total
        before, kept = self._kept, {}
        partitions = offline = imbalanced = placed = work = 0
        for name, topic in image.topics.items():
            found = before.get(name)
            if found is None or found[0] is not topic:
                found = topic, _count(topic, self._node_id)
                work += found[1].partitions
            kept[name] = found
            figures = found[1]
            partitions += figures.partitions
            offline += figures.offline
            imbalanced += figures.imbalanced
            placed += figures.placed
            work += 1
            if work >= SLICE:
                work = 0
                yield
        self._image, self._kept = image, kept
        self._total = ImageFigures(partitions, offline, imbalanced, placed)
        return self._total


def _count(topic: TopicImage, node_id: int) -> ImageFigures:
    offline = imbalanced = placed = 0
    for partition in topic.partitions.values():
        leader, replicas = partition.leader, partition.replicas
        offline += leader == NO_LEADER
        imbalanced += leader != replicas[0]
        placed += node_id in replicas
    return ImageFigures(len(topic.partitions), offline, imbalanced, placed)
