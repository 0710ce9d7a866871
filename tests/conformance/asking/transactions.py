"""Transactional producers for the cases, and each state of a transactional id in which a request can arrive.

`V1` is a client that adds partitions itself and ends transactions with EndTxn 4. `V2` adds none: its leaders do, and each
EndTxn 5 gives it the next epoch (KIP-890). Preparations are not compared. They wait until the coordinator has written
all markers, since that time must not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest
from odradek.wire.messages.end_txn import EndTxnRequest
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.asking.batches import batch
from tests.conformance.asking.talk import Talk

V1, V2 = 1, 2
END = {V1: 4, V2: 5}
"""The newest version of EndTxn that each client uses."""
PRODUCE = {V1: 11, V2: 12}
COMMIT, ABORT = True, False
BATCHED_SINCE = 4
TIMEOUT_MS = 60_000
SHORT_MS = 1
STRANGER = 7_000_000
"""A producer id that no producer has."""
UNFINISHED = ("PrepareCommit", "PrepareAbort")
STATES = ("unknown", "empty", "ongoing", "committed", "aborted", "fenced", "timed out")
_RETRIED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@attrs.define
class Producer:
    """A transactional id, and the producer that writes under it."""

    talk: Talk
    transactional_id: str
    client: int = V2
    topic: str = ""
    producer_id: int = STRANGER
    epoch: int = 0
    sequence: int = 0
    timeout_ms: int = TIMEOUT_MS
    names: int = 0

    # -- requests -------------------------------------------------------------------------------------------------

    def init_request(self, producer_id: int = -1, epoch: int = -1) -> InitProducerIdRequest:
        return InitProducerIdRequest(self.transactional_id, self.timeout_ms, producer_id, epoch)

    def add_request(
        self,
        topics: dict[str, list[int]] | None = None,
        *,
        version: int = 3,
        by: int = 0,
        other: int = 0,
        verify_only: bool = False,
    ) -> AddPartitionsToTxnRequest:
        """Make an AddPartitionsToTxn. `by` is added to the epoch, `other` to the producer id."""
        wanted = {self.topic: [0]} if topics is None else topics
        named = [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in wanted.items()]
        who = (self.transactional_id, self.producer_id + other, self.epoch + by)
        if version < BATCHED_SINCE:
            return AddPartitionsToTxnRequest([], *who, named)
        return AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction(*who, verify_only, named)])

    def offsets_request(self, group: str, *, by: int = 0, other: int = 0) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(self.transactional_id, self.producer_id + other, self.epoch + by, group)

    def commit_request(
        self,
        group: str,
        offset: int = 5,
        *,
        by: int = 0,
        other: int = 0,
        metadata: str | None = "m",
        index: int = 0,
        topic: str | None = None,
        **fields: Any,
    ) -> TxnOffsetCommitRequest:
        """Make a TxnOffsetCommit of one partition's offset."""
        position = TxnOffsetCommitRequestPartition(index, offset, -1, metadata)
        topics = [TxnOffsetCommitRequestTopic(self.topic if topic is None else topic, [position])]
        return TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.producer_id + other,
            self.epoch + by,
            **{"topics": topics, **fields},
        )

    def end_request(self, is_commit: bool, *, by: int = 0, other: int = 0) -> EndTxnRequest:
        return EndTxnRequest(self.transactional_id, self.producer_id + other, self.epoch + by, is_commit)

    def produce_request(
        self,
        *,
        by: int = 0,
        other: int = 0,
        sequence: int | None = None,
        index: int = 0,
        topic_id: bytes = bytes(16),
    ) -> ProduceRequest:
        data = batch(
            1,
            producer_id=self.producer_id + other,
            producer_epoch=self.epoch + by,
            base_sequence=self.sequence if sequence is None else sequence,
            is_transactional=True,
        )
        sent = [TopicProduceData(self.topic, topic_id, [PartitionProduceData(index, data)])]
        return ProduceRequest(self.transactional_id, -1, 5_000, sent)

    # -- steps that are not compared ------------------------------------------------------------------------------

    def learn(self, response: Any) -> None:
        """Take over the producer id and epoch of an answer. The answers show each new producer id under a number."""
        if response.error_code or response.producer_id < 0:
            return
        if response.producer_id != self.producer_id:
            self.names += 1
            self.talk.name_producer(response.producer_id, f"producer {self.names}")
        if (response.producer_id, response.producer_epoch) != (self.producer_id, self.epoch):
            self.sequence = 0
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    def init(self) -> None:
        self.learn(self._done(self.init_request(), 5))

    def add(self, *indexes: int) -> None:
        """Add partitions, as a client of version 1 does. For one of version 2 the leaders do it."""
        self._done(self.add_request({self.topic: list(indexes or (0,))}), 3)

    def write(self, index: int = 0) -> None:
        """Write one more record."""
        self._done(self.produce_request(index=index), PRODUCE[self.client])
        self.sequence += 1

    def begin(self) -> None:
        """Begin a transaction with a record in partition 0."""
        if self.client == V1:
            self.add()
        self.write()

    def end(self, is_commit: bool) -> None:
        response = self._done(self.end_request(is_commit), END[self.client])
        if self.client == V2:
            self.learn(response)
        self.settle()

    def settle(self) -> None:
        """Wait until the coordinator has written all markers."""
        self.wait_for(lambda state: state not in UNFINISHED)

    def wait_for(self, reached: Callable[[str], bool]) -> None:
        request = DescribeTransactionsRequest([self.transactional_id])
        for _ in range(2_000):
            state = self.talk.ask_silently(request, 0).transaction_states[0].transaction_state
            if reached(state):
                return
            time.sleep(0.005)
        raise TimeoutError(f"{self.transactional_id} stays {state}")

    def _done(self, message: Any, version: int) -> Any:
        for _ in range(2_000):
            response = self.talk.ask_silently(message, version)
            code = code_of(response)
            if code not in _RETRIED:
                assert not code, (message, response)
                return response
            time.sleep(0.005)
        raise TimeoutError(f"{message} is never done")

    # -- answers --------------------------------------------------------------------------------------------------

    def ask(self, message: Any, version: int) -> Any:
        """Send a request and keep its answer. Repeat it while the coordinator is busy with another transaction."""
        for _ in range(2_000):
            response = self.talk.ask_silently(message, version)
            if response is None or code_of(response) not in _RETRIED:
                break
            time.sleep(0.005)
        self.talk.keep(response, version, without_text)
        self.settle()
        return response

    def look(self) -> None:
        """Ask the coordinator to describe this transactional id, and keep the answer."""
        self.talk.ask(DescribeTransactionsRequest([self.transactional_id]), 0)


def code_of(response: Any) -> int:
    """Return the first error code of an answer."""
    if hasattr(response, "error_code") and response.error_code:
        return int(response.error_code)
    for name in (
        "results_by_transaction",
        "topic_results",
        "results_by_topic_v3_and_below",
        "results_by_partition",
        "responses",
        "partition_responses",
        "topics",
        "partitions",
    ):
        for each in getattr(response, name, ()):
            code = code_of(each)
            if code:
                return code
    return int(getattr(response, "partition_error_code", 0))


def without_text(response: Any) -> Any:
    """Remove the texts of errors, in which Kafka names offsets and its classes."""
    for topic in getattr(response, "responses", ()):
        for answer in topic.partition_responses:
            answer.error_message = None
    return response


def in_state(
    talk: Talk, stem: str, state: str, client: int = V2, topic: str | None = None, short_ms: int = SHORT_MS
) -> Producer:
    """Make a producer whose transactional id is in one of `STATES`.

    In `fenced` and `timed out` the coordinator has aborted the transaction under a new epoch, which the producer does
    not know. In `timed out` this and later transactions time out after `short_ms`.
    """
    name = topic or talk.topic(stem, 2)[0]
    producer = Producer(talk, talk.name(f"id-{stem}"), client, name)
    if state == "unknown":
        return producer
    if state == "timed out":
        producer.timeout_ms = short_ms
    producer.init()
    if state in ("ongoing", "committed", "aborted", "fenced"):
        producer.begin()
    if state in ("committed", "aborted"):
        producer.end(state == "committed")
    if state == "fenced":
        successor = attrs.evolve(producer)
        successor.init()
        producer.names = successor.names
    if state == "timed out":
        version = 3 if client == V1 else 5
        talk.ask_silently(producer.add_request(version=version), version)
        producer.wait_for(lambda told: told == "CompleteAbort")
    return producer
