"""Check of changes to topics: a broker that confirms a change to a client answers by that change from then on. PURE.

The broker sends the change to the controller, and waits until its own metadata image has it, for at most half a second. A
client that asks the same broker next must see its own change. So the broker's image must have what the newest image of all
nodes has of the change.

A request is left out if its answer took as long as the broker may wait, or as long as the client's own timeout. Topics are
compared by their ids, which old versions of the answers lack.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from odradek.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from odradek.wire.messages.delete_topics import DeleteTopicsResponse
from sim.checks.answers.newest_metadata import NewestMetadata
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["OwnChanges"]

WAIT_SECONDS_MAX = 0.45
"""A little less than a broker waits for its image. After that it answers anyway."""


class OwnChanges:
    """The check of answers to CreateTopics, CreatePartitions and DeleteTopics."""

    def __init__(self, processes: Processes, newest: NewestMetadata) -> None:
        self._processes = processes
        self._newest = newest
        self.seen = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record the node that receives the request, and the time. Returns False if there is no such process."""
        found = self._processes.at(exchange.conn.peer)
        exchange.memo = found, self._processes.world.now
        return found is not None and not getattr(exchange.request, "validate_only", False)

    def answered(self, exchange: Exchange, answer: object) -> None:
        """Check the answering node's image. Raises `SafetyViolation`."""
        found, asked_at = exchange.memo
        waited = self._processes.world.now - asked_at
        wait_max = min(WAIT_SECONDS_MAX, exchange.request.timeout_ms / 1000)
        if self._processes.at(exchange.conn.peer) != found or waited >= wait_max:
            return
        self._newest.refresh()
        newest, metadata = self._newest.image, found[1].metadata
        if newest is None or metadata is None:
            return
        for change in _unseen(exchange.request, answer, metadata.committed_image, newest):
            raise SafetyViolation(
                f"own changes: {found[0].name} at offset {metadata.committed_image.offset} confirms {change}, and its own "
                "metadata do not have it"
            )
        self.seen += 1


def _unseen(request: object, answer: object, image: MetadataImage, newest: MetadataImage) -> Iterator[str]:
    """Describe the confirmed changes that the newest image has, and the broker's image has not."""
    match request, answer:
        case CreateTopicsRequest(), CreateTopicsResponse():
            for result in answer.topics:
                is_there = result.topic_id in newest.topics_by_id
                if not result.error_code and is_there and result.topic_id not in image.topics_by_id:
                    yield f"the creation of {result.name}"
        case CreatePartitionsRequest(), CreatePartitionsResponse():
            for asked, answered in zip(request.topics, answer.results, strict=False):
                known = image.topics.get(asked.name)
                topic = None if known is None else newest.topics_by_id.get(known.topic_id)
                if answered.error_code or asked.name != answered.name or known is None or topic is None:
                    continue
                if len(topic.partitions) >= asked.count > len(known.partitions):
                    yield f"{asked.count} partitions of {asked.name}"
        case _, DeleteTopicsResponse():
            for gone in answer.responses:
                deleted = image.topics_by_id.get(gone.topic_id)
                if not gone.error_code and deleted is not None and gone.topic_id not in newest.topics_by_id:
                    yield f"the deletion of {deleted.name}"
