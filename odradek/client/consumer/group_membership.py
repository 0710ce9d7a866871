"""Membership by the classic protocol: what JoinGroup reports, SyncGroup, heartbeats, the leader's assignment,
refusals, leaving. PURE. The part of a rebalance inside polls is in `rebalances.py`.

Theory of operation
-------------------
A `GroupMembership` has two sides. Its operation `run` sends requests to the coordinator in the background. So
heartbeats go on while the application works, and a join goes on between polls. The other side (`Rebalances`) runs
within polls, because it needs the application. To prepare a rebalance, it commits, and calls the listener for revoked
partitions. To adopt an assignment, it calls the listener for new partitions. The state shows which side has to act:

| state | meaning | turn |
| --- | --- | --- |
| IDLE | outside of the group: before a subscription, after leaving, or refused by the coordinator | - |
| PREPARING | a rebalance is due; heartbeats go on while the consumer is a member | application |
| JOINING | JoinGroup, then SyncGroup, until there is an assignment | run |
| ADOPTING | there is an assignment; heartbeats go on | application |
| STABLE | heartbeats | run |

Rules
-----
* Eager assignors: members give up all partitions before JOINING. Cooperative assignors (KIP-429): members keep their
  partitions, and list them when they join. Partitions that the new assignment lacks are given up while ADOPTING; then
  the members join once more.
* A member that the coordinator has forgotten has lost its partitions (`lost`), and may not commit for them.
* If the application does not poll for `max.poll.interval.ms`, the member leaves, so that other members get its
  partitions. The next poll rejoins.
* Static members (KIP-345) keep their assignment when they stop: they send no LeaveGroup. If another client joins with
  the same instance id, this member is `fenced` for ever. If it rejoined, the two clients would replace each other again
  and again.
* The coordinator delays the answer to a JoinGroup until all members have joined, so the request's deadline is the
  rebalance timeout. While the client waits for this answer, it sends heartbeats on the same connection, and so
  detects a dead connection. The answer to a SyncGroup is delayed only for the time that the leader needs. So if a
  firewall silently drops the connection, a SyncGroup fails after two request timeouts. A JoinGroup fails after the
  rebalance timeout, as in Kafka's client.

Deliberately absent: KIP-848, where the coordinator assigns partitions (`consumer_membership.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from odradek.client.consumer.assignors import (
    Assignor,
    MemberSubscription,
    assignor_for,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.client.consumer.group_calls import Member
from odradek.client.consumer.membership import CLASSIC, MemberContext, Membership
from odradek.client.core.coordinator_finder import BESIDE_JOIN_LANE, COORDINATOR_LANE
from odradek.client.core.notes import INFO, WARNING
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import ClientError, RequestTimedOut, broker_error, error_code, is_retriable
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, MalformedMessage
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    pass

__all__ = ["GroupMembership", "MembershipState"]

_PROTOCOL_TYPE = "consumer"
_PROBES_MAX = 3
_GRACE_SECONDS = 5.0
"""The seconds added to the rebalance timeout for the deadline of a JoinGroup."""
_LEAVE_SECONDS_MIN = 1.0
_SYNC_REQUEST_TIMEOUTS = 2
"""The deadline of a SyncGroup, as a number of request timeouts: one for the metadata that the group's leader
fetches, one for the SyncGroup itself.
"""


class MembershipState(Enum):
    """The state of a consumer in its group. `_TRANSITIONS` lists the allowed changes."""

    IDLE = "idle"
    PREPARING = "preparing"
    JOINING = "joining"
    ADOPTING = "adopting"
    STABLE = "stable"


_IDLE, _PREPARING, _JOINING, _ADOPTING, _STABLE = MembershipState
_TRANSITIONS = frozenset(
    {
        (_IDLE, _PREPARING),
        (_STABLE, _PREPARING),
        (_ADOPTING, _PREPARING),
        (_JOINING, _PREPARING),
        (_PREPARING, _JOINING),
        (_JOINING, _ADOPTING),
        (_ADOPTING, _STABLE),
        *((state, _IDLE) for state in MembershipState),
    }
)


class _Rejoin(Exception):
    """Raised to send another JoinGroup at once."""


class GroupMembership(Membership):
    """A consumer's membership in its group, by the classic protocol (JoinGroup, SyncGroup)."""

    protocol = CLASSIC
    state: MembershipState
    member_id: str
    generation: int

    def __init__(self, context: MemberContext) -> None:
        super().__init__(context)
        settings = context.settings
        self.assignors: list[Assignor] = [assignor_for(a) for a in settings.partition_assignment_strategy]
        self.cooperative = all(assignor.cooperative for assignor in self.assignors)
        """True if members keep their partitions in a rebalance, because every assignor is cooperative."""
        self.state = _IDLE
        self.member_id = ""
        self.generation = -1
        self.lost = False
        """True if the partitions were lost instead of revoked, and the listener has not been called for this
        loss yet.
        """
        self.assignment: list[TopicPartition] = []
        """The assigned partitions that the application must adopt in the state ADOPTING."""
        self.assignor_name: str | None = None
        self.rejoin_reason = ""
        self._partition_counts: dict[str, int] = {}
        self._rejoin_wanted = False
        self._answered = False
        self._unbroken_since = -1
        """The generation with which this member's unbroken stay in the group began; -1 outside of the group."""
        self._heartbeat: Call | None = None
        self._heartbeat_at = 0.0
        self._attempt = 0
        self._poll_interval_exceeded = False

    # Called by the application's polls

    @property
    def is_member(self) -> bool:
        """True if the consumer is a member of a generation, so that it may commit and must send heartbeats."""
        return self.generation >= 0

    @property
    def has_lost(self) -> bool:
        """True if the partitions were lost instead of revoked, and the listener has not been called for this
        loss yet.
        """
        return self.lost

    @property
    def needs_application(self) -> bool:
        """True if the application must act. Also true during a join with an eager assignor, because the
        application has no partitions until the join has ended.
        """
        return self.state in (_IDLE, _PREPARING, _ADOPTING) or (
            self.state is _JOINING and not self.cooperative
        )

    @property
    def may_commit_automatically(self) -> bool:
        """True if an automatic commit may start now, because no rebalance is under way."""
        return self.state is _STABLE

    @property
    def awaits_join(self) -> bool:
        """True while a join is under way. Commits must wait, because the answer to the join contains a new
        generation.
        """
        return self.state is _JOINING

    @property
    def awaits_assignment(self) -> bool:
        """True between the answers to JoinGroup and SyncGroup, because the coordinator accepts no commits then."""
        return self.state is _JOINING and self._answered

    def goes_on_from(self, former: Member) -> bool:
        """True if this consumer was the member `former`, has been in every generation since then, and may still have
        the partitions of that time.
        """
        return (
            self.cooperative
            and self.is_member
            and not self.lost
            and self.member_id == former.member_id
            and former.generation >= self._unbroken_since
        )

    def polled(self) -> None:
        """Record the time of this poll. Join the group if the consumer has a subscription and is not a
        member.
        """
        self.last_poll = self._core.now
        wanted = self._subscription.topics or self._subscription.remote_pattern
        if self.state is _IDLE and wanted and self.fenced is None:
            self._poll_interval_exceeded = False
            self._become(_PREPARING)

    def subscription_changed(self, reason: str) -> None:
        """Join the group again, with the changed subscription."""
        self.want_rejoin(reason)

    def enforce_rebalance(self, reason: str) -> None:
        """Join the group again, so that its leader assigns all partitions again (KIP-568)."""
        self.want_rejoin(reason)

    def want_rejoin(self, reason: str) -> None:
        """Join the group again: at once, or after the join that is under way. `reason` is sent to the coordinator."""
        self.rejoin_reason = reason
        if self.state in (_STABLE, _ADOPTING):
            self._become(_PREPARING)
        elif self.state is _JOINING:
            self._rejoin_wanted = True

    def prepared(self) -> None:
        """Start to join, after the application has committed and given up partitions."""
        self.lost = False
        self._become(_JOINING)

    def adopted(self) -> None:
        """Become STABLE, because the application has adopted the assignment."""
        if self.state is _ADOPTING:
            self._become(_STABLE)
        if self._rejoin_wanted:
            self._rejoin_wanted = False
            self.want_rejoin(self.rejoin_reason)

    def topics_updated(self) -> None:
        """Compare fresh metadata with the partitions that this member has assigned as the group's leader. If
        they differ, join the group again, which starts a rebalance.
        """
        if (
            self.is_leader
            and self.state is _STABLE
            and self._counts(self.group_topics) != self._partition_counts
        ):
            self.want_rejoin("the partitions of the topics have changed")

    def stop(self) -> None:
        """Stop being a member, with no request to the coordinator; `leave` also sends a LeaveGroup."""
        self._become(_IDLE)

    def renew_epoch(self) -> None:
        """Do nothing: a classic member gets its generation when it joins."""

    def reader(self) -> Member:
        """Return the member to name in requests for committed offsets: in the classic protocol, none."""
        return Member()

    def reader_refused(self, who: Member, error: KafkaError) -> None:
        """Do nothing: classic members fetch committed offsets as clients outside of the group."""

    # In the background

    def run(self) -> Operation[None]:
        """Run the membership until the operation is stopped. Return when the consumer must use the new protocol
        instead.
        """
        while True:
            try:
                if self.state is _JOINING and not self.is_member:
                    moves_on = yield from self._other_kind()
                    if self.state is not _JOINING:
                        continue
                    if moves_on:
                        self._become(_IDLE)
                        return
                    if self._matches_remotely():
                        continue
                if self.state is _JOINING:
                    yield from self._join()
                elif self.is_member and self.state is not _IDLE:
                    yield from self._beat()
                else:
                    yield Wait(signals=[self._turned])
            except (KafkaError, ClientError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
                    reached("client.instance_id_taken")
                    self._fence(error)
                    continue
                self._become(_IDLE)
                self._failed(error)

    def _matches_remotely(self) -> bool:
        """Let this client match the subscribed pattern from now on, because the classic protocol has no patterns.
        Return False if the subscription has no pattern that the coordinator would match.
        """
        if self._subscription.remote_pattern is None:
            return False
        self._become(_IDLE)
        self._subscription.match_locally()
        self._ask_metadata()
        return True

    def _fence(self, error: KafkaError) -> None:
        self._note_lasting(error)
        self._forget(keep_id=False)
        self._become(_IDLE)

    def _become(self, state: MembershipState) -> None:
        if state is self.state:
            return
        if (self.state, state) not in _TRANSITIONS:
            raise AssertionError(
                f"a group member cannot go from the state {self.state.value} to {state.value}"
            )
        self.state = state
        self._turned.notify()
        self._changed.notify()

    def _forget(self, *, keep_id: bool) -> None:
        """Drop the generation, and without `keep_id` also the member id, because the coordinator no longer
        knows them. The partitions count as lost.
        """
        if not keep_id:
            self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.lost = True
        if self.state not in (_IDLE, _PREPARING):
            self._become(_PREPARING)
        self._changed.notify()

    def refused(self, error: KafkaError) -> None:
        """Handle the coordinator's refusal of a commit. The refusal may mean that the member must rejoin."""
        code = error.code
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._fence(error)
        elif self.state is _JOINING and code is not ErrorCode.UNKNOWN_MEMBER_ID:
            reached("client.refusal_during_join_passed_over")
            return  # a join is under way already, and its answer decides what follows
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget(keep_id=code is ErrorCode.ILLEGAL_GENERATION)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.want_rejoin("the coordinator refused a commit, because the group is rebalancing")

    # Heartbeats

    def _beat(self) -> Operation[None]:
        core = self._core
        interval_ends = self.last_poll + self._settings.max_poll_interval_ms / 1000
        if core.now >= interval_ends:
            reached("client.left_for_not_polling")
            yield from self._leave_for_not_polling()
            return
        call = self._heartbeat
        if call is None:
            if core.now < self._heartbeat_at:
                yield Wait(until=min(self._heartbeat_at, interval_ends), signals=[self._turned])
                return
            deadline = core.now + self._settings.session_timeout_ms / 1000
            node = yield from self._find_for_heartbeat(deadline)
            if node is None or not self.is_member or self.state in (_IDLE, _JOINING):
                return
            call = self._heartbeat = core.call(
                self._beat_request(), node=node, deadline=deadline, lane=COORDINATOR_LANE
            )
        generation = self.generation
        yield Wait([call], until=interval_ends, signals=[self._turned])
        if call.done:
            self._heartbeat = None
            self._heartbeat_at = core.now + self._settings.heartbeat_interval_ms / 1000
            self._take_heartbeat(call, generation)
        elif not self.is_member or self.state is _JOINING:
            self._heartbeat = None

    def _beat_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._coordinator.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )

    def _find_for_heartbeat(self, deadline: float) -> Operation[int | None]:
        try:
            node = yield from self._coordinator.find(deadline=deadline)
        except (KafkaError, ClientError) as error:
            if not is_retriable(error):
                raise
            self._heartbeat_at = self._core.now + self._core.backoff(0)
            return None
        return node

    def _take_heartbeat(self, call: Call, generation: int) -> None:
        if call.error is not None:
            if not is_retriable(call.error):
                raise call.error
            self._coordinator.lost()
            self._heartbeat_at = self._core.now + self._core.backoff(0)
            return
        code = error_code(call.response.error_code)
        if code is ErrorCode.NONE or generation != self.generation:
            return
        self._coordinator.noted(code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.want_rejoin("the group is rebalancing")
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget(keep_id=code is ErrorCode.ILLEGAL_GENERATION)
        elif code.retriable:
            self._heartbeat_at = self._core.now + self._core.backoff(0)
        else:
            raise broker_error(code, None, f"group {self._coordinator.group_id}")

    def _leave_for_not_polling(self) -> Operation[None]:
        self._poll_interval_exceeded = True
        self.lost = True
        self._core.notes.add(
            WARNING, "the consumer leaves its group, because it has not polled for max.poll.interval.ms"
        )
        self._become(_IDLE)
        yield from self._send_leave(
            "the consumer has not polled for max.poll.interval.ms", timeout=_GRACE_SECONDS
        )

    def leave(self, reason: str, *, timeout: float) -> Operation[None]:
        """Leave the group; errors are ignored. A static member sends no LeaveGroup."""
        self.lost = False
        yield from self._send_leave(reason, timeout=timeout)

    def _send_leave(self, reason: str, *, timeout: float) -> Operation[None]:
        if self.state is not _IDLE:
            self._become(_IDLE)
        member_id, self.member_id, self.generation = self.member_id, "", -1
        self.is_leader = False
        coordinator = self._coordinator
        if not member_id or self._settings.group_instance_id is not None or coordinator.node is None:
            return
        request = LeaveGroupRequest(
            group_id=coordinator.group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id, reason=reason)],
        )
        now = self._core.now
        # Send the request even if no time is left to wait for the answer.
        deadline = now + max(timeout, _LEAVE_SECONDS_MIN)
        call = self._core.call(request, node=coordinator.node, deadline=deadline, lane=coordinator.lane)
        yield Wait([call], until=now + timeout)

    # Joining

    def _join(self) -> Operation[None]:
        """Join the group once: JoinGroup, then SyncGroup. Raises errors for the application."""
        core = self._core
        self._answered = False
        try:
            deadline = core.now + self._settings.default_api_timeout_ms / 1000
            yield from self._coordinator.find(deadline=deadline)
            joined = yield from self._send_join()
            assignment = yield from self._sync(joined)
        except _Rejoin:
            return
        except (KafkaError, ClientError) as error:
            if not is_retriable(error):
                raise
            self._coordinator.lost()
            yield from self._pause()
            return
        finally:
            if self._answered:
                self._answered = False
                self._changed.notify()
        self._attempt = 0
        if self.state is not _JOINING:
            return
        self.assignment = assignment
        self.rebalances += 1
        member = f"group {self._coordinator.group_id}: member {self.member_id}, generation {self.generation}"
        self._core.notes.add(INFO, f"{member}, has {len(assignment)} partitions")
        self._heartbeat = None
        self._heartbeat_at = core.now + self._settings.heartbeat_interval_ms / 1000
        self._become(_ADOPTING)

    def _pause(self) -> Operation[None]:
        yield Wait(until=self._core.now + self._core.backoff(self._attempt))
        self._attempt += 1

    def _send_join(self) -> Operation[JoinGroupResponse]:
        core, settings = self._core, self._settings
        rebalance_timeout = settings.max_poll_interval_ms
        request = JoinGroupRequest(
            group_id=self._coordinator.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(assignor.name, encode_subscription(self._words(assignor)))
                for assignor in self.assignors
            ],
            reason=self.rejoin_reason or None,
        )
        response: JoinGroupResponse = yield from self._ask(
            request, core.now + rebalance_timeout / 1000 + _GRACE_SECONDS
        )
        code = error_code(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            raise _Rejoin
        yield from self._check(code)
        if self.generation < 0 or response.generation_id not in (self.generation, self.generation + 1):
            self._unbroken_since = response.generation_id
        self.member_id = response.member_id
        self.generation = response.generation_id
        self._answered = True
        self.known_as = self.member
        self.assignor_name = response.protocol_name
        self.is_leader = response.leader == self.member_id
        return response

    def _words(self, assignor: Assignor) -> MemberSubscription:
        return MemberSubscription(
            self.member_id,
            self._subscription.topics,
            tuple(self._subscription.partitions) if self.cooperative else (),
            self.generation,
            rack=self._settings.client_rack or None,
            user_data=assignor.user_data(self.generation),
        )

    def _ask(self, request: JoinGroupRequest | SyncGroupRequest, deadline: float) -> Operation[Any]:
        self._coordinator.lane = BESIDE_JOIN_LANE
        try:
            answer = yield from self._answer(request, deadline)
        finally:
            self._coordinator.lane = COORDINATOR_LANE
        return answer

    def _answer(self, request: JoinGroupRequest | SyncGroupRequest, deadline: float) -> Operation[Any]:
        core, node = self._core, self._coordinator.node
        if node is None:
            raise _Rejoin
        call = core.call(request, node=node, deadline=deadline, lane=COORDINATOR_LANE, patient=True)
        probes = 0
        while not call.done:
            until = core.now + self._settings.session_timeout_ms / 3000 if probes < _PROBES_MAX else None
            yield Wait([call], until=until, signals=[self._turned])
            if self.state is not _JOINING:
                raise _Rejoin
            if until is not None and core.now >= until and not call.done:
                reached("client.coordinator_probed")
                # This heartbeat only tests the connection; its answer is ignored. If the coordinator's host has
                # restarted after a power failure, it replies to any bytes with a TCP reset. A client that sent nothing
                # while it waits for the JoinGroup would not notice the restart.
                core.call(
                    self._beat_request(), node=node, deadline=deadline, lane=COORDINATOR_LANE, patient=True
                )
                probes += 1
        return call.result()

    def _check(self, code: ErrorCode) -> Operation[None]:
        """Handle the error code of an answer to JoinGroup or SyncGroup. Raises `_Rejoin` to join again, or the error
        if it is final.
        """
        if code is ErrorCode.NONE:
            return
        self._coordinator.noted(code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            raise _Rejoin
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            reached("client.membership_lost")
            had_partitions = bool(self._subscription.partitions)
            keep_id = code is ErrorCode.ILLEGAL_GENERATION
            if had_partitions:
                self._forget(keep_id=keep_id)
            else:
                self.generation = -1
                self.member_id = self.member_id if keep_id else ""
            raise _Rejoin
        if not code.retriable:
            raise broker_error(code, None, f"group {self._coordinator.group_id}")
        yield from self._pause()
        raise _Rejoin

    def _sync(self, joined: JoinGroupResponse) -> Operation[list[TopicPartition]]:
        shares: dict[str, bytes] = {}
        if self.is_leader and not joined.skip_assignment:
            shares = yield from self._assign(joined)
        request = SyncGroupRequest(
            group_id=self._coordinator.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id, share) for member_id, share in shares.items()],
        )
        response = yield from self._ask(request, self._core.now + self._sync_seconds_max())
        yield from self._check(error_code(response.error_code))
        try:
            return decode_assignment(response.assignment)
        except MalformedMessage as error:
            raise ClientError(
                f"the group's leader sent an assignment that cannot be read: {error}"
            ) from error

    def _sync_seconds_max(self) -> float:
        """Compute the seconds to allow for a SyncGroup. The result includes the time in which the group's leader
        fetches metadata before it sends its own SyncGroup.
        """
        rebalance_seconds = self._settings.max_poll_interval_ms / 1000 + _GRACE_SECONDS
        return min(rebalance_seconds, _SYNC_REQUEST_TIMEOUTS * self._core.config.request_timeout)

    def _assign(self, joined: JoinGroupResponse) -> Operation[dict[str, bytes]]:
        """Assign partitions as the group's leader: fetch metadata, then run the assignor that the coordinator chose.
        Returns each member's encoded assignment.
        """
        assignor = next((a for a in self.assignors if a.name == joined.protocol_name), None)
        if assignor is None:
            raise ClientError(
                f"the coordinator chose the assignor {joined.protocol_name}, which this member does not have"
            )
        try:
            members = [
                decode_subscription(member.member_id, member.group_instance_id, member.metadata)
                for member in joined.members
            ]
        except MalformedMessage as error:
            raise ClientError(f"the subscription of a group member cannot be read: {error}") from error
        topics = sorted({topic for member in members for topic in member.topics})
        self.group_topics = tuple(topics)
        yield from self._learn(topics)
        counts = self._partition_counts = self._counts(topics)
        # Run the assignor in a thread, because it may take seconds for a large group. Calls and heartbeats
        # must not wait for it.
        work = self._core.compute(partial(_shares, assignor, dict(counts), members))
        while not work.done:
            until = self._core.now + self._settings.heartbeat_interval_ms / 1000
            yield Wait([work], until=until, signals=[self._turned])
            if self.state is not _JOINING:
                raise _Rejoin
            node = self._coordinator.node
            if not work.done and node is not None:
                # The answer to this heartbeat is ignored, because the answer to the SyncGroup has the same
                # information.
                deadline = self._core.now + self._settings.session_timeout_ms / 1000
                self._core.call(self._beat_request(), node=node, deadline=deadline, lane=COORDINATOR_LANE)
        shares: dict[str, bytes] = work.result()
        return shares

    def _learn(self, topics: Sequence[str]) -> Operation[None]:
        if not topics:
            return
        try:
            timeout = min(self._core.config.request_timeout, self._settings.max_poll_interval_ms / 2000)
            yield from refresh_metadata(
                self._core, topics, timeout=timeout, auto_create=self._settings.allow_auto_create_topics
            )
        except RequestTimedOut:
            return  # keep the former metadata; if it is outdated, the next refresh causes a rebalance

    def _counts(self, topics: Sequence[str]) -> dict[str, int]:
        known = self._core.cluster.topics
        return {name: len(known[name].partitions) for name in topics if name in known}


def _shares(
    assignor: Assignor, counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[str, bytes]:
    found = assignor.assign(counts, members)
    return {member_id: encode_assignment(keys) for member_id, keys in found.items()}
