"""The client's side of incremental fetch sessions (KIP-227). PURE.

A full request (epoch 0) opens a session at the broker. Each later request increments the epoch, and names only
partitions that are new, have other offsets, or are to be forgotten. If the answer lacks a partition, nothing has
changed there. After an error or a broken connection, the next request is a full request, which also ends the old
session.

A request names at most `PARTITIONS_MAX` partitions, since a broker refuses to decode a request with too many elements.
So the first request of a larger session names some of the partitions, and the next requests add the others. If a broker
keeps no session, successive requests name different partitions.

In request versions with topic ids, a session identifies its topics by id. So a topic that was created again is a
different topic in the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.client.core.requests import PARTITIONS_MAX
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from odradek.wire.topic_partition import TopicPartition

__all__ = ["FetchSession", "Wanted"]

_FINAL_EPOCH = -1
_INT32_MAX = (1 << 31) - 1


class Wanted(NamedTuple):
    """The fields of a Fetch request for one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchSession:
    """The client's state of a fetch session with one broker."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[TopicPartition, Wanted] = {}
        """The partitions of the broker's session after the broker has processed the last request."""
        self.is_part = False
        """True if the last request could not name all partitions, so that the next request should follow at once."""
        self._had_turn: dict[TopicPartition, None] = {}
        """The partitions that recent full requests have named. Used only if one request cannot name all partitions."""
        self._with_ids = True

    def request(self, wanted: Mapping[TopicPartition, Wanted], *, with_ids: bool) -> FetchRequest:
        """Make the next request for these partitions; the caller adds the limits. The caller must report the
        outcome (`answered`, `start_over` or `lost`) before it makes another request.

        Afterwards `partitions` has the session's partitions. If `is_part` is true, the session does not have all wanted
        partitions yet.
        """
        if with_ids != self._with_ids:
            self.start_over()
            self._with_ids = with_ids
        old = self.partitions
        gone = [
            (key, want)
            for key, want in (old.items() if self.epoch else ())
            if key not in wanted or wanted[key].topic_id != want.topic_id
        ]
        if len(gone) > PARTITIONS_MAX:
            self.start_over()
        if self.epoch == 0:
            news, gone, self.partitions = dict(wanted), [], {}
        else:
            news = {key: want for key, want in wanted.items() if old.get(key) != want}
        self.is_part = False
        if len(news) > PARTITIONS_MAX:
            news = self._part_of(news)
        for key, _ in gone:
            del self.partitions[key]
        self.partitions.update(news)
        return FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=_topics(news),
            forgotten_topics_data=_forgotten(gone),
        )

    def _part_of(self, news: dict[TopicPartition, Wanted]) -> dict[TopicPartition, Wanted]:
        """Choose at most `PARTITIONS_MAX` partitions for a request. Partitions that no recent request has
        named come first.
        """
        had_turn = self._had_turn
        due = [key for key in news if key not in had_turn]
        if not due:
            had_turn.clear()
            due = list(news)
        named = due[:PARTITIONS_MAX]
        had_turn.update(dict.fromkeys(named))
        self.is_part = self.epoch != 0 or len(due) > len(named)
        return {key: news[key] for key in named}

    def answered(self, session_id: int) -> None:
        """Record that the broker accepted the request, and advance the session's epoch. The id 0 means that the
        broker keeps no session.
        """
        if session_id == 0:
            self.session_id = self.epoch = 0
        elif session_id != self.session_id:
            self.session_id = session_id
            self.epoch = 1
        else:
            self.epoch = 1 if self.epoch == _INT32_MAX else self.epoch + 1

    def start_over(self) -> None:
        """Make the next request a full request. It also ends the old session at the broker."""
        self.epoch = 0

    def lost(self) -> None:
        """Record that the broker no longer has the session, so that the next request opens another session."""
        self.session_id = self.epoch = 0

    def closing_request(self) -> FetchRequest | None:
        """Make the request that ends the session; None if there is no session."""
        if self.session_id == 0:
            return None
        return FetchRequest(session_id=self.session_id, session_epoch=_FINAL_EPOCH)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Find the name of a topic by its id, among the session's partitions; None if the session has no such
        topic.
        """
        return next((key.topic for key, want in self.partitions.items() if want.topic_id == topic_id), None)


def _topics(wanted: Mapping[TopicPartition, Wanted]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for key, want in wanted.items():
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = FetchTopic(topic=key.topic, topic_id=want.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=key.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                log_start_offset=want.log_start_offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(gone: list[tuple[TopicPartition, Wanted]]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for key, want in gone:
        topic = topics.setdefault(
            (key.topic, want.topic_id), ForgottenTopic(topic=key.topic, topic_id=want.topic_id)
        )
        topic.partitions.append(key.partition)
    return list(topics.values())
