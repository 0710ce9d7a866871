"""The coordinator of one led partition of an internal topic, for one leadership. PORTED.

Theory of operation
-------------------
A `Shard` begins when the partition's leadership comes. The log is read in a worker; requests meanwhile get
COORDINATOR_LOAD_IN_PROGRESS. Then a machine runs over it in a `ReplicatedStateMachine`. It ends when leadership goes,
the leader epoch moves or the disk fails: waiting requests get NOT_COORDINATOR, and no state is kept. After a failed
append the log may have less than the machine decided. So the shard begins anew from the log, until a full disk has
room again. A record that fails to decode is skipped. Otherwise any client that may write to the topic could stop its
coordinators for ever.

A request is submitted with a reply. One decision may answer many (a rebalance). All its answers are given when the
log has committed it. The caller gets the response if that was at once, otherwise the `Delayed`.

The machine keeps its deadlines (`Deadlines`). The shard sets one timer of the broker for the earliest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from odradek.data_plane.coordination.asking import Answers, Ask, Deadlines, Reply, TimePasses
from odradek.data_plane.coordination.decision_log import CoordinatorLog, Latest, read_latest
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopic
from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import DiskError, Env, TaskGroup, Workers
from odradek.metadata_quorum.state_machine import Machine, NotEncoded, ReplicatedStateMachine
from odradek.named_states import reached
from odradek.serving.timers import Timer, Timers
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError

RELOAD_SECONDS = 1.0

S = TypeVar("S")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)


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
        """Return the threads that may wait for this log's disk."""

    @property
    def woken(self) -> list[Callable[[], None]]:
        """Actions that are due after the turn of a connection or a timer."""

    def run_woken(self) -> None:
        """Run the actions that are due after this turn. A task that has changed a log calls it."""


class TimedMachine(Machine[S, D_co, Ask, Answers], Protocol[S, D_co]):
    """A machine that names the time of its next deadline."""

    deadlines: Deadlines


class Shard(ABC, Generic[S, D]):
    """The coordinator of one partition, with the state and the changes of its machine. `load`, then `submit`, until `stop`."""

    NAME: ClassVar[str]
    """The kind of coordinator, as metrics name it."""

    def __init__(
        self,
        broker: CoordinatorHost,
        partition: Partition,
        failed: Callable[[Any], None],
        machine: TimedMachine[S, D],
        not_encoded: NotEncoded,
        *,
        compression_type: int,
        commit_timeout_ms: int,
    ) -> None:
        """`failed` is called with a shard that must begin anew. `not_encoded` counts for all shards.
        `compression_type` is that of its batches.
        """
        self._broker = broker
        self._failed = failed
        self._timed_machine = machine
        self._not_encoded = not_encoded
        self._commit_timeout_ms = commit_timeout_ms
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self._log = CoordinatorLog(partition, broker.clock.wall_ms, compression_type)
        self._runtime: ReplicatedStateMachine[S, D, Ask, Answers] | None = None
        self._unanswered: dict[Reply, Ask] = {}
        self._timer: Timer | None = None
        self._commit_timer: Timer | None = None
        self._stopped = False

    # -- what kind of coordinator this is -------------------------------------------------------------------------

    @abstractmethod
    def read_state(self, latest: Latest, skipped: list[str]) -> S:
        """Build the state from the log's latest values. It runs in a worker, so it must touch nothing else."""

    @abstractmethod
    def empty_state(self) -> S:
        """Make the state of an empty log."""

    @abstractmethod
    def take_over(self, state: S) -> None:
        """Set up the machine's state that is not replicated."""

    def began(self, state: S) -> None:
        """Resume the unfinished work of an earlier coordinator. Requests are decided from now on."""

    @abstractmethod
    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        """Make the answer to `ask` instead of a decision."""

    @abstractmethod
    def waits_for_log(self, request: Any) -> bool:
        """True if the request waits for the log alone, and for no other client."""

    @abstractmethod
    def needs_replicas(self, request: Any) -> bool:
        """True if the request leads to records, at once or later."""

    @abstractmethod
    def size_of(self, state: S) -> int:
        """Count the groups or transactional ids."""

    # -- the life of a shard --------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        return self._runtime is None

    @property
    def state(self) -> S | None:
        """The newest committed state; None while the log is read. For figures and descriptions."""
        return None if self._runtime is None else self._runtime.committed_state

    @property
    def newest_state(self) -> S:
        """The newest state, committed or not, of a shard that is loaded: for soft state that follows it."""
        assert self._runtime is not None, "the state of a shard was asked for while its log was read"
        return self._runtime.state

    async def load(self) -> None:
        """Read the log and begin to serve."""
        log = self.partition.log
        broker = self._broker
        started_at = broker.clock.monotonic()
        skipped: list[str] = []
        try:
            if log.log_end_offset > log.log_start_offset:
                workers = broker.workers_for(log)
                state = await workers.run(lambda: self.read_state(read_latest(log, skipped), skipped))
            else:
                state = self.empty_state()
        except (KafkaError, ProtocolError, DiskError) as error:
            if not self._stopped:
                reached("coordination.log_not_read")
                broker.log.error(
                    "coordinator.not_loaded", topic=log.topic, partition=log.partition, error=str(error)
                )
                self._failed(self)
            return
        if self._stopped:
            reached("coordination.loaded_too_late")
            return
        if skipped:
            broker.log.error(
                "coordinator.records_skipped",
                topic=log.topic,
                partition=log.partition,
                count=len(skipped),
                first=skipped[0],
            )
        self.take_over(state)
        self._runtime = ReplicatedStateMachine(
            self._timed_machine,
            self._log,
            state,
            random=broker.env.random,
            new_uuid=broker.env.new_uuid,
            fail=self._end_node,
            not_encoded=lambda ask, error: self._not_encoded.note(self.NAME, ask.request, error),
        )
        self.partition.waiting.watch(self._log.catch_up)
        self._set_timer()
        self.began(state)
        broker.run_woken()
        if count := self.size_of(state):
            load_ms = round((broker.clock.monotonic() - started_at) * 1000)
            broker.log.info(
                "coordinator.loaded", topic=log.topic, partition=log.partition, keys=count, load_ms=load_ms
            )

    def now_ms(self) -> int:
        """Return monotonic milliseconds, rounded: a timer for millisecond n that fires exactly in time must see at
        least n.
        """
        return round(self._broker.clock.monotonic() * 1000)

    def submit(self, ask: Ask) -> None:
        """Let the machine decide. `ask.reply` gets its answer now or later."""
        runtime = self._runtime
        if runtime is None:
            if ask.reply is not None:
                reached("coordination.asked_while_loading")
                ask.reply.complete(self.refusal(ask, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if not self.partition.has_min_isr and self.needs_replicas(ask.request):
            reached("coordination.refused_without_replicas")
            # Too few replicas are in sync, so this is refused, like every write with acks=all. Heartbeats and reads go on, so
            # that no session ends because of it.
            if ask.reply is not None:
                ask.reply.complete(self.refusal(ask, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if ask.reply is not None:
            ask.asked_at = self._broker.clock.monotonic()
            self._unanswered[ask.reply] = ask
        try:
            deferred = runtime.submit(ask, self.now_ms())
        except (DiskError, KafkaError) as error:
            reached("coordination.decision_not_written")
            self._broker.log.error(
                "coordinator.not_written",
                topic=self.partition.log.topic,
                partition=self.partition.log.partition,
                error=str(error),
            )
            self._failed(self)
            return
        deferred.on_release(self._deliver)
        self._log.catch_up()
        self._set_timer()
        if self._commit_timer is None and self.waits_for_log(ask.request) and ask.reply in self._unanswered:
            self._watch_commits()

    def _end_node(self, error: BaseException) -> None:
        """End the node, because a decision cannot be replayed. A caller would catch the error, so a task of the node
        raises it.
        """

        async def end() -> None:
            raise error

        self._broker.tasks.start_soon(end)

    def _watch_commits(self) -> None:
        """Answer decisions that have waited too long for the high watermark, while there are any that wait."""
        oldest = next((ask for ask in self._unanswered.values() if self.waits_for_log(ask.request)), None)
        if oldest is not None:
            at = oldest.asked_at + self._commit_timeout_ms / 1000
            self._commit_timer = self._broker.timers.at(at, self._time_out_commits)

    def _time_out_commits(self) -> None:
        """Answer requests that have waited too long. Their records may still be replicated later, or be lost."""
        self._commit_timer = None
        now = self._broker.clock.monotonic()
        timeout = self._commit_timeout_ms / 1000
        late = [
            (reply, ask)
            for reply, ask in self._unanswered.items()
            # The same sum as that of the timer. A rounding error of a difference could set the timer for this
            # very moment again.
            if self.waits_for_log(ask.request) and ask.asked_at + timeout <= now
        ]
        for reply, _ in late:
            del self._unanswered[reply]
        self._watch_commits()
        for reply, ask in late:
            try:
                reply.complete(self.refusal(ask, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            except Exception:
                # All other waiting requests must get their answers as well.
                self._broker.log.exception("request.bug")

    def _deliver(self, answers: Answers) -> None:
        for reply, response in answers:
            if self._unanswered.pop(reply, None) is not None:
                reply.complete(response)

    def _set_timer(self) -> None:
        next_ms = self._timed_machine.deadlines.next_ms
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
        # Set the timer again first: if the decision fails, its deadline is still due.
        at = self._broker.clock.monotonic() + RELOAD_SECONDS
        self._timer = again = self._broker.timers.at(at, self._time_passes)
        self.submit(Ask(TimePasses(), 0, None, self._broker.agreed_clock.latest_ms()))
        if self._timer is again and not self._stopped:
            again.cancel()
            self._timer = None
            self._set_timer()

    def stop(self) -> None:
        """End the shard, because the leadership is gone. Waiting requests get NOT_COORDINATOR."""
        self._stopped = True
        self.partition.waiting.unwatch(self._log.catch_up)
        for timer in (self._timer, self._commit_timer):
            if timer is not None:
                timer.cancel()
        waiting, self._unanswered = self._unanswered, {}
        for reply, ask in waiting.items():
            reply.complete(self.refusal(ask, ErrorCode.NOT_COORDINATOR))
        if self._runtime is not None:
            self._runtime.resign()

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics."""
        return {
            self.NAME: 0 if self._runtime is None else self.size_of(self._runtime.state),
            "unanswered": len(self._unanswered),
        }
