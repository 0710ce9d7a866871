"""The settings of a node's listeners and their connections: buffers, the largest request, idle time. PURE."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.config.typed_settings import setting

__all__ = ["SEND_BUFFER_BYTES", "ListenerSettings"]

SEND_BUFFER_BYTES = 256 * 1024
"""The send buffer of a socket, unless `socket.send.buffer.bytes` is set.

With the kernel's own default, megabytes of a fetch are queued and leave the processor's caches. The broker then needs
0.52 CPU-seconds per GB that consumers fetch. With this buffer it needs 0.28 CPU-seconds per GB, and with Kafka's
default of 100 KiB it needs 0.40.
"""
RECEIVE_BYTES_MAX = 256 * 1024 * 1024
"""The maximum number of bytes of all incomplete frames together, unless `queued.max.request.bytes` is set."""


def _or_our_own(queued_bytes_max: int) -> int:
    return queued_bytes_max if queued_bytes_max > 0 else RECEIVE_BYTES_MAX


@attrs.frozen
class ListenerSettings:
    """The settings of all listeners; sizes are in bytes. If a socket buffer is None, the kernel chooses its size."""

    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    frame_bytes_max: int = setting("socket.request.max.bytes")
    received_bytes_max: int = setting("queued.max.request.bytes", _or_our_own)
    """The maximum number of bytes of all incomplete frames together."""
    idle_ms_max: int = setting("connections.max.idle.ms")
