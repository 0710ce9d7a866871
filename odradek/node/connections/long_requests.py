"""Requests and answers of thousands of elements: a worker decodes and encodes them, and the handler runs as long
work. PORTED.

A request of up to `ELEMENTS_AT_ONCE` elements is handled at once, or its handler cuts the work into slices. For a
larger one, each step is a piece of `odradek.serving.long_work`: decode in the worker, handle on the loop, encode in
the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.node.connections.answers import RESPONSE_PREFIX, Slot, release_response, splice
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.send_queue import Chunk
from odradek.serving.api_table import ApiEntry
from odradek.serving.contract import Context, Result
from odradek.serving.steps import TURN, StepDriver, Steps, in_turn
from odradek.wire.codec import ErrorCounts


def decode_beside(
    services: ConnectionServices,
    entry: ApiEntry,
    context: Context,
    frame: memoryview,
    offset: int,
    charge: Callable[[Context, Any], None],
) -> Result:
    """Begin the long work for a frame with many elements: decode it in a worker, then handle it. The frame is copied,
    because the receive buffer is reused.

    The copy is writable, because an append sets offsets and times in place. `charge` is called with the request,
    before it is handled.
    """
    copied, asker = memoryview(bytearray(frame)), context.for_later()

    def work() -> Steps[Result]:
        request, elements = yield in_turn(services.long_work, entry.decode_all, copied, offset)
        entry.elements += elements
        charge(asker, request)
        yield TURN
        return entry.handle(asker, request)

    return StepDriver(services.long_work, services.after_turn).begin(work(), is_long=True)


async def encode_beside(services: ConnectionServices, slot: Slot, response: Any) -> None:
    """Encode a long answer in the worker and pass it to its connection, which may be closed when the encoding
    ends.
    """
    connection, entry = slot.connection, slot.entry
    if connection.closing:
        release_response(response)
        return
    try:
        chunks, size, errors = await services.long_work.begin().in_worker(
            encode_apart, entry, slot.correlation_id, response
        )
    except Exception:  # noqa: BLE001  # the connection logs the error, and ends
        release_response(response)
        connection.encoding_failed()
        return
    for code, count in errors.items():
        entry.errors[code] = entry.errors.get(code, 0) + count
    connection.charge_answer(entry, response, size)
    connection.encoded(slot, chunks, size)


def encode_apart(entry: ApiEntry, correlation_id: int, response: Any) -> tuple[list[Chunk], int, ErrorCounts]:
    """Encode an answer. Return the frame in pieces, the frame's size, and the error codes in the answer. The function
    shares no state, so any thread may call it.
    """
    frame, chunks, errors = bytearray(entry.prefix), list[Chunk](), ErrorCounts()
    spills: list[tuple[int, Any]] = []
    entry.encode(frame, response, spills, errors)
    if spills:
        return chunks, splice(frame, correlation_id, spills, chunks), errors
    RESPONSE_PREFIX.pack_into(frame, 0, len(frame) - 4, correlation_id)
    return [frame], len(frame), errors


__all__ = ["decode_beside", "encode_apart", "encode_beside"]
