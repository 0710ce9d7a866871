"""The subscription of a consumer (topics, pattern, manual assignment), the partitions that it reads, and its
progress in each. PURE.

A partition has three offsets. `position` is the next offset that the application gets. `fetch_offset` is the
next offset to fetch; it is ahead of the position by the records that are fetched already (`chunks`). The
third offset is the group's committed offset, which the coordinator stores. A partition is fetched once it has
a position. The position comes from a seek, from the group's commit (`needs_committed`), or from the reset
policy (`reset_to`).

A partition that is revoked and assigned again has a new `PartitionState`, and `seek` increments `serial`. So the
answer to an earlier request no longer matches, and is dropped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

import attrs

from odradek.client.consumer.consumer_records import BatchRecords
from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.errors import ClientError
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Chunk", "PartitionState", "Subscription"]


@attrs.define(eq=False)
class Chunk:
    """The records of one partition in one fetch response: whole batches. Batches before the index `position` in
    `data` have been read already.
    """

    data: memoryview
    end: int
    """The position in `data` after the last whole batch."""
    position: int = 0
    aborted: deque[tuple[int, int]] = attrs.field(factory=deque)
    """(first offset, producer id) of each aborted transaction, sorted by offset; empty unless read_committed."""
    aborted_producers: dict[int, None] = attrs.field(factory=dict)


@attrs.define(eq=False)
class PartitionState:
    """The consumer's state of one partition. Unknown offsets are None and unknown epochs -1. Times are seconds of the
    core's clock.
    """

    key: TopicPartition
    position: int | None = None
    position_epoch: int = -1
    """The leader epoch of the last record before the position."""
    fetch_offset: int | None = None
    fetch_epoch: int = -1
    serial: int = 0
    paused: bool = False
    needs_committed: bool = False
    reset_to: str | None = None
    validated_epoch: int = -1
    """The leader epoch in which the position was last validated against the leader's log (KIP-320)."""
    retry_at: float = 0.0
    failures: int = 0
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    topic_id: bytes | None = None
    """The id of the topic from which the last records were fetched; None before the first fetch."""
    preferred_replica: int | None = None
    preferred_until: float = 0.0
    chunks: deque[Chunk] = attrs.field(factory=deque)
    buffered_bytes: int = 0
    batch: BatchRecords | None = None
    """The partly decoded batch at the first chunk's position; None if none is open."""
    parsed: list[ConsumerRecord] = attrs.field(factory=list)
    """The decoded records of `batch`. Polls have already returned the records before `parsed_index`."""
    parsed_index: int = 0
    returned: deque[ConsumerRecord] = attrs.field(factory=deque)
    """Records that the application gave back. Polls return them first."""
    returned_end: tuple[int, int] = (0, -1)
    """The position after the records in `returned`, and the leader epoch of that position."""
    records_taken: int = 0
    bytes_taken: int = 0
    """The bytes of all batches read so far, compressed as they were fetched."""
    error: Exception | None = None
    """An error that a poll raises after all records that were fetched before it; None if there is none."""

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Set the position to `offset`, and drop the records that were fetched already."""
        self.drop_fetched()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = leader_epoch
        self.validated_epoch = -1
        self.topic_id = None
        self.needs_committed = False
        self.reset_to = None

    def reset(self, reset_to: str) -> None:
        """Drop the position, and let the reset policy find another position: `earliest`, `latest` or `by_duration:...`."""
        self.drop_fetched()
        self.position = self.fetch_offset = None
        self.topic_id = None
        self.needs_committed = False
        self.reset_to = reset_to

    def drop_fetched(self) -> None:
        """Drop the fetched records, and ignore the answer to a fetch under way."""
        self.serial += 1
        self.chunks.clear()
        self.buffered_bytes = 0
        self.batch = None
        self.parsed = []
        self.parsed_index = 0
        self.returned.clear()
        self.error = None
        self.retry_at = 0.0
        self.failures = 0
        if self.position is not None:
            self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    @property
    def has_data(self) -> bool:
        """True if a poll would find records or an error in this partition."""
        return bool(self.chunks or self.returned or self.error)


class Subscription:
    """The application's subscription (topics, a pattern, or partitions assigned by hand), and the partitions that are
    read.

    Only one of the three kinds may be in use; a call for another kind raises `RuntimeError`.
    """

    def __init__(self) -> None:
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.remote_pattern: str | None = None
        """The pattern that the coordinator matches; None if there is none."""
        self.manual = False
        self.partitions: dict[TopicPartition, PartitionState] = {}

    @property
    def grouped(self) -> bool:
        """True if the consumer has subscribed, so that its group assigns the partitions."""
        return bool(self.topics) or self.pattern is not None or self.remote_pattern is not None

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to topics; the group assigns their partitions."""
        self._only(grouped=True)
        self.pattern = self.remote_pattern = None
        self.topics = tuple(sorted(set(topics)))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to all topics whose whole name matches a Python pattern; the group assigns their partitions."""
        self._only(grouped=True)
        if self.pattern is None:
            self.topics = ()
        self.pattern = pattern
        self.remote_pattern = None

    def subscribe_remotely(self, pattern: str) -> None:
        """Subscribe to all topics whose whole name matches a pattern that the coordinator matches (KIP-848)."""
        self._only(grouped=True)
        self.topics = ()
        self.pattern = None
        self.remote_pattern = pattern

    def match_locally(self) -> None:
        """Let this client, instead of the coordinator, match the subscribed pattern, as a Python pattern.
        Raises `ClientError` if Python does not accept it.
        """
        assert self.remote_pattern is not None
        try:
            pattern = re.compile(self.remote_pattern)
        except re.error as error:
            raise ClientError(
                f"the group uses the classic protocol, where this client matches the pattern "
                f"{self.remote_pattern!r} itself, and Python cannot: {error}"
            ) from error
        self.subscribe_pattern(pattern)

    def match(self, names: Iterable[str]) -> bool:
        """Match the pattern against `names`, the names of the existing topics. Return True if the subscribed
        topics have changed.
        """
        if self.pattern is None:
            return False
        found = tuple(sorted(name for name in names if self.pattern.fullmatch(name)))
        if found == self.topics:
            return False
        self.topics = found
        return True

    def unsubscribe(self) -> None:
        """Drop the subscription and all partitions."""
        self.topics = ()
        self.pattern = self.remote_pattern = None
        self.manual = False
        self._replace((), committed=False)

    def assign_manually(self, keys: Iterable[TopicPartition], *, committed: bool) -> None:
        """Read exactly these partitions, without a group. Partitions that were read before keep their positions."""
        self._only(grouped=False)
        self.manual = True
        self._replace(keys, committed=committed)

    def assign(self, keys: Iterable[TopicPartition]) -> None:
        """Read exactly the partitions that the group has assigned. The positions of new partitions come from
        the group's commits.
        """
        self._replace(keys, committed=True)

    def _replace(self, keys: Iterable[TopicPartition], *, committed: bool) -> None:
        old = self.partitions
        self.partitions = {
            key: old.get(key) or PartitionState(key, needs_committed=committed) for key in dict.fromkeys(keys)
        }
        for key, state in old.items():
            if key not in self.partitions:
                reached("client.fetched_records_given_up")
                # Drop records fetched earlier: another member, or this one, may have read from another position
                # meanwhile.
                state.drop_fetched()

    def _only(self, *, grouped: bool) -> None:
        if (grouped and self.manual) or (not grouped and self.grouped):
            raise RuntimeError("subscribe and assign cannot be combined: call unsubscribe first")

    def state(self, key: TopicPartition) -> PartitionState:
        """Return the state of a partition. Raises `ValueError` if the partition is not assigned to this consumer."""
        state = self.partitions.get(key)
        if state is None:
            raise ValueError(f"the partition {key[0]}-{key[1]} is not assigned to this consumer")
        return state

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self.partitions

    def names(self) -> list[str]:
        """List the names of the topics whose metadata the consumer needs."""
        return list(dict.fromkeys([*self.topics, *(key.topic for key in self.partitions)]))
