"""OTLP's `MetricsData` encoded by hand for tests, and the payloads of real clients."""

from __future__ import annotations

import struct
from pathlib import Path

import attrs

from odradek.wire.batches.compression import CompressionType, decompress

__all__ = ["DATA", "PushedMetric", "field", "metrics_data", "pushed_by", "varint"]

DATA = Path(__file__).with_name("data")
"""Payloads of confluent-kafka and Kafka's console tools, recorded by a Kafka with a plugin
(`tests/conformance/telemetry`)."""


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, data: bytes) -> bytes:
    """Encode a protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


@attrs.frozen
class PushedMetric:
    """One metric with its points and their labels."""

    name: str
    points: tuple[tuple[float | int, bool], ...] = ((0.5, False),)
    """The value of each point, and whether it has a label."""
    is_sum: bool = False
    temporality: int = 1

    def encode(self) -> bytes:
        points = b"".join(field(1, _point(value, labelled)) for value, labelled in self.points)
        if self.is_sum:
            points += varint(2 << 3) + varint(self.temporality)
        return field(1, self.name.encode()) + field(3, b"unit") + field(7 if self.is_sum else 5, points)


def _point(value: float, is_labelled: bool) -> bytes:
    number = (
        b"\x31" + struct.pack("<q", value) if isinstance(value, int) else b"\x21" + struct.pack("<d", value)
    )
    label = field(7, field(1, b"topic") + field(2, field(1, b"t"))) if is_labelled else b""
    return b"\x19" + struct.pack("<Q", 1) + label + number


def metrics_data(*metrics: PushedMetric, noise: bytes = b"") -> bytes:
    """Encode a payload like Java's client, with each metric in a resource of its own. `noise` is added at each
    level."""
    return b"".join(
        field(1, field(1, b"") + noise + field(2, noise + field(2, noise + each.encode()))) + noise
        for each in metrics
    )


def pushed_by(name: str) -> bytes:
    """Return the payload of a real client: `librdkafka_producer`, `java_consumer` and so on."""
    return decompress(CompressionType.ZSTD, (DATA / f"{name}.zst").read_bytes(), 1 << 20)
