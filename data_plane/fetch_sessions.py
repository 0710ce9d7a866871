"""The broker's incremental fetch sessions (KIP-227): which partitions a fetch reads, in which order, and which
session is evicted for a new one. PURE.

A session remembers which partitions a client fetches, and the last answer about each. So a request names only
changed partitions, and a response has only changes. Each request has an epoch. Epoch -1 asks for no session,
and ends the session that the request names. Epoch 0 asks for a new session. A greater epoch continues a
session. The number of sessions is limited. A new session may evict a session that has been idle for
`eviction_ms`. It may also evict a session that has fewer partitions and is past its first minutes (KIP-227,
"Fetch Session Caching").

Two limits protect against useless sessions. The first limits unknown partitions. A session keeps partitions
that this broker does not host, because their replicas may be placed here later. All sessions together have at
most `UNKNOWN_MAX` such partitions. Beyond this limit, a client gets no session and continues with full
requests. The second limits the sessions of followers. A client that falsely claims to be a replica gets no
session (`is_follower` decides). A replica has at most `SESSIONS_PER_REPLICA_MAX` sessions; a new session
replaces the session with the oldest request.

A follower's session holds a `FollowerCursor` for each partition. The partition marks its cursor dirty when
its log grows, its high watermark moves or its leadership changes. A request that names a partition marks it
dirty, too. Only dirty partitions are read. So the cost of a round depends on the changes, and not on the
number of followed partitions. (Checking a thousand partitions took 5 ms of each round.)
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Generator, Iterable

import attrs

from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.fetch import FetchPartition, FetchRequest

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
NO_REPLICA = -1
EPOCH_MAX = 2**31 - 1
UNKNOWN_MAX = 20_000
SESSIONS_PER_REPLICA_MAX = 16
"""The most sessions of one follower. The limit exceeds the number of fetchers that a broker has for one leader.
It is low enough that one follower cannot evict all consumers' sessions.
"""

TopicKey = str | bytes
PartitionKey = tuple[TopicKey, int]
"""The key of a partition: (topic, partition number). The topic is a name before Fetch version 13, and an id
from then on. A key is made for every partition of a request, so it is a plain tuple.
"""


class FetchedPartition:
    """One partition of a fetch session: the client's last request for it, and what the last answer said."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "is_unknown",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
    )

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.is_unknown = False
        """True if this broker did not host the partition when a request first named it."""
        self.fetch_offset = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        self.max_bytes = 0
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    def ask_as(self, other: FetchedPartition) -> None:
        """Take over the offset, epochs and limit of a newer request for the same partition."""
        self.fetch_offset = other.fetch_offset
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset
        self.max_bytes = other.max_bytes


class FollowerCursor(FetchedPartition):
    """One partition of a follower's fetch session. The partition marks its cursor dirty when the follower's
    next fetch must read it.
    """

    __slots__ = ("is_stirred", "session")

    def __init__(self, key: PartitionKey, session: FetchSession) -> None:
        super().__init__(key)
        self.session = session
        self.is_stirred = False

    @property
    def fetched_at_ms(self) -> int:
        """The time of the session's last fetch, in monotonic milliseconds. A fetch that does not name this
        partition still fetches it, at an unchanged offset.
        """
        return self.session.fetched_at_ms

    def mark_dirty(self, *, wakes: bool) -> None:
        """Mark the partition so that the session's next fetch reads it. With `wakes`, also wake the session's
        parked fetch.
        """
        session = self.session
        if not self.is_stirred:
            self.is_stirred = True
            session.stirred[self.key] = self
        if wakes and session.wake is not None:
            session.wake()

    def call_back(self) -> None:
        """Answer the session's parked fetch now, and let the next fetch read this partition."""
        if self.session.answer is not None:
            self.session.answer()
        self.mark_dirty(wakes=False)

    def begin_anew(self) -> None:
        """Report the full state of this partition in the next answer, because a request has named the
        partition.

        The follower may have discarded earlier answers while its log was in another state.
        """
        self.sent_high_watermark = -1
        self.mark_dirty(wakes=False)

    def end(self) -> None:
        """End the cursor, because the session no longer fetches this partition. Later calls by the partition
        have no effect.
        """
        self.settle()
        self.is_stirred = True

    def settle(self) -> None:
        """Mark the partition clean, because an answer has reported all its changes."""
        if self.is_stirred:
            self.is_stirred = False
            self.session.stirred.pop(self.key, None)


@attrs.define(slots=True)
class FetchSession:
    """An incremental fetch session (KIP-227). Partitions are served in the order of `partitions`; partitions
    that got records move to the end.
    """

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    used_ms: int
    epoch: int
    partitions: dict[PartitionKey, FetchedPartition]
    privileged: bool = False
    """True for a follower's session. Consumers' sessions cannot evict it. Its dirty partitions, which must be
    read, are in `stirred`.
    """
    stirred: dict[PartitionKey, FollowerCursor] = attrs.field(factory=dict)
    fetched_at_ms: int = 0
    """The time of the last request, in monotonic milliseconds."""
    wake: Callable[[], None] | None = None
    """A function that wakes the parked request of this session. None while nothing is parked."""
    answer: Callable[[], None] | None = None
    """A function that answers the parked request at once, even without changes. None while nothing is parked.
    """
    replica_id: int = NO_REPLICA
    """The broker id of the follower that owns the session; `NO_REPLICA` for a consumer."""
    unknown: int = 0
    """The number of partitions that this broker did not host when a request first named them."""

    def to_read(self) -> tuple[FetchedPartition, ...]:
        """Return the partitions to read for the current request: all dirty partitions in a follower's
        session, and all partitions in a consumer's session.
        """
        return tuple(self.stirred.values()) if self.privileged else tuple(self.partitions.values())


@attrs.frozen(slots=True)
class NamedPartitions:
    """The partitions that a large request names. They are collected before any session changes."""

    partitions: dict[PartitionKey, FetchedPartition]
    unknown: int
    """The number of these partitions that this broker does not host."""


@attrs.frozen(slots=True)
class FetchPlan:
    """The partitions to read for one request. `session` is None without a session. If `incremental`, the
    answer leaves out partitions without changes.
    """

    error: ErrorCode
    session: FetchSession | None
    incremental: bool
    partitions: tuple[FetchedPartition, ...]

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.session_id


class FetchSessions:
    """All fetch sessions of a broker. Times are milliseconds of the monotonic clock, which never jumps."""

    def __init__(
        self,
        slots_max: int,
        eviction_ms: int,
        random: _random.Random,
        *,
        is_known: Callable[[PartitionKey], bool] = lambda key: True,
        is_follower: Callable[[FetchRequest, bool], bool] = lambda request, by_id: True,
    ) -> None:
        """Take the most sessions (`slots_max`), the idle time after which a session may be evicted, and two
        functions.

        `is_known` returns True if a partition is hosted here. `is_follower` returns True if a request that
        names a replica may come from a follower of a hosted partition. The second argument of `is_follower`
        is true if the request names topics by id.
        """
        self._is_known = is_known
        self._is_follower = is_follower
        self._unknown = 0
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        self._evictions = 0

    def name(self, request: FetchRequest, by_id: bool) -> Generator[int, None, NamedPartitions]:
        """Collect the partitions that the request names, as an argument for `plan`. Changes no session. The
        work grows with the request, so it runs in pieces. The generator yields after each piece.
        """
        partitions: dict[PartitionKey, FetchedPartition] = {}
        unknown = 0
        for topic in request.topics:
            name: TopicKey = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                key = (name, asked.partition)
                fetched = partitions.get(key)
                if fetched is None:
                    fetched = partitions[key] = FetchedPartition(key)
                    fetched.is_unknown = not self._is_known(key)
                    unknown += fetched.is_unknown
                _ask(fetched, asked)
                yield 1
        return NamedPartitions(partitions, unknown)

    def plan(
        self, request: FetchRequest, by_id: bool, now_ms: int, named: NamedPartitions | None = None
    ) -> FetchPlan:
        """Apply the request to its session, and choose the partitions to read. `named` is the result of
        `name` for the same request, if it was called.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._plan_full(request, by_id, now_ms, named)
        session = self._sessions.get(request.session_id)
        if session is None:
            reached("fetch.unknown_session_refused")
            return FetchPlan(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, False, ())
        if session.epoch != request.session_epoch:
            reached("fetch.session_out_of_step_refused")
            return FetchPlan(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, False, ())
        if session.uses_topic_ids != by_id:
            reached("fetch.session_of_other_naming_refused")
            return FetchPlan(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, False, ())
        if named is None:
            self._update(session.partitions, request, by_id, session)
        else:
            self._take(session.partitions, named, session)
        self._forget(session, request, by_id)
        session.used_ms = now_ms
        if not session.partitions or self._unknown > UNKNOWN_MAX:
            self._end(session.session_id)
            return FetchPlan(ErrorCode.NONE, None, False, tuple(session.partitions.values()))
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        return FetchPlan(ErrorCode.NONE, session, True, session.to_read())

    def _plan_full(
        self, request: FetchRequest, by_id: bool, now_ms: int, named: NamedPartitions | None
    ) -> FetchPlan:
        if request.session_id != NO_SESSION:
            self._end(request.session_id)
        partitions: dict[PartitionKey, FetchedPartition] = {}
        session = None
        if request.session_epoch == INITIAL_EPOCH:
            replica_id = replica_of(request)
            privileged = replica_id >= 0
            size = sum(len(topic.partitions) for topic in request.topics)
            is_welcome = (
                self._is_follower(request, by_id) if privileged else self._has_room_for(request, by_id, named)
            )
            if is_welcome and self._make_room(size, now_ms, privileged, replica_id):
                session = FetchSession(self._new_id(), by_id, now_ms, now_ms, 1, partitions, privileged)
                session.replica_id = replica_id
                self._sessions[session.session_id] = session
        if named is None:
            self._update(partitions, request, by_id, session)
        else:
            self._take(partitions, named, session)
        return FetchPlan(ErrorCode.NONE, session, False, tuple(partitions.values()))

    def _update(
        self,
        partitions: dict[PartitionKey, FetchedPartition],
        request: FetchRequest,
        by_id: bool,
        session: FetchSession | None,
    ) -> None:
        follows = session if session is not None and session.privileged else None
        for topic in request.topics:
            name: TopicKey = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                key = (name, asked.partition)
                fetched = partitions.get(key)
                if fetched is None:
                    fetched = FetchedPartition(key) if follows is None else FollowerCursor(key, follows)
                    partitions[key] = fetched
                    if session is not None and not self._is_known(key):
                        fetched.is_unknown = True
                        session.unknown += 1
                        self._unknown += 1
                if isinstance(fetched, FollowerCursor):
                    fetched.begin_anew()
                # These assignments repeat `_ask` for speed, because a client without a session names all of its
                # partitions in each request.
                fetched.fetch_offset = asked.fetch_offset
                fetched.current_leader_epoch = max(-1, asked.current_leader_epoch)
                fetched.last_fetched_epoch = asked.last_fetched_epoch
                fetched.log_start_offset = asked.log_start_offset
                fetched.max_bytes = asked.partition_max_bytes

    def _take(
        self,
        partitions: dict[PartitionKey, FetchedPartition],
        named: NamedPartitions,
        session: FetchSession | None,
    ) -> None:
        """Update the session from the partitions that `name` has collected. The result is equal to that of
        `_update`, which reads the request itself.
        """
        follows = session if session is not None and session.privileged else None
        if not partitions and follows is None:
            partitions.update(named.partitions)
            if session is not None:
                session.unknown += named.unknown
                self._unknown += named.unknown
            return
        for key, asked in named.partitions.items():
            fetched = partitions.get(key)
            if fetched is None:
                fetched = partitions[key] = asked if follows is None else FollowerCursor(key, follows)
                fetched.is_unknown = asked.is_unknown
                if session is not None and asked.is_unknown:
                    session.unknown += 1
                    self._unknown += 1
            if isinstance(fetched, FollowerCursor):
                fetched.begin_anew()
            if fetched is not asked:
                fetched.ask_as(asked)

    def _forget(self, session: FetchSession, request: FetchRequest, by_id: bool) -> None:
        for topic in request.forgotten_topics_data:
            name: TopicKey = topic.topic_id if by_id else topic.topic
            for partition in topic.partitions:
                gone = session.partitions.pop((name, partition), None)
                if gone is not None and gone.is_unknown:
                    session.unknown -= 1
                    self._unknown -= 1
                if isinstance(gone, FollowerCursor):
                    gone.end()

    def _has_room_for(self, request: FetchRequest, by_id: bool, named: NamedPartitions | None) -> bool:
        """True if the sessions have room for those partitions of a consumer's request that this broker does not
        host.
        """
        if named is not None:
            return self._unknown + named.unknown <= UNKNOWN_MAX
        unknown = sum(
            not self._is_known((topic.topic_id if by_id else topic.topic, asked.partition))
            for topic in request.topics
            for asked in topic.partitions
        )
        return self._unknown + unknown <= UNKNOWN_MAX

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._unknown -= session.unknown

    def _make_room(self, size: int, now_ms: int, privileged: bool, replica_id: int) -> bool:
        """True if there is room for a new session of `size` partitions. An older session may be evicted for
        it.
        """
        if privileged:
            own = [each for each in self._sessions.values() if each.replica_id == replica_id]
            if len(own) >= SESSIONS_PER_REPLICA_MAX:
                return self._evict(min(own, key=lambda session: session.used_ms))
        if len(self._sessions) < self._slots_max:
            return True
        stalest = min(self._sessions.values(), key=lambda session: session.used_ms, default=None)
        if stalest is None:
            return False
        if now_ms - stalest.used_ms > self._eviction_ms:
            return self._evict(stalest)
        # For a follower, any consumer's session may be evicted. For a consumer, the evicted session must be
        # past its first minutes and smaller than the new one.
        settled = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > self._eviction_ms or (privileged and not session.privileged)
        ]
        smallest = min(
            settled, key=lambda session: (session.privileged, len(session.partitions)), default=None
        )
        if smallest is not None and (smallest.privileged, len(smallest.partitions)) < (privileged, size):
            return self._evict(smallest)
        return False

    def _evict(self, session: FetchSession) -> bool:
        self._end(session.session_id)
        self._evictions += 1
        return True

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randint(1, EPOCH_MAX)
            if session_id not in self._sessions:
                return session_id

    @property
    def sessions(self) -> Iterable[FetchSession]:
        """All incremental fetch sessions of clients and followers (KIP-227)."""
        return self._sessions.values()

    def statistics(self) -> dict[str, int]:
        """Return the numbers of sessions, of partitions in them, and of evictions since the start."""
        return {
            "sessions": len(self._sessions),
            "partitions": sum(len(session.partitions) for session in self._sessions.values()),
            "unknown_partitions": self._unknown,
            "evictions": self._evictions,
        }


def _ask(fetched: FetchedPartition, asked: FetchPartition) -> None:
    """Copy the offset, epochs and limit of a request into the session's partition."""
    fetched.fetch_offset = asked.fetch_offset
    # In a Fetch, unlike in other requests, any negative leader epoch means that the client knows no epoch.
    fetched.current_leader_epoch = max(-1, asked.current_leader_epoch)
    fetched.last_fetched_epoch = asked.last_fetched_epoch
    fetched.log_start_offset = asked.log_start_offset
    fetched.max_bytes = asked.partition_max_bytes


def replica_of(request: FetchRequest) -> int:
    """Return the broker id of the replica that sent a fetch, negative for a consumer. Since version 15 the
    request has a separate field for this id.
    """
    return max(request.replica_state.replica_id, request.replica_id)


def move_to_end(session: FetchSession, served: Iterable[FetchedPartition]) -> None:
    """Move the partitions that got records to the end of the session, so that full responses never starve
    other partitions.
    """
    for fetched in served:
        if isinstance(fetched, FollowerCursor):
            if session.stirred.pop(fetched.key, None) is not None:
                session.stirred[fetched.key] = fetched
        elif session.partitions.get(fetched.key) is fetched:
            del session.partitions[fetched.key]
            session.partitions[fetched.key] = fetched
