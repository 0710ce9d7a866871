"""Fetches records ahead of polls: from which replica, one long poll per broker at a time, errors, offsets out
of range. PURE.

Theory of operation
-------------------
`Fetching.run` is an operation that never ends. In each round it sends a Fetch to every idle broker that has
partitions which need data. A broker has a partition if it is the partition's leader, or the preferred replica
for this consumer (KIP-392). Then the operation waits for an answer, for the time of a retry, or for another
event. Such an event is a seek, a resume, new metadata, or a chunk that the application has read completely.

A partition needs data while fewer than two chunks of it are fetched: the second is under way while the application
processes the first. When the fetched data of all partitions reaches `fetch.max.bytes`, only partitions without any
data are fetched.

A long poll must name the partitions that will soon need data. Otherwise a poll that waits at the end of a
quiet partition would delay the busy partitions. So while some partitions of a broker are full (two chunks are
fetched), the broker is asked to answer at once. After an empty answer, the broker gets no request until a
full partition needs data again, or until `fetch.max.wait.ms` is over.

Errors never end the loop. A temporary error (a moved leader) is retried with backoff and fresh metadata. An error for
the application is stored with the partition, and raised by a poll after the partition's earlier records.

A topic that was deleted and created again has a new id, and positions in the old topic are not valid there.
Records that were fetched from the old topic are still returned. Then the reset policy sets the position in
the new topic.

Fetches use separate connections (their own lane), because a long poll occupies its connection for
`fetch.max.wait.ms`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.client.consumer.consumer_types import OffsetsOutOfRange, UndecodableRecord
from odradek.client.consumer.incremental_fetch import FetchSession, Wanted
from odradek.client.consumer.subscription import Chunk, PartitionState, Subscription
from odradek.client.core.known_cluster import NO_TOPIC_ID, Broker
from odradek.client.core.operation import Call, Operation, Signal, Wait
from odradek.client.errors import broker_error, error_code
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["FETCH_LANE", "Fetching", "needs_validation"]

FETCH_LANE = 1
_CHUNKS_AHEAD = 2
_READ_COMMITTED = 1

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which the consumer fetches again later, with fresh metadata, as Kafka's consumer does."""

_Asked = dict[TopicPartition, tuple[PartitionState, int, int, int]]
"""The partitions of a request: the state, its serial, the offset to fetch, and the leader epoch that the request names."""


def needs_validation(core: ClientCore, state: PartitionState) -> bool:
    """True if the position must be validated (KIP-320), because the partition's leader epoch is newer than at the last
    validation.
    """
    topic = core.cluster.topics.get(state.key.topic)
    partition = topic.partitions.get(state.key.partition) if topic is not None else None
    return (
        partition is not None
        and state.fetch_epoch >= 0
        and partition.leader_epoch > max(state.validated_epoch, state.fetch_epoch)
    )


class Fetching:
    """Fetches records for a consumer in the background.

    `arrived` is notified when polls may find something new. `ask_metadata` is called to request fresh metadata when
    leaders have moved.
    """

    def __init__(
        self,
        core: ClientCore,
        settings: ConsumerSettings,
        subscription: Subscription,
        *,
        news: Signal,
        arrived: Signal,
        ask_metadata: Callable[[], None],
    ) -> None:
        self._core = core
        self._settings = settings
        self._subscription = subscription
        self._news = news
        self._arrived = arrived
        self._ask_metadata = ask_metadata
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, tuple[Call, _Asked]] = {}
        self._node_retry_at: dict[int, float] = {}
        self._idle: dict[int, tuple[float, _Asked]] = {}
        """The brokers that had no new records. Each has the time until which it gets no request, and the partitions
        that the last request to it named.
        """
        self._node_failures: dict[int, int] = {}
        self.ready: dict[PartitionState, None] = {}
        """The partitions with records or errors for polls, in the order of arrival of the records or errors."""
        self.fetches = 0
        self.last_error: Exception | None = None
        """The last temporary error."""

    def run(self) -> Operation[None]:
        """Send fetches and process their answers until the operation is stopped."""
        while True:
            self._send()
            calls = [call for call, _ in self._in_flight.values()]
            yield Wait(calls, first=True, until=self._retry_at(), signals=[self._news])
            for node, (call, asked) in list(self._in_flight.items()):
                if call.done:
                    del self._in_flight[node]
                    self._take(node, call, asked)

    def buffered_bytes(self) -> int:
        """Count the fetched bytes that polls have not read yet."""
        return sum(state.buffered_bytes for state in self._subscription.partitions.values())

    def close_sessions(self, *, timeout: float) -> Operation[None]:
        """Close the fetch sessions at all brokers that are not answering a fetch now."""
        calls = []
        for node, session in self._sessions.items():
            request = session.closing_request()
            if request is not None and node not in self._in_flight:
                deadline = self._core.now + timeout
                calls.append(self._core.call(request, node=node, deadline=deadline, lane=FETCH_LANE))
        if calls:
            yield Wait(calls, until=self._core.now + timeout)

    # Sending requests

    def _send(self) -> None:
        core, now = self._core, self._core.now
        by_node: dict[int, list[PartitionState]] = {}
        with_full: dict[int, None] = {}
        chunks_max = 1 if self.buffered_bytes() >= self._settings.fetch_max_bytes else _CHUNKS_AHEAD
        for state in self._subscription.partitions.values():
            if self._was_made_anew(state):
                if not state.chunks and not state.returned and state.error is None:
                    reached("client.topic_made_anew_while_reading")
                    self._reset(state)
                continue
            if not self._is_fetchable(state) or state.retry_at > now:
                continue
            node = self._node_for(state)
            if node is None:
                self._retry_later(state)
            elif len(state.chunks) < chunks_max:
                by_node.setdefault(node, []).append(state)
            else:
                with_full[node] = None
        for node, states in by_node.items():
            if node in self._in_flight or self._node_retry_at.get(node, 0.0) > now:
                continue
            if node in with_full and self._is_idle(node, states):
                continue
            self._idle.pop(node, None)
            self._fetch(core, node, states, long_poll=node not in with_full)

    def _is_idle(self, node: int, states: list[PartitionState]) -> bool:
        if node not in self._idle:
            return False
        until, asked = self._idle[node]
        return until > self._core.now and all(
            state.key in asked and asked[state.key][:3] == (state, state.serial, state.fetch_offset)
            for state in states
        )

    def _was_made_anew(self, state: PartitionState) -> bool:
        topic = self._core.cluster.topics.get(state.key.topic)
        return (
            state.topic_id is not None
            and topic is not None
            and topic.topic_id not in (NO_TOPIC_ID, state.topic_id)
        )

    def _is_fetchable(self, state: PartitionState) -> bool:
        return (
            state.fetch_offset is not None
            and not state.paused
            and state.error is None
            and not needs_validation(self._core, state)
        )

    def _node_for(self, state: PartitionState) -> int | None:
        cluster = self._core.cluster
        preferred = state.preferred_replica
        if preferred is not None:
            if preferred in cluster.brokers and state.preferred_until > self._core.now:
                return preferred
            state.preferred_replica = None
        topic = cluster.topics.get(state.key.topic)
        partition = topic.partitions.get(state.key.partition) if topic is not None else None
        if partition is None or partition.leader not in cluster.brokers:
            return None
        return partition.leader

    def _fetch(self, core: ClientCore, node: int, states: list[PartitionState], *, long_poll: bool) -> None:
        settings = self._settings
        session = self._sessions.setdefault(node, FetchSession())
        wanted: dict[TopicPartition, Wanted] = {}
        asked: _Asked = {}
        with_ids = True
        for state in states:
            topic = core.cluster.topics[state.key.topic]
            offset = state.fetch_offset
            assert offset is not None
            with_ids = with_ids and topic.topic_id != NO_TOPIC_ID
            epoch = topic.partitions[state.key.partition].leader_epoch
            wanted[state.key] = Wanted(topic.topic_id, offset, epoch, -1, settings.max_partition_fetch_bytes)
            asked[state.key] = (state, state.serial, offset, epoch)
        request = session.request(wanted, with_ids=with_ids)
        if len(session.partitions) < len(wanted) or session.is_part:
            reached("client.fetch_of_earlier_position_not_counted")
            # An answer counts for a partition only if the request named the partition's current position.
            asked = {key: asked[key] for key, want in wanted.items() if session.partitions.get(key) == want}
        request.max_wait_ms = settings.fetch_max_wait_ms if long_poll and not session.is_part else 0
        request.min_bytes = settings.fetch_min_bytes
        request.max_bytes = settings.fetch_max_bytes
        request.isolation_level = _READ_COMMITTED if settings.isolation_level == "read_committed" else 0
        request.rack_id = settings.client_rack
        call = core.call(
            request,
            node=node,
            deadline=core.now + core.config.request_timeout,
            version_max=None if with_ids else FETCH_TOPIC_IDS - 1,
            lane=FETCH_LANE,
        )
        self._in_flight[node] = (call, asked)
        self.fetches += 1

    def _retry_at(self) -> float | None:
        now = self._core.now
        times = [
            state.retry_at
            for state in self._subscription.partitions.values()
            if state.retry_at > now and state.fetch_offset is not None
        ]
        times += [at for at in self._node_retry_at.values() if at > now]
        times += [until for until, _ in self._idle.values() if until > now]
        return min(times, default=None)

    def _retry_later(self, state: PartitionState) -> None:
        state.retry_at = self._core.now + self._core.backoff(state.failures)
        state.failures += 1
        self._ask_metadata()

    # Answers

    def _take(self, node: int, call: Call, asked: _Asked) -> None:
        session = self._sessions[node]
        code = ErrorCode.NONE if call.error is not None else error_code(call.response.error_code)
        if call.error is not None or code is not ErrorCode.NONE:
            if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                reached("client.fetch_session_lost")
                session.lost()
                return
            session.start_over()
            self.last_error = call.error or broker_error(code, None, f"fetch from broker {node}")
            if code is ErrorCode.INVALID_FETCH_SESSION_EPOCH:
                reached("client.fetch_session_out_of_step")
                return
            failures = self._node_failures.get(node, 0)
            self._node_failures[node] = failures + 1
            self._node_retry_at[node] = self._core.now + self._core.backoff(failures)
            for state, *_ in asked.values():
                if state.preferred_replica == node:
                    state.preferred_replica = None
            self._ask_metadata()
            return
        self._node_failures.pop(node, None)
        self._node_retry_at.pop(node, None)
        response = call.response
        session.answered(response.session_id)
        cluster = self._core.cluster
        cluster.add_brokers(Broker(b.node_id, b.host, b.port, b.rack) for b in response.node_endpoints)
        if not any(a.records or a.error_code for topic in response.responses for a in topic.partitions):
            self._idle[node] = (self._core.now + self._settings.fetch_max_wait_ms / 1000, asked)
        for topic in response.responses:
            name = topic.topic or session.topic_name(bytes(topic.topic_id))
            for answer in topic.partitions:
                key = TopicPartition(name or "", answer.partition_index)
                if key not in asked:
                    continue
                state, serial, offset, epoch = asked[key]
                if self._is_outdated(state, epoch):
                    reached("client.fetch_from_earlier_leader_dropped")
                    continue
                if (
                    self._subscription.partitions.get(key) is state
                    and state.serial == serial
                    and state.fetch_offset == offset
                ):
                    if not answer.error_code and topic.topic_id != NO_TOPIC_ID:
                        state.topic_id = bytes(topic.topic_id)
                    self._take_partition(node, state, answer)

    def _is_outdated(self, state: PartitionState, epoch: int) -> bool:
        """True if the position was validated with a later leader than that of the fetch, whose leader epoch is `epoch`.

        The later leader's log may lack records of the earlier leader. No further validation would notice it (KIP-320).
        """
        topic = self._core.cluster.topics.get(state.key.topic)
        partition = topic.partitions.get(state.key.partition) if topic is not None else None
        # A topic that was created again begins with the first epoch.
        return partition is not None and epoch < min(state.validated_epoch, partition.leader_epoch)

    def _take_partition(self, node: int, state: PartitionState, answer: Any) -> None:
        code = error_code(answer.error_code)
        if code is not ErrorCode.NONE:
            self._failed(node, state, answer, code)
            return
        state.failures = 0
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        if answer.log_start_offset >= 0:
            state.log_start_offset = answer.log_start_offset
        if answer.preferred_read_replica >= 0:
            state.preferred_replica = answer.preferred_read_replica
            state.preferred_until = self._core.now + self._settings.metadata_max_age_ms / 1000
            if answer.preferred_read_replica not in self._core.cluster.brokers:
                self._ask_metadata()
        data = memoryview(answer.records or b"")
        if not data:
            return
        end = 0
        offset = state.fetch_offset
        assert offset is not None
        next_offset, epoch = offset, state.fetch_epoch
        try:
            for position, header in iter_batches(data):
                end = position + header.size
                next_offset = max(next_offset, header.next_offset)
                epoch = header.partition_leader_epoch
        except KafkaError:
            end = len(data)  # a poll raises the error when it reaches the damaged batch
        else:
            if end == 0:
                error = CorruptBatch(
                    f"the {len(data)} bytes that the broker sent from offset {offset} on hold no whole batch"
                )
                self._refuse(state, UndecodableRecord(state.key, offset, offset + 1, error))
            if next_offset == offset:
                return
        aborted: deque[tuple[int, int]] = deque()
        if self._settings.isolation_level == "read_committed":
            aborted.extend(sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions or ()))
        self.ready[state] = None
        state.chunks.append(Chunk(data, end, aborted=aborted))
        state.buffered_bytes += end
        state.fetch_offset = next_offset
        state.fetch_epoch = epoch
        self._arrived.notify()

    def _failed(self, node: int, state: PartitionState, answer: Any, code: ErrorCode) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(node, state)
        elif code in _PASSING:
            self.last_error = broker_error(code, None, str(state.key))
            hint = answer.current_leader
            # Fetch from the leader again, because the preferred replica may no longer have the partition
            # (KIP-392).
            state.preferred_replica = None
            if self._core.cluster.set_leader(*state.key, hint.leader_id, hint.leader_epoch):
                reached("client.leader_hint_followed")
                # The position must first be validated with the new leader (`Positions`).
                self._news.notify()
                return
            self._retry_later(state)
        else:
            self._refuse(state, broker_error(code, None, str(state.key)))

    def _out_of_range(self, node: int, state: PartitionState) -> None:
        """Handle OFFSET_OUT_OF_RANGE for a partition. Only the leader's answer resets the position, because a
        follower may lack the newest records (KIP-392).
        """
        if state.preferred_replica == node:
            reached("client.nearer_replica_lags")
            state.preferred_replica = None
            return
        if state.chunks or state.returned:
            reached("client.out_of_range_put_off")
            # Records that are fetched but not read yet stay valid. Once the application has read them, send this fetch
            # again.
            state.retry_at = self._core.now + self._core.backoff(state.failures)
            state.failures += 1
            return
        self._reset(state)

    def _reset(self, state: PartitionState) -> None:
        """Apply `auto.offset.reset` to a partition: look up a new position, or store an error for the application."""
        assert state.fetch_offset is not None
        policy = self._settings.auto_offset_reset
        if policy == "none":
            self._refuse(state, OffsetsOutOfRange({state.key: state.fetch_offset}))
        else:
            state.reset(policy)
            self._news.notify()

    def _refuse(self, state: PartitionState, error: Exception) -> None:
        self.ready[state] = None
        state.error = error
        self._arrived.notify()
