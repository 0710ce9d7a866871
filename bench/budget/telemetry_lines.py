"""Expensive requests about clients' metrics (KIP-714): payloads that inflate, or that have very many fields."""

from __future__ import annotations

from bench.budget.frames import Costly, Stage
from odradek.data_plane.telemetry.client_telemetry import subscription_id
from odradek.wire.api_keys import ApiKey
from odradek.wire.batches.compression import CompressionType, compress

_ID = b"an expensive id!"
_INTERVAL_MS = 300_000
_PUSH = {
    "client_instance_id": _ID,
    "subscription_id": subscription_id(_ID, (), _INTERVAL_MS),
    "terminating": False,
    "compression_type": int(CompressionType.NONE),
}
_INFLATED_BYTES = 15 << 20
"""The size, in bytes, to which a push of metrics inflates. It is just below the limit of a node."""


def _small_fields(stage: Stage, size: int) -> bytes:
    """Make as many empty resources as fit into `size` bytes; each takes two bytes."""
    return b"\x0a\x00" * (max(0, size - 64) // 2)


def _inflating(stage: Stage, size: int) -> bytes:
    return compress(CompressionType.ZSTD, b"\x0a\x00" * (_INFLATED_BYTES // 2), None)


TELEMETRY_LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (
        Costly("Nothing in it grows: a subscription is found, and an instance is made.", (), {}),
        Costly(
            "A long id is compared with that of each client.",
            ("client_id",),
            {"include_clients": True},
            "list",
        ),
    ),
    ApiKey.PUSH_TELEMETRY: (
        Costly("Each two bytes are a field.", ("metrics",), _PUSH, "fields", body=_small_fields),
        Costly(
            "A few bytes inflate to millions of fields.",
            ("metrics",),
            {**_PUSH, "compression_type": int(CompressionType.ZSTD)},
            "zstd",
            body=_inflating,
        ),
    ),
}
