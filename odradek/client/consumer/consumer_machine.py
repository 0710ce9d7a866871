"""A consumer without IO: the common part of its blocking and its async shell. PURE.

Theory of operation
-------------------
Four operations run in the background (`background`): fetching ahead, finding positions, refreshing metadata,
membership of the group. They and the application's calls share the state in `Subscription`. A poll is two steps of
the shell:

1. `take(now, what)` returns, at once, records that were fetched already, if nothing else is due.
2. Otherwise `wait(timeout)`, an operation, until there is something to take or the time is up. Its result may be a
   `RebalanceEvent`: the shell calls the listener, then `notified(event)`, and begins again.

Records are taken in the application's own thread, so an interrupted poll loses none.

Automatic commits happen in `wait`, before any record is taken: by then the application has processed the records of
earlier polls (Kafka's at-least-once). They also happen before partitions are given up, and when the consumer
closes.

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
    """A consumer without IO. `wall_ms` returns the time of day, for `auto.offset.reset=by_duration`."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings, wall_ms: Callable[[], int]) -> None:
        self.core = core
        self.settings = settings
        self.subscription = Subscription()
        self.woken = False
        self.stirred = False
        """True while there is news for the background operations. The shell must step the core then."""
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
        """The records that an iterator is yielding."""
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
        """Make the membership that the configuration asks for; with `auto`, the classic one begins."""
        protocol = self.settings.group_protocol
        return None if self.coordinator is None else self._new_membership(protocol == CONSUMER)

    def _new_membership(self, is_new: bool) -> Membership:
        """Make a membership, by the new protocol or by the classic one."""
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
        """Run the membership of the group, with one protocol after the other."""
        while True:
            yield from membership.run()
            former, membership = membership, self._new_membership(membership.protocol == CLASSIC)
            self.membership = self.commits.membership = membership
            membership.take_over(former)
            self._arrived.notify()

    def background(self) -> list[Operation[None]]:
        """List the operations to start once."""
        running = [self._fetching.run(), self._positions.run(), self._metadata.run()]
        if self.membership is not None:
            running.append(self._be_member(self.membership))
        return [self._guarded(operation) for operation in running]

    def _guarded(self, operation: Operation[None]) -> Operation[None]:
        """Run a background operation. If a bug ends it, every later call raises that error."""
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
            return  # the operation was given up meanwhile
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
        """Return the records that `what` takes. Return none if other work is due first; then the shell calls
        `wait`.

        With `waited`, this poll has waited already, so a commit is not due again, even with a short interval. Raises
        the error of a partition when its turn has come.
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
        """Yield the records of the last poll one by one. It ends early when another call takes them back."""
        before = {
            state.key: (state, state.serial, OffsetAndMetadata(*position))
            for state, position in self.delivery.positions_before.items()
        }
        self.handout = Handout(records, before)
        return self.handout.left

    def settle(self, *, last_is_done: bool = True) -> None:
        """End a handout, and return the records that were not yielded to the next poll. The last yielded record is
        returned, too, if `last_is_done` is false and the application has not committed it.
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
        """Note that the application has committed all positions, so it has processed even the record that was
        yielded last.
        """
        if self.handout is not None:
            self.handout.done = self.handout.yielded

    def _unsettled(self, handout: Handout, done: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """Compute the positions of a handout, except for partitions that were sought or revoked since."""
        found = {}
        for key, position in handout.positions(done).items():
            state, serial, _ = handout.before[key]
            if self.subscription.partitions.get(key) is state and state.serial == serial:
                found[key] = position
        return found

    def take_records(self) -> list[Any]:
        """Take at most `max.poll.records` records."""
        return self.delivery.take_records(self.settings.max_poll_records)

    def take_batches(self) -> list[Any]:
        """Take at most `fetch.max.bytes` of batches, and one batch more."""
        return self.delivery.take_batches(self.settings.fetch_max_bytes)

    def _is_due(self, now: float, *, waited: bool) -> bool:
        """True if other work must be done before records may be taken."""
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
        """Wait until there are records to take, or the time is up. This is the second step of a poll.

        Raises `KafkaError`, `ClientError` and `Wakeup` to the application.
        """
        deadline = self.core.now + timeout
        while True:
            self._raise_errors()
            event = yield from self._group_turn()
            if event is not None:
                return event
            self.commits.commit_if_due()
            # `take` returns no records while the group is due. Without this condition, a poll would loop
            # without ever waiting.
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
        """Let the present poll, or the next one, raise `Wakeup`."""
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
        """Called when the listener has returned from this event (even if it raised)."""
        self._rebalances.notified(event)

    def give_up(self, timeout: float) -> Operation[RebalanceEvent | None]:
        """Make the last automatic commit before `close` and `unsubscribe`. Returns the event for the listener, if
        there is one.
        """
        membership = self.membership
        owned = list(self.subscription.partitions)
        yield from self.commits.commit_at_the_end(owned, timeout)
        if membership is None or not self.subscription.grouped:
            return None
        return self._rebalances.give_up_all(membership)

    def leave(self, reason: str, timeout: float) -> Operation[None]:
        """Wait for requested commits, stop reading, and leave the group."""
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
        """Let the group assign partitions of these topics, or of all whose whole name matches a pattern.

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
        """Read exactly these partitions."""
        self.subscription.assign_manually(keys, committed=True)
        self._stir()

    # Positions

    def positions(
        self, keys: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the next offset for the application in each partition, if it is known."""
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
        """Continue at this offset."""
        self.subscription.state(key).seek(offset, leader_epoch)
        self._stir()

    def reset(self, keys: Iterable[TopicPartition], policy: str) -> None:
        """Move to the earliest or latest offset, which is looked up when it is needed. Without keys, all partitions
        move.
        """
        for key in list(keys) or list(self.subscription.partitions):
            self.subscription.state(key).reset(policy)
        self._stir()

    def pause(self, keys: Iterable[TopicPartition], *, paused: bool) -> None:
        """Return no records of these partitions until they are resumed."""
        for state in [self.subscription.state(key) for key in keys]:
            state.paused = paused
        self._stir()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return {key for key, state in self.subscription.partitions.items() if state.paused}

    def lag(self, key: TopicPartition) -> int | None:
        """Compute the lag in offsets behind the end that this consumer may see, as of the last fetch; None if
        unknown.
        """
        state = self.subscription.state(key)
        read_committed = self.settings.isolation_level == "read_committed"
        end = state.last_stable_offset if read_committed else state.high_watermark
        position = self.positions([key]).get(key)
        return None if end is None or position is None else max(0, end - position.offset)

    def position(self, key: TopicPartition, timeout: float) -> Operation[int]:
        """Return the next offset that the application gets; waits until it is known. Raises `RequestTimedOut`."""
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
        """Look up offsets by time in milliseconds, or `EARLIEST`, `LATEST`; the offset is -1 if no record is that
        new.
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
        """Find the first record at or after each time; None if there is none."""
        found = yield from self.list_offsets(times_ms, timeout)
        return {key: listed if listed.offset >= 0 else None for key, listed in found.items()}

    def offsets_at(
        self, keys: Iterable[TopicPartition], *, end: bool, timeout: float
    ) -> Operation[dict[TopicPartition, int]]:
        """Find the first or the end offset of each partition."""
        wanted = dict.fromkeys(keys, LATEST if end else EARLIEST)
        found = yield from self.list_offsets(wanted, timeout)
        return {key: listed.offset for key, listed in found.items()}

    def partitions_of(self, topic: str, timeout: float) -> Operation[list[Partition]]:
        """List a topic's partitions in order. Raises `KafkaError`."""
        yield from topics_with_metadata(self.core, [topic], deadline=self.core.now + timeout, refresh=True)
        found = self.core.cluster.topic(topic)
        return [found.partitions[index] for index in sorted(found.partitions)]

    def member_id(self) -> str:
        """Return the id of this member; empty outside of a group."""
        return "" if self.membership is None else self.membership.member_id

    def enforce_rebalance(self, reason: str) -> None:
        """Make the group assign its partitions again, where members can do that."""
        if self.membership is not None:
            self.membership.enforce_rebalance(reason)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Describe the member and its generation as of its last join; before any join, a client outside of the
        group.

        A member that was removed keeps its old metadata until it has joined again, as in Kafka's client.
        Coordinators never refuse the offsets of a client outside of the group.
        """
        if self.coordinator is None:
            raise ValueError("this consumer has no group, because group.id is not set")
        group_id, membership = self.coordinator.group_id, self.membership
        if membership is None or not self.subscription.grouped:
            return ConsumerGroupMetadata(group_id, group_instance_id=self.settings.group_instance_id)
        member = membership.known_as
        return ConsumerGroupMetadata(group_id, member.generation, member.member_id, member.group_instance_id)

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return figures of each assigned partition since its assignment; an unknown figure is -1."""
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
        """Return the present figures."""
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
