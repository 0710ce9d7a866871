"""The settings of one producer and the form of its records, drawn from a seed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

__all__ = ["ProducerPlan", "topic_configs"]

CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("all", "all", "1", "0")
RETRIES_MANY = "2147483647"
BROKER_SECONDS = (None, None, 0.001, 0.1, 60.0)
"""Choices for how long brokers may wait for followers, in seconds. None: as long as the client waits for the answer."""


@attrs.frozen
class ProducerPlan:
    """The settings of one producer process."""

    settings: Mapping[str, str]
    broker_timeout_ms: int | None
    """`timeout_ms` of the producer's Produce requests; None: equal to the client's request timeout."""
    value_bytes: tuple[int, ...]
    burst: int
    """How many records the producer sends between two pauses."""
    rest_seconds: float
    keyed: float
    """The share of records that have a key, and go to the partition of that key."""
    headers_max: int

    @property
    def acks(self) -> str:
        """The producer's `acks`: `all`, `1` or `0`."""
        return self.settings["acks"]

    @property
    def idempotent(self) -> bool:
        """True if the producer is idempotent: each record occurs at most once, and all are in order."""
        return self.settings["enable.idempotence"] == "true"

    @property
    def repeats(self) -> bool:
        """True if the client may send a record again."""
        return self.settings["retries"] != "0"

    @classmethod
    def draw(cls, random: Random) -> ProducerPlan:
        """Draw settings that the client accepts."""
        acks = random.choice(ACKS)
        idempotent = acks == "all" and random.random() < 0.5
        linger_ms = random.choice((0, 0, 5, 100, 500))
        request_ms = random.choice((300, 1500, 5000, 20_000))
        settings = {
            "acks": acks,
            "enable.idempotence": "true" if idempotent else "false",
            "compression.type": random.choice(CODECS),
            "batch.size": random.choice(("0", "300", "4000", "16384", "200000")),
            "linger.ms": str(linger_ms),
            "request.timeout.ms": str(request_ms),
            "delivery.timeout.ms": str(linger_ms + request_ms + random.choice((0, 1000, 20_000))),
            "retries": RETRIES_MANY if idempotent else random.choice(("0", "1", RETRIES_MANY)),
            "max.in.flight.requests.per.connection": random.choice(
                ("1", "2", "5", "5" if idempotent else "8")
            ),
            "max.request.size": random.choice(("4000", "1048576", "1048576")),
            "buffer.memory": random.choice(("20000", "33554432")),
            "max.block.ms": random.choice(("200", "5000")),
        }
        seconds = random.choice(BROKER_SECONDS)
        return cls(
            settings,
            None if seconds is None else round(seconds * 1000),
            random.choice(((0, 10), (0, 300, 3000), (100, 6000))),
            random.choice((1, 5, 40)),
            random.choice((0.005, 0.1, 0.3)),
            random.choice((0.0, 0.5, 1.0)),
            random.choice((0, 0, 3)),
        )


def topic_configs(random: Random) -> dict[str, str]:
    """Draw the configuration of the producers' topic: a codec, and sometimes a limit that large batches exceed."""
    configs = {"compression.type": random.choice(("producer", "producer", "gzip", "zstd", "uncompressed"))}
    if random.random() < 0.3:
        configs["max.message.bytes"] = "2500"
    return configs
