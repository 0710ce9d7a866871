"""Sends a producer's batches: when they are ready (linger), in safe order, again after errors, split if too
large, given up after `delivery.timeout.ms`. PURE. One operation does this, and completes the batches.

Theory of operation
-------------------
`Sender.run` is one long operation on the core. At each step it checks every active queue (`Lane`) of the
accumulator, and sends ready batches to the leaders of their partitions. A Produce request has one batch of a
partition, and as many partitions as fit. At most `max.in.flight.requests.per.connection` requests to a broker
are unanswered at any time. Each answer is handled when it arrives (`Call.on_done`); then the operation takes
its next step. Separate operations fetch metadata and the producer id, so only the batches that need these
wait for them.

A batch is ready if it is full, if its linger time is over, or if it must be sent again. It is also ready if the
application calls `flush` or `close`, or waits for memory.

Rules (KIP-98, KIP-360, KIP-951)
-----
* A batch gets its sequence number when it is first sent and keeps it through all repetitions. The broker refuses gaps
  and recognizes repetitions. So up to five requests may be in flight, and still no record is lost, doubled or out of
  order.
* A broker knows the last five batches of a producer. After a batch without an answer only four more batches are sent,
  even if these four are answered. After a change of leaders, the new leader may have taken the later batches, while
  the old leader has not answered the first yet. A sixth batch would make the broker forget the first, and a
  repetition of the first would be appended again.
* A broker that does not know a producer accepts any sequence number as its first. So the first batch under
  new numbers is sent alone. If other batches followed at once and the first were refused, the broker would
  accept the next one, and the order would be lost.
* Once a batch of a queue must be repeated, the queue first waits for the answers to all its requests. Then it sends
  its batches in order, beginning with the oldest.
* The queue is rebased (a new epoch, numbers from 0) in two cases. Either a batch ends without having used its
  sequence number, because it was finally refused or has expired. Or the broker does not know the numbers
  before the oldest batch. Batches that may already be in the log at that moment fail with the same error. If
  these batches were sent again under new numbers, they might appear twice.
* A batch that is too large for the broker is cut in two halves, which keep its range of numbers. It fails instead if
  an earlier attempt may have written it, or if it has a single record.
* After a refusal that names the new leader, the batch is sent again at once. After any other retriable refusal, it is
  sent after a backoff, with fresh metadata.
* `delivery.timeout.ms` limits every batch, even in flight: after that time, its answer only affects the sequence
  numbers.
* Without idempotence, repetitions may double or reorder records, as Kafka documents for `retries` above 0.
* With a `transactional.id` a queue is never rebased. A batch that ends unwritten fails the transaction. Then waiting
  batches are dropped, and the answers to batches in flight are awaited. `Transactions` decides which queues may send,
  and under which epoch.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.notes import WARNING
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.errors import (
    BrokerUnavailable,
    ClientClosed,
    RecordsNotEncoded,
    RequestTimedOut,
    TransactionAborted,
    broker_error,
    error_code,
    is_retriable,
)
from odradek.client.producer.accumulator import Accumulator, Batch, Lane
from odradek.client.producer.availability import Availability
from odradek.client.producer.produce_calls import answers_by_partition, produce_request
from odradek.client.producer.producer_upkeep import Identity, IdentityKeeper, TopicRefresher
from odradek.named_states import reached
from odradek.wire.batches.batch_header import set_transactional
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.record_writer import encode_batch, stamp
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import PartitionProduceResponse

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.producer.transactions import Transactions

__all__ = ["Sender"]

_SEQUENCE_END = 1 << 31
_WORTH_A_NOTE_SECONDS = 1.0
"""The repetition of a batch is logged if the batch is at least this old, in seconds."""
_EPOCH_MAX = (1 << 15) - 1
_NEVER = float("inf")
_FAILED_KEPT_MAX = 1000
_BATCHES_KNOWN = 5
"""The number of batches per producer that a broker remembers to recognize repetitions (Kafka's constant)."""
_REQUEST_OVERHEAD = 128
"""The approximate number of bytes that a request, and each partition in it, needs in addition to the batches."""
_REFUSED_BEFORE_APPEND = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Error codes of refusals that happen before the append. After any other retriable refusal the batch may be in the
log. If a leader is deposed while it waits for followers, it answers NOT_LEADER_OR_FOLLOWER for an appended batch, and
the next leader may have that batch.
"""
_NUMBERS_UNKNOWN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_IDENTITY_LOST = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class Sender:
    """Sends a producer's batches. Notify `signal` when there is something new to send."""

    def __init__(
        self,
        core: ClientCore,
        settings: ProducerSettings,
        accumulator: Accumulator,
        *,
        auto_create: bool = True,
    ) -> None:
        self.signal = core.signal()
        self.wake_at = 0.0
        """The time of the next step if nothing happens before, in seconds of the core's clock."""
        self.closing = False
        self.counts: Counter[str] = Counter()
        self.failed: deque[Batch] = deque(maxlen=_FAILED_KEPT_MAX)
        """The latest failed batches. `Producer` warns about each batch whose error the application has not read."""
        self._core = core
        self._settings = settings
        self._accumulator = accumulator
        self._linger = settings.linger_ms / 1000
        self._in_flight: Counter[int] = Counter()
        self._availability = Availability(settings.partitioner_availability_timeout_ms / 1000)
        self._codec = int(CompressionType[settings.compression_type.upper()])
        level = {
            "gzip": settings.compression_gzip_level,
            "lz4": settings.compression_lz4_level,
            "zstd": settings.compression_zstd_level,
        }.get(settings.compression_type)
        self._level = None if level == -1 and settings.compression_type == "gzip" else level
        timeout = settings.request_timeout_ms / 1000
        self.transactions: Transactions | None = None
        if settings.transactional_id is not None:
            # Imported only for transactions, because the import of its messages would delay the start of
            # other producers.
            from odradek.client.producer.transactions import Transactions

            self.transactions = Transactions(core, settings, accumulator, self._look_again)
        self._identity: IdentityKeeper | Transactions = self.transactions or IdentityKeeper(
            core,
            self._look_again,
            needed=settings.enable_idempotence,
            timeout=timeout,
            refused=self.abort,
            troubled=self._blame,
        )
        self._topics = TopicRefresher(
            core,
            self._look_again,
            names=lambda: list(dict.fromkeys(lane.topic for lane in accumulator.active)),
            timeout=timeout,
            max_age=settings.metadata_max_age_ms / 1000,
            auto_create=auto_create,
        )
        self._again = False

    def run(self) -> Operation[None]:
        """Send batches until `closing` is set and no batch is left."""
        while not (self.closing and not self._accumulator.active):
            self._again = True
            until = _NEVER
            while self._again:
                self._again = False
                until = self._step()
                if self.transactions is not None:
                    self.transactions.settled.notify()
            self.wake_at = until
            if not (self.closing and not self._accumulator.active):
                yield Wait(until=None if until == _NEVER else until, signals=(self.signal,))

    def sleeps_too_long(self, now: float) -> bool:
        """True if the linger time of a batch that is opened now ends before the sender's next step."""
        return now + self._linger < self.wake_at

    def statistics(self) -> dict[str, int]:
        """Return counters by name: batches, records, requests and refusals since the start, and the present buffer
        use.
        """
        return {
            **self.counts,
            **({} if self.transactions is None else self.transactions.statistics()),
            **self._core.statistics(),
            "buffer bytes used": self._accumulator.memory_used,
            "batches incomplete": len(self._accumulator.incomplete),
        }

    def fail_unacknowledged(self, failure: BaseException | None = None) -> None:
        """Fail all records that are not acknowledged, because the producer was closed or has failed."""
        reason = "was closed" if failure is None else f"failed ({failure!r})"
        error = ClientClosed(f"the producer {reason} before the brokers acknowledged the record")
        error.__cause__ = failure
        self.abort(error)

    def abort(self, error: Exception) -> None:
        """Fail all batches that are not done with this error, and empty all queues."""
        accumulator = self._accumulator
        for batch in list(accumulator.incomplete):
            if not batch.done and batch.parts is None:
                self._finish(batch, error)
        for lane in list(accumulator.active):
            if self._identity.needed and self.transactions is None:
                lane.rebase = error
            lane.batches.clear()
            lane.in_flight.clear()
            lane.open = None
            accumulator.settle(lane)

    def _look_again(self) -> None:
        """Let the sender take another step: at once after the running step, or by waking the waiting operation."""
        self._again = True
        self.signal.notify()

    def _blame(self, error: Exception) -> None:
        """Store an error in all waiting batches. If they expire before there is a producer id, this error is
        given as the reason.
        """
        for lane in self._accumulator.active:
            for batch in lane.batches:
                batch.last_error = batch.last_error or error

    # One step

    def _step(self) -> float:
        """Send all batches that can be sent. Return the time at which the next step is due, unless an event
        makes a step due earlier.
        """
        core = self._core
        self._expire()
        transactions = self.transactions
        if transactions is not None:
            self._drop_discarded(transactions)
        until = self._topics.keep()
        lanes = list(self._accumulator.active)
        for lane in lanes:
            self._prepare(lane)
        if self._identity.missing:
            return min(until, self._identity.keep() if lanes else _NEVER, self._next_expiry())
        by_node: dict[int, list[Lane]] = {}
        for lane in self._accumulator.active:
            ready_at = self._ready_at(lane)
            if ready_at > core.now:
                until = min(until, ready_at)
                continue
            if transactions is not None and not transactions.admits(lane):
                continue
            leader = self._leader(lane)
            if leader is None:
                self._topics.wanted = True
            else:
                by_node.setdefault(leader, []).append(lane)
        for node, theirs in by_node.items():
            until = min(until, self._send_to(node, theirs))
        if self._availability.is_on:
            leaders = {self._leader(lane) for lane in self._accumulator.active}
            self._accumulator.blocked = self._availability.blocked(leaders, core.now)
        if self._topics.wanted:
            until = min(until, self._topics.keep())
        return min(until, self._next_expiry())

    def _ready_at(self, lane: Lane) -> float:
        """Return the time from which the queue's first batch may be sent. Return `_NEVER` if another batch
        must be answered first.
        """
        if not lane.batches or (lane.in_flight and (lane.repeating or lane.rebase is not None)):
            return _NEVER
        if lane.in_flight and not lane.established and self._identity.needed:
            return _NEVER
        if len(lane.in_flight) >= self._settings.max_in_flight_requests_per_connection:
            return _NEVER
        batch = lane.batches[0]
        if batch.attempts:
            return batch.not_before
        if lane.in_flight and lane.batches_sent - lane.in_flight[0].number >= _BATCHES_KNOWN - 1:
            return _NEVER
        if batch.closed or self.closing or self._accumulator.flushing or self._accumulator.starving:
            return 0.0
        return batch.opened_at + self._linger

    def _leader(self, lane: Lane) -> int | None:
        cluster = self._core.cluster
        topic = cluster.topics.get(lane.topic)
        partition = topic.partitions.get(lane.partition) if topic is not None else None
        if partition is None or partition.leader not in cluster.brokers:
            return None
        return partition.leader

    def _send_to(self, node: int, lanes: list[Lane]) -> float:
        """Send requests to one broker as long as batches are ready and its pipeline has room. Return the time
        at which the next batch will be ready.
        """
        settings = self._settings
        until = _NEVER
        waiting = deque(lanes)
        while waiting and self._in_flight[node] < settings.max_in_flight_requests_per_connection:
            size = 0
            taken: list[tuple[Lane, Batch]] = []
            for _ in range(len(waiting)):
                lane = waiting[0]
                if not self._encode(lane, lane.batches[0]):
                    waiting.popleft()
                    continue
                count = len(lane.batches[0].data or b"") + _REQUEST_OVERHEAD
                if taken and size + count > settings.max_request_size:
                    break
                size += count
                waiting.popleft()
                taken.append((lane, self._accumulator.take(lane)))
            if not taken:
                continue
            for lane, _ in taken:
                self._accumulator.active.pop(lane)
                self._accumulator.active[lane] = None
            self._send(node, taken)
            for lane, _ in taken:
                ready_at = self._ready_at(lane)
                if ready_at <= self._core.now:
                    waiting.append(lane)
                else:
                    until = min(until, ready_at)
        if waiting:
            self._availability.silent(node, self._core.now)
        return until

    def _encode(self, lane: Lane, batch: Batch) -> bool:
        """Encode the batch with the queue's sequence numbers. Return False if the records cannot be encoded;
        then the batch has failed.
        """
        fresh = batch.data is None or not batch.attempts
        if batch.data is None:
            if lane.open is batch:
                self._accumulator.close(lane)
            batch.record_count = len(batch.rows)
            try:
                batch.data = encode_batch(
                    batch.rows, compression_type=self._codec, compression_level=self._level
                )
            except Exception as error:  # noqa: BLE001 - any error concerns only this batch
                self._cannot_encode(lane, batch, error)
                return False
            self._accumulator.encoded(batch)
        if self._identity.needed and batch.base_sequence < 0:
            batch.producer_id = lane.producer_id
            batch.producer_epoch = lane.producer_epoch
            batch.base_sequence = lane.next_sequence
            lane.next_sequence = (lane.next_sequence + batch.record_count) % _SEQUENCE_END
            fresh = True
        if fresh:
            if self.transactions is not None:
                set_transactional(batch.data)
            stamp(batch.data, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        return True

    def _cannot_encode(self, lane: Lane, batch: Batch, cause: Exception) -> None:
        """Fail a batch whose records cannot be encoded. It has no sequence number yet, unless it is half of a split
        batch.
        """
        error = RecordsNotEncoded(f"{batch.record_count} records for {lane} cannot be encoded: {cause!r}")
        error.__cause__ = cause
        self._accumulator.take(lane)
        self._given_up(lane, batch, error)
        self._finish(batch, error)
        self._accumulator.settle(lane)
        self._look_again()

    def _send(self, node: int, taken: list[tuple[Lane, Batch]]) -> None:
        core = self._core
        for lane, batch in taken:
            lane.repeating = False
            lane.in_flight.append(batch)
            if not batch.attempts:
                lane.batches_sent += 1
                batch.number = lane.batches_sent
            batch.attempts += 1
            self.counts["batches sent"] += 1
            self.counts["records sent"] += batch.record_count
            self.counts["batches repeated"] += batch.attempts > 1
        self._in_flight[node] += 1
        self.counts["requests"] += 1
        transactions = self.transactions
        name = None if transactions is None else transactions.transactional_id
        request, version_max = produce_request(self._settings, name, taken)
        if transactions is not None:
            version_max = min(version_max, transactions.produce_version_max)
        call = core.call(
            request,
            node=node,
            deadline=core.now + self._settings.request_timeout_ms / 1000,
            version_max=version_max,
            expects_response=self._settings.acks != 0,
        )
        if call.done:
            self._answered(call, node, taken)
        else:
            call.on_done = partial(self._answered, call, node, taken)

    # Answers

    def _answered(self, call: Call, node: int, taken: list[tuple[Lane, Batch]]) -> None:
        self._in_flight[node] -= 1
        if call.error is None:
            self._availability.answered(node)
        else:
            self._availability.silent(node, self._core.now)
        self._look_again()
        answers = answers_by_partition(self._core.cluster, call.response)
        for lane, batch in taken:
            if batch not in lane.in_flight:
                reached("client.answer_after_abort_dropped")
                continue  # the producer has dropped this batch meanwhile
            oldest = lane.in_flight[0] is batch and not (lane.batches and lane.batches[0].attempts)
            lane.in_flight.remove(batch)
            if call.error is not None:
                self._topics.wanted = True
                batch.maybe_appended |= not isinstance(call.error, BrokerUnavailable)
                self._trouble(lane, batch, call.error)
            elif call.response is None:
                self._acknowledged(lane, batch, -1, -1)
            else:
                # The queue still has the topic id of the request: `_prepare` does not change a queue that has batches
                # in flight.
                answer = answers.get((lane.topic_id, lane.partition)) or answers.get(
                    (lane.topic, lane.partition)
                )
                if answer is None:
                    batch.maybe_appended = True
                    missing = broker_error(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        "the broker's answer does not name this partition",
                        str(lane),
                    )
                    self._trouble(lane, batch, missing)
                else:
                    self._take_answer(lane, batch, answer, oldest)
            self._accumulator.settle(lane)

    def _take_answer(self, lane: Lane, batch: Batch, answer: PartitionProduceResponse, oldest: bool) -> None:
        if not answer.error_code:
            self._acknowledged(lane, batch, answer.base_offset, answer.log_append_time_ms)
            return
        code = error_code(answer.error_code)
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            reached("client.duplicate_acknowledged")
            self._acknowledged(lane, batch, -1, -1)
            return
        if batch.done:
            reached("client.batch_already_over")
            self._trouble(lane, batch, batch.error or broker_error(answer.error_code, None, str(lane)))
            return
        self.counts[f"refused: {code.name}"] += 1
        error = broker_error(answer.error_code, answer.error_message, str(lane))
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1 and not batch.maybe_appended:
            self._split(lane, batch)
        elif code in _NUMBERS_UNKNOWN and batch.base_sequence >= 0 and not (self.transactions and oldest):
            reached("client.numbers_unknown_to_broker")
            # This attempt appended nothing, but an earlier attempt without an answer may have. A gap error is no proof:
            # after a restart, Apache Kafka remembers only a producer's last batch, and answers repetitions of earlier
            # batches with such an error.
            if code is ErrorCode.UNKNOWN_PRODUCER_ID:
                batch.maybe_appended = False
            if oldest and lane.rebase is None:
                lane.rebase = error
            self._repeat(lane, batch, error, at_once=True)
        else:
            batch.maybe_appended |= code not in _REFUSED_BEFORE_APPEND
            if code in _IDENTITY_LOST and self.transactions is None:
                self._identity.current = None
            if answer.record_errors:
                batch.record_errors = {
                    each.batch_index: broker_error(
                        answer.error_code,
                        each.batch_index_error_message or answer.error_message,
                        str(lane),
                    )
                    for each in answer.record_errors
                }
                error = broker_error(
                    answer.error_code,
                    "the broker refused this record because of other records in its batch",
                    str(lane),
                )
            hint = answer.current_leader
            hinted = self._core.cluster.set_leader(
                lane.topic, lane.partition, hint.leader_id, hint.leader_epoch
            )
            self._topics.wanted |= not hinted and is_retriable(error)
            self._trouble(lane, batch, error, at_once=hinted)

    def _acknowledged(self, lane: Lane, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        self.counts["batches acknowledged"] += 1
        if batch.producer_epoch == lane.producer_epoch and batch.producer_id == lane.producer_id:
            lane.established = True
        if not batch.done:
            batch.base_offset = base_offset
            batch.log_append_time_ms = log_append_time_ms
            lane.count_acknowledged(batch)
            self._accumulator.complete(batch)

    def _trouble(self, lane: Lane, batch: Batch, error: Exception, *, at_once: bool = False) -> None:
        """Handle an error of a batch: send it again if that is allowed, otherwise fail it and update the sequence
        numbers of later batches.
        """
        if (
            not batch.done
            and is_retriable(error)
            and batch.attempts <= self._settings.retries
            and batch.deadline > self._core.now
        ):
            self._repeat(lane, batch, error, at_once=at_once)
            return
        self._given_up(lane, batch, error)
        if not batch.done:
            self._finish(batch, error)

    def _repeat(self, lane: Lane, batch: Batch, error: Exception, *, at_once: bool) -> None:
        """Put a batch back into its queue, after batches with older sequence numbers and before batches that
        were never sent.
        """
        batch.last_error = error
        waited = self._core.now - batch.opened_at
        if waited >= _WORTH_A_NOTE_SECONDS:
            text = f"the producer has retried records for {lane} for {waited:.0f} s: {error}"
            self._core.notes.add(WARNING, text, key=("repeat", lane.topic, lane.partition))
        delay = 0.0 if at_once and batch.attempts < 3 else self._core.backoff(batch.attempts - 1)
        batch.not_before = self._core.now + delay
        lane.repeating = True
        place = 0
        for other in lane.batches:
            if not other.attempts or _older(batch, other):
                break
            place += 1
        lane.batches.insert(place, batch)

    def _split(self, lane: Lane, batch: Batch) -> None:
        """Replace a batch by two halves, which together have its sequence numbers."""
        assert batch.data is not None
        self.counts["batches split"] += 1
        found = records(batch.data, decompressed_bytes_max=_SEQUENCE_END, crc=False)
        middle = len(found) // 2
        parts: list[tuple[int, Batch]] = []
        for start, some in ((0, found[:middle]), (middle, found[middle:])):
            part = Batch(lane, batch.opened_at, batch.deadline, 0, closed=True)
            part.rows = [(record.timestamp, record.key, record.value, record.headers) for record in some]
            part.size = sum(len(record.key or b"") + len(record.value or b"") for record in some)
            part.record_count = len(some)
            part.attempts = batch.attempts
            part.number = batch.number
            part.producer_id = batch.producer_id
            part.producer_epoch = batch.producer_epoch
            if batch.base_sequence >= 0:
                part.base_sequence = (batch.base_sequence + start) % _SEQUENCE_END
            parts.append((start, part))
        batch.data = None
        lane.batches_sent += 1
        self._accumulator.split(batch, parts)
        error = broker_error(ErrorCode.MESSAGE_TOO_LARGE, None, str(lane))
        for _, part in parts:
            self._repeat(lane, part, error, at_once=True)
            part.not_before = 0.0

    def _given_up(self, lane: Lane, batch: Batch, error: Exception) -> None:
        """Make the queue start with new sequence numbers, because a batch with sequence numbers has failed.
        With transactions, fail the transaction instead.
        """
        if self.transactions is not None:
            self.transactions.record_failed(error, numbered=batch.base_sequence >= 0)
        elif batch.base_sequence >= 0 and lane.rebase is None:
            lane.rebase = error

    def _drop_discarded(self, transactions: Transactions) -> None:
        """Fail all waiting batches if the transaction has failed or is being aborted. Batches in flight stay."""
        error = transactions.discarded_because()
        if error is None:
            return
        for lane in list(self._accumulator.active):
            lane.open = None
            while lane.batches:
                batch = lane.batches.popleft()
                transactions.machine.bump_needed |= batch.base_sequence >= 0
                self._finish(batch, error)
            self._accumulator.settle(lane)

    def _finish(self, batch: Batch, error: Exception) -> None:
        self.counts["batches failed"] += 1
        batch.record_count = batch.record_count or len(batch.rows)
        batch.lane.records_failed += batch.record_count
        if not isinstance(error, (TransactionAborted, ClientClosed)):
            text = f"{batch.record_count} records for {batch.lane} were not delivered: {error}"
            self._core.notes.add(WARNING, text, key="given up")
        batch.error = error
        if not isinstance(error, TransactionAborted):
            self.failed.append(batch)
        self._accumulator.complete(batch)

    # Sequence numbers

    def _prepare(self, lane: Lane) -> None:
        """Prepare a queue without batches in flight for the next request: update its topic id, and its sequence
        numbers if needed.
        """
        if lane.in_flight or not lane.batches:
            return
        topic = self._core.cluster.topics.get(lane.topic)
        if topic is not None and topic.topic_id != lane.topic_id:
            idempotent = self._identity.needed and self.transactions is None
            if lane.topic_id != NO_TOPIC_ID and lane.rebase is None and idempotent:
                reached("client.topic_made_anew_while_writing")
                # The topic was deleted and created again, so the old topic's batches were deleted with its
                # log.
                lane.rebase = broker_error(ErrorCode.UNKNOWN_TOPIC_ID, None, str(lane))
                for batch in lane.batches:
                    batch.maybe_appended = False
            lane.topic_id = topic.topic_id
        identity = self._identity.current
        if self.transactions is not None and identity is not None:
            if (lane.producer_id, lane.producer_epoch) != (identity.producer_id, identity.producer_epoch):
                lane.next_sequence, lane.established = 0, False
            lane.producer_id, lane.producer_epoch = identity.producer_id, identity.producer_epoch
        elif identity is not None and lane.producer_id < 0:
            lane.producer_id, lane.producer_epoch = identity.producer_id, identity.producer_epoch
        if lane.rebase is not None and identity is not None:
            self._rebase(lane, lane.rebase, identity)

    def _rebase(self, lane: Lane, error: Exception, identity: Identity) -> None:
        """Start new sequence numbers with the next epoch, or with the current producer id if it has changed. Fail the
        batches that may be in the log.
        """
        if identity.producer_id != lane.producer_id:
            lane.producer_id, lane.producer_epoch = identity.producer_id, identity.producer_epoch
        elif lane.producer_epoch < _EPOCH_MAX:
            lane.producer_epoch += 1
        else:
            self._identity.current = None
            return
        self.counts["epochs bumped"] += 1
        lane.rebase = None
        lane.established = False
        lane.next_sequence = 0
        kept = [batch for batch in lane.batches if not batch.maybe_appended]
        for batch in lane.batches:
            if batch.maybe_appended:
                self._finish(batch, error)
            else:
                batch.base_sequence = -1
        lane.batches = deque(kept)
        if lane.open is not None and lane.open not in kept:
            lane.open = None
        self._accumulator.settle(lane)

    # Time

    def _expire(self) -> None:
        """Fail batches whose delivery timeout has passed."""
        now = self._core.now
        for lane in list(self._accumulator.active):
            for batch in lane.in_flight:
                if batch.deadline <= now and not batch.done:
                    if self.transactions is not None:
                        self._given_up(lane, batch, self._too_late(batch))
                    self._finish(batch, self._too_late(batch))
            while lane.batches and lane.batches[0].deadline <= now:
                batch = self._accumulator.take(lane)
                self._given_up(lane, batch, self._too_late(batch))
                self._finish(batch, self._too_late(batch))
            self._accumulator.settle(lane)

    def _next_expiry(self) -> float:
        expiry = _NEVER
        for lane in self._accumulator.active:
            for queue in (lane.in_flight, lane.batches):
                oldest = next((batch for batch in queue if not batch.done), None)
                if oldest is not None:
                    expiry = min(expiry, oldest.deadline)
        return expiry

    def _too_late(self, batch: Batch) -> Exception:
        if isinstance(batch.last_error, KafkaError):
            return batch.last_error
        seconds = self._settings.delivery_timeout_ms / 1000
        reason = f": {batch.last_error}" if batch.last_error is not None else ""
        return RequestTimedOut(f"the records were not delivered to {batch.lane} within {seconds:g} s{reason}")


def _older(batch: Batch, other: Batch) -> bool:
    """True if `batch`, which is sent again, must be sent before `other`. If both batches have sequence
    numbers (which wrap around), the numbers decide.
    """
    if batch.base_sequence < 0:
        return batch.number < other.number
    if other.base_sequence < 0:
        return True  # a rebase has removed the number of `other`, which has no new number yet
    return (other.base_sequence - batch.base_sequence) % _SEQUENCE_END < _SEQUENCE_END // 2
