"""The group coordinators of a broker: one per led partition of `__consumer_offsets` (PORTED).

Theory of operation
-------------------
A `Shard` is the coordinator of one partition. It begins when the partition's leadership comes. The log is read in a
worker; requests meanwhile get COORDINATOR_LOAD_IN_PROGRESS. Then a `GroupMachine` runs over it in a
`ReplicatedStateMachine`. It ends when leadership goes, the leader epoch moves or the disk fails: those who wait are
told NOT_COORDINATOR, and nothing of it is kept. After a failed append the log may have less than the machine decided.
So the shard begins anew from the log; a full disk is thus waited out. A record that fails to decode is skipped.
Otherwise any client that may write to the topic could stop its groups for ever.

A request is submitted with a reply. One decision may answer many (a rebalance). All its answers are given when the
log has committed it. The caller gets back a response if that was at once, otherwise the `Delayed`.

Deadlines are the machine's (`Deadlines`); a shard keeps one timer of the broker at the earliest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from data_plane.groups.answers import refusal
from data_plane.groups.classic_group import Reply
from data_plane.groups.decision_log import CoordinatorLog, read_latest
from data_plane.groups.group_settings import GroupSettings
from data_plane.groups.listing import DeleteGroup
from data_plane.groups.machine import GroupMachine, TimePasses
from data_plane.groups.offsets import CommitOffsets, DeleteOffsets, ExpireOffsets, ForgetTopics
from data_plane.groups.offsets_topic import OFFSETS_TOPIC
from data_plane.groups.state import GroupsState, state_of
from data_plane.groups.turn import Answers, Ask
from data_plane.log.partition_log import PartitionLog
from data_plane.ports import BrokerHost
from data_plane.replication.hosted_topics import HostedTopic
from data_plane.replication.partition import Partition
from metadata_quorum.image.metadata_image import MetadataDelta, MetadataImage
from metadata_quorum.state_machine import ReplicatedStateMachine
from odradek.env.ports import DiskError, Env, TaskGroup, Workers
from odradek.serving.contract import Context, Delayed, Result
from odradek.serving.timers import Timer, Timers
from wire.errors import ErrorCode, KafkaError, ProtocolError
from wire.messages.join_group import JoinGroupRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.structure import Message

_WRITES = (CommitOffsets, DeleteOffsets, DeleteGroup)
"""Requests that wait for the log alone."""
_NEEDS_REPLICAS = (*_WRITES, JoinGroupRequest, SyncGroupRequest)
"""Requests that lead to records, at once or later."""
RELOAD_SECONDS = 1.0


class CoordinatorHost(BrokerHost, Protocol):
    """The part of the broker that coordinators use."""

    @property
    def env(self) -> Env: ...

    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def topics(self) -> Mapping[str, HostedTopic]:
        """The hosted topics by name."""

    def workers_for(self, log: PartitionLog) -> Workers:
        """The threads that may wait for this log's disk."""

    def sync_partition(self, partition: Partition, done: Callable[[KafkaError | None], None]) -> None:
        """Call `done` after a flush of the log that begins from now on."""


class _Caught:
    """A reply that keeps the response until it is asked for."""

    __slots__ = ("later", "response")

    def __init__(self) -> None:
        self.response: Any = None
        self.later: Reply | None = None

    def complete(self, response: Any) -> None:
        if self.later is None:
            self.response = response
        else:
            self.later.complete(response)


class Shard:
    """The coordinator of one partition, for one leadership. `load`, then `submit`, until `stop`."""

    def __init__(
        self,
        broker: CoordinatorHost,
        settings: GroupSettings,
        partition: Partition,
        failed: Callable[[Shard], None],
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._failed = failed
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = GroupMachine(settings)
        self._log = CoordinatorLog(partition, broker.clock.wall_ms, settings.compression_type)
        self._runtime: ReplicatedStateMachine[GroupsState, None] | None = None
        self._unanswered: dict[Reply, Ask] = {}
        self._timer: Timer | None = None
        self._commit_timer: Timer | None = None
        self._deleted_topics: dict[str, None] = {}
        """Topics deleted while the log is read."""
        self._stopped = False

    @property
    def is_loading(self) -> bool:
        return self._runtime is None

    async def load(self) -> None:
        """Read the log and begin to serve."""
        log = self.partition.log
        started_at = self._broker.clock.monotonic()
        skipped: list[str] = []
        try:
            if log.log_end_offset > log.log_start_offset:
                workers = self._broker.workers_for(log)
                state = await workers.run(lambda: state_of(read_latest(log, skipped), skipped))
            else:
                state = GroupsState()
        except (KafkaError, ProtocolError, DiskError) as error:
            if not self._stopped:
                self._broker.log.error("groups.not_loaded", partition=log.partition, error=str(error))
                self._failed(self)
            return
        if self._stopped:
            return
        broker = self._broker
        if skipped:
            broker.log.error(
                "groups.records_skipped", partition=log.partition, count=len(skipped), first=skipped[0]
            )
        self.machine.restore(state, self._now_ms(), broker.env.new_uuid)
        self._runtime = ReplicatedStateMachine(
            self.machine,
            self._log,
            state,
            random=broker.env.random,
            new_uuid=broker.env.new_uuid,
            fail=self._end_node,
        )
        self.partition.watch(self._log.catch_up)
        self._set_timer()
        if self._deleted_topics:
            self.forget_topics(frozenset(self._deleted_topics))
        if state.metadata or state.offsets:
            broker.log.info(
                "groups.loaded",
                partition=log.partition,
                groups=len(state.group_ids()),
                load_ms=round((broker.clock.monotonic() - started_at) * 1000),
            )

    def _now_ms(self) -> int:
        # Rounded: a timer for millisecond n that comes exactly in time must find that n has come.
        return round(self._broker.clock.monotonic() * 1000)

    def submit(self, ask: Ask) -> None:
        """Have the machine decide. `ask.reply` gets its answer now or later."""
        runtime = self._runtime
        if runtime is None:
            if ask.reply is not None:
                ask.reply.complete(refusal(ask, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if not self.partition.has_min_isr and isinstance(ask.request, _NEEDS_REPLICAS):
            # As for every write with acks=all. Heartbeats and reads go on, so that no session ends because of it.
            if ask.reply is not None:
                ask.reply.complete(refusal(ask, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if ask.reply is not None:
            ask.asked_at = self._broker.clock.monotonic()
            self._unanswered[ask.reply] = ask
        try:
            deferred = runtime.submit(ask, self._now_ms())
        except (DiskError, KafkaError) as error:
            self._broker.log.error(
                "groups.not_written", partition=self.partition.log.partition, error=str(error)
            )
            self._failed(self)
            return
        if self.partition.log.needs_flush:
            self._broker.sync_partition(self.partition, lambda failure: None)
        deferred.on_release(self._deliver)
        self._log.catch_up()
        self._set_timer()
        if self._commit_timer is None and isinstance(ask.request, _WRITES) and ask.reply in self._unanswered:
            self._watch_commits()

    def _end_node(self, error: BaseException) -> None:
        """End the node, because a decision cannot be replayed. A caller would catch the error, so a task of the node
        raises it.
        """

        async def end() -> None:
            raise error

        self._broker.tasks.start_soon(end)

    def forget_topics(self, topics: frozenset[str]) -> None:
        """Delete the offsets that were committed in deleted topics."""
        if self.is_loading:
            self._deleted_topics.update(dict.fromkeys(sorted(topics)))
        else:
            self.submit(Ask(ForgetTopics(topics), 0, None, self._broker.clock.wall_ms()))

    def _watch_commits(self) -> None:
        """Answer decisions that have waited too long for the high watermark, while there are any that wait."""
        oldest = next((ask for ask in self._unanswered.values() if isinstance(ask.request, _WRITES)), None)
        if oldest is not None:
            at = oldest.asked_at + self._settings.offsets_commit_timeout_ms / 1000
            self._commit_timer = self._broker.timers.at(at, self._time_out_commits)

    def _time_out_commits(self) -> None:
        """Answer requests after `offsets.commit.timeout.ms`. Records that are not replicated by then may still be, or
        may be lost.
        """
        self._commit_timer = None
        now = self._broker.clock.monotonic()
        timeout = self._settings.offsets_commit_timeout_ms / 1000
        late = [
            (reply, ask)
            for reply, ask in self._unanswered.items()
            # Computed as the timer computes it: with a difference, a rounding error would set it again for this very
            # moment.
            if isinstance(ask.request, _WRITES) and ask.asked_at + timeout <= now
        ]
        for reply, _ in late:
            del self._unanswered[reply]
        self._watch_commits()
        for reply, ask in late:
            try:
                reply.complete(refusal(ask, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            except Exception:
                # The other requests that wait must get their answers as well.
                self._broker.log.exception("request.bug")

    def _deliver(self, answers: Answers) -> None:
        for reply, response in answers:
            if self._unanswered.pop(reply, None) is not None:
                reply.complete(response)

    def _set_timer(self) -> None:
        next_ms = self.machine.deadlines.next_ms
        timer = self._timer
        if next_ms == float("inf") or (timer is not None and timer.deadline <= next_ms / 1000):
            return
        if timer is not None:
            timer.cancel()
        self._timer = self._broker.timers.at(next_ms / 1000, self._time_passes)

    def _time_passes(self) -> None:
        if self._stopped:
            self._timer = None
            return
        # Armed again before anything can go wrong; a decision that fails leaves its deadline behind it.
        at = self._broker.clock.monotonic() + RELOAD_SECONDS
        self._timer = again = self._broker.timers.at(at, self._time_passes)
        self.submit(Ask(TimePasses(), 0, None, self._broker.clock.wall_ms()))
        if self._timer is again and not self._stopped:
            again.cancel()
            self._timer = None
            self._set_timer()

    def stop(self) -> None:
        """End the shard, because the leadership is gone. Waiting requests get NOT_COORDINATOR."""
        self._stopped = True
        self.partition.unwatch(self._log.catch_up)
        for timer in (self._timer, self._commit_timer):
            if timer is not None:
                timer.cancel()
        waiting, self._unanswered = self._unanswered, {}
        for reply, ask in waiting.items():
            reply.complete(refusal(ask, ErrorCode.NOT_COORDINATOR))
        if self._runtime is not None:
            self._runtime.resign()

    def statistics(self) -> dict[str, int]:
        """Figures for metrics."""
        figures = self.machine.statistics()
        figures["groups"] = 0 if self._runtime is None else self._runtime.state.group_count
        figures["unanswered"] = len(self._unanswered)
        return figures


class GroupCoordinator:
    """All shards of a broker, and which of them a group belongs to."""

    def __init__(self, broker: CoordinatorHost, settings: GroupSettings) -> None:
        self._broker = broker
        self.settings = settings
        self.shards: dict[int, Shard] = {}
        self._is_open = True
        self._expiry: Timer | None = None
        self._reload: Timer | None = None
        """One backoff for all shards, so that moving leaderships do not make an unreadable log be read more often."""

    def partition_for(self, group_id: str) -> int | None:
        """The partition of a group, None while the topic does not exist."""
        topic = self._broker.newest.image.topics.get(OFFSETS_TOPIC)
        return None if topic is None else partition_of(group_id, len(topic.partitions))

    def submit(self, group_id: str, ask: Ask) -> None:
        """Let the group's coordinator decide; `ask.reply` gets the answer, at once where another node has it."""
        index = self.partition_for(group_id)
        shard = None if index is None else self.shards.get(index)
        if shard is not None:
            shard.submit(ask)
        elif ask.reply is not None:
            ask.reply.complete(refusal(ask, ErrorCode.NOT_COORDINATOR))

    def answer(self, context: Context, group_id: str, request: Any) -> Result:
        """Submit a request for a handler; return the response, or a `Delayed`."""
        caught = _Caught()
        self.submit(
            group_id,
            Ask(
                request,
                context.api_version,
                caught,
                self._broker.clock.wall_ms(),
                context.client_id or "",
                f"/{context.client_address}",
            ),
        )
        if caught.response is not None:
            response: Message = caught.response
            return response
        caught.later = delayed = Delayed()
        return delayed

    # -- metadata -------------------------------------------------------------------------------------------------

    def apply_metadata(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Begin and end shards as leadership comes and goes; forget the offsets of deleted topics."""
        deleted = frozenset(topic.name for topic in delta.deleted_topics.values())
        if OFFSETS_TOPIC in delta.changed_topics or OFFSETS_TOPIC in deleted:
            self.follow_leadership()
        if deleted:
            for _, shard in sorted(self.shards.items()):
                shard.forget_topics(deleted)

    def follow_leadership(self) -> None:
        """Keep exactly one shard for each led partition, of its leader epoch."""
        hosted = self._broker.topics.get(OFFSETS_TOPIC)
        led = {
            index: partition
            for index, partition in ({} if hosted is None else hosted.partitions).items()
            if partition.is_leader and self._is_open
        }
        for index, shard in sorted(self.shards.items()):
            partition = led.get(index)
            if partition is not shard.partition or partition.leader_epoch != shard.leader_epoch:
                del self.shards[index]
                shard.stop()
        for index, partition in sorted(led.items()):
            if index not in self.shards:
                self._begin(index, partition)

    def _begin(self, index: int, partition: Partition) -> None:
        shard = self.shards[index] = Shard(self._broker, self.settings, partition, self._shard_failed)
        self._broker.tasks.start_soon(shard.load)
        if self._expiry is None:
            self._set_expiry()

    def _shard_failed(self, shard: Shard) -> None:
        """Begin the shard anew from the log, after a pause."""
        shard.stop()
        index = shard.partition.log.partition
        if self.shards.get(index) is shard:
            del self.shards[index]
            if self._reload is None:
                at = self._broker.clock.monotonic() + RELOAD_SECONDS
                self._reload = self._broker.timers.at(at, self._begin_anew)

    def _begin_anew(self) -> None:
        self._reload = None
        self.follow_leadership()

    def _set_expiry(self) -> None:
        at = self._broker.clock.monotonic() + self.settings.offsets_retention_check_interval_ms / 1000
        self._expiry = self._broker.timers.at(at, self._expire)

    def _expire(self) -> None:
        self._set_expiry()
        for index, shard in sorted(self.shards.items()):
            if not shard.is_loading:
                try:
                    shard.submit(Ask(ExpireOffsets(), 0, None, self._broker.clock.wall_ms()))
                except Exception:
                    # One shard's bug must not cost the others their turn.
                    self._broker.log.exception("groups.expiry_failed", partition=index)

    def stop(self) -> None:
        """End all shards, because the node stops. Waiting requests get NOT_COORDINATOR."""
        self._is_open = False
        self.follow_leadership()

    def statistics(self) -> dict[str, int]:
        """Figures for metrics, of all shards together."""
        totals = {"shards": len(self.shards), "loading": 0}
        for shard in self.shards.values():
            totals["loading"] += shard.is_loading
            for name, value in shard.statistics().items():
                totals[name] = totals.get(name, 0) + value
        return totals


def partition_of(group_id: str, partitions: int) -> int:
    """Kafka's rule: the absolute value of Java's `String.hashCode` (over UTF-16 code units), modulo the partitions."""
    code = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    magnitude = code if code < 1 << 31 else (1 << 32) - code
    return (0 if magnitude == 1 << 31 else magnitude) % partitions
