"""The followers whose first fetch a new leader awaits. PURE.

A follower sends one fetch at a time to each leader. If the leader has nothing new, it answers after
`replica.fetch.wait.max.ms` (500). When this broker begins to lead a partition, such a fetch may wait here that does not
name the partition. The follower names it in the next fetch at the earliest. acks=all would wait until then: half a second
in each planned move, as in Kafka. So the new leader answers that fetch at once. The follower may still lack the metadata
then, so its next fetches wait only briefly until one names the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from odradek.named_states import reached
from odradek.wire.topic_partition import TopicIdPartition

__all__ = ["FirstFetches"]

WAIT_MS = 10
"""How long a follower's fetch may wait while its first fetch of some partition is awaited."""
AWAITED_SECONDS = 1.0
"""How long a first fetch is awaited. A follower that is alive has the metadata of a new leader by then."""


class FirstFetches:
    """The awaited first fetches of one broker, as the leader. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._awaited: dict[int, dict[TopicIdPartition, float]] = {}
        """For each follower the partitions that it is expected to fetch, and until when, the earliest first."""
        self._parked: dict[int, Callable[[], None]] = {}
        """For each follower a function that answers the fetch that waits here."""

    def awaits(
        self, partition: TopicIdPartition, followers: Iterable[int], now: float
    ) -> list[Callable[[], None]]:
        """Await the first fetches of a partition that this broker has begun to lead. Return functions that answer the
        waiting fetches of these followers.
        """
        found = []
        for follower in followers:
            self._awaited.setdefault(follower, {})[partition] = now + AWAITED_SECONDS
            answer = self._parked.pop(follower, None)
            if answer is not None:
                reached("replication.fetch_before_new_leader_answered")
                found.append(answer)
        return found

    def fetched(self, follower: int, partition: TopicIdPartition) -> None:
        """Note the first fetch of a partition by a follower."""
        known = self._awaited.get(follower)
        if known is not None and known.pop(partition, None) is not None and not known:
            del self._awaited[follower]

    def wait_ms(self, follower: int, wait_ms: int, now: float) -> int:
        """Return how long a fetch of this follower may wait, if it asks for `wait_ms`."""
        known = self._awaited.get(follower)
        if known is None:
            return wait_ms
        while known:
            partition, until = next(iter(known.items()))
            if until > now:
                return min(wait_ms, WAIT_MS)
            del known[partition]
        del self._awaited[follower]
        return wait_ms

    def parks(self, follower: int, answer: Callable[[], None]) -> None:
        """Note that a fetch of this follower waits. `answer` answers it."""
        self._parked[follower] = answer

    def leaves(self, follower: int, answer: Callable[[], None]) -> None:
        """Note that a fetch has been answered, or that its connection has ended."""
        if self._parked.get(follower) == answer:
            del self._parked[follower]
