"""The settings of a run's compacted topic, drawn from a seed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

TOPIC = "keyed"
PARTITIONS = 2
DAY_MS = 86_400_000
"""One day in milliseconds: longer than the difference between any two clocks of a run."""
CODECS = ("producer", "producer", "uncompressed", "gzip", "lz4", "zstd")

__all__ = ["DAY_MS", "PARTITIONS", "TOPIC", "KeyedPlan"]


@attrs.frozen
class KeyedPlan:
    """Settings of the compacted topic and its clients. `delete_retention_ms` and `min_compaction_lag_ms` also go into
    the checks.
    """

    delete_retention_ms: int
    min_compaction_lag_ms: int
    configs: Mapping[str, str]
    """The other settings of the topic."""
    keys: int
    """How many keys each partition has."""
    tombstones: float
    """The share of records that are tombstones."""
    changes_policy: bool
    """True if an operator switches compaction off and on again."""
    trims: bool
    """True if an operator deletes the oldest records."""

    @classmethod
    def draw(cls, random: Random) -> KeyedPlan:
        """Draw settings with which the cleaner compacts most of the log within seconds."""
        return cls(
            random.choice((DAY_MS, DAY_MS, 0, 3000)),
            random.choice((0, 0, 0, 3000, DAY_MS)),
            {
                "min.cleanable.dirty.ratio": random.choice(("0.01", "0.01", "0.5")),
                "max.compaction.lag.ms": random.choice(("9223372036854775807", "3000")),
                "internal.segment.bytes": random.choice(("600", "2000", "6000")),
                "segment.ms": random.choice(("604800000", "2000")),
                "compression.type": random.choice(CODECS),
                "file.delete.delay.ms": random.choice(("0", "1000")),
            },
            random.choice((3, 12, 60)),
            random.choice((0.0, 0.1, 0.4)),
            random.random() < 0.2,
            random.random() < 0.2,
        )

    def topic_configs(self) -> dict[str, str]:
        """Return the configuration of the topic."""
        lag_ms = self.min_compaction_lag_ms
        longest = {"max.compaction.lag.ms": str(max(lag_ms, int(self.configs["max.compaction.lag.ms"])))}
        return {
            **self.configs,
            **longest,
            "cleanup.policy": "compact",
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(lag_ms),
        }
