"""Membership by the new protocol (KIP-848): sends heartbeats, handles refusals, looks up topics' names, leaves;
their contents: `member_machine.py`. PURE. The coordinator assigns the partitions.

`MemberMachine` decides what a heartbeat says and what an answer means. `ConsumerMembership` sends heartbeats in the
background, one at a time. `Rebalances` adopts assignments inside the application's polls.

Rules
-----
* The coordinator sets the interval of heartbeats. A join, an acknowledgement or a changed subscription is
  sent at once.
* If a heartbeat gets no answer, or the coordinator has moved, the next heartbeat is sent after a backoff,
  with all fields.
* If the application does not poll for `max.poll.interval.ms`, the member leaves, and joins again at the next
  poll. `max.poll.interval.ms` is also the rebalance timeout: the coordinator fences a member that keeps
  revoked partitions for a longer time.
* The classic keys for sessions have no effect, because the coordinator alone measures sessions.
* If the coordinator refuses the member, for instance because it is not authorized, joining again at once would fail
  again. So the next poll raises the error, and the poll after that joins again. Only FENCED_INSTANCE_ID is final, as
  with the classic protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.client.consumer.group_calls import Member
from odradek.client.consumer.member_machine import Interest, MemberMachine, MemberState, Verdict, judged
from odradek.client.consumer.membership import CONSUMER, GROUP_FEATURE, MemberContext, Membership
from odradek.client.core.coordinator_finder import COORDINATOR_LANE
from odradek.client.core.notes import INFO, WARNING
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.requests import refresh_by_id
from odradek.client.errors import ClientError, UnsupportedByBroker, broker_error, error_code, is_retriable
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from odradek.wire.uuid_text import uuid_to_text

if TYPE_CHECKING:
    from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["ConsumerMembership"]

_LEAVE_SECONDS = 5.0
_LEAVE_SECONDS_MIN = 1.0
_PATTERN_VERSION = 1
"""The first version of ConsumerGroupHeartbeat that supports subscription patterns."""
_MEMBER_ENDED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_HINTS = {
    ErrorCode.UNRELEASED_INSTANCE_ID: "another consumer has this group.instance.id; stop it, or wait until its session ends",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "group.remote.assignor must name an assignor of the coordinator",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "a SubscriptionPattern must be valid for RE2; re.compile makes a pattern that this "
    "client matches itself",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.consumer.max.size allows",
    ErrorCode.GROUP_ID_NOT_FOUND: "a classic group of this name has members, and the cluster does not convert it "
    "(group.consumer.migration.policy); group.protocol=classic joins it",
    ErrorCode.UNSUPPORTED_VERSION: f"the cluster must have finalized {GROUP_FEATURE}=1; group.protocol=classic needs no feature",
}
_NOT_SERVED = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND})
"""If a join is refused with one of these error codes, the consumer tries the classic protocol instead."""


class ConsumerMembership(Membership):
    """A consumer's membership in its group, by the new protocol (KIP-848)."""

    protocol = CONSUMER

    def __init__(self, context: MemberContext) -> None:
        super().__init__(context)
        settings, core = context.settings, context.core
        self._machine = MemberMachine(
            self._coordinator.group_id,
            lambda: uuid_to_text(core.rng.getrandbits(128).to_bytes(16, "big")),
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            instance_id=settings.group_instance_id,
            rack_id=settings.client_rack or None,
            assignor=settings.group_remote_assignor,
        )
        self._call: Call | None = None
        self._call_of = -1
        """The `incarnation` of this member when it sent the heartbeat that is under way; -1 if there is none."""
        self._beat_at = 0.0
        self._not_before = 0.0
        self._interval_seconds = settings.heartbeat_interval_ms / 1000
        """The seconds between heartbeats. The first answer of the coordinator replaces this value."""
        self._attempt = 0
        self._renew = False
        self._names: dict[bytes, str] = {}
        self._asks_names = False

    # Called by the application's polls

    @property
    def state(self) -> MemberState:
        """The state of this member of the group."""
        return self._machine.state

    @property
    def generation(self) -> int:
        """The member epoch; -1 outside of the group."""
        return self._machine.epoch

    @property
    def member_id(self) -> str:
        """The id that this consumer chose for itself when it first joined."""
        return self._machine.member_id

    @property
    def is_member(self) -> bool:
        """True if the consumer is a member, so that it may commit as a member and must send heartbeats."""
        return self._machine.is_member

    @property
    def has_lost(self) -> bool:
        """True if the partitions were lost, and the listener has not been called for this loss yet."""
        return self._machine.has_lost

    @property
    def needs_application(self) -> bool:
        """True if the application must act (adopt or drop partitions) before polls may return records."""
        if self.state is MemberState.STABLE:
            return False
        return self.state is MemberState.UNSUBSCRIBED or self._machine.needs_application(self._names)

    @property
    def may_commit_automatically(self) -> bool:
        """True if an automatic commit may start now."""
        return self.is_member

    @property
    def awaits_join(self) -> bool:
        """Always False: in the new protocol, commits never wait for a join."""
        return False

    @property
    def awaits_assignment(self) -> bool:
        """Always False: in the new protocol, commits never wait for an assignment."""
        return False

    def goes_on_from(self, former: Member) -> bool:
        """True if this consumer was the member `former` and has been a member without a break since then."""
        machine = self._machine
        return (
            machine.is_member
            and machine.member_id == former.member_id
            and former.generation >= machine.unbroken_since
        )

    @property
    def incarnation(self) -> int:
        """A number that identifies one stay in the group. Each join and each leave changes it."""
        return self._machine.incarnation

    def target(self) -> dict[TopicPartition, bytes]:
        """Return the partitions to adopt, each with its topic id. Partitions of topics without a known name are left
        out.
        """
        return self._machine.resolved(self._names)

    def owned(self) -> dict[TopicPartition, bytes]:
        """Return the partitions that the application adopted last, each with its topic id."""
        return self._machine.owned or {}

    def polled(self) -> None:
        """Record the time of this poll. Join the group if the consumer has a subscription and is not a
        member.
        """
        self.last_poll = self._core.now
        wanted = self._subscription.topics or self._subscription.remote_pattern
        if self.state is MemberState.UNSUBSCRIBED and wanted and self.fenced is None:
            self._join()

    def _join(self) -> None:
        self._machine.join()
        self._news()

    def lost_handled(self) -> None:
        """Join again, after the application's listener was called for the lost partitions."""
        if self._machine.has_lost and self.fenced is None:
            self._join()

    def adopting(self, partitions: dict[TopicPartition, bytes]) -> None:
        """Record that the application gets these partitions now, before its listener is called for the new ones."""
        self._machine.adopting(partitions)

    def adopted(self, partitions: dict[TopicPartition, bytes], incarnation: int) -> None:
        """Make the next heartbeat acknowledge these partitions, because the application has adopted them."""
        self._machine.adopted(partitions, incarnation)
        self.rebalances += 1
        self._news()

    def subscription_changed(self, reason: str) -> None:
        """Send a heartbeat with the changed subscription at once."""
        self._news()

    def enforce_rebalance(self, reason: str) -> None:
        """Log a warning that `enforce_rebalance` has no effect: in the new protocol only the coordinator starts
        rebalances.
        """
        self._core.notes.add(
            WARNING, "enforce_rebalance has no effect: with group.protocol=consumer the coordinator assigns"
        )

    def topics_updated(self) -> None:
        """Look up the names of the assigned topics, because there is fresh metadata."""
        self._learn_names()

    def renew_epoch(self) -> None:
        """Send a heartbeat soon, because its answer contains the current member epoch."""
        self._renew = True
        self._news()

    def refused(self, error: KafkaError) -> None:
        """Handle the coordinator's refusal of a commit, or of a request for committed offsets. The member may have to
        rejoin or to renew its epoch.
        """
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._replaced(error)
        elif error.code in _MEMBER_ENDED and self._machine.beats:
            reached("client.fenced_by_a_commit")
            self._lose(MemberState.FENCED, str(error))
        elif error.code is ErrorCode.STALE_MEMBER_EPOCH:
            self.renew_epoch()

    def reader(self) -> Member:
        """Return the member id and epoch that a request for committed offsets must contain."""
        return self.member if self.is_member else Member()

    def reader_refused(self, who: Member, error: KafkaError) -> None:
        """Handle the refusal of a request for committed offsets that named the member `who`. Ignore the
        refusal if this member's id or epoch has changed since the request.
        """
        if who == self.member:
            self.refused(error)

    def _news(self) -> None:
        self._turned.notify()
        self._changed.notify()

    def _interest(self) -> Interest:
        return Interest(self._subscription.topics, self._subscription.remote_pattern)

    # In the background

    def run(self) -> Operation[None]:
        """Run the membership until the operation is stopped. Return when the consumer must use the classic protocol
        instead.
        """
        while True:
            try:
                if not self._machine.beats:
                    yield Wait(signals=[self._turned])
                    continue
                if self._is_about_to_join():
                    moves_on = yield from self._other_kind()
                    if moves_on and self.state is MemberState.JOINING:
                        self._machine.unsubscribe()
                        self._news()
                        return
                yield from self._beat()
            except (KafkaError, ClientError) as error:
                if is_retriable(error):
                    self._unanswered()
                else:
                    self._fail(error)

    def _is_about_to_join(self) -> bool:
        return self.state is MemberState.JOINING and self._call is None and self._core.now >= self._not_before

    def _beat(self) -> Operation[None]:
        core = self._core
        polls_until = self.last_poll + self._settings.max_poll_interval_ms / 1000
        if core.now >= polls_until:
            yield from self._leave_for_not_polling()
            return
        if self._call is None:
            urgent = self._renew or self._machine.is_urgent(self._interest())
            due = max(self._not_before, 0.0 if urgent else self._beat_at)
            if core.now < due:
                yield Wait(until=min(due, polls_until), signals=[self._turned])
                return
            yield from self._send()
        call = self._call
        if call is None:
            return
        yield Wait([call], until=polls_until, signals=[self._turned])
        if call.done:
            self._call = None
            if self._call_of == self._machine.incarnation:
                self._take(call)
        elif self._call_of != self._machine.incarnation:
            self._call = None

    def _send(self) -> Operation[None]:
        deadline = self._core.now + self._core.config.request_timeout
        node = yield from self._coordinator.find(deadline=deadline)
        if not self._machine.beats:
            return
        interest = self._interest()
        self._renew = False
        self._call_of = self._machine.incarnation
        self._call = self._core.call(
            self._machine.heartbeat(interest),
            node=node,
            deadline=deadline,
            lane=COORDINATOR_LANE,
            version_min=0 if interest.pattern is None else _PATTERN_VERSION,
        )
        self._changed.notify()

    def _take(self, call: Call) -> None:
        """Process the answer to a heartbeat. Raises the errors that the application must handle."""
        if call.error is not None:
            if isinstance(call.error, UnsupportedByBroker):
                self._not_served(call.error)
                return
            raise call.error
        response = call.response
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            self._coordinator.noted(code)
            self._refused_heartbeat(code, response.error_message)
            return
        self._attempt = 0
        machine = self._machine
        before = machine.state, machine.epoch
        machine.answered(response)
        self.known_as = self.member
        if response.heartbeat_interval_ms > 0:
            self._interval_seconds = response.heartbeat_interval_ms / 1000
        self._beat_at = self._core.now + self._interval_seconds
        if (machine.state, machine.epoch) != before:
            self._note_progress(before[1])
        self._learn_names()

    def _note_progress(self, epoch_before: int) -> None:
        machine = self._machine
        if machine.epoch != epoch_before:
            count = sum(map(len, machine.target.values()))
            text = f"group {self._coordinator.group_id}: member {machine.member_id}, epoch {machine.epoch}"
            self._core.notes.add(INFO, f"{text}, has {count} partitions assigned")
        self._news()

    def _refused_heartbeat(self, code: ErrorCode, message: str | None) -> None:
        joins = self.state is MemberState.JOINING
        if joins and code in _NOT_SERVED and self._chooser is not None:
            self._classic_instead(f"the coordinator answers {code.name} to the new protocol")
            return
        error = broker_error(int(code), message, f"group {self._coordinator.group_id}")
        if code in _HINTS:
            error = KafkaError(code, f"{error.message} ({_HINTS[code]})")
        verdict = judged(code)
        if verdict is Verdict.REPLACED:
            self._replaced(error)
        elif verdict is Verdict.FENCED:
            reached("client.fenced_by_a_heartbeat")
            self._back_off()
            self._lose(MemberState.FENCED, str(error))
        elif verdict is Verdict.REPORT:
            self._machine.unanswered()
            self._not_before = self._core.now + self._interval_seconds
            self._failed(error)
        elif verdict is Verdict.FAILED:
            self._fail(error)
        else:
            self._unanswered()

    def _not_served(self, error: UnsupportedByBroker) -> None:
        if self._chooser is not None:
            self._classic_instead("the coordinator does not support the new protocol")
        elif self._subscription.remote_pattern is not None:
            raise UnsupportedByBroker(f"{error}, which a SubscriptionPattern requires") from error
        else:
            raise UnsupportedByBroker(f"{error}, which group.protocol=consumer requires") from error

    def _classic_instead(self, why: str) -> None:
        assert self._chooser is not None
        reached("client.classic_protocol_instead")
        self._chooser.refused(why)
        self._unanswered()

    def _unanswered(self) -> None:
        """Handle a heartbeat that got no answer: repeat it after a backoff, with all fields."""
        self._call = None
        self._machine.unanswered()
        if self._machine.beats:
            self._coordinator.lost()
            self._back_off()

    def _back_off(self) -> None:
        self._not_before = self._core.now + self._core.backoff(self._attempt)
        self._attempt += 1

    def _fail(self, error: Exception) -> None:
        self._back_off()
        if self._machine.beats:
            self._lose(MemberState.FAILED, str(error))
        self._failed(error)

    def _replaced(self, error: KafkaError) -> None:
        reached("client.new_member_replaced")
        self._note_lasting(error)
        if self._machine.beats:
            self._lose(MemberState.FENCED, str(error))
        self._news()

    def _lose(self, state: MemberState, why: str) -> None:
        self._call = None
        group_id = self._coordinator.group_id
        lost = "has lost its partitions" if self._machine.owned else "is outside of the group"
        self._core.notes.add(WARNING, f"group {group_id}: this member {lost}: {why}", key=(group_id, why))
        self._machine.lose(state)
        self._news()

    def _leave_for_not_polling(self) -> Operation[None]:
        reached("client.new_member_left_for_not_polling")
        self._call = None
        self._core.notes.add(
            WARNING, "the consumer leaves its group, because it has not polled for max.poll.interval.ms"
        )
        request = self._machine.go_stale()
        self._news()
        yield from self._say_goodbye(request, _LEAVE_SECONDS)

    def leave(self, reason: str, *, timeout: float) -> Operation[None]:
        """Leave the group; errors are ignored. A static member keeps its partitions until it returns or its session
        expires.
        """
        self._call = None
        request = self._machine.leave()
        self._news()
        if request is not None:
            try:
                yield from self._say_goodbye(request, timeout)
            finally:
                self._machine.unsubscribe()
                self._news()

    def _say_goodbye(self, request: ConsumerGroupHeartbeatRequest, timeout: float) -> Operation[None]:
        node = self._coordinator.node
        if node is None:
            return
        now = self._core.now
        # Send the request even if no time is left to wait for the answer.
        deadline = now + max(timeout, _LEAVE_SECONDS_MIN)
        call = self._core.call(request, node=node, deadline=deadline, lane=COORDINATOR_LANE)
        yield Wait([call], until=now + timeout)

    # The names of topics

    def _learn_names(self) -> None:
        known = {topic.topic_id: topic.name for topic in self._core.cluster.topics.values()}
        names = {
            topic_id: name
            for topic_id in self._machine.target
            if (name := known.get(topic_id) or self._names.get(topic_id)) is not None
        }
        if names != self._names:
            self._names = names
            self._changed.notify()
        if self._machine.unknown_ids(names) and not self._asks_names:
            self._asks_names = True
            self._core.start(self._ask_names(), self._core.now)

    def _ask_names(self) -> Operation[None]:
        """Fetch metadata of assigned topics until the names of all of them are known."""
        attempt = 0
        try:
            while unknown := self._machine.unknown_ids(self._names):
                try:
                    yield from refresh_by_id(self._core, unknown, timeout=self._core.config.request_timeout)
                except (KafkaError, ClientError) as error:
                    if not is_retriable(error):
                        self._failed(error)
                self._learn_names()
                if self._machine.unknown_ids(self._names):
                    yield Wait(until=self._core.now + self._core.backoff(attempt))
                    attempt += 1
        finally:
            self._asks_names = False
