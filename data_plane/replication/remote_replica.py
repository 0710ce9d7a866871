"""The followers of a partition as its leader sees them: the ends of their logs, who lags, who may join the ISR.
PURE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from odradek.data_plane.replication.partition_cluster import NOBODY, UNKNOWN_BROKER_EPOCH, BrokerStates
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

UNKNOWN_OFFSET = -1

TROUBLED_LAG_MS_MAX = 1000
"""The time in milliseconds for which a replica may lag and stay in sync, if its disk is reported as taking no
records.
"""


class Cursor(Protocol):
    """A port through which a leader marks one partition in a follower's fetch session."""

    @property
    def is_stirred(self) -> bool: ...

    @property
    def fetched_at_ms(self) -> int: ...

    def mark_dirty(self, *, wakes: bool) -> None: ...

    def call_back(self) -> None: ...


class RemoteReplica:
    """The state of one follower, as its leader knows it during its leadership. Times are monotonic
    milliseconds.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "cursor",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "stuck_at",
        "stuck_count",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        """Begin with no fetch known. `last_caught_up_ms` is the present time for a member of the ISR, and 0
        (never) for any other replica.
        """
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = 0
        self.last_caught_up_ms = last_caught_up_ms
        self.cursor: Cursor | None = None
        self.stuck_at = UNKNOWN_OFFSET
        self.stuck_count = 0

    def log_grew(self) -> None:
        """Called when the leader's log has grown. If the follower's cursor is clean, the follower had all
        records up to the former end of the log. Then the session's last fetch counts as a fetch at that end,
        even if it did not name this partition.
        """
        cursor = self.cursor
        if cursor is not None:
            if not cursor.is_stirred and cursor.fetched_at_ms > self.last_fetch_ms:
                self.last_fetch_ms = cursor.fetched_at_ms
                self.last_caught_up_ms = max(self.last_caught_up_ms, cursor.fetched_at_ms)
            cursor.mark_dirty(wakes=True)

    def follow_with(self, cursor: Cursor) -> None:
        """Notify this fetch session of changes of the log from now on.

        The follower's previous session is marked dirty, although it has usually ended. A leader that was
        paused may read a request of the old session after the first request of the new one. Then the old
        session must not keep changes from the new session.
        """
        before, self.cursor = self.cursor, cursor
        if before is not None and before is not cursor:
            before.mark_dirty(wakes=False)

    def note_fetch(self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch at `offset`, which confirms that the follower has all records below `offset`.

        If `offset` is the leader's log end, the follower is caught up now. If `offset` reaches the log end
        that the leader had at the follower's last fetch, the follower was caught up at that fetch. So a
        follower under steady load, always one fetch behind, counts as caught up.
        """
        if offset >= leader_end_offset:
            caught_up_ms = now_ms
        elif offset >= self.last_fetch_leader_end_offset:
            caught_up_ms = self.last_fetch_ms
        else:
            caught_up_ms = 0
        if caught_up_ms > self.last_caught_up_ms:
            self.last_caught_up_ms = caught_up_ms
        self.log_start_offset = log_start_offset
        self.log_end_offset = offset
        if leader_end_offset > self.last_fetch_leader_end_offset:
            self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_stuck(self, offset: int) -> bool:
        """Count repeated fetches at this offset although records lie after it. Returns True if the leader
        should search for the cause.

        The first repetition does not count, because the former fetch may have come before the leader had
        records. A second repetition may mean that the follower cannot use the answer. After that, True is
        returned each time that the number of repetitions has doubled.
        """
        if self.stuck_at != offset:
            self.stuck_at, self.stuck_count = offset, 1
            return False
        self.stuck_count += 1
        return self.stuck_count & (self.stuck_count - 1) == 0

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """True if the follower has the whole log now, or had it at most `lag_ms_max` ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max


class Followers:
    """The followers of one partition, while this broker leads it. An object is made for each new image of the
    partition.
    """

    __slots__ = ("_brokers", "_by_id", "_image")

    def __init__(
        self, image: PartitionImage | None, brokers: BrokerStates, by_id: dict[int, RemoteReplica]
    ) -> None:
        self._image = image
        self._brokers = brokers
        self._by_id = by_id

    @staticmethod
    def of(image: PartitionImage, node_id: int, brokers: BrokerStates, known: Followers) -> Followers:
        """Make the set of followers for this image: all replicas of the partition except the one on
        `node_id`. For a follower that is in `known`, keep the leader's knowledge about it.
        """
        others = [broker_id for broker_id in image.replicas if broker_id != node_id]
        if not others:
            return NO_FOLLOWERS
        now_ms = brokers.now_ms()
        return Followers(
            image,
            brokers,
            {
                broker_id: known.find(broker_id)
                or RemoteReplica(broker_id, now_ms if broker_id in image.isr else 0)
                for broker_id in others
            },
        )

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[RemoteReplica]:
        return iter(self._by_id.values())

    # -- one follower ---------------------------------------------------------------------------------------------

    def find(self, broker_id: int) -> RemoteReplica | None:
        """Return the follower on this broker; None if there is none."""
        return self._by_id.get(broker_id)

    def sender(self, broker_id: int, has_epoch: bool) -> RemoteReplica:
        """Return the follower that sent a fetch. Raises `KafkaError` if this partition has no such replica,
        perhaps because the metadata here are older than the follower's.
        """
        replica = self._by_id.get(broker_id)
        if replica is None:
            reached("replication.follower_unknown_yet")
            # The follower may already have metadata of a reassignment that this broker does not have yet. So
            # its leader epoch may be right.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        return replica

    def broker_epoch_of(self, broker_id: int) -> int:
        """Return the broker epoch of a follower's last fetch; -1 if it has not fetched since this broker became
        leader.
        """
        replica = self._by_id.get(broker_id)
        return UNKNOWN_BROKER_EPOCH if replica is None else replica.broker_epoch

    def is_eligible(self, replica: RemoteReplica) -> bool:
        """True if the follower's last fetch shows that it may join the ISR."""
        directory = self._known_image.directory_of(replica.broker_id)
        return self._brokers.is_eligible(replica.broker_id, replica.broker_epoch, directory)

    def _is_caught_up(self, replica: RemoteReplica, end_offset: int, now_ms: int) -> bool:
        return replica.is_caught_up(end_offset, now_ms, self._lag_ms_max(replica))

    def _lag_ms_max(self, replica: RemoteReplica) -> int:
        """Return the time in milliseconds for which this replica may lag and stay in sync.

        A replica on a disk that takes no records cannot catch up, so the leader waits only briefly for it.
        """
        brokers = self._brokers
        if brokers.is_troubled(self._known_image.directory_of(replica.broker_id)):
            reached("replication.troubled_replica_judged_sooner")
            return min(TROUBLED_LAG_MS_MAX, brokers.lag_ms_max)
        return brokers.lag_ms_max

    def _may_serve(self, broker_id: int) -> bool:
        """True if the broker is alive, or if its replica may be elected when the broker comes back."""
        return self._brokers.is_alive(broker_id) or broker_id in self._known_image.elr

    @property
    def _known_image(self) -> PartitionImage:
        assert self._image is not None, "a leader must know its partition's metadata"
        return self._image

    # -- all followers --------------------------------------------------------------------------------------------

    def note_growth(self) -> None:
        """Called when the leader's log has grown."""
        for replica in self._by_id.values():
            replica.log_grew()

    def mark_dirty(self, *, wakes: bool) -> None:
        """Mark the partition dirty in the followers' fetch sessions."""
        for replica in self._by_id.values():
            if replica.cursor is not None:
                replica.cursor.mark_dirty(wakes=wakes)

    def call_back(self, broker_ids: Iterable[int]) -> None:
        """Answer the parked fetches of these followers, so that they fetch again at once."""
        for broker_id in broker_ids:
            replica = self._by_id.get(broker_id)
            if replica is not None and replica.cursor is not None:
                replica.cursor.call_back()

    def forgive_lag(self, isr: Iterable[int], now_ms: int) -> None:
        """Let these followers count as caught up now, because they could not read the log before."""
        for broker_id in isr:
            replica = self._by_id.get(broker_id)
            if replica is not None:
                replica.last_caught_up_ms = max(replica.last_caught_up_ms, now_ms)

    def lagging(self, isr: Iterable[int], end_offset: int, now_ms: int) -> tuple[int, ...]:
        """Return the ids of the followers in the ISR that have lagged too long behind the leader's log end."""
        return tuple(
            broker_id
            for broker_id in isr
            if (replica := self._by_id.get(broker_id)) is not None
            and not self._is_caught_up(replica, end_offset, now_ms)
        )

    def lowest_end(self, offset: int, end_offset: int, maximal_isr: Collection[int]) -> int:
        """Return the lowest log end offset of the followers in the maximal ISR, but at most `offset`.

        A follower counts as well if it has just caught up with the leader's log end, and is about to join.
        """
        for replica in self._by_id.values():
            if replica.log_end_offset < offset and (
                replica.broker_id in maximal_isr
                or (
                    self._is_caught_up(replica, end_offset, self._brokers.now_ms())
                    and self.is_eligible(replica)
                )
            ):
                offset = replica.log_end_offset
        return offset

    def lowest_start(self, offset: int) -> int:
        """Return the lowest log start offset of the followers that may serve, but at most `offset`."""
        for replica in self._by_id.values():
            if replica.log_start_offset < offset and self._may_serve(replica.broker_id):
                offset = replica.log_start_offset
        return offset


NO_FOLLOWERS = Followers(None, NOBODY, {})
"""The empty set of followers, for replication factor 1, and for each partition with another leader."""
