"""A partition on its broker: leader or follower, high watermark, proposed ISR changes, appends, errors for
wrong leaders and epochs.

Theory of operation
-------------------
The high watermark is the offset below which every in-sync replica has the log; consumers read up to it. On
the leader it is the least log end offset of the replicas in the *maximal* ISR (see `isr_state`), and it
advances

* only while the in-sync replicas number at least `effective_min_isr` (ARCHITECTURE.md, "What must always
  hold"), whatever the acks;
* only up to the leader's recovery point, if the topic has `flush.messages`: the leader must sync records
  first, and a sync begins. Followers sync before they confirm records (`synced_promises`);
* never past a follower that has just caught up and is about to join. Otherwise the follower would never reach
  the high watermark, which runs ahead of it.

A follower's fetch offset confirms that it has everything below. It joins the ISR when three things hold. First,
its fetch offset reaches both the high watermark and the start of the leader's epoch. Then it has every record
that may have been acknowledged. Second, its broker is neither fenced nor shutting down. Third, the broker epoch
of its fetch is the one in the metadata. Otherwise a fetch of its broker's former process could let in a replica
that restarted without its data (KIP-903). A fetch with any other broker epoch confirms nothing. An earlier
epoch comes from a former process of the broker. A later epoch is ahead of the metadata on this broker, or is
forged. The leader cannot distinguish these two cases, so it lets the follower copy records. Only metadata
change the epoch that the leader knows.

A partition with replication factor 1 needs none of these rules: its `followers` are empty.

PURE: the log's files are reached only through the log's own methods, and brokers and the controller only
through `PartitionCluster`.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.data_plane.log.batch_work import AT_ONCE, BatchWork
from odradek.data_plane.log.log_config import LONG_MAX, LogConfig
from odradek.data_plane.log.partition_log import AppendResult, Origin, PartitionLog
from odradek.data_plane.log.parts.verification import VerificationGuard
from odradek.data_plane.replication.isr_state import (
    CommittedIsr,
    IsrState,
    PendingExpandIsr,
    PendingIsr,
    PendingShrinkIsr,
    assert_isr,
    committed_isr,
)
from odradek.data_plane.replication.partition_cluster import NOBODY, PartitionCluster
from odradek.data_plane.replication.remote_replica import NO_FOLLOWERS, Followers, RemoteReplica
from odradek.data_plane.replication.waiting_requests import WaitingRequests
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

NO_LEADER_EPOCH = -1
"""The value in a request that names no leader epoch. Any other value is compared with the partition's leader
epoch (KIP-320).
"""

_NOT_APPLIED = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
"""The controller's answers after which the proposal is void, and the committed ISR remains in force."""
_OUTDATED = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""The controller's answers that leave open whether the ISR has changed. Newer metadata, already on its way,
decides.
"""


_NOBODY_WAITS = WaitingRequests()
"""The queues of all partitions for which no request has waited yet. They are shared, and always empty."""


class Partition:
    """This broker's replica of one partition. `image` is the newest metadata about the partition, as the
    controller decided it.
    """

    __slots__ = (
        "_cluster",
        "_end_announced",
        "_hears_fetch",
        "_is_syncing",
        "_waiting",
        "advances_alone",
        "epoch_start_offset",
        "flushes",
        "followers",
        "has_min_isr",
        "image",
        "is_internal",
        "is_leader",
        "isr_state",
        "knows_high_watermark",
        "leader_epoch",
        "log",
        "partition_epoch",
    )

    def __init__(self, log: PartitionLog, cluster: PartitionCluster[Partition] = NOBODY) -> None:
        self.log = log
        self._cluster = cluster
        self.image: PartitionImage | None = None
        self.is_internal = log.topic in INTERNAL_TOPICS
        """True if only a coordinator may write to the topic. It is stored, because the hot path reads it."""
        self.is_leader = False
        self.leader_epoch = -1
        self.partition_epoch = -1
        """The newest partition epoch in the metadata, or in an answer to AlterPartition."""
        self.has_min_isr = True
        """True if enough replicas are in sync for an acks=all write. It is stored, because the hot path reads
        it.
        """
        self.advances_alone = False
        """True if this is the leader and the only replica, so that an append itself raises the high watermark.
        With `flush.messages` it is False, because a sync then raises the high watermark.
        """
        self.flushes = log.config.flush_messages < LONG_MAX
        """True if the topic has `flush.messages`. It is stored, because the hot path reads it."""
        self.isr_state: IsrState = committed_isr(())
        self.followers: Followers = NO_FOLLOWERS
        """The partition's other replicas, while this one leads."""
        self.knows_high_watermark = False
        """True once the high watermark is more recent than the checkpoint. Then this process has led, or its
        log has agreed with a leader's.
        """
        self.epoch_start_offset = 0
        """The log end offset at which this broker began to lead."""
        self._end_announced = -1
        self._is_syncing = False
        """True while a sync runs that the high watermark waits for."""
        self._waiting = _NOBODY_WAITS
        self._hears_fetch: Callable[[RemoteReplica | None], None] | None = None

    # -- decisions of the controller ------------------------------------------------------------------------------

    def apply(self, image: PartitionImage, node_id: int, *, may_lead: bool = True) -> None:
        """Apply the partition's new metadata: leader, epoch, replicas.

        `may_lead` is False while the metadata may be older than this process. Then this replica does not lead.
        Waiting requests are woken, since they may have to fail.
        """
        if image.leader_epoch < self.leader_epoch:
            raise AssertionError(
                f"{self.log.topic}-{self.log.partition}: the leader epoch fell from "
                f"{self.leader_epoch} to {image.leader_epoch}"
            )
        if image.leader_epoch == self.leader_epoch and image.partition_epoch < self.partition_epoch:
            reached("replication.answer_overtook_record")
            # The answer to AlterPartition arrived before the metadata record of the change. That newer record
            # follows, so ignore this image.
            return
        self._assert_sound(image)
        begins = image.leader_epoch > self.leader_epoch or not self.is_leader
        self.followers.mark_dirty(wakes=True)
        if begins or image.partition_epoch > self.partition_epoch or image.isr != self.isr_state.isr:
            self.isr_state = committed_isr(image.isr)
        self.image = image
        self.is_leader = may_lead and image.leader == node_id
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        if self.is_leader:
            if begins:
                self.knows_high_watermark = True
                self.followers = NO_FOLLOWERS
                self.epoch_start_offset = self._end_announced = self.log.log_end_offset
                self.log.assign_epoch(image.leader_epoch)
            self.followers = Followers.of(image, node_id, self._cluster, self.followers)
        else:
            self.followers = NO_FOLLOWERS
        self._weigh_isr()
        if self.is_leader:
            self._raise_high_watermark()
        self.wake_watchers()

    def _assert_sound(self, image: PartitionImage) -> None:
        """Assert that the ISR has only replicas of the partition, and that the leader epoch has only one
        leader.
        """
        assert_isr(image.isr, image.replicas, image.leader)
        known = self.image
        if known is not None and known.leader_epoch == image.leader_epoch and known.leader != image.leader:
            raise AssertionError(
                f"{self.log.topic}-{self.log.partition}: leader epoch {image.leader_epoch} has two leaders, "
                f"{known.leader} and {image.leader}"
            )

    def _propose(self, proposal: PendingIsr) -> None:
        """Send this change of the ISR to the controller for a decision."""
        assert self.image is not None, "a leader must know its partition's metadata"
        assert_isr(proposal.proposed, self.image.replicas, self.image.leader)
        self.isr_state = proposal
        self._cluster.alter_isr(self)

    def look_again(self) -> None:
        """Recompute the high watermark. Called because time has passed or a broker was fenced, so that a
        replica may no longer hold the high watermark back.
        """
        if self._raise_high_watermark():
            self._announce_high_watermark()

    def delete_records(self, offset: int) -> None:
        """Delete the records below `offset` by raising the log start offset. The followers' fetches are
        answered at once, so that the followers raise their log start offsets, too (KIP-107).

        Raises `KafkaError` OFFSET_OUT_OF_RANGE.
        """
        self.log.set_log_start_offset(offset)
        self.followers.mark_dirty(wakes=False)
        self.followers.call_back(replica.broker_id for replica in self.followers)

    def start_stored(self) -> None:
        """Called when the log start offset is in its checkpoint. Wakes the requests that wait for a deletion."""
        for watcher in list(self._waiting.watchers or ()):
            watcher()

    def set_config(self, config: LogConfig) -> None:
        """Apply the topic's new configuration. A new `min.insync.replicas` may stop or resume the advance of
        the high watermark.
        """
        self.log.set_config(config)
        self.flushes = config.flush_messages < LONG_MAX
        self._weigh_isr()
        if self.is_leader:
            self.advance_high_watermark()

    def resign(self) -> None:
        """Stop serving, because the partition is deleted or its directory failed. Wakes all waiting requests."""
        self.followers.mark_dirty(wakes=True)
        self.is_leader = False
        self.followers = NO_FOLLOWERS
        self.advances_alone = False
        self.wake_watchers()

    @property
    def effective_min_isr(self) -> int:
        """The value of `min.insync.replicas`, or the number of replicas if that is less (Kafka's
        `effectiveMinIsr`).
        """
        replicas = 1 if self.image is None else len(self.image.replicas)
        return min(self.log.config.min_insync_replicas, replicas)

    @property
    def is_under_replicated(self) -> bool:
        """True if fewer replicas are in sync than the partition has, as its leader sees it."""
        return self.image is not None and len(self.isr_state.isr) < len(self.image.replicas)

    def is_adding(self, broker_id: int) -> bool:
        """True if a reassignment is adding the replica on the broker with this id."""
        return self.image is not None and broker_id in self.image.adding_replicas

    def _weigh_isr(self) -> None:
        if self.image is not None:
            self.has_min_isr = len(self.isr_state.isr) >= self.effective_min_isr
            self.advances_alone = self.is_leader and not self.followers and not self.flushes
        if self._hears_fetch is not None:
            self._hears_fetch(None)

    # -- the leader's log -----------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batch: memoryview,
        now_ms: int,
        work: BatchWork = AT_ONCE,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append one batch of a client. `guard` proves that the transaction of a transactional batch was
        verified (KIP-890).

        After a `KafkaError`, a `DiskError` or an error of `work`, nothing was appended.
        """
        result = self.log.append(batch, Origin.CLIENT, self.leader_epoch, now_ms, guard, work)
        if self.advances_alone:
            if self.has_min_isr:
                log = self.log
                log.advance_high_watermark(log.log_end_offset)
                waiting = self._waiting
                if waiting.watchers:
                    self._announce_high_watermark()
                elif waiting.fetches is not None:
                    waiting.call_reached_fetches(log)
        else:
            self.advance_high_watermark()
        return result

    def append_marker(self, marker: memoryview, now_ms: int, transaction_version: int) -> AppendResult:
        """Append a marker that ends a transaction, at its coordinator's request.

        Raises:
            KafkaError: NOT_ENOUGH_REPLICAS, or the error for an outdated epoch
            (`ProducerState.check_marker`). DiskError
        """
        if not self.has_min_isr:
            reached("replication.marker_waits_for_replicas")
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        log = self.log
        result = log.append(
            marker,
            Origin.COORDINATOR,
            self.leader_epoch,
            now_ms,
            transaction_version=transaction_version,
        )
        self.advance_high_watermark()
        return result

    def advance_high_watermark(self) -> None:
        """Wake the fetches of followers, and raise the high watermark. Called after the log has grown, or the
        ISR has reached `min.insync.replicas`.
        """
        if self.log.log_end_offset != self._end_announced:
            self._end_announced = self.log.log_end_offset
            self.followers.note_growth()
            self._waiting.call_reached_fetches(self.log)
        if self._raise_high_watermark():
            self._announce_high_watermark()

    def _raise_high_watermark(self) -> bool:
        log = self.log
        end_offset = log.log_end_offset
        if log.high_watermark >= end_offset or not self.is_leader:
            if log.high_watermark > end_offset:
                raise AssertionError(
                    f"{log.topic}-{log.partition}: the high watermark {log.high_watermark} is above "
                    f"the log end offset {end_offset}"
                )
            return False
        offset = self._synced_end() if self.flushes else end_offset
        if not self.has_min_isr:
            reached("replication.high_watermark_waits_for_replicas")
            return False
        offset = self.followers.lowest_end(offset, end_offset, self.isr_state.maximal_isr)
        if offset <= log.high_watermark:
            return False
        log.advance_high_watermark(offset)
        return True

    def _synced_end(self) -> int:
        """Return the end of the leader's log, up to which the high watermark may rise. If the topic has
        `flush.messages`, return the end of the synced records, and begin a sync if it is needed. One sync
        runs at a time. Appends that come meanwhile share the next sync.
        """
        log = self.log
        if not log.needs_flush:
            return log.log_end_offset
        if not self._is_syncing:
            self._is_syncing = True
            self._cluster.sync(self, self._sync_ended)
        return log.recovery_point

    def _sync_ended(self) -> None:
        """Called when a sync for the high watermark has ended. Raises the high watermark, and begins another
        sync if there are unsynced records.
        """
        self._is_syncing = False
        self.look_again()

    def suspect(self, offset: int) -> None:
        """Request a check of the bytes at this offset, because they do not form a valid batch."""
        self._cluster.suspect(self, offset)

    def follow(self, high_watermark: int, log_start_offset: int) -> None:
        """Apply the leader's high watermark and log start offset to this follower's log, after an append."""
        log = self.log
        if self.is_leader:
            raise AssertionError(
                f"{log.topic}-{log.partition}: this broker is the leader, so its replica cannot follow "
                "a leader"
            )
        before = log.high_watermark
        # The leader may have committed more than this follower has fetched.
        log.advance_high_watermark(min(high_watermark, log.log_end_offset))
        # The log agrees with the leader's. Otherwise the answer would have had a diverging epoch.
        self.knows_high_watermark = True
        if log_start_offset > log.log_start_offset:
            log.set_log_start_offset(min(log_start_offset, log.high_watermark))
        if log.high_watermark > before:
            self._announce_high_watermark()

    # -- followers ------------------------------------------------------------------------------------------------

    def others_in_sync(self) -> list[int]:
        """List the other in-sync replicas, which the controller may elect, as far as this broker knows."""
        assert self.image is not None, "a leader must know its partition's metadata"
        return [each for each in self.isr_state.maximal_isr if each != self.image.leader]

    def hear_fetches(self, listener: Callable[[RemoteReplica | None], None] | None) -> None:
        """Set a listener. For each fetch of a follower, the listener is called with the follower, before the
        fetch is answered. The listener is called with None if the in-sync replicas or the leader may have
        changed.
        """
        self._hears_fetch = listener

    def fetched(self, replica: RemoteReplica) -> None:
        """Call the listener for a fetch that `note_fetch` has recorded. `replica.cursor` belongs to the fetch
        session of that fetch.
        """
        if self._hears_fetch is not None:
            self._hears_fetch(replica)

    def note_fetch(
        self, replica: RemoteReplica, broker_epoch: int, offset: int, log_start_offset: int, now_ms: int
    ) -> bool:
        """Record that a follower has all records below `offset`, from which it fetches. The caller has
        checked that both logs agree up to `offset`.

        Returns False if the fetch confirms nothing, because its broker epoch is newer than the metadata here.
        Raises `KafkaError` NOT_LEADER_OR_FOLLOWER for a fetch without a broker epoch, or with an earlier one
        than the registered epoch (Kafka's `updateFetchStateOrThrow`).
        """
        registered = self._cluster.registered_epoch(replica.broker_id)
        if broker_epoch < max(0, registered):
            reached("replication.fetch_of_earlier_life_refused")
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the follower's broker epoch is older than the registered broker epoch",
            )
        if broker_epoch > registered:
            reached("replication.fetch_of_later_life_not_counted")
            return False
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise AssertionError(
                f"{log.topic}-{log.partition}: the replica on broker {replica.broker_id} claims to end "
                f"at offset {offset}, outside this log's {log.log_start_offset} to {log.log_end_offset}"
            )
        replica.broker_epoch = broker_epoch
        moved = offset != replica.log_end_offset
        has_deleted = log_start_offset != replica.log_start_offset
        if not moved and offset < log.log_end_offset and replica.is_stuck(offset):
            self._cluster.suspect(self, offset)
        replica.note_fetch(offset, log_start_offset, log.log_end_offset, now_ms)
        if replica.broker_id not in self.isr_state.maximal_isr:
            self._may_expand(replica)
        if (moved and self._raise_high_watermark()) or (has_deleted and self._waiting.watchers is not None):
            self._announce_high_watermark()
        return True

    def _may_expand(self, replica: RemoteReplica) -> None:
        if (
            not self.isr_state.is_pending
            and replica.log_end_offset >= self.log.high_watermark
            and replica.log_end_offset >= self.epoch_start_offset
            and self.followers.is_eligible(replica)
        ):
            self._propose(PendingExpandIsr(CommittedIsr(self.isr_state.isr), replica.broker_id))

    def shrink_isr(self, now_ms: int) -> tuple[int, ...]:
        """Propose an ISR without the followers that have lagged too long. Returns the ids of these followers.

        Does nothing while this leader's own log is unreadable, because that alone makes followers lag.
        """
        if not self.followers or self.isr_state.is_pending or self.log.offline:
            return ()
        leaving = self.followers.lagging(self.isr_state.isr, self.log.log_end_offset, now_ms)
        if leaving:
            self._propose(PendingShrinkIsr(CommittedIsr(self.isr_state.isr), leaving))
        return leaving

    def isr_decided(
        self, proposal: PendingIsr, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]
    ) -> None:
        """Called when the controller has accepted the proposal, or the proposed ISR is already in force.

        A smaller ISR counts only when it arrives through the metadata log, with the `min.insync.replicas` by
        which it was decided. The controller may know a higher `min.insync.replicas` than this leader. Then
        the controller may have made a removed replica eligible to lead, because that replica has all
        committed records (KIP-966).
        """
        if (
            self.isr_state is not proposal
            or leader_epoch != self.leader_epoch
            or partition_epoch < self.partition_epoch
            or (isinstance(proposal, PendingShrinkIsr) and partition_epoch > self.partition_epoch)
        ):
            reached("replication.isr_answer_outdated")
            return
        reached("replication.isr_change_accepted")
        assert self.image is not None, "a leader must know its partition's metadata"
        assert_isr(isr, self.image.replicas, self.image.leader)
        self.isr_state = committed_isr(isr)
        self.partition_epoch = partition_epoch
        self._weigh_isr()
        if self._raise_high_watermark():
            self._announce_high_watermark()

    def isr_refused(self, proposal: PendingIsr, code: ErrorCode) -> bool:
        """Called when the controller has refused the proposal. Returns true if the proposal should be sent
        again (Kafka's `handleAlterPartitionError`).
        """
        if self.isr_state is not proposal:
            return False
        if code in _NOT_APPLIED:
            reached("replication.isr_change_refused")
            self.isr_state = proposal.committed
            # The proposed replica no longer counts for the high watermark. The fetches of all other replicas
            # have been counted already.
            self.look_again()
            return False
        return code not in _OUTDATED

    @property
    def low_watermark(self) -> int:
        """The lowest stored log start offset of all live replicas. All of these replicas have deleted the
        records below it (KIP-107).

        Eligible leader replicas count as well, since they may lead next (KIP-966).
        """
        lowest = self.log.stored_start_offset
        return self.followers.lowest_start(lowest)

    # -- waiting requests -----------------------------------------------------------------------------------------

    @property
    def waiting(self) -> WaitingRequests:
        """The queues of waiting requests; made when first read."""
        if self._waiting is _NOBODY_WAITS:
            self._waiting = WaitingRequests()
        return self._waiting

    def _announce_high_watermark(self) -> None:
        self._acknowledge()
        self.followers.mark_dirty(wakes=False)
        self._waiting.call_watchers()
        self._waiting.call_reached_fetches(self.log)

    def _acknowledge(self) -> None:
        if self._waiting.for_acks:
            enough = len(self.isr_state.maximal_isr) >= self.effective_min_isr
            code = ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self._waiting.acknowledge(self.log.high_watermark, code)

    def wake_watchers(self) -> None:
        """Wake all waiting requests and fetches, in the order in which they came, because the partition has
        changed.
        """
        waiting = self._waiting
        if self.is_leader:
            self._acknowledge()
        else:
            waiting.lose_leadership()
        waiting.call_watchers()
        waiting.call_all_fetches()

    def leader_error(self, current_leader_epoch: int) -> ErrorCode:
        """Return the error if this broker does not lead, or if the request's leader epoch differs (KIP-320);
        NONE otherwise. The epoch -1 means that the request has none.
        """
        code = self.epoch_error(current_leader_epoch)
        if not code and not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """Return the error for a request whose leader epoch differs (KIP-320); NONE otherwise. Unlike
        `leader_error`, it accepts requests to a follower.
        """
        if current_leader_epoch != NO_LEADER_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE

    def reader_error(self, current_leader_epoch: int) -> ErrorCode:
        """Return the error for a consumer that cannot read from this replica, leader or follower (KIP-392);
        NONE if it can.

        After a start a follower has a log and a checkpoint of the high watermark. Its machine may have lost
        power after a truncation that was not synced. Then the log may have records that were never committed,
        even below the checkpoint. So consumers get OFFSET_NOT_AVAILABLE until the log has once agreed with
        the leader's log.
        """
        code = self.epoch_error(current_leader_epoch)
        if not code and not self.knows_high_watermark:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return code

    def statistics(self) -> dict[str, int | bool]:
        """Return figures about the partition as its leader sees it, for metrics."""
        isr = len(self.isr_state.isr)
        return {
            "is_leader": self.is_leader,
            "leader_epoch": self.leader_epoch,
            "in_sync": isr,
            "is_under_replicated": self.is_leader and self.is_under_replicated,
            "is_under_min_isr": self.is_leader and not self.has_min_isr,
            "waiting_for_acks": len(self._waiting.for_acks or ()),
        }
