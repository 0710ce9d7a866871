"""The transactional batches of one Produce request: which of them their coordinator must verify before the
append, and the errors (KIP-890).

A batch whose transaction is open in its log, and was verified for this transactional id, needs no
verification. For the other batches, the leader asks the coordinator once about all partitions of the request,
and the connection waits. From Produce version 12 on, the leader's request also adds the partitions to the
transaction, because the client does not add them.

As in Kafka, the coordinator's errors are translated for the producer. Older clients do not expect errors of a
coordinator in answers to Produce. These clients get NOT_ENOUGH_REPLICAS, after which they retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from odradek.data_plane.handlers.producing.delayed_produce import ACKS_ALL
from odradek.data_plane.handlers.producing.producing_desk import ProducingDesk
from odradek.data_plane.handlers.verification import verified
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard, name_of
from odradek.data_plane.ports import VerifiedPartition
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.serving.steps import Steps
from odradek.wire.batches.batch_header import HEADER, HEADER_SIZE, TRANSACTIONAL_MASK, BatchHeader
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.produce import ProduceRequest
from odradek.wire.schema.versions import PRODUCE_ABORTABLE, PRODUCE_ADDS_PARTITIONS

_COORDINATOR_ERRORS = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)

Place: TypeAlias = tuple[int, int]
"""The index of a topic in the request, and the index of a partition in it."""


class NotVerified(KafkaError):
    """Raised for a batch that failed its verification: its partition is not in the transaction, or the
    coordinator is unreachable.
    """


class TransactionalBatches:
    """The transactional batches of one request, and the results of their verification by the coordinator."""

    __slots__ = (
        "_asked",
        "_batches",
        "_desk",
        "_guards",
        "_is_abortable_known",
        "_name",
        "_partitions",
        "_places",
        "_producers",
        "_refused",
        "_request",
        "_transactional_id",
        "adds",
    )

    def __init__(
        self, desk: ProducingDesk, partitions: ServedPartitions, request: ProduceRequest, api_version: int
    ) -> None:
        self._desk = desk
        self._partitions = partitions
        self._request = request
        self._transactional_id = request.transactional_id or ""
        self._name = name_of(self._transactional_id)
        self._is_abortable_known = api_version >= PRODUCE_ABORTABLE
        self.adds = api_version >= PRODUCE_ADDS_PARTITIONS
        self._producers: set[tuple[int, int]] = set()
        self._places: dict[Place, VerifiedPartition] = {}
        self._batches: dict[Place, tuple[PartitionLog, BatchHeader]] = {}
        """For each partition to verify, its log and the header of its batch."""
        self._guards: dict[Place, VerificationGuard] = {}
        self._asked: list[Place] = []
        self._refused: dict[Place, NotVerified] = {}

    @property
    def error(self) -> ErrorCode:
        """The error for the whole request, after `collect`; NONE if its batches may be appended.

        Transactional records need acks=all. Otherwise a transaction could commit although records are lost.
        """
        if len(self._producers) > 1:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if self._producers and self._request.acks != ACKS_ALL:
            return ErrorCode.INVALID_REQUIRED_ACKS
        return ErrorCode.NONE

    @property
    def must_ask(self) -> bool:
        """True if the coordinator must verify some batches before the append. Valid after `collect`."""
        return bool(self._asked)

    def collect(self, by_id: bool, partitions_per_turn: int) -> Iterator[None]:
        """Find the transactional batches of the request, and begin their verifications.

        Yields after each `partitions_per_turn` partitions, so that other requests have a turn.
        """
        served = self._partitions
        now_ms, looks = int(self._desk.clock.monotonic() * 1000), partitions_per_turn
        for topic_at, topic in enumerate(self._request.topic_data):
            hosted = served.by_id.get(topic.topic_id) if by_id else served.by_name.get(topic.name)
            for partition_at, data in enumerate(topic.partition_data):
                if not looks:
                    yield
                    looks = partitions_per_turn
                looks -= 1
                records = data.records
                if records is None or len(records) < HEADER_SIZE:
                    continue
                header = BatchHeader._make(HEADER.unpack_from(records))
                if not header.attributes & TRANSACTIONAL_MASK or header.producer_id < 0:
                    continue
                self._producers.add((header.producer_id, header.producer_epoch))
                partition = None if hosted is None else hosted.partitions.get(data.index)
                place = (topic_at, partition_at)
                if partition is None or hosted is None or not partition.is_leader:
                    reached("produce.leader_went_before_verification")
                    # The append fails with this error, unless this broker is the leader again by that time.
                    self._refused[place] = NotVerified(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    continue
                log = partition.log
                if not (self.adds or log.config.verifies_transactions):
                    continue
                self._batches[place] = (log, header)
                guard = self._guard(place, now_ms)
                if guard is not ONGOING and guard is not None:
                    self._guards[place] = guard
                    self._places[place] = (hosted.name, data.index)
                    self._asked.append(place)

    def _guard(self, place: Place, now_ms: int) -> VerificationGuard | None:
        """Return the verification guard for the batch at this place.

        `ONGOING` means that the batch needs no verification. None means that the batch is refused.
        """
        log, header = self._batches[place]
        try:
            log.load_producers()
            return log.producers.verify(
                header.producer_id,
                self._name,
                header.producer_epoch,
                header.base_sequence,
                self.adds,
                now_ms,
                log.config.verifies_transactions,
            )
        except DiskError:
            self._refused[place] = NotVerified(ErrorCode.KAFKA_STORAGE_ERROR)
        except KafkaError as error:
            self._refused[place] = NotVerified(error.code, error.message)
        return None

    def verify(self) -> Steps[None]:
        """Ask the transaction's coordinator to verify all collected partitions, and store the results."""
        ((producer_id, epoch),) = self._producers
        codes = yield from verified(
            self._desk,
            self._transactional_id,
            producer_id,
            epoch,
            [self._places[place] for place in self._asked],
            adds=self.adds,
            renew_guards=self._renew_guards,
        )
        for place in self._asked:
            code = codes[self._places[place]]
            if code and place not in self._refused:
                self._refused[place] = self._translated(code)
            if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                log, _ = self._batches[place]
                log.producers.refuse_verification(producer_id, self._name)

    def _renew_guards(self) -> bool:
        """Replace guards that have become invalid.

        Returns True if there were any, so that the coordinator must be asked again.
        """
        now_ms = int(self._desk.clock.monotonic() * 1000)
        is_void = False
        for place in self._asked:
            guard = None if place in self._refused else self._guard(place, now_ms)
            if guard is not None and guard is not self._guards[place]:
                self._guards[place] = guard
                is_void |= guard is not ONGOING
        return is_void

    def _translated(self, code: ErrorCode) -> NotVerified:
        """Translate a coordinator's error into an error for the producer."""
        if code == ErrorCode.PRODUCER_FENCED:
            return NotVerified(ErrorCode.INVALID_PRODUCER_EPOCH)
        if code == ErrorCode.TRANSACTION_ABORTABLE and not self._is_abortable_known:
            code = ErrorCode.INVALID_TXN_STATE
        if code == ErrorCode.INVALID_TXN_STATE:
            return NotVerified(code, "Partition was not added to the transaction")
        if code in _COORDINATOR_ERRORS or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not self.adds):
            return NotVerified(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
            )
        return NotVerified(code)

    def guard_at(self, topic_at: int, partition_at: int) -> VerificationGuard:
        """Return the guard for the append of the batch at this place.

        Raises `NotVerified` if the batch may not be appended.
        """
        place = (topic_at, partition_at)
        refused = self._refused.get(place)
        if refused is not None:
            reached("produce.unverified_batch_refused")
            raise refused
        return self._guards.get(place, ONGOING)


Transaction: TypeAlias = TransactionalBatches | None
"""The transactional batches of a request; None if the request has no transactional id."""
