"""The positions at which a consumer begins to read, from commits or by the reset policy, and their validation
after a change of leader. PURE.

`Positions.run` is an operation that runs as long as the consumer. On every signal it looks for partitions whose
position is unknown, and for positions that a new leader may not have. For both, it sends requests to brokers. If the
application has sought or lost the partition before the answer comes, the answer is ignored (`PartitionState.serial`).

Truncation (KIP-320): after a change of leader, the new leader reports where the epoch of the last read record
ends in its log. If the logs diverge above the position, only records that were fetched ahead are fetched
again. If the logs diverge below the position, records that the application has read are gone. With a reset
policy, the consumer continues at the offset where the logs diverge. Without a policy, `TruncationDetected` is
raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.client.consumer.consumer_types import NoOffsetForPartition, OffsetAndMetadata, TruncationDetected
from odradek.client.consumer.fetch_loop import needs_validation
from odradek.client.consumer.subscription import PartitionState, Subscription
from odradek.client.core.operation import Call, Operation, Signal, Wait
from odradek.client.core.partition_offsets import EARLIEST, LATEST, list_offsets
from odradek.client.core.requests import in_parts, known_leaders
from odradek.client.errors import ClientError, error_code, is_retriable
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.consumer.group_calls import Coordinator
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["Positions", "duration_ms"]


def duration_ms(policy: str) -> int:
    """Convert the duration of the policy `by_duration:PnDTnHnMn.nS` to milliseconds. The policy must be valid."""
    found = re.fullmatch(r"(?i)by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?", policy)
    assert found is not None
    days, hours, minutes, seconds = (float(text or 0) for text in found.groups())
    return round(1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds))


class Positions:
    """Finds and validates the positions of a consumer: the next offset to read in each partition.

    `failed(state, error)` stores an error for the application; `wall_ms()` returns the time of day in milliseconds
    since 1970.
    """

    def __init__(
        self,
        core: ClientCore,
        settings: ConsumerSettings,
        subscription: Subscription,
        coordinator: Coordinator | None,
        *,
        news: Signal,
        found: Signal,
        ask_metadata: Callable[[], None],
        failed: Callable[[PartitionState, Exception], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._core = core
        self._settings = settings
        self._subscription = subscription
        self._coordinator = coordinator
        self._news = news
        self._found = found
        self._ask_metadata = ask_metadata
        self._failed = failed
        self._wall_ms = wall_ms
        self._retry_at: float | None = None
        self._attempt = 0
        self._isolation_level = 1 if settings.isolation_level == "read_committed" else 0

    def run(self) -> Operation[None]:
        """Find and validate positions until the operation is stopped."""
        while True:
            if self._retry_at is not None and self._retry_at > self._core.now:
                yield Wait(until=self._retry_at)
            self._retry_at = None
            worked = yield from self._round()
            if not worked:
                yield Wait(until=self._retry_at, signals=[self._news])

    def _round(self) -> Operation[bool]:
        """Find or validate the positions of all partitions that need it; return True if there were any."""
        states = list(self._subscription.partitions.values())
        uncommitted = [state for state in states if state.needs_committed]
        # Skip topics without metadata. The arrival of their metadata notifies a signal, which starts another round.
        known = self._core.cluster.topics
        resets = [state for state in states if state.reset_to is not None and state.key.topic in known]
        doubtful = [state for state in states if needs_validation(self._core, state) and state.error is None]
        if not uncommitted and not resets and not doubtful:
            return False
        try:
            if uncommitted:
                yield from self._from_commits(uncommitted)
            if resets:
                yield from self._from_policy(resets)
            if doubtful:
                yield from self._validate(doubtful)
        except (KafkaError, ClientError) as error:
            if is_retriable(error):
                self._later()
            else:
                for state in (*uncommitted, *resets):
                    self._failed(state, error)
                return False
        else:
            if self._retry_at is None:
                self._attempt = 0
        self._found.notify()
        self._news.notify()
        return True

    def _later(self) -> None:
        self._retry_at = self._core.now + self._core.backoff(self._attempt)
        self._attempt += 1
        self._ask_metadata()

    def _from_commits(self, states: list[PartitionState]) -> Operation[None]:
        serials = [state.serial for state in states]
        commits: dict[TopicPartition, OffsetAndMetadata | None] = {}
        if self._coordinator is not None:
            deadline = self._core.now + self._settings.default_api_timeout_ms / 1000
            keys = [state.key for state in states]
            commits = yield from self._coordinator.committed(keys, deadline=deadline)
        for state, serial in zip(states, serials, strict=True):
            if not state.needs_committed or state.serial != serial:
                reached("client.committed_position_came_too_late")
                continue
            commit = commits.get(state.key)
            if commit is not None:
                state.seek(commit.offset, commit.leader_epoch)
                if self._core.cluster.note_epoch(*state.key, commit.leader_epoch):
                    self._ask_metadata()
            elif self._settings.auto_offset_reset == "none":
                state.needs_committed = False
                self._failed(state, NoOffsetForPartition([state.key]))
            else:
                state.reset(self._settings.auto_offset_reset)

    def _from_policy(self, states: list[PartitionState]) -> Operation[None]:
        """Look up positions by the reset policy. If one request for all topics fails, look the positions up
        topic by topic, so that a missing topic affects no other topic.
        """
        serials = {state.key: state.serial for state in states}
        try:
            yield from self._list(states, serials)
        except KafkaError:
            topics = dict.fromkeys(state.key.topic for state in states)
            if len(topics) < 2:
                raise
            for topic in topics:
                try:
                    yield from self._list([state for state in states if state.key.topic == topic], serials)
                except KafkaError:
                    self._later()

    def _list(self, states: list[PartitionState], serials: dict[TopicPartition, int]) -> Operation[None]:
        wanted: dict[TopicPartition, int] = {}
        for state in states:
            policy = state.reset_to or "latest"
            if policy in ("earliest", "latest"):
                wanted[state.key] = EARLIEST if policy == "earliest" else LATEST
            else:
                wanted[state.key] = max(0, self._wall_ms() - duration_ms(policy))
        timeout = self._core.config.request_timeout
        found = yield from list_offsets(
            self._core, wanted, timeout=timeout, isolation_level=self._isolation_level
        )
        young = {key: LATEST for key, listed in found.items() if listed.offset < 0}
        if young:
            reached("client.no_record_that_young")
            # No record has that time or a later one: continue with the next record that will be written.
            found |= yield from list_offsets(
                self._core, young, timeout=timeout, isolation_level=self._isolation_level
            )
        for state in states:
            if state.reset_to is not None and state.serial == serials[state.key]:
                listed = found[state.key]
                state.seek(listed.offset)

    # KIP-320

    def _validate(self, states: list[PartitionState]) -> Operation[None]:
        from odradek.wire.messages.offset_for_leader_epoch import (
            OffsetForLeaderEpochRequest,
            OffsetForLeaderPartition,
            OffsetForLeaderTopic,
        )

        core = self._core
        by_key: dict[TopicPartition, PartitionState] = {state.key: state for state in states}
        by_leader, without = known_leaders(core, by_key)
        if without:
            self._later()
        calls: list[tuple[Call, dict[TopicPartition, tuple[PartitionState, int, int]]]] = []
        for node, keys in in_parts(by_leader):
            topics: dict[str, OffsetForLeaderTopic] = {}
            asked = {}
            for key in keys:
                state = by_key[key]
                epoch = core.cluster.topics[key.topic].partitions[key.partition].leader_epoch
                asked[key] = (state, state.serial, epoch)
                topic = topics.setdefault(key.topic, OffsetForLeaderTopic(topic=key.topic))
                topic.partitions.append(OffsetForLeaderPartition(key.partition, epoch, state.fetch_epoch))
            message = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))
            calls.append(
                (core.call(message, node=node, deadline=core.now + core.config.request_timeout), asked)
            )
        if calls:
            yield Wait([call for call, _ in calls])
        for call, asked in calls:
            if call.error is not None:
                if not is_retriable(call.error):
                    raise call.error
                self._later()
                continue
            for topic in call.response.topics:
                for answer in topic.partitions:
                    state, serial, epoch = asked[TopicPartition(topic.topic, answer.partition)]
                    if state.serial == serial:
                        self._validated(
                            state, epoch, answer.error_code, answer.leader_epoch, answer.end_offset
                        )

    def _validated(
        self, state: PartitionState, leader_epoch: int, error: int, end_epoch: int, end_offset: int
    ) -> None:
        """Process a leader's answer, which says that the records of epoch `end_epoch` end at `end_offset` in
        its log. `end_epoch` is the requested epoch, or else the latest earlier epoch in that log.
        """
        code = error_code(error)
        if code is not ErrorCode.NONE:
            self._later()
            return
        assert state.position is not None
        assert state.fetch_offset is not None
        state.validated_epoch = leader_epoch
        if end_offset >= state.fetch_offset and end_epoch >= 0:
            return
        if end_offset >= state.position and end_epoch >= 0:
            reached("client.fetched_beyond_truncation_dropped")
            state.drop_fetched()
            state.validated_epoch = -1
            if state.fetch_epoch > end_epoch:
                state.position_epoch = state.fetch_epoch = end_epoch
            return
        position = state.position
        diverging = OffsetAndMetadata(end_offset, end_epoch) if end_epoch >= 0 and end_offset >= 0 else None
        policy = self._settings.auto_offset_reset
        if policy == "none":
            state.drop_fetched()
            self._failed(state, TruncationDetected(state.key, position, diverging))
        elif diverging is None:
            state.reset(policy)
        else:
            state.seek(diverging.offset, diverging.leader_epoch)
            state.validated_epoch = leader_epoch
