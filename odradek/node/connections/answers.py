"""Answers that wait for an earlier answer of their connection, and how much memory they may use. PORTED.

An answer behind a delayed one is encoded at once, because bytes take a fraction of the memory of objects and can be
counted. A file range counts with its length, since it pins that much of the log. A delayed request that keeps some part
of its frame counts with the length of the frame.

Beyond `HELD_BYTES_MAX` in one connection, or with `PARKED_MAX` parked fetches, that connection's requests wait until
there is room. Beyond `HELD_IN_ALL_BYTES_MAX` in all connections together, each connection that holds more than
`HELD_SHARE_BYTES` waits too. A client that pipelines a few small requests behind a parked fetch stays below that
share. So the memory is limited by these constants, plus one answer for each waiting connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from odradek.data_plane.log.partition_log import FileRange
from odradek.node.connections.charging import throttled
from odradek.node.connections.send_queue import Chunk
from odradek.serving.api_table import ApiEntry
from odradek.serving.contract import Delayed, PinsFiles
from odradek.wire.structure import Message

SLOTS_MAX = 256
PARKED_MAX = 5
"""The maximum number of parked fetches of one connection. An idempotent producer has at most five requests in
flight, so the limit is five, too. Kafka itself handles one request of a connection at a time.
"""
HELD_BYTES_MAX = 4 * 1024 * 1024
HELD_IN_ALL_BYTES_MAX = 64 * 1024 * 1024
HELD_SHARE_BYTES = 64 * 1024
RESPONSE_PREFIX = struct.Struct(">ii")
HELD_SECONDS_MAX = 10.0
"""The seconds for which a connection with queued answers may make other connections wait for memory."""


class Answering(Protocol):
    """The methods of a connection that are called by slots, and by the code that encodes answers in a worker."""

    last_active: float

    @property
    def closing(self) -> bool: ...

    def answer_came(self, slot: Slot) -> None:
        """Called when the answer to a delayed request is complete."""

    def encode_long(self, slot: Slot, response: Any) -> None:
        """Called when a long answer is complete: has a worker encode it, and dispatches no request until
        then.
        """

    def charge_answer(self, entry: ApiEntry, response: Any, size: int) -> None:
        """Charge the bytes of an answer to the client's quota."""

    def encoded(self, slot: Slot, chunks: list[Chunk], size: int) -> None:
        """Called when a long answer is encoded; `size` is its number of bytes."""

    def encoding_failed(self) -> None:
        """End the connection because a long answer could not be encoded."""


class Slot:
    """The place of one request in its connection's queue of answers."""

    __slots__ = (
        "chunks",
        "connection",
        "correlation_id",
        "delayed",
        "entry",
        "held_bytes",
        "is_long",
        "parks",
        "received_at",
        "request_bytes",
        "response",
        "throttle_ms",
    )

    def __init__(
        self, connection: Answering, entry: ApiEntry, correlation_id: int, request_bytes: int
    ) -> None:
        self.connection = connection
        self.entry = entry
        self.correlation_id = correlation_id
        self.request_bytes = request_bytes
        self.received_at = connection.last_active
        self.response: Any = None
        """The response while it is not encoded. Only the first slot of a queue keeps it: later slots encode at once."""
        self.chunks: list[Chunk] | None = None
        """The encoded answer, in pieces to be sent; None while it is not encoded."""
        self.held_bytes = 0
        """The bytes that are counted for this slot now."""
        self.parks = False
        self.is_long = False
        """True if a worker encodes the answer."""
        self.delayed: Delayed | None = None
        self.throttle_ms = 0
        """The throttle time that the answer contains, because of the client's quota."""

    @property
    def is_answered(self) -> bool:
        return self.chunks is not None or self.response is not None

    def complete(self, response: Any) -> None:
        """Store the answer and pass it to the connection. The owner of the delayed request calls this once."""
        self.delayed = None
        if self.throttle_ms:
            response = throttled(response, self.throttle_ms)
        if self.is_long:
            self.connection.encode_long(self, response)
        else:
            self.response = response
            self.connection.answer_came(self)


class Waiter(Protocol):
    """A connection that waits until there is memory for more answers."""

    def signal_room(self) -> None: ...


class Holding(Protocol):
    """A connection with answers in its queue."""

    held_bytes: int

    @property
    def closing(self) -> bool: ...

    @property
    def slots(self) -> Sequence[Slot] | None: ...


C = TypeVar("C", bound=Holding)


class HeldAnswers:
    """Counts the bytes of queued answers over all connections."""

    __slots__ = ("bytes_held", "bytes_max", "parked", "waiters")

    def __init__(self, bytes_max: int = HELD_IN_ALL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.parked = 0
        self.waiters: dict[Waiter, None] = {}

    @property
    def is_full(self) -> bool:
        return self.bytes_held > self.bytes_max

    def change(self, count: int) -> None:
        """Add `count` bytes, which may be negative. When there is room again, notify the waiting connections."""
        was_full = self.is_full
        self.bytes_held += count
        if was_full and not self.is_full:
            for waiter in list(self.waiters):
                waiter.signal_room()

    def to_evict(self, connections: Iterable[C], now: float) -> list[C]:
        """Choose the connections to close, so that the bytes of the remaining connections are within the limit.
        Candidates have waited longer than `HELD_SECONDS_MAX`. The candidates that hold the most bytes come first.
        """
        excess = self.bytes_held - self.bytes_max
        if excess <= 0:
            return []
        candidates = [
            each
            for each in connections
            if each.held_bytes > HELD_SHARE_BYTES
            and not each.closing
            and each.slots
            and now - each.slots[0].received_at > HELD_SECONDS_MAX
        ]
        chosen = []
        for connection in sorted(candidates, key=lambda each: -each.held_bytes):
            if excess <= 0:
                break
            excess -= connection.held_bytes
            chosen.append(connection)
        return chosen

    def statistics(self) -> dict[str, int]:
        """Return figures: bytes of queued answers and requests, parked fetches, and connections that wait for this
        memory.
        """
        return {"bytes": self.bytes_held, "parked": self.parked, "waiting": len(self.waiters)}


def splice(frame: bytearray, correlation_id: int, spills: list[tuple[int, Any]], chunks: list[Chunk]) -> int:
    """Append an encoded answer to `chunks`, with its file ranges (`spills`) at their positions. Then empty the list
    `spills`.

    Return the frame's size in bytes, including the ranges. The same size is written into the frame's prefix.
    """
    spilled = 0
    for _, chunk in spills:
        spilled += len(chunk)
    RESPONSE_PREFIX.pack_into(frame, 0, len(frame) + spilled - 4, correlation_id)
    view, position = memoryview(frame), 0
    for at, chunk in spills:
        if at > position:
            chunks.append(view[position:at])
            position = at
        chunks.append(chunk)
    if position < len(frame):
        chunks.append(view[position:])
    spills.clear()
    return len(frame) + spilled


def release_chunks(chunks: Iterable[Chunk]) -> None:
    """Unpin the file ranges of an answer that will never be sent."""
    for chunk in chunks:
        if isinstance(chunk, FileRange):
            chunk.release()


def release_response(response: Message) -> None:
    """Unpin the file ranges of an answer that will never be encoded."""
    if isinstance(response, PinsFiles):
        response.release_files()
