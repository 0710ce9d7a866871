"""The follower's end of an incremental fetch session (KIP-227). PURE.

The session remembers what the leader knows about each partition, so a request names only what differs. Each answer is
checked against the offset that it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from odradek.wire.topic_partition import TopicIdPartition

Told = tuple[int, int, int, int]
"""Fetch offset, leader epoch, last fetched epoch, log start offset."""

INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1


class ReplicaFetchSession:
    """One leader's session. `begin` after a new connection or a refusal, `next_request` for each request."""

    __slots__ = ("epoch", "session_id", "told")

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.told: dict[TopicIdPartition, Told] = {}
        """The contents of the leader's session."""

    def begin(self) -> None:
        """Begin a session: the next request names everything; it also ends the former session."""
        self.epoch = INITIAL_EPOCH
        self.told = {}

    def next_request(
        self,
        wanted: Iterable[tuple[TopicIdPartition, Told]],
        unwanted: Iterable[TopicIdPartition],
        bytes_max: int,
    ) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """Make the two lists of the next request, given possible changes. A full request needs all in `wanted`."""
        topics: dict[bytes, FetchTopic] = {}
        told = self.told
        for replica, now in wanted:
            if told.get(replica) == now:
                continue
            told[replica] = now
            topic_id, index = replica
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic("", topic_id, [])
            offset, leader_epoch, last_epoch, log_start = now
            topic.partitions.append(
                FetchPartition(index, leader_epoch, offset, last_epoch, log_start, bytes_max)
            )
        forgotten: dict[bytes, ForgottenTopic] = {}
        for replica in unwanted:
            if told.pop(replica, None) is not None:
                topic_id, index = replica
                gone = forgotten.get(topic_id)
                if gone is None:
                    gone = forgotten[topic_id] = ForgottenTopic("", topic_id, [])
                gone.partitions.append(index)
        return list(topics.values()), list(forgotten.values())

    def answered(self, session_id: int) -> None:
        """Take over the session id of an answer without error. With 0 the leader keeps no session: each request names
        everything.
        """
        self.session_id = session_id
        if session_id == 0:
            self.begin()
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
