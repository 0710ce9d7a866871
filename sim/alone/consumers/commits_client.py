"""The simulated application of one group member: it polls, reads, and commits by hand, in the background and when
partitions are revoked. PURE.

`Commits`, the memberships and `Rebalances` are the product's. The application reads no records: its positions just
grow. It checks that each commit ends in time, and that a commit that has succeeded was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from random import Random

import attrs

from odradek.client.consumer.commits import Commits
from odradek.client.consumer.consumer_membership import ConsumerMembership
from odradek.client.consumer.consumer_types import OffsetAndMetadata, RebalanceEvent, RebalanceKind
from odradek.client.consumer.group_calls import Coordinator
from odradek.client.consumer.group_membership import GroupMembership
from odradek.client.consumer.membership import MemberContext, Membership
from odradek.client.consumer.rebalances import Rebalances
from odradek.client.consumer.subscription import PartitionState, Subscription
from odradek.client.core.client_keys import ConsumerSettings
from odradek.client.core.operation import Task
from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.commits_group import TOPIC, PlainGroup, metadata
from sim.alone.consumers.loose_core import LooseCore, Sent
from sim.history import SafetyViolation

__all__ = ["PROTOCOLS", "LoneMember", "settings_of"]

PROTOCOLS = ("range", "cooperative-sticky", "consumer")
"""The assignors of the classic protocol, and the new protocol."""
API_SECONDS = 6.0
END_SLACK_SECONDS = 0.5


@cache
def settings_of(protocol: str, auto_commit: bool) -> ConsumerSettings:
    """Return the settings of a consumer with this protocol or assignor."""
    keys: dict[str, object] = {
        "bootstrap.servers": "broker:9092",
        "group.id": "g",
        "enable.auto.commit": auto_commit,
        "auto.commit.interval.ms": 400,
        "default.api.timeout.ms": int(API_SECONDS * 1000),
        "max.poll.interval.ms": 20_000,
        "group.protocol": "consumer" if protocol == "consumer" else "classic",
    }
    if protocol != "consumer":
        keys |= {
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": protocol,
        }
    return ConsumerSettings.from_properties(keys)


@attrs.define(eq=False)
class _Commit:
    """A commit that the application waits for."""

    task: Task[None]
    offsets: dict[TopicPartition, OffsetAndMetadata]
    deadline: float


class LoneMember:
    """A group member with its application."""

    def __init__(
        self, random: Random, core: LooseCore, group: PlainGroup, settings: ConsumerSettings
    ) -> None:
        self.random = random
        self.core = core
        self.group = group
        self.subscription = Subscription()
        self.subscription.subscribe([TOPIC])
        core.cluster.update(metadata())
        coordinator = Coordinator(core, "g")
        changed = core.signal()
        context = MemberContext(
            core, settings, self.subscription, coordinator, changed, self._failed, lambda: None, None
        )
        is_new = settings.group_protocol == "consumer"
        self.membership: Membership = ConsumerMembership(context) if is_new else GroupMembership(context)
        self.commits = Commits(
            core,
            settings,
            self.subscription,
            coordinator,
            self.membership,
            arrived=changed,
            positions=self.positions,
        )
        self._rebalances = Rebalances(self.subscription, self.commits, core.notes, changed.notify)
        self._running = core.start(self.membership.run(), core.now)
        self._turn: Task[RebalanceEvent | None] | None = None
        self._event: RebalanceEvent | None = None
        self._event_commit: _Commit | None = None
        self._assigned: Mapping[TopicPartition, int] = {}
        """The ownership of each partition in the last assignment that has come."""
        self._ownership: dict[PartitionState, int] = {}
        self._waits: list[_Commit] = []
        self.succeeded = 0
        self.failed = 0

    def _failed(self, error: Exception) -> None:
        raise AssertionError(f"the group refuses the member: {error}") from error

    def deliver(self, sent: Sent) -> None:
        """Deliver the answer to a request."""
        if sent.ownerships is not None:
            self._assigned = sent.ownerships
        self.core.deliver(sent)

    def positions(self, keys: Iterable[TopicPartition] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of partitions (None: of all) that the application has begun to read. The text of each
        is the number of the ownership.
        """
        states = self.subscription.partitions
        return {
            key: OffsetAndMetadata(position, -1, str(self._ownership[state]))
            for key in (states if keys is None else keys)
            if (state := states.get(key)) is not None and (position := state.position) is not None
        }

    # -- the application ------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take the next step of a rebalance, or begin the automatic commit if it is due."""
        if self._event is not None:
            self._listen(self._event)
        elif self._turn is None:
            self._turn = self.core.start(self._rebalances.turn(self.membership), self.core.now)
        if self._turn is not None and self._turn.done:
            self._event, self._turn = self._turn.result(), None
            self.commits.commit_if_due()
        self._learn_ownerships()
        self.core.tick(self.core.now)

    def _listen(self, event: RebalanceEvent) -> None:
        """Handle a rebalance event as the application's listener. It may commit the revoked partitions first."""
        if self._event_commit is None and event.kind is RebalanceKind.REVOKED and self.random.random() < 0.5:
            self._event_commit = self.commit(self.positions(event.partitions))
        if self._event_commit is None or self._event_commit.task.done:
            self._event = self._event_commit = None
            self._rebalances.notified(event)

    def _learn_ownerships(self) -> None:
        for key, state in self.subscription.partitions.items():
            if state not in self._ownership:
                if key not in self._assigned:
                    raise SafetyViolation(f"{key} was adopted, and is not assigned")
                self._ownership[state] = self._assigned[key]

    def read(self) -> None:
        """Find the positions of new partitions, or read on in all partitions."""
        for key, state in self.subscription.partitions.items():
            if state.position is None:
                state.seek(self.group.committed[key])
            elif self.random.random() < 0.7:
                state.position += self.random.randint(1, 5)

    def commit_some(self) -> None:
        """Commit the positions of some partitions, or of all."""
        offsets = self.positions(None)
        if self.random.random() < 0.5:
            offsets = {key: offset for key, offset in offsets.items() if self.random.random() < 0.6}
        if offsets and self.random.random() < 0.5:
            self.commit(offsets)
        elif offsets:
            self.commit_later(offsets)

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> _Commit:
        """Commit offsets by hand. Return the commit, whose end the application awaits."""
        timeout = self.random.choice((0.3, 2.0, API_SECONDS))
        task = self.core.start(self.commits.commit(offsets, timeout=timeout), self.core.now)
        found = _Commit(task, offsets, self.core.now + timeout)
        self._waits.append(found)
        return found

    def commit_later(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets in the background."""
        task = self.core.start(self.commits.commit_later(offsets, lambda *_: None), self.core.now)
        self._waits.append(_Commit(task, offsets, self.core.now + API_SECONDS))

    def close(self, timeout: float) -> Task[None]:
        """Wait until all commits have ended."""
        return self.core.start(self.commits.finish(timeout), self.core.now)

    # -- checks ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the commits that have ended, and that no other commit is overdue."""
        if self._running.done:
            self._running.result()
            raise AssertionError("the membership has stopped")
        while self.commits.completed:
            _, offsets, error = self.commits.completed.popleft()
            if error is None:
                self.group.check_success(offsets)
        waits, self._waits = self._waits, []
        for each in waits:
            if not each.task.done:
                if self.core.now > each.deadline + END_SLACK_SECONDS:
                    late = self.core.now - each.deadline
                    raise SafetyViolation(f"a commit has not ended {late:.1f} s after its timeout")
                self._waits.append(each)
                continue
            try:
                each.task.result()
            except (KafkaError, ClientError):
                self.failed += 1
            else:
                self.succeeded += 1

    @property
    def waits(self) -> int:
        """Count the commits that the application waits for."""
        return len(self._waits)

    @property
    def is_idle(self) -> bool:
        """True if the application has adopted its assignment, and no commit is under way."""
        return not (
            self._event or self._waits or self.membership.needs_application or self.membership.awaits_join
        )
