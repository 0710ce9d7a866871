"""A consumer's commits: those that the application asks for, and the automatic ones. PURE.

One commit is under way at a time, so a coordinator takes them in the order in which they were asked for. Asynchronous
ones become one while they wait: an application that commits each record keeps at most two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from odradek.client.consumer.consumer_types import CommitCallback, CommitRefused, OffsetAndMetadata, TopicGone
from odradek.client.consumer.group_calls import Coordinator, Member
from odradek.client.consumer.group_membership import GroupMembership, MembershipState
from odradek.client.consumer.subscription import Subscription
from odradek.client.core.notes import WARNING
from odradek.client.core.operation import Operation, Signal, Wait
from odradek.client.errors import ClientClosed, ClientError, RequestTimedOut
from wire.errors import ErrorCode, KafkaError
from wire.structure import ZERO_UUID
from wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["Commits"]

_SECONDS_BEFORE_REBALANCE = 10.0
_NEVER = float("inf")


@attrs.define(eq=False)
class _Batch:
    """Offsets that go to the coordinator in one request, in the name of this member."""

    who: Member
    offsets: dict[TopicPartition, OffsetAndMetadata]
    deadline: float
    may_grow: bool
    """True until it is sent, unless somebody waits for it by itself."""
    is_done: bool = False
    error: Exception | None = None


class Commits:
    """The commits of a consumer: when automatic ones are due, and the outcomes of those that ended."""

    def __init__(
        self,
        core: ClientCore,
        settings: ConsumerSettings,
        subscription: Subscription,
        coordinator: Coordinator | None,
        membership: GroupMembership | None,
        *,
        arrived: Signal,
        positions: Callable[[Iterable[TopicPartition] | None], dict[TopicPartition, OffsetAndMetadata]],
    ) -> None:
        """`arrived` is notified when a commit has ended; `positions` tells how far the application has come."""
        self._core = core
        self._settings = settings
        self._subscription = subscription
        self._coordinator = coordinator
        self._membership = membership
        self._arrived = arrived
        self._positions = positions
        self.due_at = _NEVER
        """The time of the next automatic commit, in seconds of the core's clock."""
        if settings.enable_auto_commit:
            self.due_at = core.now + settings.auto_commit_interval_ms / 1000
        self.completed: deque[
            tuple[CommitCallback | None, dict[TopicPartition, OffsetAndMetadata], Exception | None]
        ] = deque()
        """Commits that ended, for the shell to tell the application of."""
        self.last_error: Exception | None = None
        self._queue: deque[_Batch] = deque()
        """The commit that is under way, and those that wait for it."""
        self._gone: dict[TopicPartition, bytes | None] = {}
        """Partitions of topics that are gone, with the ids of these."""
        self._turned = core.signal()

    def are_due(self, now: float) -> bool:
        """True if the next automatic commit's time has come; `now` in seconds."""
        return now >= self.due_at

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], *, timeout: float) -> Operation[None]:
        """Commit. Raises `KafkaError` (ILLEGAL_GENERATION and its like: others have the partitions), `ClientError`."""
        batch = _Batch(self._member(), dict(offsets), self._core.now + timeout, may_grow=False)
        self._queue.append(batch)
        yield from self._send(batch)

    def commit_later(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> Operation[None]:
        """Commit as `commit` does, but put the outcome in `completed`."""
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
        """Commit together with those that wait. Raises as `commit`."""
        who = self._member()
        last = self._queue[-1] if self._queue else None
        if last is None or not last.may_grow or last.who != who:
            deadline = self._core.now + self._settings.default_api_timeout_ms / 1000
            batch = _Batch(who, dict(offsets), deadline, may_grow=True)
            self._queue.append(batch)
            yield from self._send(batch)
            return
        last.offsets.update(offsets)
        while not last.is_done:
            yield Wait(signals=(self._turned,))
        if last.error is not None:
            raise last.error

    def _send(self, batch: _Batch) -> Operation[None]:
        """Send a batch when those before it have ended."""
        batch.error = ClientClosed("the commit was abandoned")
        try:
            while self._queue[0] is not batch:
                if self._core.now >= batch.deadline:
                    raise RequestTimedOut("commits that were asked for before have no answer")
                yield Wait(until=batch.deadline, signals=(self._turned,))
            batch.may_grow = False
            yield from self._the_coordinator().commit(
                batch.offsets, batch.who, deadline=batch.deadline, topic_ids=self._topic_ids(batch.offsets)
            )
            batch.error = None
        except (KafkaError, ClientError) as error:
            batch.error = error
            self._core.notes.add(WARNING, f"offsets were not committed: {error}", key="commit")
            if isinstance(error, CommitRefused):
                self._note_gone(error)
            membership, who = self._membership, batch.who
            if (
                isinstance(error, KafkaError)
                and membership is not None
                and who.generation >= 0
                and who == membership.member
            ):
                membership.refused(error)
            raise
        finally:
            batch.may_grow = False
            batch.is_done = True
            self._queue.remove(batch)
            self._turned.notify()

    def _topic_ids(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """The ids of the topics that these partitions were read from, or else are of now."""
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
        """Leave partitions out of automatic commits, as long as they are those of a topic that is gone."""
        gone = [key for key, error in refusal.errors.items() if isinstance(error, TopicGone)]
        ids = self._topic_ids(gone)
        for key in gone:
            if key not in self._gone:
                text = f"offsets of {key} are not committed any more: its topic was deleted or made anew"
                self._core.notes.add(WARNING, text)
            self._gone[key] = ids.get(key)

    def _automatic(self, keys: Iterable[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions that an automatic commit covers."""
        offsets = self._positions(keys)
        if self._gone:
            ids = self._topic_ids(self._gone)
            self._gone = {key: gone for key, gone in self._gone.items() if ids.get(key) == gone}
        return {key: offset for key, offset in offsets.items() if key not in self._gone}

    def _member(self) -> Member:
        """Return the member in whose name to commit now. Raises `KafkaError`: UNKNOWN_MEMBER_ID outside of the group,
        FENCED_INSTANCE_ID."""
        self._the_coordinator()
        membership = self._membership
        if not self._subscription.grouped or membership is None:
            return Member()
        if membership.fenced is not None:
            raise membership.fenced.with_traceback(None)
        if not membership.is_member:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "this consumer is not a member of its group now")
        return membership.member

    def commit_if_due(self) -> None:
        """Begin an automatic commit of all positions when its time has come."""
        if self._core.now < self.due_at:
            return
        self.due_at = self._core.now + max(1, self._settings.auto_commit_interval_ms) / 1000
        # All of them, also those that stand still: a commit that is not repeated expires (KIP-211).
        offsets = self._automatic(None)
        membership = self._membership
        idle = self._subscription.grouped and (
            membership is None or membership.state is not MembershipState.STABLE
        )
        if offsets and not idle:
            self._core.start(self.commit_later(offsets, None), self._core.now)

    def commit_before_rebalance(self, keys: Iterable[TopicPartition]) -> Operation[None]:
        """Commit these positions before others get the partitions, if commits are automatic."""
        if self._membership is not None and self._membership.is_member:
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
        """Ask the coordinator for the offsets that the group has committed; None for a partition without one."""
        found = yield from self._the_coordinator().committed(keys, deadline=self._core.now + timeout)
        return found

    def _the_coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("commits need a group.id")
        return self._coordinator
