"""The group coordinators of a broker: one shard per led partition of `__consumer_offsets`; confirmed reads,
commit timeouts, deleted topics, markers. PORTED.

A shard also appends the transaction markers of its partition. A commit marker makes the offsets of its
transaction valid; an abort marker drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.log_checks import check_end, check_producer
from odradek.data_plane.coordination.read_barrier import ReadBarrier
from odradek.data_plane.coordination.records import TransactionEnd
from odradek.data_plane.coordination.shard import CoordinatorHost
from odradek.data_plane.coordination.shard import Shard as CoordinatorShard
from odradek.data_plane.coordination.shards import Shards
from odradek.data_plane.groups.answers import refusal
from odradek.data_plane.groups.consumers.consumer_membership import WorkerWork
from odradek.data_plane.groups.consumers.topic_hashes import HashTopics, TopicHashes
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DeleteGroup
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    EndTransaction,
    ExpireOffsets,
    FetchOffsets,
    ForgetTopics,
)
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.groups.state import GroupsState, state_of
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.typed_settings import settings_of
from odradek.metadata_quorum.image.metadata_image import MetadataDelta
from odradek.metadata_quorum.state_machine import NotEncoded
from odradek.named_states import reached
from odradek.serving.contract import Receiver
from odradek.serving.timers import Timer
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.messages.write_txn_markers import WritableTxnMarker

_WRITES = (CommitOffsets, DeleteOffsets, DeleteGroup, EndTransaction)
"""Requests that are answered as soon as the log has committed the decision."""
_NEEDS_REPLICAS = (*_WRITES, JoinGroupRequest, SyncGroupRequest)
"""Requests that lead to records in the log, at once or later."""


class Shard(CoordinatorShard[GroupsState, None]):
    """The coordinator of the groups of one partition of `__consumer_offsets`."""

    NAME: ClassVar[str] = "groups"

    def __init__(
        self,
        broker: CoordinatorHost,
        settings: GroupSettings,
        partition: Partition,
        failed: Callable[[Shard], None],
        not_encoded: NotEncoded,
        hashes: TopicHashes | None = None,
    ) -> None:
        self.machine = machine = GroupMachine(settings, lambda: broker.newest.image, hashes)
        super().__init__(
            broker,
            partition,
            failed,
            machine,
            not_encoded,
            compression_type=settings.compression_type,
            commit_timeout_ms=settings.offsets_commit_timeout_ms,
        )
        self._deleted_topics: dict[str, None] = {}
        """Topics that were deleted while the log was being read. Their offsets are removed once it is read.
        """
        self._hashes_for: list[Ask] | None = None
        """Heartbeats that wait until topics are hashed. The worker hashes the topics of the first heartbeat.
        None while no worker hashes topics.
        """
        self._reads = ReadBarrier(broker, partition)

    def read_state(self, latest: Latest, skipped: list[str]) -> GroupsState:
        return state_of(latest, skipped)

    def empty_state(self) -> GroupsState:
        return GroupsState()

    def take_over(self, state: GroupsState) -> None:
        self.machine.restore(state, self.now_ms(), self._broker.env.new_uuid)

    def began(self, state: GroupsState) -> None:
        if self._deleted_topics:
            self.forget_topics(frozenset(self._deleted_topics))

    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        return refusal(ask, code)

    def waits_for_log(self, request: Any) -> bool:
        return isinstance(request, _WRITES)

    def needs_replicas(self, request: Any) -> bool:
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            return _says_something(request)
        return isinstance(request, _NEEDS_REPLICAS)

    def size_of(self, state: GroupsState) -> int:
        return state.group_count

    def submit(self, ask: Ask) -> None:
        """Pass a request to the machine, after the checks and waits that it needs.

        A transactional commit or a marker that the log would refuse is refused here. A heartbeat may wait for
        hashes of topics, and a read may wait for the read barrier.
        """
        code = None if self.is_loading else self._refused_by_log(ask.request)
        if isinstance(ask.request, FetchOffsets) and ask.request.is_confirmed and not self.is_loading:
            _ConfirmedRead(self, ask).begin()
        elif code is None and (unhashed := self._unhashed(ask.request)) is not None:
            if self._hashes_for is None:
                self._hashes_for = [ask]
                self._broker.tasks.start_soon(self._submit_hashed, unhashed)
            else:
                # When many members join at once, they usually read the same topics. So only one run computes
                # hashes at a time.
                self._hashes_for.append(ask)
        elif code is None:
            self._decide(ask)
        elif ask.reply is not None:
            ask.reply.complete(refusal(ask, code))

    def _decide(self, ask: Ask) -> None:
        """Pass the request to the machine, and start the work for workers that its decision requests."""
        super().submit(ask)
        for work in self.machine.consumers.take_wanted():
            self._broker.tasks.start_soon(self._do_in_worker, work)

    def _unhashed(self, request: Any) -> HashTopics | None:
        """Find the large topics that a worker must hash before this heartbeat is decided. Returns None for
        other requests, or if there are no such topics.
        """
        if self.is_loading or not isinstance(request, ConsumerGroupHeartbeatRequest):
            return None
        group = self.newest_state.consumers.get(request.group_id)
        return self.machine.consumers.unhashed(group, request)

    async def _submit_hashed(self, work: HashTopics) -> None:
        """Let a worker hash topics.

        Then decide the first waiting heartbeat, and submit those that have arrived since.
        """
        try:
            self.machine.consumers.hashes.keep(await self._broker.env.workers.run(work.values))
        except Exception:
            # The worker has failed. So the decision computes the hashes on the event loop, which takes longer.
            self._broker.log.exception("groups.topics_not_hashed")
        waiting, self._hashes_for = self._hashes_for or [], None
        if not self._stopped:
            reached("consumer_groups.topics_hashed_in_worker")
            self._decide(waiting[0])
            for ask in waiting[1:]:
                self.submit(ask)
            self._broker.run_woken()
            return
        reached("consumer_groups.coordinator_ended_while_hashing")
        for ask in waiting:
            if ask.reply is not None:
                ask.reply.complete(refusal(ask, ErrorCode.NOT_COORDINATOR))

    async def _do_in_worker(self, work: WorkerWork) -> None:
        """Run one piece of work in a worker thread, and submit the requests that it returns to the machine,
        one by one.
        """
        requests: Sequence[Any] = ()
        try:
            requests = await self._broker.env.workers.run(work.requests)
        except Exception:
            # A failure of one group's work must not end the node. A later heartbeat requests the work again.
            self._broker.log.exception("groups.work_failed", group=work.group_id, work=type(work).__name__)
        for number, request in enumerate(requests):
            if number:
                # Let other tasks run between two parts.
                await self._broker.clock.sleep_until(0.0)
            if self._stopped:
                return
            self.submit(Ask(request, 0, None, self._broker.agreed_clock.latest_ms()))
            self._broker.run_woken()
        self.machine.consumers.work_ended(work)

    def _refused_by_log(self, request: Any) -> ErrorCode | None:
        """Return the error with which the log would refuse this transactional commit or marker; None if it
        would accept it.
        """
        log = self.partition.log
        try:
            if isinstance(request, CommitOffsets) and request.producer is not None:
                check_producer(log, request.producer)
            elif isinstance(request, EndTransaction):
                check_end(log, request.end)
        except KafkaError as error:
            return error.code
        except DiskError as error:
            log.home.failed(error)
            return ErrorCode.NOT_COORDINATOR
        return None

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True if this broker was still the coordinator when `confirm` was called, otherwise
        with False.
        """
        self._reads.add(done)

    def forget_read(self, done: Callable[[bool], None]) -> None:
        """Drop a read that still waits for confirmation."""
        self._reads.forget(done)

    def timer(self, action: Callable[[], None]) -> Timer:
        """Start a timer that calls `action` when a request has waited for the commit timeout."""
        at = self._broker.clock.monotonic() + self._commit_timeout_ms / 1000
        return self._broker.timers.at(at, action)

    def stop(self) -> None:
        self._reads.end()
        super().stop()

    def forget_topics(self, topics: frozenset[str]) -> None:
        """Delete the offsets committed for these deleted topics.

        If the log is still being read, the deletion waits until that has ended.
        """
        if self.is_loading:
            self._deleted_topics.update(dict.fromkeys(sorted(topics)))
        else:
            self.submit(Ask(ForgetTopics(topics), 0, None, self._broker.agreed_clock.latest_ms()))

    def topics_changed(self, topics: Sequence[str]) -> None:
        """Mark the groups that read these topics. Then the next heartbeat of each such group compares the
        hash of the group's topics.
        """
        if not self.is_loading:
            self.machine.topics_changed(topics, self.newest_state)

    def statistics(self) -> dict[str, int]:
        return {**self.machine.statistics(), **super().statistics()}


def _says_something(request: ConsumerGroupHeartbeatRequest) -> bool:
    """True if a heartbeat may report a change, so that its decision may need a record. Such a heartbeat joins
    or leaves the group, or names partitions or subscriptions.
    """
    return (
        request.member_epoch <= 0
        or request.topic_partitions is not None
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
    )


class _ConfirmedRead:
    """A fetch of offsets that waits for proof that this broker still leads the coordinator's partition."""

    __slots__ = ("_ask", "_shard", "_timer")

    def __init__(self, shard: Shard, ask: Ask) -> None:
        self._shard = shard
        self._ask = ask
        self._timer: Timer | None = None

    def begin(self) -> None:
        self._timer = self._shard.timer(self._time_out)
        self._shard.confirm(self._confirmed)

    def _confirmed(self, is_so: bool) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._ask.request = attrs.evolve(self._ask.request, is_confirmed=False)
        if is_so:
            self._shard.submit(self._ask)
        else:
            self._refuse()

    def _time_out(self) -> None:
        self._timer = None
        self._shard.forget_read(self._confirmed)
        self._refuse()

    def _refuse(self) -> None:
        """Answer NOT_COORDINATOR. On this error, every client looks up the coordinator again."""
        assert self._ask.reply is not None
        self._ask.reply.complete(refusal(self._ask, ErrorCode.NOT_COORDINATOR))


_MARKER_CODES = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""The errors of this coordinator that are worth a retry, each with the error code that a transaction
coordinator gets instead. A transaction coordinator expects the codes of a partition's log.
"""


class GroupCoordinator(Shards[Shard]):
    """All group coordinator shards of a broker, and the choice of the shard for a group."""

    def __init__(self, broker: CoordinatorHost, settings: GroupSettings) -> None:
        super().__init__(broker, OFFSETS_TOPIC)
        self.settings = settings
        self._hashes = TopicHashes()
        self._expiry: Timer | None = None

    def new_shard(self, partition: Partition, failed: Callable[[Any], None]) -> Shard:
        if self._expiry is None:
            self._set_expiry()
        return Shard(self._broker, self.settings, partition, failed, self.not_encoded, self._hashes)

    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        return refusal(ask, code)

    def config_changed(self, layers: BrokerConfigLayers) -> None:
        """Apply a change of the broker's configuration.

        Among the keys of groups, only the assignment interval may change at run time.
        """
        self.settings = settings_of(
            GroupSettings,
            layers,
            # This key is Odradek's own. Only the properties file can set it.
            consumer_members_per_partition_max=self.settings.consumer_members_per_partition_max,
        )
        for _, shard in sorted(self.shards.items()):
            shard.machine.consumers.settings_changed(self.settings)

    def apply_metadata(self, delta: MetadataDelta) -> None:
        """Follow a change of the metadata: start and stop shards, delete the offsets of deleted topics, and
        mark groups whose topics have changed.
        """
        self.follow(delta)
        deleted = frozenset(topic.name for topic in delta.deleted_topics.values())
        if deleted:
            for _, shard in sorted(self.shards.items()):
                shard.forget_topics(deleted)
        if delta.created_topics:
            for _, shard in sorted(self.shards.items()):
                shard.machine.topics_created(self._broker.newest.image.offset)
        if delta.changed_brokers:
            self._hashes.brokers_changed(self._broker.newest.image)
        named = dict.fromkeys([*delta.changed_topics, *sorted(deleted)])
        if changed := self._hashes.changed(named, self._broker.newest.image):
            for _, shard in sorted(self.shards.items()):
                shard.topics_changed(changed)

    def complete_transaction(
        self, partition: int, marker: WritableTxnMarker, done: Callable[[ErrorCode], None]
    ) -> None:
        """Append a transaction marker to a partition of `__consumer_offsets`, and apply or drop the
        transaction's offsets.

        `done` is called once with an error code, possibly during this call. NONE means that the marker is
        committed and the offsets are applied or dropped. NOT_LEADER_OR_FOLLOWER means that no shard for this
        partition is ready here.
        """
        shard = self.shards.get(partition)
        if shard is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        end = TransactionEnd(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            marker.transaction_version,
        )
        reply = Receiver(lambda code: done(_MARKER_CODES.get(code, code)))
        shard.submit(Ask(EndTransaction(end), 0, reply, self._broker.agreed_clock.latest_ms()))

    def _set_expiry(self) -> None:
        at = self._broker.clock.monotonic() + self.settings.offsets_retention_check_interval_ms / 1000
        self._expiry = self._broker.timers.at(at, self._expire)

    def _expire(self) -> None:
        self._set_expiry()
        now = self._broker.agreed_clock.moment()
        for index, shard in sorted(self.shards.items()):
            if not shard.is_loading:
                try:
                    shard.submit(Ask(ExpireOffsets(now.earliest_ms), 0, None, now.latest_ms))
                except Exception:
                    # A bug in one shard must not keep the other shards from expiring their offsets.
                    self._broker.log.exception("groups.expiry_failed", partition=index)
