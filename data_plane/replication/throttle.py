"""How fast a leader serves replicas that are not in sync: `leader.replication.throttled.*` (KIP-73). PURE.

Only partitions that their topic names are slowed, and only for followers outside of the ISR, so that a move does not
take what clients need, and never holds up an acknowledgement. A bucket holds one second of the rate.
"""

from __future__ import annotations

from metadata_quorum.effective_config import BrokerConfigLayers

RATE_KEY = "leader.replication.throttled.rate"
REPLICAS_KEY = "leader.replication.throttled.replicas"
EVERY = "*"


class LeaderThrottle:
    """Of one broker. Rates in bytes a second, times in monotonic milliseconds."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._rate: int | None = None
        self._topics: dict[bytes, frozenset[int] | None] = {}
        """The partitions of a topic that are slowed here; None: all."""
        self._room = 0.0
        self._filled_at_ms = 0
        self.bytes_served = 0

    def set_rate(self, layers: BrokerConfigLayers) -> None:
        """As the metadata says now; without a value nothing is slowed."""
        rate = None
        for _, layer in layers.layers():
            if RATE_KEY in layer:
                rate = int(layer[RATE_KEY])
                break
        if rate != self._rate:
            self._rate = rate
            self._room = float(rate or 0)

    def set_replicas(self, topic_id: bytes, text: str) -> None:
        """A topic's list: `partition:broker,...`, `*`, or nothing."""
        text = text.strip()
        if not text:
            self._topics.pop(topic_id, None)
        elif text == EVERY:
            self._topics[topic_id] = None
        else:
            pairs = (entry.strip().split(":") for entry in text.split(","))
            self._topics[topic_id] = frozenset(
                int(partition) for partition, broker in pairs if int(broker) == self._node_id
            )

    def forget(self, topic_id: bytes) -> None:
        """The topic is gone."""
        self._topics.pop(topic_id, None)

    @property
    def is_set(self) -> bool:
        """Whether anything may be slowed at all."""
        return self._rate is not None and bool(self._topics)

    def applies_to(self, topic_id: bytes, index: int) -> bool:
        if topic_id not in self._topics:
            return False
        partitions = self._topics[topic_id]
        return partitions is None or index in partitions

    def has_room(self, now_ms: int) -> bool:
        """Whether something may be served now."""
        rate = self._rate
        if rate is None:
            return True
        self._room = min(float(rate), self._room + rate * max(0, now_ms - self._filled_at_ms) / 1000)
        self._filled_at_ms = now_ms
        return self._room > 0

    def note(self, count: int) -> None:
        """So many bytes have been served; what was too much is waited for."""
        self._room -= count
        self.bytes_served += count
