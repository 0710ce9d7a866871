"""The blocking consumer: `ConsumerMachine` on an `IoThread`. SHELL.

    with Consumer(bootstrap_servers="localhost:9092", group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        for record in consumer:
            print(record.offset, record.value)

Fetches, heartbeats and rebalances run in a background thread of the consumer. The thread that polls parses
the records and calls listeners and callbacks. One thread at a time may use a consumer: a call during another
thread's call raises `RuntimeError`. Only `wakeup`, `statistics` and `partition_metrics` may be called at any
time.

Errors: `odradek.wire.errors.KafkaError` with a broker's error code, `odradek.client.errors.ClientError` otherwise;
`odradek.client.consumer.consumer_types` has the errors of consumers.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs

from odradek.client.consumer.consumer_machine import ConsumerMachine
from odradek.client.consumer.consumer_types import (
    CommitCallback,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RawBatch,
    RebalanceEvent,
    RebalanceListener,
    SubscriptionPattern,
)
from odradek.client.core.arguments import as_callback, as_text, as_topic_partition, as_topic_partitions
from odradek.client.core.client_keys import ConsumerSettings, merged_properties
from odradek.client.core.known_cluster import Partition
from odradek.client.core.operation import Task
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.requests import all_topics
from odradek.client.shells.consumer_steering import (
    Committable,
    ConsumerSteering,
    listener_of,
    poll_seconds,
    times_of,
    topics_of,
)
from odradek.client.shells.familiar_calls import knows_other_names, warns_of_milliseconds
from odradek.client.shells.io_thread import IoThread
from odradek.client.shells.leaving import leave_when_dropped, weak_call
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Consumer"]

P = ParamSpec("P")
T = TypeVar("T")
_ITERATION_SECONDS = 3600.0
_CLOSE_SECONDS = 30.0
_LEAVE_SECONDS = 1.0
"""Seconds that the coordinator has to answer the LeaveGroup of a consumer that was not closed."""
_TURN_BYTES = 1 << 19
"""Bytes of parsed records after which a poll lets the I/O thread run once. Otherwise each system call of a fetch
would wait 5 ms for the interpreter, and fetches could not keep up.
"""
_TURN_SECONDS_MAX = 0.1


def _alone(method: Callable[Concatenate[Consumer, P], T]) -> Callable[Concatenate[Consumer, P], T]:
    """Make a method raise `RuntimeError` while another thread is in such a method. A listener or a callback runs within
    such a method. It may call other methods, because it runs in the same thread.
    """

    @wraps(method)
    def guarded(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        use = self._use
        if not use.acquire(blocking=False):
            raise RuntimeError("another thread is using this consumer; a second thread may call only wakeup")
        try:
            return method(self, *args, **kwargs)
        finally:
            use.release()

    return guarded


@attrs.define(eq=False)
class _LastCall:
    """Makes a consumer that was never closed leave its group. It commits nothing (`leaving.py`)."""

    machine: ConsumerMachine
    task: Task[None] | None = None
    records_left: int = 0

    def begin(self) -> None:
        """Start to leave the group."""
        core = self.machine.core
        self.task = core.start(self.machine.leave("the consumer was not closed", _LEAVE_SECONDS), core.now)

    @property
    def is_over(self) -> bool:
        """True once the coordinator has answered the LeaveGroup, or the time for its answer is up."""
        return self.task is not None and self.task.done


class Consumer(ConsumerSteering):
    """A client that reads topics, alone or as a member of a group.

    `config` has Kafka's keys ("group.id"); keyword arguments are the same keys with underscores (`group_id`). Use the
    consumer as a context manager, or call `close`. One thread at a time may use it: a call during another thread's
    call raises `RuntimeError`. Only `wakeup`, `statistics` and `partition_metrics` may be called from any thread at
    any time. Raises `ValueError` for a bad configuration.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        """Create the consumer, which connects in the background. Raises `ValueError` for unknown keys and invalid
        values.
        """
        self.settings = ConsumerSettings.from_properties(merged_properties(config, keywords))
        self._listener: RebalanceListener = RebalanceListener()
        self._timeout = self.settings.default_api_timeout_ms / 1000
        self._closed = False
        self._use = threading.RLock()
        self._bytes_at_turn = 0
        self._io = IoThread(
            self.settings.bootstrap_servers, self.settings.client_config(), "odradek-consumer"
        )
        self._io.on_fork = weak_call(self._after_fork)
        try:
            with self._io.lock:
                self._machine = ConsumerMachine(self._io.core, self.settings, _wall_ms)
        except ValueError:
            self._io.close()
            raise
        for operation in self._machine.background():
            self._io.start(operation)
        leave_when_dropped(self, self._io, _LastCall(self._machine))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            # The record that an iterator yielded last may have caused the exception, so it does not count as
            # processed.
            self._settle(last_is_done=False)
        self.close()

    @knows_other_names("Consumer.close")
    @_alone
    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit (`enable.auto.commit`), give up all partitions, leave the group and close all connections. A second `close`
        has no effect.

        The call takes at most `timeout` seconds, plus the time that a listener needs. A static member
        (`group.instance.id`) does not leave, so the coordinator keeps its partitions for
        `session.timeout.ms`. If an exception is being handled (`finally`), the record that an iterator
        yielded last is not committed, because it may have caused the exception. During a rebalance, `close`
        waits for the answers to the join. Exceptions of a listener or a callback are raised at the end.
        """
        timeout = poll_seconds(timeout)
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout
        try:
            if not self._io.closed:
                self._settle(last_is_done=sys.exc_info()[0] is None)
                try:
                    self._leave_group("the consumer was closed", deadline)
                finally:
                    self._io.run(self._machine.close_sessions(min(1.0, _left(deadline))))
                    self._run_last_callbacks()
        finally:
            self._io.close(drain_seconds_max=min(1.0, _left(deadline)))

    def _leave_group(self, reason: str, deadline: float) -> None:
        try:
            self._give_up(_left(deadline))
        finally:
            # Leave even if the listener has raised, so that other members get the partitions at once.
            self._io.run(self._machine.leave(reason, _left(deadline)))

    # Subscriptions

    @knows_other_names("Consumer.subscribe")
    @_alone
    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern,
        *,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose whole name matches a pattern; the group assigns their
        partitions.

        A string names one topic. A pattern comes from `re.compile`, or is a `SubscriptionPattern` for the
        coordinator. The subscription takes effect with the next `poll`, and replaces the former subscription.
        """
        wanted, heard_by = topics_of(topics), listener_of(listener)
        self._settle()
        with self._io.lock:
            self._machine.subscribe(wanted)
            self._listener = heard_by
        self._io.wake()

    @_alone
    def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        self._settle()
        self._leave_group("the consumer unsubscribed", time.monotonic() + self._timeout)

    # Reading

    @warns_of_milliseconds
    @knows_other_names("Consumer.poll")
    @_alone
    def poll(self, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Return at most `max.poll.records` records, in order within each partition; an empty list if none arrive
        within `timeout` seconds.

        A poll also joins the group, calls the listener, and commits when due. A poll takes longer than
        `timeout` if a listener takes longer.

        Raises:
            UndecodableRecord: the next record cannot be decoded; call `seek` or `pause` to skip it.
            NoOffsetForPartition, OffsetsOutOfRange: there is no position, and `auto.offset.reset` is `none`.
            TruncationDetected: the log was truncated below the position.
            Wakeup: `wakeup` was called.
            KafkaError: a broker refused a request, for instance TOPIC_AUTHORIZATION_FAILED or FENCED_INSTANCE_ID.
            RuntimeError: another thread uses the consumer.
        """
        return self._poll(poll_seconds(timeout), self._machine.take_records)

    @_alone
    def poll_batches(self, timeout: float = 1.0) -> list[RawBatch]:
        """Wait for records as `poll` does, but return whole record batches as unparsed bytes. The last batch may
        exceed `fetch.max.bytes`.
        """
        return self._poll(poll_seconds(timeout), self._machine.take_batches)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records one by one.

        The iterator ends when no record has arrived for `odradek.consumer.timeout.ms`. During the loop, positions and
        commits include only the yielded records. Polled records that were not yielded are returned by the next loop
        or poll. If an exception ends a `with` block, the last yielded record is not committed.
        """
        timeout_ms = self.settings.odradek_consumer_timeout_ms
        while True:
            records = self.poll(timeout=_ITERATION_SECONDS if timeout_ms is None else timeout_ms / 1000)
            if not records and timeout_ms is not None:
                return
            yield from self._machine.hand_out(records)

    def wakeup(self) -> None:
        """Make the running `poll`, or else the next one, raise `Wakeup`. It may be called from any thread."""
        with self._io.lock:
            self._machine.wakeup()
        self._io.wake()

    def _poll(self, timeout: float, what: Callable[[], list[T]]) -> list[T]:
        machine, io = self._machine, self._io
        self._settle()
        deadline = time.monotonic() + timeout
        waited = False
        while True:
            if machine.commits.completed:
                self._run_callbacks()
            now = time.monotonic()
            with io.lock:
                found = machine.take(now, what, waited=waited)
                stirred, machine.stirred = machine.stirred, False
            if machine.delivery.bytes_parsed - self._bytes_at_turn >= _TURN_BYTES:
                self._bytes_at_turn = machine.delivery.bytes_parsed
                io.give_turn(_TURN_SECONDS_MAX)
            elif stirred:
                io.wake()
            if found or (waited and now >= deadline):
                return found
            event = io.run(machine.wait(max(0.0, deadline - now)))
            waited = True
            if event is not None:
                self._call_listener(event)
                waited = False

    def _call_listener(self, event: RebalanceEvent) -> None:
        try:
            event.call(self._listener)
        finally:
            with self._io.lock:
                self._machine.notified(event)
            self._io.wake()

    def _settle(self, *, last_is_done: bool = True) -> None:
        if self._machine.handout is not None:
            with self._io.lock:
                self._machine.settle(last_is_done=last_is_done)

    def _after_fork(self) -> None:
        """Forget which thread was using the consumer, because in a forked child that thread does not exist."""
        self._use = threading.RLock()

    def _give_up(self, timeout: float) -> None:
        event = self._io.run(self._machine.give_up(timeout))
        if event is not None:
            self._call_listener(event)

    # Positions

    @_alone
    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next record that `poll` would return. Raises `RequestTimedOut` if it is not known
        in time.
        """
        return self._io.run(
            self._machine.position(as_topic_partition("partition", partition), self._seconds(timeout))
        )

    @_alone
    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the start offset of each partition."""
        keys, seconds = as_topic_partitions("partitions", partitions), self._seconds(timeout)
        return self._io.run(self._machine.offsets_at(keys, end=False, timeout=seconds))

    @_alone
    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the offset after the last record that this consumer may see."""
        keys, seconds = as_topic_partitions("partitions", partitions), self._seconds(timeout)
        return self._io.run(self._machine.offsets_at(keys, end=True, timeout=seconds))

    @_alone
    def offsets_for_times(
        self, times_ms: ByPartition[int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record of each partition at or after a time in milliseconds since 1970. The value is
        None if there is no such record.
        """
        return self._io.run(self._machine.offsets_for_times(times_of(times_ms), self._seconds(timeout)))

    @_alone
    def partitions_for(self, topic: str, timeout: float | None = None) -> list[Partition]:
        """Return the topic's partitions, sorted by number. Raises `KafkaError` UNKNOWN_TOPIC_OR_PARTITION."""
        return self._io.run(self._machine.partitions_of(as_text("topic", topic), self._seconds(timeout)))

    @_alone
    def topics(self, timeout: float | None = None) -> set[str]:
        """Return the names of all topics that this consumer may read. Internal topics are included with
        `exclude.internal.topics=false`.
        """
        seconds, skip_internal = self._seconds(timeout), self.settings.exclude_internal_topics
        return self._io.run(all_topics(self._machine.core, timeout=seconds, skip_internal=skip_internal))

    # Commits

    @knows_other_names("Consumer.commit")
    @_alone
    def commit(
        self,
        offsets: Committable | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets (of the next records to read), and wait until they are stored. None commits all
        positions.

        If `offsets` is a record, only the offset after it is committed, in its partition. During a rebalance the
        commit waits for the new generation, at most `timeout` seconds.

        Raises:
            CommitRefused: some partitions were refused; `errors` has the error of each.
            KafkaError: with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS the partitions may have gone to
                other members. The next poll calls the listener.
            RequestTimedOut: no answer in time.
            ValueError: there is no `group.id`.
        """
        wanted = self._offsets(offsets)
        self._io.run(self._machine.commits.commit(wanted, timeout=self._seconds(timeout)))

    @_alone
    def commit_async(
        self,
        offsets: Committable | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Start a commit without waiting for it. A later `poll`, or `close`, calls `callback(offsets, error)`."""
        self._io.start(
            self._machine.commits.commit_later(self._offsets(offsets), as_callback("callback", callback))
        )

    @_alone
    def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetch the group's committed offsets of these partitions. The value is None for a partition without
        a commit.
        """
        return self._io.run(
            self._machine.commits.committed(
                as_topic_partitions("partitions", partitions), self._seconds(timeout)
            )
        )

    # Access to the core

    @_alone
    def _change(self, change: Callable[[], None], *, settles: bool = True) -> None:
        if settles:
            self._settle()
        with self._io.lock:
            change()
        self._io.wake()

    @_alone
    def _look(self, question: Callable[[], T]) -> T:
        return self._peek(question)

    def _peek(self, question: Callable[[], T]) -> T:
        with self._io.lock:
            return question()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
