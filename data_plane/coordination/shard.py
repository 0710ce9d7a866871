"""The coordinator of one led partition of an internal topic, for one leadership: loading, decisions, timers,
late commits, the end. PORTED.

Theory of operation
-------------------
A `Shard` begins when the broker becomes leader of the partition. A worker thread reads the log; until it is
read, requests get COORDINATOR_LOAD_IN_PROGRESS. Then the shard runs its machine in a `ReplicatedStateMachine`
over that log. The shard ends when the leadership ends, the leader epoch changes or the disk fails. Waiting
requests then get NOT_COORDINATOR, and no state is kept. After a failed append, the log may lack records that
the machine has decided. So a new shard loads the state from the log again. While a disk is full,
each append fails, so each new shard soon ends, and another one loads the state again. A record that fails to decode is skipped. Otherwise any client that may write to the
topic could stop its coordinators for ever.

A request is submitted with a reply. One decision may answer many requests (e.g. the end of a rebalance). All
its answers are sent once the log has committed the decision. If the log commits it at once, the caller gets
the response, otherwise a `Delayed`.

The machine keeps all its deadlines in `Deadlines`. The shard sets one timer of the broker, for the earliest
deadline.
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
        """Return the worker threads for calls that may wait for the disk of this log."""

    @property
    def woken(self) -> list[Callable[[], None]]:
        """Actions that the broker runs at the end of the current turn of a connection or timer."""

    def run_woken(self) -> None:
        """Run all actions in `woken` now.

        A task that has changed a log calls this, because no turn ends after the task.
        """


class TimedMachine(Machine[S, D_co, Ask, Answers], Protocol[S, D_co]):
    """A state machine that keeps its deadlines where the shard can read them."""

    deadlines: Deadlines


class Shard(ABC, Generic[S, D]):
    """The coordinator of one partition: a machine, its state and its log.

    Call `load` first, then `submit` for each request, and `stop` at the end.
    """

    NAME: ClassVar[str]
    """The name in metrics and log lines for this kind of coordinator."""

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
        """Take the parts of a shard. `failed` is called with this shard if its state must be loaded from the
        log again.

        `not_encoded` is shared by all shards and logs decisions that could not be encoded. The shard writes its
        batches with `compression_type`.
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

    # -- parts that each kind of coordinator defines ----------------------------------------------------------

    @abstractmethod
    def read_state(self, latest: Latest, skipped: list[str]) -> S:
        """Build the state from the log's latest values.

        This runs in a worker thread, so it must not touch the shard's other data.
        """

    @abstractmethod
    def empty_state(self) -> S:
        """Make the state of an empty log."""

    @abstractmethod
    def take_over(self, state: S) -> None:
        """Prepare the machine's soft state (sessions, timers) for the state that was read from the log."""

    def began(self, state: S) -> None:
        """Called when the state is loaded and requests can be decided. Resumes work that an earlier coordinator
        left unfinished.
        """

    @abstractmethod
    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        """Build the response that refuses `ask` with the error `code`."""

    @abstractmethod
    def waits_for_log(self, request: Any) -> bool:
        """True if this kind of request is answered as soon as the log has committed its decision. False if
        the answer may also have to wait for another client's request.
        """

    @abstractmethod
    def needs_replicas(self, request: Any) -> bool:
        """True if this kind of request leads to records in the log, at once or later."""

    @abstractmethod
    def size_of(self, state: S) -> int:
        """Count the groups or the transactional ids in `state`."""

    # -- start, requests and end of a shard -------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        return self._runtime is None

    @property
    def state(self) -> S | None:
        """The newest committed state; None while the log is being read. Metrics and descriptions are taken
        from this state.
        """
        return None if self._runtime is None else self._runtime.committed_state

    @property
    def newest_state(self) -> S:
        """The newest state, with decisions that are not committed yet.

        Call this only for a loaded shard. The shard's soft state is derived from this newest state.
        """
        assert self._runtime is not None, (
            "the state of a shard was requested while its log was still being read"
        )
        return self._runtime.state

    async def load(self) -> None:
        """Read the state from the log, and start to decide requests.

        If the log cannot be read, report the shard as failed.
        """
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
        """Return the monotonic time in milliseconds, rounded to the nearest. If it were rounded down, a timer
        for millisecond n that fires on time could read n - 1.
        """
        return round(self._broker.clock.monotonic() * 1000)

    def submit(self, ask: Ask) -> None:
        """Pass the request to the machine for a decision. `ask.reply` gets the answer, at once or later."""
        runtime = self._runtime
        if runtime is None:
            if ask.reply is not None:
                reached("coordination.asked_while_loading")
                ask.reply.complete(self.refusal(ask, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if not self.partition.has_min_isr and self.needs_replicas(ask.request):
            reached("coordination.refused_without_replicas")
            # Too few replicas are in sync, so refuse this request, like every write with acks=all. Heartbeats
            # and reads go on, so that the lack of replicas ends no session.
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
        """End the node with this error, because a decision cannot be replayed.

        A separate task raises the error, because a caller of `submit` would catch it.
        """

        async def end() -> None:
            raise error

        self._broker.tasks.start_soon(end)

    def _watch_commits(self) -> None:
        """Set the timer that limits how long decisions wait for the high watermark, if any decision waits."""
        oldest = next((ask for ask in self._unanswered.values() if self.waits_for_log(ask.request)), None)
        if oldest is not None:
            at = oldest.asked_at + self._commit_timeout_ms / 1000
            self._commit_timer = self._broker.timers.at(at, self._time_out_commits)

    def _time_out_commits(self) -> None:
        """Refuse the requests whose decisions have waited too long for the high watermark.

        Their records may still be replicated later, or be lost.
        """
        self._commit_timer = None
        now = self._broker.clock.monotonic()
        timeout = self._commit_timeout_ms / 1000
        late = [
            (reply, ask)
            for reply, ask in self._unanswered.items()
            # Add the timeout here, exactly as `_watch_commits` does. `now - timeout` could differ by a rounding
            # error, and the timer would then be set to the present time again.
            if self.waits_for_log(ask.request) and ask.asked_at + timeout <= now
        ]
        for reply, _ in late:
            del self._unanswered[reply]
        self._watch_commits()
        for reply, ask in late:
            try:
                reply.complete(self.refusal(ask, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            except Exception:
                # The failure of one reply must not prevent the answers to the other waiting requests.
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
        # If the decision fails, its deadline stays due. So first set a timer for a later attempt.
        at = self._broker.clock.monotonic() + RELOAD_SECONDS
        self._timer = again = self._broker.timers.at(at, self._time_passes)
        self.submit(Ask(TimePasses(), 0, None, self._broker.agreed_clock.latest_ms()))
        if self._timer is again and not self._stopped:
            again.cancel()
            self._timer = None
            self._set_timer()

    def stop(self) -> None:
        """End the shard, because this broker no longer leads the partition.

        Waiting requests get NOT_COORDINATOR.
        """
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
        """Return figures for metrics: how many groups or transactional ids, and unanswered requests."""
        return {
            self.NAME: 0 if self._runtime is None else self.size_of(self._runtime.state),
            "unanswered": len(self._unanswered),
        }
