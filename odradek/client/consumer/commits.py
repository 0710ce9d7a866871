"""A consumer's commits: by the application, automatic, before a rebalance, at the end; when they are due,
repeated, and which member they name. PURE.

Only one commit is under way at a time, so the coordinator gets the commits in the order of the calls.
Asynchronous commits that wait are merged into one. So an application that commits after each record has at
most two unfinished commits.

Commits during a rebalance
--------------------------
* A commit carries the member and generation that the consumer had when the commit was requested. After a rebalance
  the coordinator refuses these offsets, because other members may have the partitions.
* A cooperative member keeps partitions during a rebalance. Offsets of the kept partitions are committed again
  under the new generation. If the member has given up or lost a partition meanwhile, that partition's offset
  is refused, even if the member has the partition again. If there was a generation without this member, all
  offsets of the commit are refused.
* Between JoinGroup and SyncGroup the coordinator refuses commits (REBALANCE_IN_PROGRESS). So a commit waits
  until both requests have been answered, at most until the commit's own deadline.
* In a group of the new protocol a commit carries the member epoch. A coordinator with a later epoch refuses the
  commit (STALE_MEMBER_EPOCH). The next heartbeat brings the later epoch; then the offsets of the kept partitions are
  sent again.
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
"""If the coordinator refuses a commit because of a rebalance, the commit is repeated for at most this number of
seconds. This limit applies only while this member has no rejoin under way. With Kafka's coordinator the refusals end
when the group's leader has sent the assignment. Other coordinators may refuse until this member joins, so the
repetition must end.
"""
_GROUP_MOVES = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
)
_NEVER = float("inf")


@attrs.define(eq=False)
class _Batch:
    """The offsets of one OffsetCommit request, and the member (id and generation) that the request names."""

    who: Member
    offsets: dict[TopicPartition, OffsetAndMetadata]
    held: dict[TopicPartition, PartitionState]
    """The partition states that the member had when the commit was requested, for the partitions of this batch."""
    deadline: float
    may_grow: bool
    """True as long as later commits may be merged into this batch. It becomes false when the batch is sent. It is false
    from the start if a caller waits for this one commit.
    """
    is_done: bool = False
    error: Exception | None = None


class Commits:
    """Sends the commits of a consumer, and keeps the time of the next automatic commit and the outcomes of completed
    commits.
    """

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
        """Make an object without commits. `arrived` is notified when a commit has ended; `positions` returns the
        application's present positions.
        """
        self._core = core
        self._settings = settings
        self._subscription = subscription
        self._coordinator = coordinator
        self.membership = membership
        """The group membership, by the classic or by the new protocol; None without a group."""
        self._arrived = arrived
        self._positions = positions
        self.due_at = _NEVER
        """The time of the next automatic commit, in seconds of the core's clock; infinite if commits are not
        automatic.
        """
        if settings.enable_auto_commit:
            self.due_at = core.now + settings.auto_commit_interval_ms / 1000
        self.completed: deque[
            tuple[CommitCallback | None, dict[TopicPartition, OffsetAndMetadata], Exception | None]
        ] = deque()
        """Completed commits whose callbacks the shell must still call: callback, offsets, error or None."""
        self.last_error: Exception | None = None
        self._queue: deque[_Batch] = deque()
        """The unfinished batches, in the order of sending. The first batch may be under way already."""
        self.gone: dict[TopicPartition, bytes | None] = {}
        """The partitions of deleted topics, with the id of the deleted topic."""
        self._turned = core.signal()

    def are_due(self, now: float) -> bool:
        """True if it is time for the next automatic commit; `now` is in seconds."""
        return now >= self.due_at

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], *, timeout: float) -> Operation[None]:
        """Commit offsets, and return when the coordinator has stored them. As in Java's client, an empty commit sends
        no request.

        Raises `ClientError`, or `KafkaError` (such as ILLEGAL_GENERATION if other members have the partitions now).
        """
        if not offsets:
            return
        batch = self._new_batch(self._member(), offsets, self._core.now + timeout, may_grow=False)
        yield from self._send(batch)

    def commit_later(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> Operation[None]:
        """Commit offsets in the background, and put the outcome and the callback into `completed`."""
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
        """Commit offsets in one request with other waiting commits. Raises as `commit` does."""
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
        """Wait until all earlier batches have been sent and answered, then send this batch."""
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
        """Send a batch until every offset is accepted or finally refused. An offset that is refused because
        of a rebalance is sent again if the member still has the partition.
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
        """Send one OffsetCommit request. Return the errors of the refused partitions; empty if all were accepted."""
        try:
            yield from self._the_coordinator().commit(
                offsets, who, deadline=deadline, topic_ids=self._topic_ids(offsets)
            )
        except CommitRefused as error:
            return error.errors
        return {}

    def _wait_for_assignment(self, batch: _Batch) -> Operation[None]:
        """Wait while this member has joined a generation but has no assignment yet. Raises `KafkaError`
        REBALANCE_IN_PROGRESS at the batch's deadline.
        """
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
        """Return the member to name in a commit request. Also return an error for each partition that this member has
        not kept since the commit was requested.
        """
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
        """True if the member has kept at least one of these partitions since the commit was requested."""
        partitions = self._subscription.partitions
        return any(key in batch.held and partitions.get(key) is batch.held[key] for key in keys)

    def _wait_for_group(
        self, batch: _Batch, who: Member, kept_out: dict[TopicPartition, KafkaError], patient_until: float
    ) -> Operation[bool]:
        """Wait until the member has rejoined and knows whether it still has the partitions of the refused
        offsets. Return True if the offsets should be sent again.
        """
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
        """Wait until a heartbeat has brought another member epoch. Return True if the offsets should be sent again."""
        reached("client.commit_waits_for_epoch")
        membership.renew_epoch()
        while membership.member == who:
            if self._core.now >= patient_until or not self._are_held(batch, batch.held):
                return False
            yield Wait(until=patient_until, signals=(self._arrived,))
        return membership.goes_on_from(who)

    def _topic_ids(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the topic id of each partition: the id of the topic from which the records were read, or
        else the topic's current id.
        """
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
        """Exclude partitions from automatic commits if their commit was refused because the topic was
        deleted. These partitions stay excluded until the topic has a new id.
        """
        gone = [key for key, error in refusal.errors.items() if isinstance(error, TopicGone)]
        ids = self._topic_ids(gone)
        for key in gone:
            if key not in self.gone:
                text = f"offsets of {key} are not committed any more: its topic was deleted or created again"
                self._core.notes.add(WARNING, text)
            self.gone[key] = ids.get(key)

    def _automatic(self, keys: Iterable[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of these partitions (None: of all) for an automatic commit. Partitions of deleted topics
        are left out.
        """
        offsets = self._positions(keys)
        if self.gone:
            ids = self._topic_ids(self.gone)
            owned = self._subscription.partitions
            self.gone = {
                key: gone for key, gone in self.gone.items() if key in owned and ids.get(key) == gone
            }
        return {key: offset for key, offset in offsets.items() if key not in self.gone}

    def _member(self) -> Member:
        """Return the member (id and generation) that a commit must name now; an empty member outside of a group.
        Raises `KafkaError` UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
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
        """Start an automatic commit of all positions if it is time for one."""
        if self._core.now < self.due_at:
            return
        self.due_at = self._core.now + max(1, self._settings.auto_commit_interval_ms) / 1000
        # Commit unchanged positions, too, because an offset that is not committed again expires (KIP-211).
        offsets = self._automatic(None)
        membership = self.membership
        idle = self._subscription.grouped and (membership is None or not membership.may_commit_automatically)
        if offsets and not idle:
            self._core.start(self.commit_later(offsets, None), self._core.now)

    def commit_before_rebalance(self, keys: Iterable[TopicPartition]) -> Operation[None]:
        """Commit the positions of these partitions before other members get the partitions. Do nothing if
        automatic commits are off.
        """
        if self.membership is not None and self.membership.is_member:
            yield from self.commit_at_the_end(keys, _SECONDS_BEFORE_REBALANCE)

    def commit_at_the_end(self, keys: Iterable[TopicPartition], timeout: float) -> Operation[None]:
        """Commit the positions of these partitions a last time. Do nothing if automatic commits are off. If the commit
        fails, store the error in `last_error` and raise nothing.
        """
        if not self._settings.enable_auto_commit or self._coordinator is None:
            return
        try:
            yield from self.commit(self._automatic(keys), timeout=timeout)
        except (KafkaError, ClientError) as error:
            self.last_error = error

    def committed(
        self, keys: Iterable[TopicPartition], timeout: float
    ) -> Operation[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Fetch the committed offsets of these partitions from the coordinator. The value is None for a
        partition without a commit.
        """
        found = yield from self._the_coordinator().committed(keys, deadline=self._core.now + timeout)
        return found

    def _the_coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("commits need a group.id")
        return self._coordinator
