"""A data partition of the transaction schedules: the product's rules for transactional batches, on batches in memory.
PURE.

The partition's leader changes. A new leader builds its producer state from the batches, and has to verify open
transactions again. Markers are messages, so some arrive late. Each marker is checked: the coordinator epochs of a
producer never decrease.
"""

from __future__ import annotations

from random import Random

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.producer_recovery import note_batch
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard, name_of
from odradek.data_plane.log.transaction_rules import check_transaction
from odradek.wire.batches.batch_header import BatchHeader, parse_header
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import build_marker, parse_marker
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.write_txn_markers import WritableTxnMarker
from sim.alone.replication_broker import BATCH_BYTES_MAX, START_MS
from sim.checks.folds.producer_fold import ProducersFold
from sim.history import SafetyViolation

__all__ = ["TOPIC", "Written", "WrittenPartition"]

TOPIC = "written"
NOBODY = -1
STRANGER = "id-stranger"


@attrs.frozen
class Written:
    """A partition's contents for a read_committed consumer: committed and aborted values in order, and ids of
    producers with an open transaction.
    """

    committed: tuple[bytes, ...]
    aborted: tuple[bytes, ...]
    open: tuple[int, ...]


class WrittenPartition:
    """A data partition: its batches, and the producer state of its present leader."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.leader = 11 + index
        self._config = LogConfig()
        self._batches: list[tuple[int, BatchHeader, bytes]] = []
        self._end = 0
        self._epochs: dict[int, int] = {}
        """The coordinator epoch of each producer's last marker, by producer id."""
        self.markers = 0
        self._lead_anew()

    def move(self, leader: int) -> None:
        """Give the partition another leader, or none (`NOBODY`). Check that the new leader has the same producer state
        as the former leader.
        """
        self.leader = leader
        before = self._state
        self._lead_anew()
        if self._state.encode() != before.encode():
            raise SafetyViolation(
                f"partition {self.index} knows facts about its producers that its batches do not have"
            )
        self._check_producers()

    def _lead_anew(self) -> None:
        self._state = ProducerState()
        for base_offset, header, batch in self._batches:
            note_batch(self._state, header, base_offset, header.max_timestamp, batch)
        self._lazy = LazyProducers()
        self._lazy.take(self._state)

    def _check_producers(self) -> None:
        """Check the leader's producer state against a model built from the batches. Raises `SafetyViolation`."""
        fold = ProducersFold()
        for base_offset, header, batch in self._batches:
            fold.take(header._replace(base_offset=base_offset), batch)
        known = {
            producer_id: (
                entry.epoch,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
                entry.last_offsets,
            )
            for producer_id, entry in self._state.entries.items()
        }
        there = {
            producer_id: (
                each.epoch,
                each.coordinator_epoch,
                each.open_from,
                [of.last_offset for of in each.batches],
            )
            for producer_id, each in fold.producers.items()
        }
        if known != there or dict(self._state.ongoing) != fold.open():
            raise SafetyViolation(
                f"partition {self.index} knows {known} of its producers, and its batches say {there}"
            )

    # -- an intruder

    def intrude(self, random: Random, now_ms: int) -> None:
        """Try to write with a producer id that is in use here, but with another transactional id.

        Raises `SafetyViolation` if the leader accepts the batch at once. The leader must ask the intruder's
        coordinator first, which would refuse.
        """
        known = list(self._state.entries.items())
        if self.leader == NOBODY or not known:
            return
        producer_id, entry = random.choice(known)
        sequence = random.choice((0, entry.last_sequence + 1))
        try:
            adds = random.random() < 0.5
            guard = self.begin_verification(STRANGER, producer_id, entry.epoch, sequence, adds, now_ms)
        except KafkaError:
            return
        if guard is ONGOING:
            raise SafetyViolation(
                f"partition {self.index} takes batches of {STRANGER} into the transaction of producer {producer_id}"
            )
        if random.random() < 0.5:
            # In half of the cases the intruder's coordinator refuses. In the other half it never answers.
            self._lazy.refuse_verification(producer_id, guard.name)

    # -- appends

    def begin_verification(
        self, transactional_id: str, producer_id: int, epoch: int, sequence: int, adds: bool, now_ms: int
    ) -> VerificationGuard:
        """Begin to verify a producer's transaction, as the product's log does. Raises `KafkaError`."""
        name = name_of(transactional_id)
        return self._lazy.verify(producer_id, name, epoch, sequence, adds, now_ms, True)

    def append(self, batch: bytes, origin: Origin, guard: VerificationGuard | None, version: int = 0) -> None:
        """Append a transactional batch or a marker. Raises `KafkaError`."""
        header = parse_header(memoryview(batch))
        duplicate = check_transaction(
            self._lazy, self._state, self._config, memoryview(batch), header, origin, guard, version
        )
        if duplicate is not None:
            self._lazy.note_verified(header.producer_id, guard)
            return
        ended = note_batch(self._state, header, self._end, header.max_timestamp, batch)
        self._lazy.note_transactional(header.producer_id, guard, ends=ended is not None)
        self._batches.append((self._end, header, batch))
        self._end += header.last_offset_delta + 1
        self._state.forget_ended(self._end)

    def write_marker(self, marker: WritableTxnMarker) -> ErrorCode:
        """Write a transaction marker, as the WriteTxnMarkers handler does. Return its error code."""
        batch = build_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            timestamp_ms=START_MS,
        )
        try:
            self.append(bytes(batch), Origin.COORDINATOR, None, marker.transaction_version)
        except KafkaError as error:
            return error.code
        self.markers += 1
        before = self._epochs.get(marker.producer_id, NOBODY)
        if marker.coordinator_epoch < before:
            raise SafetyViolation(
                f"producer {marker.producer_id} has a marker of coordinator {marker.coordinator_epoch} behind one of {before}"
            )
        self._epochs[marker.producer_id] = marker.coordinator_epoch
        return ErrorCode.NONE

    def open_producers(self) -> list[int]:
        """List the ids of producers that have an open transaction in this partition."""
        return sorted(self._state.ongoing.values())

    # -- the end

    def read(self) -> Written:
        """Read all values of this partition."""
        committed: list[bytes] = []
        aborted: list[bytes] = []
        is_open: dict[int, list[bytes]] = {}
        for _, header, batch in self._batches:
            if header.is_control:
                marker = parse_marker(batch)
                assert marker is not None
                (aborted if marker.is_abort else committed).extend(is_open.pop(header.producer_id, []))
            else:
                found = records(batch, 0, decompressed_bytes_max=BATCH_BYTES_MAX)
                is_open.setdefault(header.producer_id, []).extend(bytes(each.value or b"") for each in found)
        return Written(tuple(committed), tuple(aborted), tuple(sorted(is_open)))
