"""All shards of a broker for one internal topic: begun and ended with leaderships, held back, and chosen by
group or transactional id. PORTED.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from odradek.data_plane.coordination.asking import Ask, Asks, Reply
from odradek.data_plane.coordination.shard import RELOAD_SECONDS, CoordinatorHost, Shard
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import MetadataDelta
from odradek.metadata_quorum.state_machine import NotEncoded
from odradek.serving.contract import Context, Delayed, Result
from odradek.serving.steps import Answers, Steps
from odradek.serving.timers import Timer
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode

A = TypeVar("A")
ShardT = TypeVar("ShardT", bound=Shard[Any, Any])

DECISION_UNITS = 5
"""The cost of one coordinator's decision, in units. One unit is the cost of describing one partition."""


class Shards(ABC, Generic[ShardT]):
    """The shards of one topic, by partition. There is a shard for each partition that this broker leads."""

    def __init__(self, broker: CoordinatorHost, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.not_encoded = NotEncoded(broker.clock, broker.log)
        self.shards: dict[int, ShardT] = {}
        self._is_open = True
        self._is_held = False
        self._reload: Timer | None = None
        """The timer that starts all failed shards again. All shards share this timer. So the broker reads an
        unreadable log at most once per pause, even if leadership changes often.
        """

    @abstractmethod
    def new_shard(self, partition: Partition, failed: Callable[[Any], None]) -> ShardT:
        """Make the coordinator of a partition that this broker leads now."""

    @abstractmethod
    def refusal(self, ask: Ask, code: ErrorCode) -> Any:
        """Build the response that refuses `ask` with `code`, for a key that no shard of this broker
        coordinates.
        """

    def partition_for(self, key: str) -> int | None:
        """Return the partition that coordinates this group or transactional id; None while the topic does not
        exist.
        """
        topic = self._broker.newest.image.topics.get(self._topic)
        return None if topic is None else coordinator_partition(key, len(topic.partitions))

    def submit(self, key: str, ask: Ask) -> None:
        """Pass a request to the shard that coordinates `key`.

        `ask.reply` gets the answer. If another node coordinates the key, the answer is NOT_COORDINATOR, and
        comes at once.
        """
        index = self.partition_for(key)
        shard = None if index is None else self.shards.get(index)
        if shard is not None:
            shard.submit(ask)
        elif ask.reply is not None:
            ask.reply.complete(self.refusal(ask, ErrorCode.NOT_COORDINATOR))

    def ask(self, key: str, request: Asks[A]) -> Steps[A]:
        """Send the key's coordinator a request that has no API version, and return its answer."""
        answers: list[A] = yield from self.ask_all(0, ((key, request),), 0)
        return answers[0]

    def ask_all(
        self, version: int, asked: Iterable[tuple[str, Any]], units: int = DECISION_UNITS
    ) -> Steps[list[Any]]:
        """Send each key's request to its coordinator, and return the answers in the same order.

        `units` is the cost of one decision, in the units of `DECISION_UNITS`.
        """
        answers, wall_ms = Answers(), self._broker.agreed_clock.latest_ms()
        for key, request in asked:
            self.submit(key, Ask(request, version, answers.receiver(), wall_ms))
            yield units
        came: list[Any] = yield answers
        return came

    def answer(
        self, context: Context, key: str, request: Any, may_see: Callable[[str], bool] | None = None
    ) -> Result:
        """Submit a client's request to the coordinator of `key`. Returns the response if the coordinator
        answers at once, otherwise a `Delayed`. `may_see` returns True for a topic that the client may
        DESCRIBE.
        """
        delayed = Delayed()
        self.submit(key, self.ask_of(context, request, delayed, may_see))
        return delayed if delayed.response is None else delayed.response

    def ask_of(
        self,
        context: Context,
        request: Any,
        reply: Reply,
        may_see: Callable[[str], bool] | None,
        check_pattern: Callable[[str], None] | None = None,
    ) -> Ask:
        """Make the `Ask` by which a client's request reaches a coordinator. It contains the present time."""
        return Ask(
            request,
            context.api_version,
            reply,
            self._broker.agreed_clock.latest_ms(),
            context.client_id or "",
            f"/{context.client_address}",
            may_see,
            check_pattern,
        )

    def follow(self, delta: MetadataDelta) -> None:
        """Start and stop shards, if this change of the metadata concerns the topic."""
        if self._topic in delta.changed_topics or any(
            topic.name == self._topic for topic in delta.deleted_topics.values()
        ):
            self.follow_leadership()

    def follow_leadership(self) -> None:
        """Start and stop shards, so that each partition led by this broker has exactly one shard, for its
        present leader epoch.
        """
        hosted = self._broker.topics.get(self._topic)
        led = {
            index: partition
            for index, partition in ({} if hosted is None else hosted.partitions).items()
            if partition.is_leader and self._is_open and not self._is_held
        }
        for index, shard in sorted(self.shards.items()):
            partition = led.get(index)
            if partition is not shard.partition or partition.leader_epoch != shard.leader_epoch:
                del self.shards[index]
                shard.stop()
        for index, partition in sorted(led.items()):
            if index not in self.shards:
                self._begin(index, partition)

    def _begin(self, index: int, partition: Partition) -> None:
        shard = self.shards[index] = self.new_shard(partition, self._shard_failed)
        self._broker.tasks.start_soon(shard.load)

    def _shard_failed(self, shard: ShardT) -> None:
        """Stop a failed shard. After a pause, a new shard loads the state from the log again."""
        shard.stop()
        index = shard.partition.log.partition
        if self.shards.get(index) is shard:
            del self.shards[index]
            if self._reload is None:
                at = self._broker.clock.monotonic() + RELOAD_SECONDS
                self._reload = self._broker.timers.at(at, self._begin_anew)

    def _begin_anew(self) -> None:
        self._reload = None
        self.follow_leadership()

    def hold(self, is_held: bool) -> None:
        """Stop all shards and begin none while `is_held` is true.

        After a restart, the old metadata still name this broker as the leader, until its new registration has
        been replayed. This broker's log may lack records that other replicas have. A coordinator on such a
        log could send transaction markers that the next coordinator contradicts.
        """
        self._is_held = is_held
        self.follow_leadership()

    def stop(self) -> None:
        """Stop all shards, because the node stops. Waiting requests get NOT_COORDINATOR."""
        self._is_open = False
        self.follow_leadership()

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics, summed over all shards."""
        totals = {"shards": len(self.shards), "loading": 0}
        for shard in self.shards.values():
            totals["loading"] += shard.is_loading
            for name, value in shard.statistics().items():
                totals[name] = totals.get(name, 0) + value
        return totals
