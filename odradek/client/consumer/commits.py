"""A consumer's commits: those that the application requests, and the automatic commits. PURE.

One commit is under way at a time, so the coordinator gets them in the order of the calls. Waiting asynchronous
commits are merged: an application that commits each record has at most two of them.

A commit beside a rebalance
---------------------------
* A commit carries the member and generation of the moment when it was asked for. Once the group has moved on, the
  coordinator refuses these offsets, because others may have the partitions.
* A cooperative member keeps partitions through a rebalance. Offsets of those that it held all the time are committed
  again, under the new generation. Partitions that were given up or lost meanwhile are refused, even if they are back.
  So are all partitions if a generation passed without this member.
* Between JoinGroup and SyncGroup the coordinator takes no commit (REBALANCE_IN_PROGRESS). So a commit waits for the
  answers of both, at most until its own deadline.
* In a group of the new protocol a commit carries the member epoch. A coordinator that has a later one refuses it
  (STALE_MEMBER_EPOCH). A heartbeat brings that epoch; then the offsets of partitions that the member kept are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from odradek.client.consumer.consumer_types import CommitCallback, CommitRefused, OffsetAndMetadata, TopicGone
from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.consumer.membership import Membership
from odradek.client.consumer.subscription import PartitionState, Subscription
from odradek.client.core.notes import WARNING
from odradek.client.core.operation import Operation, Signal, Wait
from odradek.client.errors import ClientClosed, ClientError, RequestTimedOut
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.structure import ZERO_UUID
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["Commits"]

_SECONDS_BEFORE_REBALANCE = 10.0
_REBALANCE_SECONDS_MAX = 10.0
"""The time for which a member that is not joining repeats a commit that was refused for a rebalance. Kafka's
coordinator refuses until the group's leader has assigned; other coordinators may wait for this member to join.
"""
_GROUP_MOVES = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
)
_NEVER = float("inf")


@attrs.define(eq=False)
class _Batch:
    """Offsets that are sent to the coordinator in one request, in the name of one member."""

    who: Member
    offsets: dict[TopicPartition, OffsetAndMetadata]
    held: dict[TopicPartition, PartitionState]
    """The states of the batch's partitions that the member had when the commit was requested."""
    deadline: float
    may_grow: bool
    """True until the batch is sent, unless a caller waits for this batch alone."""
    is_done: bool = False
    error: Exception | None = None


class Commits:
    """The commits of a consumer: the time of the next automatic commit, and the outcomes of completed commits."""

    def __init__(
        self,
        core: ClientCore,
        settings: ConsumerSettings,
        subscription: Subscription,
        coordinator: Coordinator | None,
        membership: Membership | None,
        *,
        arrived: Signal,
        positions: Callable[[Iterable[TopicPartition] | None], dict[TopicPartition, OffsetAndMetadata]],
    ) -> None:
        """`arrived` is notified when a commit has ended; `positions` returns the application's present positions."""
        self._core = core
        self._settings = settings
        self._subscription = subscription
        self._coordinator = coordinator
        self.membership = membership
        """The membership of the protocol in use."""
        self._arrived = arrived
        self._positions = positions
        self.due_at = _NEVER
        """The time of the next automatic commit, in seconds of the core's clock."""
        if settings.enable_auto_commit:
            self.due_at = core.now + settings.auto_commit_interval_ms / 1000
        self.completed: deque[
            tuple[CommitCallback | None, dict[TopicPartition, OffsetAndMetadata], Exception | None]
        ] = deque()
        """Ended commits whose callbacks the shell still has to call."""
        self.last_error: Exception | None = None
        self._queue: deque[_Batch] = deque()
        """The commit that is under way, and those that wait for it."""
        self.gone: dict[TopicPartition, bytes | None] = {}
        """Partitions of deleted topics, with the topics' ids."""
        self._turned = core.signal()

    def are_due(self, now: float) -> bool:
        """True if the next automatic commit's time has come; `now` in seconds."""
        return now >= self.due_at

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], *, timeout: float) -> Operation[None]:
        """Commit. As in Java's client, an empty commit sends no request.

        Raises `KafkaError` (ILLEGAL_GENERATION and its like: other members have the partitions), `ClientError`.
        """
        if not offsets:
            return
        batch = self._new_batch(self._member(), offsets, self._core.now + timeout, may_grow=False)
        yield from self._send(batch)

    def commit_later(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> Operation[None]:
        """Queue a commit like `commit`, but put the outcome into `completed`."""
        error: Exception | None = None
        try:
            yield from self._send_with_others(offsets)
        except (KafkaError, ClientError) as caught:
            error = caught
            self.last_error = caught
        if callback is not None:
            self.completed.append((callback, offsets, error))
            self._arrived.notify()

    def _send_with_others(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> Operation[None]:
        """Commit together with other waiting commits. Raises as `commit` does."""
        if not offsets:
            return
        who = self._member()
        last = self._queue[-1] if self._queue else None
        if last is None or not last.may_grow or last.who != who:
            deadline = self._core.now + self._settings.default_api_timeout_ms / 1000
            batch = self._new_batch(who, offsets, deadline, may_grow=True)
            yield from self._send(batch)
            return
        last.offsets.update(offsets)
        last.held.update(self._held(offsets))
        while not last.is_done:
            yield Wait(signals=(self._turned,))
        if last.error is not None:
            raise last.error

    def _new_batch(
        self,
        who: Member,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        deadline: float,
        *,
        may_grow: bool,
    ) -> _Batch:
        batch = _Batch(who, dict(offsets), self._held(offsets), deadline, may_grow)
        self._queue.append(batch)
        return batch

    def _held(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        partitions = self._subscription.partitions
        return {key: partitions[key] for key in keys if key in partitions}

    def finish(self, timeout: float) -> Operation[None]:
        """Wait until all requested commits have ended, or the time is up."""
        deadline = self._core.now + timeout
        while self._queue and self._core.now < deadline:
            yield Wait(until=deadline, signals=(self._turned,))

    def _send(self, batch: _Batch) -> Operation[None]:
        """Send a batch when all earlier batches have ended."""
        batch.error = ClientClosed("the application cancelled the commit")
        try:
            while self._queue[0] is not batch:
                if self._core.now >= batch.deadline:
                    raise RequestTimedOut("earlier commits of this consumer have no answer yet")
                yield Wait(until=batch.deadline, signals=(self._turned,))
            batch.may_grow = False
            yield from self._send_until_judged(batch)
            batch.error = None
        except (KafkaError, ClientError) as error:
            batch.error = error
            self._core.notes.add(WARNING, f"the offsets were not committed: {error}", key="commit")
            if isinstance(error, CommitRefused):
                self._note_gone(error)
            raise
        finally:
            batch.may_grow = False
            batch.is_done = True
            self._queue.remove(batch)
            self._turned.notify()

    def _send_until_judged(self, batch: _Batch) -> Operation[None]:
        """Send a batch. Offsets that are refused because of a rebalance are sent again, if the member still has
        their partitions.
        """
        who, pending = batch.who, dict(batch.offsets)
        refused: dict[TopicPartition, KafkaError] = {}
        patient_until = min(batch.deadline, self._core.now + _REBALANCE_SECONDS_MAX)
        while True:
            if who.generation >= 0:
                yield from self._wait_for_assignment(batch)
                who, given_up = self._in_whose_name(batch, who, pending)
                refused |= given_up
                pending = {key: pending[key] for key in pending if key not in given_up}
            errors = yield from self._send_once(pending, who, batch.deadline)
            kept_out = {key: error for key, error in errors.items() if error.code in _GROUP_MOVES}
            refused |= {key: error for key, error in errors.items() if key not in kept_out}
            if not kept_out:
                break
            again = yield from self._wait_for_group(batch, who, kept_out, patient_until)
            if not again:
                refused = kept_out | refused
                break
            pending = {key: pending[key] for key in kept_out}
        if refused:
            reached("client.commit_refused")
            error = CommitRefused(refused)
            membership = self.membership
            if membership is not None and who.generation >= 0 and who == membership.member:
                membership.refused(error)
            raise error

    def _send_once(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], who: Member, deadline: float
    ) -> Operation[dict[TopicPartition, KafkaError]]:
        """Send the commit once. Return the errors of the refused partitions."""
        try:
            yield from self._the_coordinator().commit(
                offsets, who, deadline=deadline, topic_ids=self._topic_ids(offsets)
            )
        except CommitRefused as error:
            return error.errors
        return {}

    def _wait_for_assignment(self, batch: _Batch) -> Operation[None]:
        """Wait while this member has joined a generation and knows no assignment yet. Raises `KafkaError`
        REBALANCE_IN_PROGRESS when the time is up."""
        membership = self.membership
        while membership is not None and membership.awaits_assignment and self._are_held(batch, batch.held):
            if self._core.now >= batch.deadline:
                reached("client.commit_gave_up_on_assignment")
                text = "the commit timed out while the group was still assigning partitions"
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, text)
            yield Wait(until=batch.deadline, signals=(self._arrived,))

    def _in_whose_name(
        self, batch: _Batch, who: Member, keys: Iterable[TopicPartition]
    ) -> tuple[Member, dict[TopicPartition, KafkaError]]:
        """Return the member in whose name to send a batch, and the refusals of partitions that it did not keep."""
        membership = self.membership
        if membership is None or membership.member == who or not membership.goes_on_from(who):
            return who, {}
        given_up = {}
        for key in keys:
            if not self._are_held(batch, [key]):
                text = (
                    f"the offset of {key} was not committed: the group has rebalanced, and this member "
                    "has not kept the partition"
                )
                given_up[key] = KafkaError(ErrorCode.ILLEGAL_GENERATION, text)
        return membership.member, given_up

    def _are_held(self, batch: _Batch, keys: Iterable[TopicPartition]) -> bool:
        """True if the member has kept one of these partitions without a break since the commit was requested."""
        partitions = self._subscription.partitions
        return any(key in batch.held and partitions.get(key) is batch.held[key] for key in keys)

    def _wait_for_group(
        self, batch: _Batch, who: Member, kept_out: dict[TopicPartition, KafkaError], patient_until: float
    ) -> Operation[bool]:
        """Wait for the join that decides on refused offsets. Returns True if they are to be sent again."""
        membership, core = self.membership, self._core
        if membership is None or who.generation < 0:
            return False
        if membership.member != who:
            return membership.goes_on_from(who) and self._are_held(batch, kept_out)
        if membership.awaits_join:
            reached("client.commit_waits_for_join")
            while membership.member == who and membership.awaits_join:
                if core.now >= batch.deadline or not self._are_held(batch, kept_out):
                    return False
                yield Wait(until=batch.deadline, signals=(self._arrived,))
            return membership.goes_on_from(who)
        codes = {error.code for error in kept_out.values()}
        if ErrorCode.ILLEGAL_GENERATION in codes:
            return False
        if ErrorCode.STALE_MEMBER_EPOCH in codes:
            again = yield from self._wait_for_epoch(membership, batch, who, patient_until)
            return again
        wake_at = core.now + core.backoff(0)
        if wake_at >= patient_until:
            return False
        yield Wait(until=wake_at)
        return True

    def _wait_for_epoch(
        self, membership: Membership, batch: _Batch, who: Member, patient_until: float
    ) -> Operation[bool]:
        """Wait until a heartbeat has brought another epoch. Return True if the offsets are to be sent again."""
        reached("client.commit_waits_for_epoch")
        membership.renew_epoch()
        while membership.member == who:
            if self._core.now >= patient_until or not self._are_held(batch, batch.held):
                return False
            yield Wait(until=patient_until, signals=(self._arrived,))
        return membership.goes_on_from(who)

    def _topic_ids(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics that these partitions were read from, or else their present ids."""
        known = self._core.cluster.topics
        found = {}
        for key in keys:
            state = self._subscription.partitions.get(key)
            topic_id = None if state is None else state.topic_id
            if topic_id is None and key.topic in known:
                topic_id = known[key.topic].topic_id
            if topic_id is not None and topic_id != ZERO_UUID:
                found[key] = topic_id
        return found

    def _note_gone(self, refusal: CommitRefused) -> None:
        """Leave partitions of deleted topics out of automatic commits, until their topic has another id."""
        gone = [key for key, error in refusal.errors.items() if isinstance(error, TopicGone)]
        ids = self._topic_ids(gone)
        for key in gone:
            if key not in self.gone:
                text = f"offsets of {key} are not committed any more: its topic was deleted or created again"
                self._core.notes.add(WARNING, text)
            self.gone[key] = ids.get(key)

    def _automatic(self, keys: Iterable[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions that an automatic commit covers."""
        offsets = self._positions(keys)
        if self.gone:
            ids = self._topic_ids(self.gone)
            owned = self._subscription.partitions
            self.gone = {
                key: gone for key, gone in self.gone.items() if key in owned and ids.get(key) == gone
            }
        return {key: offset for key, offset in offsets.items() if key not in self.gone}

    def _member(self) -> Member:
        """Return the member in whose name to commit now. Raises `KafkaError`: UNKNOWN_MEMBER_ID outside of the group,
        FENCED_INSTANCE_ID."""
        self._the_coordinator()
        membership = self.membership
        if not self._subscription.grouped or membership is None:
            return Member()
        if membership.fenced is not None:
            raise membership.fenced.with_traceback(None)
        if not membership.is_member:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, "this consumer is not a member of its group any more"
            )
        return membership.member

    def commit_if_due(self) -> None:
        """Begin an automatic commit of all positions if it is due."""
        if self._core.now < self.due_at:
            return
        self.due_at = self._core.now + max(1, self._settings.auto_commit_interval_ms) / 1000
        # Commit all positions, even unchanged ones: an offset that is not committed again expires (KIP-211).
        offsets = self._automatic(None)
        membership = self.membership
        idle = self._subscription.grouped and (membership is None or not membership.may_commit_automatically)
        if offsets and not idle:
            self._core.start(self.commit_later(offsets, None), self._core.now)

    def commit_before_rebalance(self, keys: Iterable[TopicPartition]) -> Operation[None]:
        """Commit these positions before other members get the partitions, if commits are automatic."""
        if self.membership is not None and self.membership.is_member:
            yield from self.commit_at_the_end(keys, _SECONDS_BEFORE_REBALANCE)

    def commit_at_the_end(self, keys: Iterable[TopicPartition], timeout: float) -> Operation[None]:
        """Commit these positions for the last time, if commits are automatic. An error is only noted."""
        if not self._settings.enable_auto_commit or self._coordinator is None:
            return
        try:
            yield from self.commit(self._automatic(keys), timeout=timeout)
        except (KafkaError, ClientError) as error:
            self.last_error = error

    def committed(
        self, keys: Iterable[TopicPartition], timeout: float
    ) -> Operation[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Ask the coordinator for the offsets that the group has committed; None for a partition without an offset."""
        found = yield from self._the_coordinator().committed(keys, deadline=self._core.now + timeout)
        return found

    def _the_coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("commits need a group.id")
        return self._coordinator
