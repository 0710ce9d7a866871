"""A model of topic configuration: the settings of a topic's logs on one broker, from all layers of configuration.
PURE.

The first value that exists counts: the topic's own value, then the values of the corresponding broker key, then the
default. A broker key may have the broker's own dynamic value, the cluster-wide dynamic value, and the value in the
broker's file, in this order. Results are named by the topic's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

__all__ = [
    "LONG_MAX",
    "Layers",
    "Setting",
    "throttled_here",
    "throttled_rate",
    "topic_setting",
    "topic_settings",
]

LONG_MAX = (1 << 63) - 1
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
MIN_ISR = "min.insync.replicas"
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
ALL = "*"

Layers: TypeAlias = Sequence[Mapping[str, str]]
"""A broker's own dynamic values, the cluster-wide dynamic values, and its file."""
Setting: TypeAlias = int | float | bool | str | tuple[str, ...]
Parse: TypeAlias = Callable[[str], Setting]


def _truth(text: str) -> bool:
    return text.strip().lower() == "true"


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _hours(text: str) -> int:
    return int(text) * HOUR_MS


def _retention(unit_ms: int) -> Parse:
    return lambda text: max(-1, int(text) * unit_ms)


_KEYS: Mapping[str, tuple[Parse, Setting, Mapping[str, Parse]]] = {
    "cleanup.policy": (_items, ("delete",), {"log.cleanup.policy": _items}),
    "compression.gzip.level": (int, -1, {"compression.gzip.level": int}),
    "compression.lz4.level": (int, 9, {"compression.lz4.level": int}),
    "compression.type": (str, "producer", {"compression.type": str}),
    "compression.zstd.level": (int, 3, {"compression.zstd.level": int}),
    "delete.retention.ms": (int, 24 * HOUR_MS, {"log.cleaner.delete.retention.ms": int}),
    "file.delete.delay.ms": (int, MINUTE_MS, {"log.segment.delete.delay.ms": int}),
    "flush.messages": (int, LONG_MAX, {"log.flush.interval.messages": int}),
    "flush.ms": (
        *(int, LONG_MAX),
        {"log.flush.interval.ms": int, "log.flush.scheduler.interval.ms": int},
    ),
    "index.interval.bytes": (int, 4096, {"log.index.interval.bytes": int}),
    "max.compaction.lag.ms": (int, LONG_MAX, {"log.cleaner.max.compaction.lag.ms": int}),
    "max.message.bytes": (int, 1_048_588, {"message.max.bytes": int}),
    "message.timestamp.after.max.ms": (int, HOUR_MS, {"log.message.timestamp.after.max.ms": int}),
    "message.timestamp.before.max.ms": (int, LONG_MAX, {"log.message.timestamp.before.max.ms": int}),
    "message.timestamp.type": (str, "CreateTime", {"log.message.timestamp.type": str}),
    "min.cleanable.dirty.ratio": (float, 0.5, {"log.cleaner.min.cleanable.ratio": float}),
    "min.compaction.lag.ms": (int, 0, {"log.cleaner.min.compaction.lag.ms": int}),
    MIN_ISR: (int, 1, {MIN_ISR: int}),
    "retention.bytes": (int, -1, {"log.retention.bytes": int}),
    "retention.ms": (
        *(int, 168 * HOUR_MS),
        {
            "log.retention.ms": _retention(1),
            "log.retention.minutes": _retention(MINUTE_MS),
            "log.retention.hours": _retention(HOUR_MS),
        },
    ),
    "segment.bytes": (int, 1 << 30, {"log.segment.bytes": int}),
    "segment.index.bytes": (int, 10 << 20, {"log.index.size.max.bytes": int}),
    "segment.jitter.ms": (int, 0, {"log.roll.jitter.ms": int, "log.roll.jitter.hours": _hours}),
    "segment.ms": (int, 168 * HOUR_MS, {"log.roll.ms": int, "log.roll.hours": _hours}),
    "unclean.leader.election.enable": (_truth, False, {"unclean.leader.election.enable": _truth}),
}
"""For each topic key, its parser, its default, and the corresponding broker keys with their parsers, the strongest key
first.
"""


def topic_settings(own: Mapping[str, str], layers: Layers, *, one_min_isr: bool) -> dict[str, Setting]:
    """Return the value in force of each topic key. With `one_min_isr`, `min.insync.replicas` has the same value on all
    brokers (KIP-966).
    """
    found = {key: topic_setting(key, own, layers, one_min_isr=one_min_isr) for key in _KEYS}
    if INTERNAL_SEGMENT_BYTES in own:
        found["segment.bytes"] = int(own[INTERNAL_SEGMENT_BYTES])
    return found


def topic_setting(key: str, own: Mapping[str, str], layers: Layers, *, one_min_isr: bool) -> Setting:
    """Return the value in force of one topic key, as `topic_settings` does."""
    parse, value, synonyms = _KEYS[key]
    if key in own:
        return parse(own[key])
    for layer in layers[1:2] if key == MIN_ISR and one_min_isr else layers:
        for name, parse_synonym in synonyms.items():
            if name in layer:
                return parse_synonym(layer[name])
    return value


def throttled_rate(side: str, layers: Layers) -> int | None:
    """Return the rate of throttled replication for one role ("leader" or "follower") of a broker, in bytes per second;
    None without a limit (KIP-73).
    """
    key = f"{side}.replication.throttled.rate"
    return next((int(layer[key]) for layer in layers if key in layer), None)


def throttled_here(side: str, own: Mapping[str, str], broker_id: int, partition: int) -> bool:
    """True if the topic's configuration throttles this replica in one role ("leader" or "follower")."""
    items = _items(own.get(f"{side}.replication.throttled.replicas", ""))
    return items == (ALL,) or f"{partition}:{broker_id}" in items
