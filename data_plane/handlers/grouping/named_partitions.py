"""The partitions that a request about offsets names.

Unknown partitions are refused here. The other partitions get the coordinator's codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import attrs

from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.serving.steps import Work
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.anatomy import Anatomy

__all__ = ["NamedPartitions", "NamedTopic", "sorted_out"]

T = TypeVar("T")


@attrs.frozen
class NamedTopic:
    """One topic of the request with two results: `refused` has the partitions that are refused here, and
    `accepted` has the partitions that the coordinator answers.
    """

    name: str | bytes
    """The topic's name, or its id in versions that name topics by id."""
    is_known: bool
    refused: Any
    accepted: Any


@attrs.define(eq=False)
class NamedPartitions(Generic[T]):
    """All topics that a request names, in the order of the request."""

    topics: list[NamedTopic] = attrs.field(factory=list)
    kept: list[T] = attrs.field(factory=list)
    """The existing partitions, each in the form in which the coordinator gets it."""
    accepted: list[Any] = attrs.field(factory=list)
    """For each item of `kept`, its result in the answer. The error code is NONE until `fill`."""

    def fill(self, codes: Iterable[ErrorCode]) -> Work[None]:
        """Write the coordinator's codes into the results of the existing partitions.

        `codes` has the order of `kept`.
        """
        for code, result in zip(codes, self.accepted, strict=False):
            result.error_code = code
            yield 1

    def merged(self) -> list[Any]:
        """Return the topics of the answer in Kafka's order: topics with refused partitions first, one result
        for each topic.

        If nothing was refused, a topic that the request names twice has two results.
        """
        refused = [(topic.name, topic.refused) for topic in self.topics if topic.refused.partitions]
        accepted = [(topic.name, topic.accepted) for topic in self.topics if topic.accepted.partitions]
        if not refused:
            return [result for _, result in accepted]
        merged: dict[str | bytes, Any] = {}
        for name, result in refused + accepted:
            if merged.setdefault(name, result) is not result:
                merged[name].partitions += result.partitions
        return list(merged.values())


def sorted_out(
    image: MetadataImage, shape: Anatomy, request: Any, keep: Callable[[TopicImage, Any], T]
) -> Work[NamedPartitions[T]]:
    """Look up each partition that the request names.

    An unknown partition gets an error. An existing partition is added to `kept`, in the form that `keep`
    returns.
    """
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if shape.by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    named = NamedPartitions[T]()
    for asked in shape.heads(request):
        name = asked.topic_id if shape.by_id else asked.name
        topic = image.topics_by_id.get(name) if shape.by_id else image.topics.get(name)
        refused, accepted = [], []
        for each in asked.partitions:
            yield 1
            if topic is None:
                refused.append(shape.result(each, unknown))
            elif each.partition_index not in topic.partitions:
                refused.append(shape.result(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                accepted.append(shape.result(each, ErrorCode.NONE))
                named.kept.append(keep(topic, each))
        named.accepted += accepted
        named.topics.append(
            NamedTopic(name, topic is not None, shape.around(asked, refused), shape.around(asked, accepted))
        )
    return named
