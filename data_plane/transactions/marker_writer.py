"""The writer of transaction markers to partitions that this broker leads, for coordinators on any broker. PORTED.

A marker is a control batch. It is acknowledged when all in-sync replicas have it. In a partition of
`__consumer_offsets`, the group coordinator also applies or drops the offsets of the transaction. The marker
is acknowledged only after that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from odradek.data_plane.disks.disk_errors import DiskErrors
from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.data_plane.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.serving.contract import Delayed, Receiver
from odradek.serving.steps import Work, run_through
from odradek.serving.timers import Timer, Timers
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

APPEND_UNITS = 8
"""The cost of one append, in units of work. One unit is the cost of looking up a partition."""


class WritingBroker(BrokerHost, Protocol):
    """The part of the broker that a `MarkerWriter` uses."""

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def disk_errors(self) -> DiskErrors: ...


_Key: TypeAlias = tuple[int, str, int]
"""The key of the result for one marker: producer id, topic and partition."""


class _Uncommitted:
    """A marker that waits until all in-sync replicas have it (an `AckWaiter`)."""

    __slots__ = ("key", "last_offset", "markers", "partition")

    def __init__(self, markers: DelayedMarkers, key: _Key, partition: Partition, last_offset: int) -> None:
        self.markers = markers
        self.key = key
        self.partition = partition
        self.last_offset = last_offset

    def acknowledged(self, code: ErrorCode) -> None:
        self.markers.settle(self.key, code)

    def leadership_lost(self) -> None:
        self.markers.settle(self.key, self.markers.partitions.lost_error(self.partition))


class DelayedMarkers(Delayed):
    """The delayed answer to one WriteTxnMarkers request. It is sent when all its markers are committed or have
    failed.
    """

    __slots__ = ("broker", "codes", "is_queued", "partitions", "pending", "timer")

    keeps_request = False

    def __init__(self, broker: WritingBroker, partitions: ServedPartitions) -> None:
        super().__init__()
        self.broker = broker
        self.partitions = partitions
        self.codes: dict[_Key, ErrorCode] = {}
        """The results so far, in the order of the request."""
        self.pending: dict[_Key, list[_Uncommitted | None]] = {}
        """The markers without a result, with their waiters. A waiter is None if the group coordinator writes
        the marker.
        """
        self.is_queued = False
        """True once all markers are appended. From then on, the last `settle` completes the request."""
        self.timer: Timer | None = None

    def note(self, key: _Key, code: ErrorCode) -> None:
        """Store the result of one marker.

        If there are several results for one key, the first error is kept.
        """
        if not self.codes.get(key, ErrorCode.NONE):
            self.codes[key] = code

    def wait_for_replicas(self, key: _Key, partition: Partition, last_offset: int) -> None:
        waiter = _Uncommitted(self, key, partition, last_offset)
        self.note(key, ErrorCode.NONE)
        self.pending.setdefault(key, []).append(waiter)
        partition.waiting.wait_for_acks(waiter)

    def wait_for_group(self, key: _Key) -> None:
        """Record that the group coordinator writes this marker, and will call `settle` when it is done."""
        self.note(key, ErrorCode.NONE)
        self.pending.setdefault(key, []).append(None)

    def settle(self, key: _Key, code: ErrorCode) -> None:
        """Store the result of a marker that is committed or has failed. If no marker is left, complete the
        request.
        """
        waiting = self.pending.get(key)
        if waiting is None:
            reached("transactions.marker_written_too_late")
            # The deadline has passed, so the request is answered already.
            return
        waiting.pop(0)
        if not waiting:
            del self.pending[key]
        self.note(key, code)
        if self.is_queued:
            self.check()

    def check(self) -> None:
        """Complete the request if all markers have results. Otherwise start the timer of `request.timeout.ms`."""
        self.is_queued = True
        if self.pending:
            if self.timer is None:
                broker = self.broker
                deadline = broker.clock.monotonic() + broker.request_timeout_ms / 1000
                self.timer = broker.timers.at(deadline, self._time_out)
        elif self.response is None:
            if self.timer is not None:
                self.timer.cancel()
            self.complete(self.make_response())

    def make_response(self) -> WriteTxnMarkersResponse:
        """Build the response from the results, grouped by producer and topic."""
        by_producer: dict[int, dict[str, list[WritableTxnMarkerPartitionResult]]] = {}
        for (producer_id, topic, index), code in self.codes.items():
            topics = by_producer.setdefault(producer_id, {})
            topics.setdefault(topic, []).append(WritableTxnMarkerPartitionResult(index, code))
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    producer_id,
                    [WritableTxnMarkerTopicResult(topic, results) for topic, results in topics.items()],
                )
                for producer_id, topics in by_producer.items()
            ]
        )

    def _time_out(self) -> None:
        for key in self.pending:
            self.note(key, ErrorCode.REQUEST_TIMED_OUT)
        self._forget()
        if self.response is None:
            self.complete(self.make_response())

    def _forget(self) -> None:
        pending, self.pending = self.pending, {}
        for waiting in pending.values():
            for waiter in waiting:
                if waiter is not None:
                    waiter.partition.waiting.forget_acks(waiter)

    def abandon(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._forget()


class MarkerWriter:
    """The writer of the markers in WriteTxnMarkers requests to the partitions of this broker.

    An error in one partition does not affect the others.
    """

    def __init__(self, broker: WritingBroker, partitions: ServedPartitions, groups: GroupCoordinator) -> None:
        self._broker = broker
        self._partitions = partitions
        self._groups = groups

    def write(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        """Write markers for a coordinator on this broker.

        `done` is called with the response, possibly during this call.
        """
        result = run_through(self.write_all(request))
        if isinstance(result, Delayed) and result.response is None:
            result.answer = Receiver(done)
        else:
            done(result.response if isinstance(result, Delayed) else result)

    def write_all(
        self, request: WriteTxnMarkersRequest, is_late: Callable[[], bool] = lambda: False
    ) -> Work[DelayedMarkers | WriteTxnMarkersResponse]:
        """Write all markers of a request, as work in slices.

        Once `is_late` is true, no further marker is written, since the sender has sent the request again on a newer
        connection. Returns the response, or a `DelayedMarkers` if some markers are not committed yet.
        """
        delayed = DelayedMarkers(self._broker, self._partitions)
        for marker in request.markers:
            named: set[tuple[str, int]] = set()
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    if (topic.name, index) in named:
                        # A partition that is named several times gets only one marker, since the first marker
                        # ends the transaction.
                        yield 1
                        continue
                    named.add((topic.name, index))
                    if is_late():
                        delayed.note((marker.producer_id, topic.name, index), ErrorCode.NETWORK_EXCEPTION)
                        continue
                    self._write(delayed, marker, topic.name, index)
                    yield APPEND_UNITS
        if not delayed.pending:
            return delayed.make_response()
        delayed.check()
        return delayed

    def _write(self, delayed: DelayedMarkers, marker: WritableTxnMarker, topic: str, index: int) -> None:
        """Append one marker to one partition. In `__consumer_offsets` the group coordinator appends it."""
        key = (marker.producer_id, topic, index)
        found = self._partitions.get(topic, index)
        if marker.transaction_version < 0:
            # A negative version means that the version is unknown. Kafka's brokers never write such a marker,
            # so refuse it.
            delayed.note(key, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif found is None:
            delayed.note(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not found.is_leader:
            delayed.note(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch == NO_PRODUCER_EPOCH:
            # Kafka uses -1 as producer id or epoch in batches without a producer, so no marker can have it.
            delayed.note(key, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif topic == OFFSETS_TOPIC:
            delayed.wait_for_group(key)
            self._groups.complete_transaction(index, marker, partial(delayed.settle, key))
        else:
            self._append(delayed, key, marker, found)

    def _append(
        self, delayed: DelayedMarkers, key: _Key, marker: WritableTxnMarker, partition: Partition
    ) -> None:
        broker, log = self._broker, partition.log
        now_ms = broker.clock.wall_ms()
        batch = build_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            timestamp_ms=now_ms,
        )
        try:
            result = partition.append_marker(memoryview(batch), now_ms, marker.transaction_version)
        except KafkaError as error:
            delayed.note(key, error.code)
        except DiskError as error:
            broker.disk_errors.note(
                "write_txn_markers.disk_error", topic=log.topic, partition=log.partition, error=str(error)
            )
            delayed.note(key, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            if log.high_watermark > result.last_offset:
                delayed.note(key, ErrorCode.NONE)
            else:
                delayed.wait_for_replicas(key, partition, result.last_offset)
