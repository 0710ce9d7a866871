"""A consumer without IO, on which the blocking and the async consumer are built: polls, subscriptions,
positions, background operations. PURE.

Theory of operation
-------------------
Four operations run in the background (`background`): fetching ahead, finding positions, refreshing metadata,
membership of the group. These operations and the application's calls use the same state, a `Subscription`.
The shell makes a poll in two steps:

1. `take(now, what)` returns records that were fetched already. It returns at once, and returns an empty list
   while other work is due.
2. If the list is empty, the operation `wait(timeout)` runs until there are records to take or the time is up.
   It may return a `RebalanceEvent`. In that case the shell calls the listener and `notified(event)`, and
   repeats the poll.

Records are taken in the application's own thread, so an interrupted poll loses none.

Automatic commits happen in `wait`, before any record is taken. At that time the application has processed the
records of earlier polls (Kafka's at-least-once). Automatic commits also happen before partitions are given
up, and when the consumer closes.

Iteration yields the records of a poll one by one (`Handout`). During the iteration, positions include only yielded
records. When a handout ends early, `settle` returns its other records to the next poll.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from odradek.client.consumer.commits import Commits
from odradek.client.consumer.consumer_membership import ConsumerMembership
from odradek.client.consumer.consumer_types import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceEvent,
    SubscriptionPattern,
    Wakeup,
)
from odradek.client.consumer.delivery import Delivery
from odradek.client.consumer.fetch_loop import Fetching
from odradek.client.consumer.group_calls import Coordinator
from odradek.client.consumer.group_membership import GroupMembership
from odradek.client.consumer.handout import Handout
from odradek.client.consumer.membership import AUTO, CLASSIC, CONSUMER, KindChooser, MemberContext, Membership
from odradek.client.consumer.positions import Positions
from odradek.client.consumer.rebalances import Rebalances
from odradek.client.consumer.subscription import PartitionState, Subscription
from odradek.client.core.metadata_keeper import MetadataKeeper
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.core.requests import topics_with_metadata
from odradek.client.errors import RequestTimedOut
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings
    from odradek.client.core.known_cluster import Partition

__all__ = ["ConsumerMachine"]

T = TypeVar("T")


class ConsumerMachine:
    """A consumer without IO. `wall_ms` returns milliseconds since 1970, for `auto.offset.reset=by_duration`."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings, wall_ms: Callable[[], int]) -> None:
        self.core = core
        self.settings = settings
        self.subscription = Subscription()
        self.woken = False
        self.stirred = False
        """True if the background operations have something new to do. Then the shell must step the core."""
        self._news = core.signal()
        self._arrived = core.signal()
        self._errors: deque[Exception] = deque()
        self._broken: Exception | None = None
        self.coordinator = Coordinator(core, settings.group_id) if settings.group_id is not None else None
        self._metadata = MetadataKeeper(
            core,
            self._news,
            wanted=self._wanted_topics,
            updated=self._metadata_updated,
            refused=self._refused,
            max_age=settings.metadata_max_age_ms / 1000,
            auto_create=settings.allow_auto_create_topics,
        )
        self._fetching = Fetching(
            core,
            settings,
            self.subscription,
            news=self._news,
            arrived=self._arrived,
            ask_metadata=self._metadata.ask,
        )
        self._positions = Positions(
            core,
            settings,
            self.subscription,
            self.coordinator,
            news=self._news,
            found=self._arrived,
            ask_metadata=self._metadata.ask,
            failed=self._position_failed,
            wall_ms=wall_ms,
        )
        self.delivery = Delivery(settings, self._fetching.ready)
        self.handout: Handout | None = None
        """The records that an iterator over the consumer is yielding; None if there is no such iterator."""
        self._chooser: KindChooser | None = None
        self.membership = self._first_membership()
        self.commits = Commits(
            core,
            settings,
            self.subscription,
            self.coordinator,
            self.membership,
            arrived=self._arrived,
            positions=self.positions,
        )
        self._rebalances = Rebalances(self.subscription, self.commits, core.notes, self._stir)
        self.records_taken = 0

    def _first_membership(self) -> Membership | None:
        """Make the membership for the configured `group.protocol` (`auto`: the classic protocol first). Return None
        without a group.
        """
        protocol = self.settings.group_protocol
        return None if self.coordinator is None else self._new_membership(protocol == CONSUMER)

    def _new_membership(self, is_new: bool) -> Membership:
        """Make a membership that uses the new protocol (KIP-848) or the classic protocol."""
        assert self.coordinator is not None
        if self.settings.group_protocol == AUTO and self._chooser is None:
            self._chooser = KindChooser(self.core, self.settings, self.coordinator)
        context = MemberContext(
            self.core,
            self.settings,
            self.subscription,
            self.coordinator,
            changed=self._arrived,
            failed=self._refused,
            ask_metadata=self._metadata.ask,
            chooser=self._chooser,
        )
        made: Membership = ConsumerMembership(context) if is_new else GroupMembership(context)
        self.coordinator.reader = made.reader
        self.coordinator.reader_refused = made.reader_refused
        return made

    def _be_member(self, membership: Membership) -> Operation[None]:
        """Run the group membership. If it ends because the other protocol must be used, continue with that protocol's
        membership.
        """
        while True:
            yield from membership.run()
            former, membership = membership, self._new_membership(membership.protocol == CLASSIC)
            self.membership = self.commits.membership = membership
            membership.take_over(former)
            self._arrived.notify()

    def background(self) -> list[Operation[None]]:
        """Return the background operations, which the shell starts once."""
        running = [self._fetching.run(), self._positions.run(), self._metadata.run()]
        if self.membership is not None:
            running.append(self._be_member(self.membership))
        return [self._guarded(operation) for operation in running]

    def _guarded(self, operation: Operation[None]) -> Operation[None]:
        """Run a background operation. If a bug makes it raise, every later call of the application raises the same
        error.
        """
        try:
            yield from operation
        except Exception as error:  # noqa: BLE001 - every later call of the application raises it
            self._broken = error
            self._arrived.notify()

    def _refused(self, error: Exception) -> None:
        self._errors.append(error)
        self._arrived.notify()

    def _position_failed(self, state: PartitionState, error: Exception) -> None:
        if self.subscription.partitions.get(state.key) is not state:
            reached("client.position_of_former_partition_dropped")
            return  # the partition was revoked meanwhile
        state.error = error
        self._fetching.ready[state] = None
        self._arrived.notify()

    def _stir(self) -> None:
        self.stirred = True
        self._news.notify()
        self._arrived.notify()

    # Metadata

    def _wanted_topics(self) -> list[str] | None:
        if self.subscription.pattern is not None:
            return None
        names = self.subscription.names()
        if self.membership is not None and self.membership.is_leader:
            names = list(dict.fromkeys([*names, *self.membership.group_topics]))
        return names

    def _metadata_updated(self) -> None:
        topics = self.core.cluster.topics.values()
        skip_internal = self.settings.exclude_internal_topics
        names = [topic.name for topic in topics if not (topic.is_internal and skip_internal)]
        changed = self.subscription.match(names)
        if self.membership is not None:
            if changed:
                self.membership.subscription_changed("the topics that match the subscription have changed")
                self._arrived.notify()
            self.membership.topics_updated()

    # Polls

    def take(self, now: float, what: Callable[[], list[T]], *, waited: bool = False) -> list[T]:
        """Return the records that the function `what` takes from the fetched data. If other work is due first, return
        an empty list; the shell must then run `wait`.

        `waited` is true if this poll has run `wait` already. Then no automatic commit is due before the
        records are returned. If fetching a partition has failed, raises the error when that partition's turn
        comes.
        """
        if self._is_due(now, waited=waited):
            return []
        if self.membership is not None:
            self.membership.last_poll = max(self.membership.last_poll, now)
        try:
            found = what()
        finally:
            if self.delivery.chunk_used_up:
                self.delivery.chunk_used_up = False
                self._stir()
        self.records_taken += len(found)
        return found

    def hand_out(self, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yield the records of the last poll one by one. The iterator ends early if another call takes the records
        back.
        """
        before = {
            state.key: (state, state.serial, OffsetAndMetadata(*position))
            for state, position in self.delivery.positions_before.items()
        }
        self.handout = Handout(records, before)
        return self.handout.left

    def settle(self, *, last_is_done: bool = True) -> None:
        """End the current iteration, and return its unread records to the next poll. With `last_is_done`
        false, the last yielded record is returned, too, unless the application has committed it.
        """
        handout, self.handout = self.handout, None
        if handout is None:
            return
        done = max(handout.done, handout.yielded - (not last_is_done))
        left: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in handout.records[done:]:
            left.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        for key, position in self._unsettled(handout, done).items():
            self.delivery.give_back(handout.before[key][0], left[key], *position[:2])
        handout.records.clear()

    def committed_by_hand(self) -> None:
        """Record that the application has committed all positions. So the record that the iterator has
        yielded last counts as processed, too.
        """
        if self.handout is not None:
            self.handout.done = self.handout.yielded

    def _unsettled(self, handout: Handout, done: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """Compute the partitions' positions after `done` records of a handout. A partition is left out if it was
        revoked since the poll, or if its position was changed by `seek`.
        """
        found = {}
        for key, position in handout.positions(done).items():
            state, serial, _ = handout.before[key]
            if self.subscription.partitions.get(key) is state and state.serial == serial:
                found[key] = position
        return found

    def take_records(self) -> list[Any]:
        """Take at most `max.poll.records` of the fetched records."""
        return self.delivery.take_records(self.settings.max_poll_records)

    def take_batches(self) -> list[Any]:
        """Take fetched batches until they have `fetch.max.bytes` or more."""
        return self.delivery.take_batches(self.settings.fetch_max_bytes)

    def _is_due(self, now: float, *, waited: bool) -> bool:
        """True if something else must happen before records may be returned: an error or `Wakeup` must be
        raised, or a rebalance or an automatic commit is due.
        """
        return bool(
            self.woken
            or self._errors
            or self._broken is not None
            or (self.subscription.grouped and self._group_is_due())
            or (not waited and self.commits.are_due(now))
        )

    def _group_is_due(self) -> bool:
        return self.membership is not None and self.membership.needs_application

    def wait(self, timeout: float) -> Operation[RebalanceEvent | None]:
        """Do the work that is due, then wait until there are records to take or the time is up. This is the second
        step of a poll.

        Returns an event for the rebalance listener, or None. Raises `KafkaError`, `ClientError` and `Wakeup`.
        """
        deadline = self.core.now + timeout
        while True:
            self._raise_errors()
            event = yield from self._group_turn()
            if event is not None:
                return event
            self.commits.commit_if_due()
            # While a rebalance needs the application, `take` returns none of the fetched records. So fetched records
            # must not end this wait, because the poll would then loop without a pause.
            if not (self.subscription.grouped and self._group_is_due()) and any(
                not state.paused and state.has_data for state in self._fetching.ready
            ):
                return None
            if self.commits.completed or self.core.now >= deadline:
                return None
            yield Wait(until=min(deadline, self.commits.due_at), signals=[self._arrived])

    def _raise_errors(self) -> None:
        if self._broken is not None:
            raise AssertionError(
                f"this consumer is unusable after an earlier error: {self._broken!r}"
            ) from self._broken
        if self.woken:
            self.woken = False
            raise Wakeup("another thread or task called wakeup")
        if self._errors:
            raise self._errors.popleft()

    def wakeup(self) -> None:
        """Make the running poll, or else the next one, raise `Wakeup`."""
        self.woken = True
        self._stir()

    # The group

    def _group_turn(self) -> Operation[RebalanceEvent | None]:
        membership = self.membership
        if membership is None or not self.subscription.grouped:
            return None
        event = yield from self._rebalances.turn(membership)
        return event

    def notified(self, event: RebalanceEvent) -> None:
        """Called when the rebalance listener has handled this event or has raised an exception."""
        self._rebalances.notified(event)

    def give_up(self, timeout: float) -> Operation[RebalanceEvent | None]:
        """Make the last automatic commit before `close` or `unsubscribe`. Return the event for the rebalance
        listener, or None.
        """
        membership = self.membership
        owned = list(self.subscription.partitions)
        yield from self.commits.commit_at_the_end(owned, timeout)
        if membership is None or not self.subscription.grouped:
            return None
        return self._rebalances.give_up_all(membership)

    def leave(self, reason: str, timeout: float) -> Operation[None]:
        """Wait for commits under way, drop all partitions, and leave the group."""
        deadline = self.core.now + timeout
        yield from self.commits.finish(timeout)
        grouped = self.subscription.grouped
        self._rebalances.forget()
        self.subscription.unsubscribe()
        self._fetching.ready.clear()
        if self.membership is not None and grouped:
            yield from self.membership.leave(reason, timeout=max(0.0, deadline - self.core.now))

    def close_sessions(self, timeout: float) -> Operation[None]:
        """Close the fetch sessions at the brokers."""
        yield from self._fetching.close_sessions(timeout=timeout)

    # Subscriptions

    def subscribe(self, topics: Sequence[str] | re.Pattern[str] | SubscriptionPattern) -> None:
        """Subscribe to topics, by their names or by a pattern for whole names. The group assigns their partitions.

        Raises `ValueError` without a group, and `RuntimeError` while partitions are assigned by hand.
        """
        if isinstance(topics, re.Pattern):
            self.subscription.subscribe_pattern(topics)
        elif isinstance(topics, SubscriptionPattern):
            self.subscription.subscribe_remotely(topics.pattern)
        else:
            self.subscription.subscribe(topics)
        if self.membership is None:
            self.subscription.unsubscribe()
            raise ValueError("subscribe needs the configuration key group.id (assign does not)")
        if self.subscription.pattern is not None:
            self._metadata.ask()
        self.membership.subscription_changed("the application has changed the subscription")
        self._stir()

    def assign_manually(self, keys: Iterable[TopicPartition]) -> None:
        """Replace the assignment by exactly these partitions, without a group."""
        self.subscription.assign_manually(keys, committed=True)
        self._stir()

    # Positions

    def positions(
        self, keys: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position of each of these partitions (None: of all partitions): the offset of the next
        record for the application. Partitions with an unknown position are left out.
        """
        found = {}
        handout = self.handout
        unsettled = self._unsettled(handout, handout.yielded) if handout is not None else {}
        for key in self.subscription.partitions if keys is None else keys:
            state = self.subscription.partitions.get(key)
            if key in unsettled:
                found[key] = unsettled[key]
            elif state is not None and state.position is not None:
                found[key] = OffsetAndMetadata(state.position, state.position_epoch)
        return found

    def seek(self, key: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Set the position of a partition to this offset."""
        self.subscription.state(key).seek(offset, leader_epoch)
        self._stir()

    def reset(self, keys: Iterable[TopicPartition], policy: str) -> None:
        """Set the position of these partitions (if `keys` is empty: of all) to the earliest or the latest
        offset. The offset itself is looked up later.
        """
        for key in list(keys) or list(self.subscription.partitions):
            self.subscription.state(key).reset(policy)
        self._stir()

    def pause(self, keys: Iterable[TopicPartition], *, paused: bool) -> None:
        """Pause or resume these partitions. Polls return no records of a paused partition."""
        for state in [self.subscription.state(key) for key in keys]:
            state.paused = paused
        self._stir()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {key for key, state in self.subscription.partitions.items() if state.paused}

    def lag(self, key: TopicPartition) -> int | None:
        """Compute by how many offsets the position was behind the partition's end at the last fetch; None if
        unknown. The end is the high watermark, or the last stable offset for `read_committed`.
        """
        state = self.subscription.state(key)
        read_committed = self.settings.isolation_level == "read_committed"
        end = state.last_stable_offset if read_committed else state.high_watermark
        position = self.positions([key]).get(key)
        return None if end is None or position is None else max(0, end - position.offset)

    def position(self, key: TopicPartition, timeout: float) -> Operation[int]:
        """Wait until the position of a partition is known, and return it: the offset of the next record for
        the application. Raises `RequestTimedOut`.
        """
        deadline = self.core.now + timeout
        while True:
            state = self.subscription.state(key)
            position = self.positions([key]).get(key)
            if position is not None:
                return position.offset
            if state.error is not None:
                raise state.error
            if self.core.now >= deadline:
                raise RequestTimedOut(f"the position of {key[0]}-{key[1]} was not found in time")
            yield Wait(until=deadline, signals=[self._arrived])

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout: float
    ) -> Operation[dict[TopicPartition, OffsetAndTimestamp]]:
        """Look up an offset in each partition. `wanted` has a time in milliseconds since 1970, `EARLIEST` or
        `LATEST`. For a time, the result is the first record at or after that time; its offset is -1 if there
        is no such record.
        """
        isolation_level = 1 if self.settings.isolation_level == "read_committed" else 0
        found = yield from list_offsets(self.core, wanted, timeout=timeout, isolation_level=isolation_level)
        return {
            key: OffsetAndTimestamp(listed.offset, listed.timestamp, listed.leader_epoch)
            for key, listed in found.items()
        }

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float
    ) -> Operation[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """Find the first record of each partition at or after the given time. The value is None if there is
        no such record.
        """
        found = yield from self.list_offsets(times_ms, timeout)
        return {key: listed if listed.offset >= 0 else None for key, listed in found.items()}

    def offsets_at(
        self, keys: Iterable[TopicPartition], *, end: bool, timeout: float
    ) -> Operation[dict[TopicPartition, int]]:
        """Look up the start offset of each partition, or the end offset if `end` is true."""
        wanted = dict.fromkeys(keys, LATEST if end else EARLIEST)
        found = yield from self.list_offsets(wanted, timeout)
        return {key: listed.offset for key, listed in found.items()}

    def partitions_of(self, topic: str, timeout: float) -> Operation[list[Partition]]:
        """List a topic's partitions in order of their numbers. Raises `KafkaError`."""
        yield from topics_with_metadata(self.core, [topic], deadline=self.core.now + timeout, refresh=True)
        found = self.core.cluster.topic(topic)
        return [found.partitions[index] for index in sorted(found.partitions)]

    def member_id(self) -> str:
        """Return the member id of this consumer; empty outside of a group."""
        return "" if self.membership is None else self.membership.member_id

    def enforce_rebalance(self, reason: str) -> None:
        """Request a rebalance of the group, if the protocol in use lets members do so."""
        if self.membership is not None:
            self.membership.enforce_rebalance(reason)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the member id and generation that the consumer got at its last join, for commits by a
        transactional producer. Before the first join, return the values of a client outside of the group.

        A member that was removed keeps its old metadata until it has joined again, as in Kafka's client. For a client
        outside of the group, coordinators accept all offsets.
        """
        if self.coordinator is None:
            raise ValueError("this consumer has no group, because group.id is not set")
        group_id, membership = self.coordinator.group_id, self.membership
        if membership is None or not self.subscription.grouped:
            return ConsumerGroupMetadata(group_id, group_instance_id=self.settings.group_instance_id)
        member = membership.known_as
        return ConsumerGroupMetadata(group_id, member.generation, member.member_id, member.group_instance_id)

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return position, lag, records and bytes of each assigned partition. Records and bytes count since the
        assignment; unknown values are -1.
        """
        positions = self.positions()
        found = {}
        for key, state in self.subscription.partitions.items():
            position, lag = positions.get(key), self.lag(key)
            found[key] = {
                "position": -1 if position is None else position.offset,
                "lag": -1 if lag is None else lag,
                "records": state.records_taken,
                "bytes": state.bytes_taken,
            }
        return found

    def statistics(self) -> dict[str, int | str]:
        """Return the consumer's counters and its present state by name."""
        membership = self.membership
        passing = self._fetching.last_error or self._metadata.last_error
        return {
            **self.core.statistics(),
            "last_error": self.core.trouble or ("" if passing is None else str(passing)),
            "assigned_partitions": len(self.subscription.partitions),
            "buffered_bytes": self._fetching.buffered_bytes(),
            "fetches": self._fetching.fetches,
            "records_taken": self.records_taken,
            "rebalances": membership.rebalances if membership is not None else 0,
            "generation": membership.generation if membership is not None else -1,
            "group_protocol": membership.protocol if membership is not None else "",
            "member_state": membership.state.value if membership is not None else "",
        }
