"""Interception of a consumer's commits, including automatic commits, so that the group's checks see each commit.
PORTED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.client.consumer.group_calls import Coordinator, Member, TopicIds
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Operation
from odradek.client.errors import ClientError
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.sync_group import SyncGroupRequest
from odradek.wire.topic_partition import TopicPartition
from sim.history import SafetyViolation
from sim.machine.world import World

REFUSED = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
)
"""Error codes that apply to a whole commit: a coordinator that returns such a code has accepted no offset of the
commit.
"""

__all__ = ["WatchedCommits"]


C = TypeVar("C")


class CommitLedger(Protocol[C]):
    """The part of a group's checks that records commits."""

    def commits(
        self, member: str, generation: int, offsets: Mapping[TopicPartition, int], now: float
    ) -> C: ...

    def committed(self, commit: C, now: float, *, times: int = 1) -> None: ...

    def refused(self, commit: C, now: float, error: str, *, certain: bool) -> None: ...

    def leaves(self, member: str) -> None: ...


class WatchedCommits(Generic[C]):
    """Intercepts the commits between a consumer and its coordinator. An impossible answer fails the run."""

    def __init__(
        self, world: World, promises: CommitLedger[C], name: str, core: ClientCore, coordinator: Coordinator
    ) -> None:
        self._world = world
        self._promises = promises
        self._name = name
        self.sound = coordinator.commit
        """The coordinator's original `commit` method. Commits by this method are not recorded."""
        self._sound_call = core.call
        self._times: dict[int, int] = {}
        self._serial = 0
        self._active = 0
        self.syncs: dict[int, float] = {}
        """For each generation, the virtual time at which the member first requested its assignment."""
        setattr(coordinator, "commit", self.commit)  # noqa: B010 - mypy forbids assignment to a method
        setattr(core, "call", self._call)  # noqa: B010

    def _call(self, request: Any, **named: Any) -> Any:
        if isinstance(request, OffsetCommitRequest):
            self._times[self._active] = self._times.get(self._active, 0) + 1
        elif isinstance(request, SyncGroupRequest):
            self.syncs.setdefault(request.generation_id, self._world.now)
        elif isinstance(request, LeaveGroupRequest):
            self._promises.leaves(self._name)
        return self._sound_call(request, **named)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: Member,
        *,
        deadline: float,
        topic_ids: TopicIds,
    ) -> Operation[None]:
        """Call the coordinator's original `commit`, and record the outcome for the group's checks."""
        if not offsets:
            return
        wanted = {key: each.offset for key, each in offsets.items()}
        try:
            open_commit = self._promises.commits(self._name, member.generation, wanted, self._world.now)
        except SafetyViolation as error:
            self._world.refute(error)
            return
        self._serial += 1
        number = self._serial
        self._times[number] = 0
        try:
            yield from self._counted(
                number, self.sound(offsets, member, deadline=deadline, topic_ids=topic_ids)
            )
        except (KafkaError, ClientError) as error:
            refused = isinstance(error, KafkaError) and error.code in REFUSED
            certain = refused and self._times[number] == 1
            self._promises.refused(open_commit, self._world.now, repr(error), certain=certain)
            raise
        self._taken(open_commit, self._times.pop(number))

    def _counted(self, number: int, sound: Operation[None]) -> Operation[None]:
        """Run the operation, and count each request that it sends for this commit."""
        while True:
            self._active = number
            try:
                wait = next(sound)
            except StopIteration:
                return
            yield wait

    def _taken(self, open_commit: C, times: int) -> None:
        try:
            self._promises.committed(open_commit, self._world.now, times=times)
        except SafetyViolation as error:
            self._world.refute(error)
