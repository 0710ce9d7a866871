"""A fake broker that also coordinates one transactional id and all groups, and a producer without sockets."""

from __future__ import annotations

from typing import Any

from odradek.client.consumer.consumer_types import ConsumerGroupMetadata, judged_offsets
from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.operation import Operation
from odradek.client.core.requests import topics_with_metadata
from odradek.client.producer.accumulator import Accumulator, Batch
from odradek.client.producer.sender import Sender
from odradek.client.producer.transactions import Transactions
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode
from odradek.wire.framing.connection import RequestReceived
from odradek.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from odradek.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from odradek.wire.messages.api_versions import FinalizedFeatureKey
from odradek.wire.messages.end_txn import EndTxnResponse
from odradek.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from odradek.wire.messages.init_producer_id import InitProducerIdResponse
from odradek.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.client.core.test_core import make
from tests.client.fake_broker import HANG_UP, SILENCE, FakeBroker

GROUP = ConsumerGroupMetadata("g", 3, "me")
_PRODUCER_ID = 77


class TransactionBroker(FakeBroker):
    """A broker with one transactional id, in memory. `level` is its level of the feature `transaction.version`.

    `committed` has the values of committed transactions, and `offsets` their offsets. `wrong` lists requests that no
    correct client would send.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self.answers |= _ANSWERS
        self.versions |= {int(key): api_versions(key) for key in _ANSWERS}
        self.versions[ApiKey.INIT_PRODUCER_ID] = api_versions(ApiKey.INIT_PRODUCER_ID, unstable=True)
        self.epoch = -1
        self.partitions: set[tuple[str, int]] = set()
        self.groups: set[str] = set()
        self.values_open: list[bytes | None] = []
        self.offsets_open: dict[tuple[str, str, int], int] = {}
        self.committed: list[bytes | None] = []
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.last_end: tuple[int, bool] | None = None
        self.last_bump: tuple[int, int] | None = None
        self.outcomes: list[bool] = []
        self.wrong: list[str] = []

    def answer(self, event: RequestReceived) -> Any:
        """Answer as `FakeBroker` does, and report the feature's level."""
        response = super().answer(event)
        if event.api_key == ApiKey.API_VERSIONS:
            response.finalized_features_epoch = 1
            response.finalized_features = [FinalizedFeatureKey("transaction.version", self.level, 0)]
        elif (
            event.api_key in _EXPLICIT_MAX
            and (event.api_version > _EXPLICIT_MAX[event.api_key]) != self._implicit
        ):
            self.wrong.append(f"{ApiKey(event.api_key).name} {event.api_version} at level {self.level}")
        return response

    @property
    def _implicit(self) -> bool:
        return self.level >= 2

    def _fenced(self, producer_id: int, epoch: int) -> int:
        sound = (producer_id, epoch) == (_PRODUCER_ID, self.epoch)
        return 0 if sound else int(ErrorCode.PRODUCER_FENCED)

    def _find(self, request: Any, code: int) -> FindCoordinatorResponse:
        (key,) = request.coordinator_keys
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, node_id=1, host=self.host, port=self.port, error_code=code)]
        )

    def _init(self, request: Any, code: int) -> InitProducerIdResponse:
        if request.producer_id >= 0 and not code:
            asked = request.producer_id, request.producer_epoch
            is_repeated = asked == (_PRODUCER_ID, self.epoch - 1) and asked == self.last_bump
            if is_repeated:
                return InitProducerIdResponse(producer_id=_PRODUCER_ID, producer_epoch=self.epoch)
            code = self._fenced(*asked)
            self.last_bump = asked
        found = InitProducerIdResponse(error_code=code, producer_id=_PRODUCER_ID)
        if not code:
            if request.keep_prepared_txn and (self.partitions or self.groups):
                found.ongoing_txn_producer_id, found.ongoing_txn_producer_epoch = _PRODUCER_ID, self.epoch
            else:
                self._forget()
            self.epoch += 1
        found.producer_epoch = self.epoch
        return found

    def _forget(self) -> None:
        self.partitions.clear()
        self.groups.clear()
        self.values_open.clear()
        self.offsets_open.clear()

    def _add_partitions(self, request: Any, code: int) -> AddPartitionsToTxnResponse:
        code = code or self._fenced(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        results = []
        for topic in request.v3_and_below_topics:
            if not code:
                self.partitions |= {(topic.name, index) for index in topic.partitions}
            answers = [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
            results.append(AddPartitionsToTxnTopicResult(topic.name, answers))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def _add_offsets(self, request: Any, code: int) -> AddOffsetsToTxnResponse:
        code = code or self._fenced(request.producer_id, request.producer_epoch)
        if not code:
            self.groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, request: Any, code: int) -> TxnOffsetCommitResponse:
        code = code or self._fenced(request.producer_id, request.producer_epoch)
        if not code and not self._implicit and request.group_id not in self.groups:
            self.wrong.append(f"offsets of {request.group_id}, which is not in the transaction")
        topics = []
        for topic in request.topics:
            answers = []
            for each in topic.partitions:
                if not code:
                    key = request.group_id, topic.name, each.partition_index
                    self.offsets_open[key] = each.committed_offset
                    self.groups.add(request.group_id)
                answers.append(TxnOffsetCommitResponsePartition(each.partition_index, code))
            topics.append(TxnOffsetCommitResponseTopic(topic.name, answers))
        return TxnOffsetCommitResponse(topics=topics)

    def _end(self, request: Any, code: int) -> EndTxnResponse:
        asked = request.producer_epoch, request.committed
        if (
            not code
            and self._implicit
            and self.last_end == asked
            and request.producer_epoch == self.epoch - 1
        ):
            return EndTxnResponse(producer_id=_PRODUCER_ID, producer_epoch=self.epoch)
        code = code or self._fenced(request.producer_id, request.producer_epoch)
        is_repeated = not self._implicit and self.last_end == asked
        if not code and not (self.partitions or self.groups or is_repeated):
            code = int(ErrorCode.INVALID_TXN_STATE) if not self._implicit or request.committed else 0
        if code:
            return EndTxnResponse(error_code=code)
        if request.committed:
            self.committed += self.values_open
            self.offsets |= self.offsets_open
        self._forget()
        self.last_end = asked
        self.outcomes.append(request.committed)
        if not self._implicit:
            return EndTxnResponse()
        self.epoch += 1
        return EndTxnResponse(producer_id=_PRODUCER_ID, producer_epoch=self.epoch)

    def _append(self, partition: Any, data: bytes, answer: Any) -> None:
        header = parse_header(data)
        key = next(
            (name, index)
            for name, topic in self.topics.items()
            for index, each in enumerate(topic.partitions)
            if each is partition
        )
        if not header.is_transactional:
            self.wrong.append("a batch without the flag")
        if not self._implicit and key not in self.partitions:
            self.wrong.append(f"a batch for {key}, which is not in the transaction")
        if header.producer_epoch != self.epoch:
            answer.error_code = int(ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        self.partitions.add(key)
        end = partition.end_offset
        super()._append(partition, data, answer)
        if partition.end_offset > end:
            self.values_open += [each.value for each in records(data, decompressed_bytes_max=1 << 20)]


_ANSWERS: dict[int, Any] = {
    ApiKey.FIND_COORDINATOR: TransactionBroker._find,
    ApiKey.INIT_PRODUCER_ID: TransactionBroker._init,
    ApiKey.ADD_PARTITIONS_TO_TXN: TransactionBroker._add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: TransactionBroker._add_offsets,
    ApiKey.TXN_OFFSET_COMMIT: TransactionBroker._commit_offsets,
    ApiKey.END_TXN: TransactionBroker._end,
}
_EXPLICIT_MAX: dict[int, int] = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""The highest versions in which partitions and groups are added by AddPartitionsToTxn and AddOffsetsToTxn."""


class FakeProducer:
    """The core, accumulator and sender of a producer, driven by the test.

    The topic `t` of `broker` has two partitions.
    """

    def __init__(self, level: int, **keys: Any) -> None:
        self.broker = TransactionBroker(level)
        self.core, self.wire, _ = make(self.broker, request_timeout=3.0)
        self.broker.add_topic("t", 2)
        properties = {
            "bootstrap.servers": "fake:9092",
            "transactional.id": "x",
            "request.timeout.ms": 3000,
            "delivery.timeout.ms": 20_000,
            **{name.replace("_", "."): value for name, value in keys.items()},
        }
        self.settings = ProducerSettings.from_properties(properties)
        self.accumulator = Accumulator(self.settings, self.core.cluster, self.core.rng)
        self.sender = Sender(self.core, self.settings, self.accumulator)
        assert self.sender.transactions is not None
        self.transactions: Transactions = self.sender.transactions
        self.core.start(self.sender.run(), 0.0)
        self.run(topics_with_metadata(self.core, ["t"], deadline=5.0))

    def take_over(self, other: FakeProducer) -> None:
        """Connect to the broker of another producer from now on."""
        self.broker = other.broker
        self.wire.brokers.update(other.wire.brokers)
        for connection_id in list(self.wire.ends):
            self.core.connection_lost(connection_id, "it moved", self.wire.now)
            del self.wire.ends[connection_id]
        self.run(topics_with_metadata(self.core, ["t"], deadline=self.wire.now + 5.0, refresh=True))

    def run(self, operation: Operation[Any]) -> Any:
        """Run an operation to its end."""
        return self.wire.run(operation)

    def init(self) -> None:
        """Do as `init_transactions` does."""
        self.run(self.transactions.initialize(60))

    def begin(self) -> None:
        """Do as `begin_transaction` does."""
        self.transactions.begin()

    def send(self, *values: bytes, partition: int = 0) -> list[Batch]:
        """Append records to batches, which the sender may send. Return the batches."""
        self.transactions.machine.check("send")
        batches = []
        for value in values:
            batch = self.accumulator.append("t", partition, 5, None, value, ())
            if batch is None:
                batch = self.accumulator.open_batch("t", partition, 5, None, value, (), self.core.now)
            assert batch is not None
            batches.append(batch)
        return batches

    def flush(self) -> None:
        """Send all batches, and process the answers that come at once."""
        self.accumulator.close_all()
        self.accumulator.flushing += 1
        self.sender.signal.notify()
        self.core.tick(self.wire.now)
        self.wire.settle()
        self.accumulator.flushing -= 1

    def send_offset(self, offset: int) -> None:
        """Send an offset of partition 0 of `in` to the transaction, for the group GROUP."""
        self.run(self.transactions.send_offsets(judged_offsets("offsets", {("in", 0): offset}), GROUP, 60))

    def commit(self, timeout: float = 60) -> None:
        """Do as `commit_transaction` does."""
        self.run(self.transactions.end(commit=True, timeout=timeout))

    def abort(self, timeout: float = 60) -> None:
        """Do as `abort_transaction` does."""
        self.run(self.transactions.end(commit=False, timeout=timeout))


__all__ = ["GROUP", "HANG_UP", "SILENCE", "FakeProducer", "TransactionBroker"]
