"""The runtime of replicated state machines (controller, coordinators): it decides, appends, replays, and holds
responses until their records are committed.

Theory of operation
-------------------
A machine has two functions. `decide(state, request, context)` reads the state and returns records and a
response; it changes no replicated state. `replay(state, records)` returns the state after the records. State
changes only by `replay`: on the leader, on a follower and after a restart.

On the leader, `ReplicatedStateMachine.submit`

1. decides, based on the newest state (which may not be committed yet),
2. encodes the records,
3. replays them at the offsets that they will get,
4. appends the encoded bytes as one atomic batch, and then uses the replayed state for the next decision,
5. returns a `Deferred`. It releases the response when everything that the state contained at the time of the
   answer is committed.

Values that fit into a request may be too large for a record, after they are joined or added up. Then the
encoder refuses them, and the request gets an error (`Machine.withdraw`). Neither the state nor the log has
changed, and the node continues.

Because of step 3, every decision in the log can be replayed. A decision that cannot be replayed would stop
all other nodes, and this node at every restart. A replay that fails is a bug in `decide`. A log that assigns
other offsets is a bug, too. In both cases `fail` ends the node, and the machine makes no more decisions.

Step 5 applies to every answer. Even the answer to a read, or an error, depends on a state (e.g. "this topic
exists"). If that state were undone, the answer would be wrong. Answers are released in the order in which
they were made.

**Undo.** States are immutable values. The leader keeps every state above the high watermark with its end
offset. The committed state is the newest state wholly below the high watermark. A leader that resigns returns
to the committed state and fails waiting requests. (An undo log would need correct code for each kind of
record; keeping old states needs no such code.)

Soft state (sessions, timers) belongs to the machine. It may be lost at any moment, and is rebuilt without the
log.

Subscribers (the broker in the same process, metrics) see every committed state once, in order, with its
changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import attrs

from odradek.env.ports import Clock, DiskError, Log
from odradek.metadata_quorum.ports import DecisionLog
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.structure import Message

RECORDS_PER_BATCH_MAX = 10_000
"""The most records in one batch (Kafka's limit). A decision with more records, e.g. when a broker with many
partitions leaves, is written as several batches, in order. A change that must be atomic is refused if it
needs more records than fit into one batch.
"""

NOT_ENCODED_LINE_SECONDS = 1.0
ERROR_LENGTH_MAX = 300

S = TypeVar("S")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
Q = TypeVar("Q")
Q_contra = TypeVar("Q_contra", contravariant=True)
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


@attrs.frozen
class DecisionContext:
    """The facts that a decision may use besides the state and the request."""

    now_ms: int
    """The monotonic time in milliseconds. This time is for sessions and timers, never for replicated values.
    """
    api_version: int
    next_offset: int
    """The offset that the decision's first record will get."""
    epoch: int
    random: Random
    new_uuid: Callable[[], bytes]


@attrs.frozen
class Decision:
    """The result of `decide`: records to append, possibly none, and the response.

    The records form one atomic batch, unless there are more than `RECORDS_PER_BATCH_MAX`.
    """

    records: Sequence[Any]
    """The records to append, in the form that the machine's log takes, e.g. the metadata log."""
    response: Any


class Machine(Protocol[S, D_co, Q_contra, A_co]):
    """A state machine: it decides requests and replays records.

    `S` is the state (immutable), `D_co` the changes of a replay, `Q_contra` a request, `A_co` its answer.
    """

    def decide(self, state: S, request: Q_contra, context: DecisionContext) -> Decision:
        """Decide a request, and return records and response. Raises nothing: a refusal is a response."""

    def replay(self, state: S, base_offset: int, epoch: int, records: Sequence[Any]) -> tuple[S, D_co]:
        """Apply `records`, the first of which is at `base_offset`. Returns the new state and its changes."""

    def refuse(self, request: Q_contra, code: ErrorCode) -> A_co:
        """Make the response with the error `code`, for a request that cannot be decided or whose decision was
        undone.
        """

    def withdraw(self, state: S, request: Q_contra, decision: Decision, context: DecisionContext) -> A_co:
        """Make the response to a request whose decision cannot be encoded. `state` is the state before the
        decision.

        Soft state that depends on the decision's records must be reset as well. All clients that the decision
        would have answered get UNKNOWN_SERVER_ERROR.
        """


class NotEncoded:
    """A counter of decisions that cannot be encoded because a value is too large for a record. At most one of
    these decisions per second is logged.
    """

    __slots__ = ("_clock", "_log", "_next_line", "count")

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._next_line = float("-inf")
        self.count = 0

    def note(self, decider: str, request: object, error: Exception) -> None:
        """Count a decision that cannot be encoded, and maybe log it.

        `decider` names the machine that made it.
        """
        self.count += 1
        now = self._clock.monotonic()
        if now >= self._next_line:
            self._next_line = now + NOT_ENCODED_LINE_SECONDS
            self._log.error(
                "decision.not_encoded",
                decider=decider,
                request=type(request).__name__,
                error=str(error)[:ERROR_LENGTH_MAX],
                count=self.count,
            )


class Deferred(Generic[Q, A]):
    """A response that is released when the log has committed the state that it shows."""

    __slots__ = ("_callbacks", "_response", "request", "required_offset")

    def __init__(self, request: Q, response: A, required_offset: int) -> None:
        self.request = request
        self.required_offset = required_offset
        self._response = response
        self._callbacks: list[Callable[[A], None]] | None = []

    @property
    def is_released(self) -> bool:
        return self._callbacks is None

    @property
    def response(self) -> A:
        """The response. The caller must not read it before it is released."""
        assert self._callbacks is None, (
            "a response was read before the records that it reflects were committed"
        )
        return self._response

    def on_release(self, callback: Callable[[A], None]) -> None:
        """Call `callback(response)` once, when the response is released. If the response is already released,
        call it at once.
        """
        if self._callbacks is None:
            callback(self._response)
        else:
            self._callbacks.append(callback)

    def release(self) -> None:
        """Release the response; only the runtime calls this."""
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self._response)

    def fail(self, response: A) -> None:
        """Release `response` instead of the original one; only the runtime calls this."""
        self._response = response
        self.release()


@attrs.frozen
class _Version(Generic[S, D]):
    end_offset: int
    state: S
    delta: D


def _in_batches(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    if len(records) <= RECORDS_PER_BATCH_MAX:
        yield records
        return
    for start in range(0, len(records), RECORDS_PER_BATCH_MAX):
        yield records[start : start + RECORDS_PER_BATCH_MAX]


class ReplicatedStateMachine(Generic[S, D, Q, A]):
    """The leader's runtime for one machine and one log.

    Call `submit` from callbacks and tasks, never from within a decision.
    """

    def __init__(
        self,
        machine: Machine[S, D, Q, A],
        log: DecisionLog,
        state: S,
        *,
        random: Random,
        new_uuid: Callable[[], bytes],
        fail: Callable[[BaseException], None] | None = None,
        not_encoded: Callable[[Q, Exception], None] | None = None,
    ) -> None:
        """`state` is the state after the replay of all records in `log`.

        `fail` is called with the error of a bug after which this node must stop; `submit` raises the same
        error. `not_encoded` is called with a request whose decision cannot be encoded, and the encoder's
        error.
        """
        self._machine = machine
        self._log = log
        self._fail = fail
        self._not_encoded = not_encoded
        self._random = random
        self._new_uuid = new_uuid
        self._committed: S = state
        self._committed_end = self._end_offset = log.log_end_offset
        self._state: S = state
        self._uncommitted: deque[_Version[S, D]] = deque()
        self._waiting: deque[Deferred[Q, A]] = deque()
        self._listeners: list[Callable[[S, D], None]] = []
        """Functions that are called with each newly committed state and its changes, in order."""
        self._leading = True
        log.subscribe(self.on_high_watermark)

    @property
    def state(self) -> S:
        """The newest state, committed or not.

        Decisions are based on this state. Answers must not show it before it is committed.
        """
        return self._state

    @property
    def committed_state(self) -> S:
        return self._committed

    @property
    def committed_end(self) -> int:
        """The end offset of the committed state: it includes all records below this offset."""
        return self._committed_end

    def subscribe(self, listener: Callable[[S, D], None]) -> None:
        """Call `listener` with each state that is committed from now on, and its changes."""
        self._listeners.append(listener)

    def submit(self, request: Q, now_ms: int, api_version: int | None = None) -> Deferred[Q, A]:
        """Decide a request. The response is released when the state that it depends on is committed.

        If this node does not lead, the answer is NOT_CONTROLLER at once. If too many bytes wait for the disk,
        it is REQUEST_TIMED_OUT, which clients retry. Raises the errors of the machine's `decide`, and of a
        log that refuses an append (`DiskError`, `KafkaError`). After an error of the log, the first part of
        the decision may be in the log and in the state. The caller must then load the state from the log
        again.
        """
        refusal = None
        if not self._leading:
            refusal = ErrorCode.NOT_CONTROLLER
        elif not self._log.has_room:
            reached("decisions.refused_for_slow_log")
            refusal = ErrorCode.REQUEST_TIMED_OUT
        if refusal is not None:
            deferred = Deferred(request, self._machine.refuse(request, refusal), 0)
            deferred.release()
            return deferred
        if api_version is None:
            api_version = request.VALID_VERSIONS[1] if isinstance(request, Message) else 0
        log = self._log
        base_offset = log.log_end_offset
        context = DecisionContext(now_ms, api_version, base_offset, log.epoch, self._random, self._new_uuid)
        decision = self._machine.decide(self._state, request, context)
        response: A = decision.response
        if decision.records:
            batches = self._encode_all(request, decision.records)
            if batches is None:
                reached("decisions.withdrawn")
                response = self._machine.withdraw(self._state, request, decision, context)
            else:
                self._append_all(decision.records, batches)
        deferred = Deferred(request, response, self._end_offset)
        self._waiting.append(deferred)
        # Answers must be released in order. So first release the earlier answers that show the same state.
        self._release(log.high_watermark)
        return deferred

    def _encode_all(self, request: Q, records: Sequence[Any]) -> list[Any] | None:
        """Encode the records of a decision in batches; returns None if a value does not fit into a record.

        Nothing is written.
        """
        try:
            return [self._log.encode_batch(some) for some in _in_batches(records)]
        except Exception as error:  # noqa: BLE001  # any error is safe here: nothing has changed yet
            if self._not_encoded is not None:
                self._not_encoded(request, error)
            return None

    def _append_all(self, records: Sequence[Any], batches: Sequence[Any]) -> None:
        """Replay the records, then append the batches.

        Records that cannot be replayed must not get into the log.
        """
        try:
            for batch, version in zip(batches, self._replay_all(records), strict=True):
                self._append(batch, version)
        except (DiskError, KafkaError):
            raise
        except Exception as error:
            self._leading = False
            if self._fail is not None:
                self._fail(error)
            raise

    def _replay_all(self, records: Sequence[Any]) -> list[_Version[S, D]]:
        """Replay each batch of a decision, and return the state after each batch.

        The state machine itself stays unchanged.
        """
        log = self._log
        state, offset = self._state, log.log_end_offset
        versions = []
        for some in _in_batches(records):
            try:
                state, delta = self._machine.replay(state, offset, log.epoch, some)
            except Exception as error:
                raise AssertionError(
                    f"a decision of this node cannot be replayed at offset {offset}: {error}"
                ) from error
            offset += len(some)
            versions.append(_Version(offset, state, delta))
        return versions

    def _append(self, batch: Any, version: _Version[S, D]) -> None:
        last_offset = self._log.append_batch(batch)
        if last_offset != version.end_offset - 1:
            raise AssertionError(
                f"the decision's records were replayed up to offset {version.end_offset - 1}, but "
                f"appended up to offset {last_offset}"
            )
        self._state = version.state
        self._end_offset = version.end_offset
        self._uncommitted.append(version)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Called when the log has committed everything below `high_watermark`."""
        if not self._leading:
            reached("decisions.committed_after_resigning")
            return
        while self._uncommitted and self._uncommitted[0].end_offset <= high_watermark:
            version = self._uncommitted.popleft()
            self._committed = version.state
            self._committed_end = version.end_offset
            for listener in self._listeners:
                listener(version.state, version.delta)
        self._release(high_watermark)

    def _release(self, high_watermark: int) -> None:
        while self._waiting and self._waiting[0].required_offset <= high_watermark:
            self._waiting.popleft().release()

    def resign(self) -> None:
        """Stop leading: return to the committed state, and answer waiting requests with NOT_CONTROLLER.

        The next leader may still commit the decisions on these requests. The error is retriable, and does not
        say whether a request had an effect.
        """
        self._leading = False
        self._state = self._committed
        self._uncommitted.clear()
        if self._waiting:
            reached("decisions.answers_failed_at_resignation")
        waiting, self._waiting = self._waiting, deque()
        for deferred in waiting:
            deferred.fail(self._machine.refuse(deferred.request, ErrorCode.NOT_CONTROLLER))

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics: uncommitted states, waiting answers, and offsets of the log."""
        return {
            "uncommitted_states": len(self._uncommitted),
            "answers_waiting": len(self._waiting),
            "end_offset": self._end_offset,
            "high_watermark": self._log.high_watermark,
        }
