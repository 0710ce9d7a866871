"""The follower's side of an incremental fetch session (KIP-227). PURE.

The session remembers which position of each partition was last sent to the leader, so a request names only
partitions with another position. The caller compares each answer with the offset that was requested.

A request names `PARTITIONS_MAX` partitions at most, since a server limits how much it decodes. A larger
session begins with a part of its partitions, and the next requests add the rest. If the leader keeps no
session, each full request names another part of the partitions, until all have had their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from odradek.wire.topic_partition import TopicIdPartition

Position = tuple[int, int, int, int]
"""The fields of a partition in a fetch request: (fetch offset, leader epoch, last fetched epoch, log start
offset).
"""

Asked = tuple[TopicIdPartition, Position]

INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 8_000
"""The most partitions that a request names, and the most that it removes from the session. If each partition
has a topic of its own, both lists have 32,000 elements together: fewer than
`odradek.wire.codec.ELEMENTS_MAX`.
"""


class NextRequest(NamedTuple):
    """The partitions in the next Fetch request, and the partitions that are left for later requests."""

    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    left: Sequence[TopicIdPartition] = ()
    """Partitions that a later request must name."""
    left_unwanted: Sequence[TopicIdPartition] = ()
    """Partitions that a later request must remove from the session."""
    is_part: bool = False
    """True if another request should follow at once, because some partitions have not had their turn yet."""


class ReplicaFetchSession:
    """A follower's fetch session with one leader. Call `begin` after a new connection or a refusal, and
    `next_request` for each request.
    """

    __slots__ = ("_had_turn", "epoch", "requested", "session_id")

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.requested: dict[TopicIdPartition, Position] = {}
        """The partitions of the session, each with the position that was last sent to the leader."""
        self._had_turn: dict[TopicIdPartition, None] = {}
        """The partitions that full requests have already named, if they are too many for one request."""

    def begin(self) -> None:
        """Begin a new session. The next request names all partitions, and also ends the former session."""
        self.epoch = INITIAL_EPOCH
        self.requested = {}

    def next_request(
        self,
        wanted: Sequence[Asked],
        unwanted: Sequence[TopicIdPartition],
        bytes_max: int,
    ) -> NextRequest:
        """Return the contents of the next request. `wanted` are the partitions that may have changed; for a
        full request, all partitions.
        """
        left: Sequence[TopicIdPartition] = ()
        is_part = False
        if len(wanted) > PARTITIONS_MAX:
            wanted, left, is_part = self._part_of(wanted)
        left_unwanted = unwanted[PARTITIONS_MAX:]
        topics: dict[bytes, FetchTopic] = {}
        requested = self.requested
        for replica, now in wanted:
            if requested.get(replica) == now:
                continue
            requested[replica] = now
            topic_id, index = replica
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic("", topic_id, [])
            offset, leader_epoch, last_epoch, log_start = now
            topic.partitions.append(
                FetchPartition(index, leader_epoch, offset, last_epoch, log_start, bytes_max)
            )
        forgotten: dict[bytes, ForgottenTopic] = {}
        for replica in unwanted[:PARTITIONS_MAX]:
            if requested.pop(replica, None) is not None:
                topic_id, index = replica
                gone = forgotten.get(topic_id)
                if gone is None:
                    gone = forgotten[topic_id] = ForgottenTopic("", topic_id, [])
                gone.partitions.append(index)
        is_part = is_part or bool(left_unwanted)
        return NextRequest(list(topics.values()), list(forgotten.values()), left, left_unwanted, is_part)

    def _part_of(self, wanted: Sequence[Asked]) -> tuple[Sequence[Asked], list[TopicIdPartition], bool]:
        """Choose the partitions that one full request names. Returns the chosen partitions, the remaining
        partitions, and True if another request should follow at once.
        """
        requested = self.requested
        news = [each for each in wanted if requested.get(each[0]) != each[1]]
        if len(news) <= PARTITIONS_MAX:
            return news, [], False
        if self.epoch != INITIAL_EPOCH:
            return news[:PARTITIONS_MAX], [replica for replica, _ in news[PARTITIONS_MAX:]], True
        had_turn = self._had_turn
        due = [each for each in news if each[0] not in had_turn]
        if not due:
            had_turn.clear()
            due = news
        named = due[:PARTITIONS_MAX]
        had_turn.update(dict.fromkeys(replica for replica, _ in named))
        chosen = dict(named)
        left = [replica for replica, _ in news if replica not in chosen]
        return named, left, len(due) > PARTITIONS_MAX

    def answered(self, session_id: int) -> None:
        """Store the session id of an answer without error. The id 0 means that the leader keeps no session,
        so each request names all partitions.
        """
        self.session_id = session_id
        if session_id == 0:
            self.begin()
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
