"""Rate limits for replication outside of the ISR: `*.replication.throttled.*` (KIP-73). PURE.

Only partitions that are named in their topic's configuration are slowed. The leader slows followers outside
of the ISR. A follower slows itself while it lacks records that it knows to be committed. So a reassignment
leaves enough bandwidth to clients, and no acknowledgement waits for a throttle. The token bucket of a
throttle holds the bytes of one second.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value, topic_value

LEADER, FOLLOWER = "leader", "follower"
EVERY = "*"
DIGITS_MAX = 20
"""The most digits of a partition or broker id in a list of throttled replicas; an item with a longer number
is ignored.
"""
NEVER_MS = 1000
"""The time in milliseconds after which a throttled partition tries again while the rate is 0."""
_NOTHING: frozenset[int] = frozenset()
"""The throttled partitions of a topic whose configuration has no list."""


def rate_key(side: str) -> str:
    """Return the broker's configuration key for the rate in bytes a second. `side` is `leader` or `follower`."""
    return f"{side}.replication.throttled.rate"


def replicas_key(side: str) -> str:
    """Return the topic's configuration key for the list of throttled replicas. `side` is `leader` or
    `follower`.
    """
    return f"{side}.replication.throttled.replicas"


class ReplicationThrottle:
    """The throttle of one broker as leader or as follower (`side`). Rates are in bytes a second, times in
    monotonic milliseconds.
    """

    def __init__(self, node_id: int, side: str) -> None:
        self._node_id = node_id
        self._rate_key = rate_key(side)
        self._replicas_key = replicas_key(side)
        self._rate: int | None = None
        self._topics: dict[bytes, frozenset[int] | None] = {}
        """The throttled partitions of each topic on this broker; None means all partitions."""
        self._room = 0.0
        self._filled_at_ms = 0
        self.bytes_counted = 0

    def set_rate(self, layers: BrokerConfigLayers) -> bool:
        """Set the rate from the broker's configuration, and return True if it has changed.

        Without a rate, replication runs at full speed.
        """
        value = broker_value(self._rate_key, layers)
        rate = value if isinstance(value, int) else None
        if rate == self._rate:
            return False
        self._rate = rate
        self._room = float(rate or 0)
        return True

    def set_replicas(self, topic_id: bytes, configs: Mapping[str, str]) -> bool:
        """Set a topic's throttled partitions from its configuration. Returns True if partitions were
        throttled before and the list has changed.

        The list is `partition:broker,...`, `*`, or nothing. Empty items are ignored.
        """
        before = self._topics.get(topic_id, _NOTHING)
        self._take_over(topic_id, configs)
        return before != _NOTHING and before != self._topics.get(topic_id, _NOTHING)

    def _take_over(self, topic_id: bytes, configs: Mapping[str, str]) -> None:
        value = topic_value(self._replicas_key, configs, BrokerConfigLayers({}))
        items = [item for item in value if item] if isinstance(value, list) else []
        if not items:
            self._topics.pop(topic_id, None)
        elif items == [EVERY]:
            self._topics[topic_id] = None
        else:
            pairs = [item.split(":") for item in items]
            self._topics[topic_id] = frozenset(
                int(partition)
                for partition, broker in pairs
                if max(len(partition), len(broker)) <= DIGITS_MAX and int(broker) == self._node_id
            )

    def forget(self, topic_id: bytes) -> None:
        """Forget a topic that was deleted."""
        self._topics.pop(topic_id, None)

    @property
    def is_set(self) -> bool:
        """True if there is a rate, and at least one topic is throttled."""
        return self._rate is not None and bool(self._topics)

    def applies_to(self, topic_id: bytes, index: int) -> bool:
        if topic_id not in self._topics:
            return False
        partitions = self._topics[topic_id]
        return partitions is None or index in partitions

    def has_room(self, now_ms: int) -> bool:
        """True if a throttled partition may be served now: the bucket has bytes left, or there is no rate."""
        rate = self._rate
        if rate is None:
            return True
        self._room = min(float(rate), self._room + rate * max(0, now_ms - self._filled_at_ms) / 1000)
        self._filled_at_ms = now_ms
        return self._room > 0

    def room_at_ms(self, now_ms: int) -> int:
        """Return the time in milliseconds from which throttled partitions may be served again, if no bytes
        are counted until then.
        """
        if self.has_room(now_ms):
            return now_ms
        return now_ms + (int(-self._room * 1000 / self._rate) + 1 if self._rate else NEVER_MS)

    def note(self, count: int) -> None:
        """Reduce the bucket's room by the bytes that were served or fetched. If the bytes exceed the rate,
        later bytes have to wait.
        """
        self._room -= count
        self.bytes_counted += count
