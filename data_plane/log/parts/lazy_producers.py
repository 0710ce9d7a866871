"""A log's producers, read from its files when first needed: the last stable offset, verification guards,
expiry, snapshots.

After a clean stop, the newest snapshot contains the whole state. Most logs never need the state, so reading it
at the start would be wasted. After a truncation the state is read again. Each fetch of a read-committed
consumer depends on whether the log has open transactions. `is_settled` answers this question while the state is
unread. It is true if certainly no transaction is open.
"""

from __future__ import annotations

from odradek.data_plane.log.parts.producer_recovery import note_ended, rebuild_producers, write_snapshot
from odradek.data_plane.log.parts.producer_state import EndedTransaction, ProducerState
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.parts.verification import ONGOING, VerificationGuard, Verifications
from odradek.data_plane.log.segments.segment import Segment
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError

_NONE = -1


class LazyProducers:
    """The producer state of one log, which is read from a snapshot and batches when it is first needed."""

    __slots__ = ("_decided_offset", "_unread_offset", "is_settled", "state", "verifications")

    def __init__(self) -> None:
        self.state: ProducerState | None = None
        """The producer state; None until it is needed."""
        self._unread_offset = _NONE
        """The offset up to which files contain the unread state; -1 if no file has to be read."""
        self._decided_offset = 0
        """The high watermark that belongs to the unread state. Transactions whose marker is at or above it
        are undecided.
        """
        self.is_settled = True
        """True if the unread state is known to have no open transaction."""
        self.verifications: Verifications | None = None
        """The transactions that are being verified with their coordinators; None before the first."""

    def load(self, segments: SegmentList, index_interval_bytes: int) -> ProducerState:
        """Return the producer state. At the first call, reads it from the files if necessary (blocking, usually
        for a short time). Raises `DiskError`.
        """
        if self.state is None:
            if self._unread_offset >= 0:
                self.state = rebuild_producers(
                    segments.home.directory,
                    segments.segments,
                    self._unread_offset,
                    index_interval_bytes,
                    self._decided_offset,
                )
                self._unread_offset = _NONE
            else:
                self.state = ProducerState()
        return self.state

    def stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """Compute the last stable offset (on the loop). Every transaction with records below this offset is
        decided. The offset is at most the high watermark.

        The caller must have read the state. Also forgets ended transactions whose markers are below the high
        watermark.
        """
        state = self.state
        assert state is not None, "the producers' state must be read before it is used"
        if state.ended:
            state.forget_ended(high_watermark)
        elif not state.ongoing:
            return high_watermark
        return _stable_offset(state, high_watermark, log_start_offset)

    def stable_offset_in_worker(self, high_watermark: int, log_start_offset: int) -> int:
        """Compute the last stable offset like `stable_offset`, in any thread. Raises `KafkaError`
        OFFSET_NOT_AVAILABLE while the state is unread.
        """
        state = self.state
        if state is not None:
            return _stable_offset(state, high_watermark, log_start_offset)
        if not self.is_settled:
            reached("log.producers_not_read_yet")
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return high_watermark

    def is_unread_at(self, offset: int) -> bool:
        """True if the files have the state as of `offset`, and it has not been read from them yet."""
        return self._unread_offset == offset

    def take(self, state: ProducerState) -> None:
        """Use the producer state that recovery has built."""
        self.state = state
        self._unread_offset = _NONE
        self._forget_verified()

    def read_at_need(self, offset: int, decided_offset: int, *, is_settled: bool) -> None:
        """Forget the state. The next call of `load` reads the state as of `offset` again. It treats
        transactions whose markers are below `decided_offset` as decided.
        """
        self.state = None
        self._unread_offset, self._decided_offset = offset, decided_offset
        self.is_settled = is_settled
        self._forget_verified()

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers and verifications that have been idle for `expiration_ms`; `now_ms` is monotonic."""
        if self.state is not None:
            self.state.expire(now_ms, expiration_ms)
        if self.verifications is not None:
            self.verifications.expire(now_ms, expiration_ms)

    def verify(
        self,
        producer_id: int,
        name: str,
        epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
        checks_name: bool,
    ) -> VerificationGuard:
        """Make the guard for a producer's transactional batch, before its coordinator is asked (KIP-890). The
        caller must have read the state.

        `name` is the transactional id in the short form of `name_of`. Returns `ONGOING` if the transaction is
        already open in this log, and was verified for this transactional id. In that case the coordinator
        need not be asked. `checks_name` is False if the topic does not verify transactions. `now_ms` is
        monotonic. Raises `KafkaError` INVALID_PRODUCER_EPOCH for an epoch that this log knows to be outdated.
        """
        state = self.state
        assert state is not None, "the producers' state must be read before it is used"
        verifications = self.verifications
        if state.has_ongoing(producer_id, epoch) and (
            not checks_name or (verifications is not None and verifications.verified.get(producer_id) == name)
        ):
            return ONGOING
        # The coordinator need not be asked about an outdated epoch, because the append would be refused anyway.
        state.check_epoch(producer_id, epoch)
        if verifications is None:
            verifications = self.verifications = Verifications()
        return verifications.begin(producer_id, name, epoch, base_sequence, supports_epoch_bump, now_ms)

    def is_valid(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """True if this is a guard of the producer's verification, and no append has ended that verification."""
        return self.verifications is not None and self.verifications.is_valid(producer_id, guard)

    def refuse_verification(self, producer_id: int, name: str) -> None:
        """End a verification as failed, because the producer id does not belong to this transactional id."""
        if self.verifications is not None:
            self.verifications.refuse(producer_id, name)

    def note_transaction(
        self,
        segment: Segment,
        producer_id: int,
        guard: VerificationGuard | None,
        ended: EndedTransaction | None,
        high_watermark: int,
    ) -> None:
        """Update the transactions after a transactional batch was appended to `segment`. If the batch is a
        marker, `ended` is the transaction that it has ended.
        """
        self.note_transactional(producer_id, guard, ends=ended is not None)
        if ended is not None:
            state = self.state
            assert state is not None, "the producers' state must be read before it is used"
            note_ended(segment, state, ended)
            state.forget_ended(high_watermark)

    def note_transactional(
        self, producer_id: int, guard: VerificationGuard | None, *, ends: bool = False
    ) -> None:
        """Update the verifications after a transactional batch or a marker was appended. `ends` is true if the
        marker has ended an open transaction.

        The append voids all guards of the producer. `guard` is the guard with which the batch was appended;
        None if it had no guard.
        """
        verifications = self.verifications
        if verifications is None:
            return
        verifications.void(producer_id)
        if ends:
            verifications.note_ended(producer_id)
        else:
            self.note_verified(producer_id, guard)

    def note_verified(self, producer_id: int, guard: VerificationGuard | None) -> None:
        """Remember the transactional id for which the producer's open transaction was verified, if this batch
        was verified.
        """
        if guard is None or guard is ONGOING:
            return
        state, verifications = self.state, self.verifications
        if (
            state is not None
            and verifications is not None
            and state.has_ongoing(producer_id, guard.producer_epoch)
        ):
            verifications.note_verified(producer_id, guard)

    def _forget_verified(self) -> None:
        if self.verifications is not None:
            self.verifications.forget_verified()

    def truncate(self, offset: int, high_watermark: int) -> None:
        """Called after a truncation at `offset`. If the state includes later batches, it is forgotten, and read
        again when it is needed.
        """
        if self._unread_offset > offset or (self.state is not None and self.state.reaches(offset)):
            self.read_at_need(offset, high_watermark, is_settled=False)

    def is_undecided(self, high_watermark: int) -> bool:
        """True if at least one transaction has ended, but its marker is not below the high watermark yet."""
        state = self.state
        return state is not None and any(marker >= high_watermark for marker, _ in state.ended)

    def write_snapshot(
        self, segments: SegmentList, log_end_offset: int, index_interval_bytes: int, *, sync: bool = False
    ) -> None:
        """Write the producer state to `<log end offset>.snapshot`, and sync the file if `sync` is true.
        Raises `DiskError`.
        """
        state = self.load(segments, index_interval_bytes) if self._unread_offset >= 0 else self.state
        write_snapshot(segments.home.directory, state or ProducerState(), log_end_offset, sync=sync)
        segments.mark_dirty()


def _stable_offset(state: ProducerState, high_watermark: int, log_start_offset: int) -> int:
    return min(high_watermark, max(state.first_unstable_offset(high_watermark), log_start_offset))
