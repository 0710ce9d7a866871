"""The request path: bytes of one connection in, frames dispatched, answers out in order. PORTED.

Theory of operation
-------------------
One task per connection. It waits until the socket is readable, and receives into the buffer that all connections
share. Then it dispatches **every** complete frame, and sends all answers with one call. Nothing awaits between a
receive and its dispatch.

* Work per turn is bounded (`FRAMES_PER_TURN`, `TURN_SECONDS_MAX`, and the size of the shared buffer), so one client cannot
  hold the loop.
* A part of a frame at the end moves into a buffer of the connection's own. A connection that sends large frames keeps
  that buffer while it is busy, and receives straight into it.
* Requests are counted as they are dispatched, which is the order in which they came; appends assert it
  (`Context.note_append`).
* Answers leave in the order of the requests. Those that exist at once go straight to the send queue. As soon as one
  request is delayed, it and all after it take a `Slot` in a queue (`odradek.node.connections.answers`). That queue is bounded in
  number and in bytes: a connection that fills it is read again when there is room.
* A `Suspend` stops dispatch on its connection only.
* What has thousands of elements is decoded and encoded beside the loop (`odradek.node.connections.long_requests`).
* The code that completes a delayed answer also pushes it out, without waking this task. Only if the socket is full a
  drain task waits for it to become writable.

A frame that does not parse closes its connection with one log line (`odradek.node.connections.complaints` keeps those few). Other
connections go on.

Every request is counted in its `ApiEntry`. All answers of a turn leave with one call, so they have one latency. One
look at the clock per turn is exact for all of them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, TypedDict

from odradek.env.ports import Conn, ConnectionLost, DiskError, Event
from odradek.node.connections.answers import (
    HELD_BYTES_MAX,
    HELD_SHARE_BYTES,
    PARKED_MAX,
    RESPONSE_PREFIX,
    SLOTS_MAX,
    Slot,
    release_chunks,
    release_response,
    splice,
)
from odradek.node.connections.buffers import PooledBuffer
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.long_requests import decode_beside, encode_beside
from odradek.node.connections.send_queue import Chunk, SendQueue
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS, ApiEntry
from odradek.serving.contract import CLOSE, Context, Delayed, Suspend
from wire.codec import ELEMENTS_AT_ONCE
from wire.errors import ProtocolError, RemoteProtocolError, TooManyElements
from wire.framing.frames import skip_tags

FRAMES_PER_TURN = 64
TURN_SECONDS_MAX = 0.005
"""After so long a turn ends with the next look at the clock."""
FRAMES_PER_LOOK = 8
SEND_QUEUE_BYTES_MAX = 16 * 1024 * 1024
LARGE_FRAME_BYTES = 64 * 1024
GROWN_BYTES_MIN = 4096
FRAME_BYTES_MIN = 10

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


class _Who(TypedDict):
    """Whose connection it is, for log lines."""

    peer: str
    client_id: str | None


class Connection:
    """One client connection, from accept to close."""

    __slots__ = (
        "blocked",
        "client_id_raw",
        "closing",
        "conn",
        "context",
        "dispatching",
        "draining",
        "encoding",
        "frame_began_at",
        "have",
        "held_bytes",
        "last_active",
        "memory",
        "on_end",
        "own",
        "parked",
        "pending_frames",
        "room",
        "send_queue",
        "services",
        "slots",
        "suspended",
    )

    def __init__(
        self, services: ConnectionServices, conn: Conn, listener: str, on_end: Callable[[Connection], None]
    ) -> None:
        self.services = services
        self.on_end = on_end
        self.conn = conn
        self.context = Context(listener, conn.peer_host)
        self.send_queue = SendQueue()
        self.slots: deque[Slot] | None = None
        self.held_bytes = 0
        """What its slots hold, see `odradek.node.connections.answers`."""
        self.parked = 0
        """Its parked fetches."""
        self.encoding = 0
        """Its long answers that are still objects: nothing is dispatched while there are any."""
        self.own: PooledBuffer | None = None
        self.have = 0
        self.frame_began_at = 0.0
        """When the first bytes of what is in `own` came, moved on by the time in which it waited for memory."""
        self.pending_frames = False
        self.suspended: tuple[Slot, Suspend] | None = None
        self.room: Event | None = None
        self.memory: Event | None = None
        """Set while the connection waits for a larger buffer."""
        self.draining = False
        self.blocked = False
        """Set while this connection's own task has still to send the rest of a turn's answers."""
        self.dispatching = False
        self.closing = False
        self.client_id_raw = b""
        self.last_active = services.clock.monotonic()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the protocol, or the connection is closed from here.

        One coroutine, and no bound method kept in it, on purpose: an idle connection pays for its whole stack.
        """
        services = self.services
        try:
            while True:
                if self.pending_frames:
                    await services.clock.sleep_until(0.0)
                    self.last_active = services.clock.monotonic()
                    self._dispatch_own()
                else:
                    await self.conn.readable()
                    self.last_active = services.clock.monotonic()
                    got = self._receive()
                    if not got:
                        if got is None:
                            continue
                        return
                services.long_work.turns += 1
                if self.send_queue.chunks:
                    self._end_turn()
                services.after_turn()
                if services.buggify is not None and services.buggify("connection.close_after_answer"):
                    return
                if self.blocked and not self.closing:
                    # As Kafka mutes a channel: whoever does not take answers is not asked for more requests.
                    self.blocked = False
                    await self._drain()
                if self.closing:
                    return
                if self.suspended is not None:
                    await self._run_suspended()
                if self.room is not None:
                    await self._wait_for_room()
                if self.own is not None and self.have == self.own.size and not self.pending_frames:
                    await self._grow()
        except ConnectionLost:
            return
        except ProtocolError as error:
            services.complaints.protocol_error(services.clock.monotonic(), str(error), **self._who())
            # The frames before the bad one may have woken parked requests of others.
            services.after_turn()
        except DiskError as error:
            services.log.error("connection.disk_error", error=str(error), **self._who())
        except Exception:
            # A bug in a handler must not let one client's frame end the node; the traceback is for the operator.
            services.log.exception("connection.bug", **self._who())
        finally:
            self._release()
            self.on_end(self)

    def _who(self) -> _Who:
        return {"peer": self.conn.peer_host, "client_id": self.context.client_id}

    def _receive(self) -> int | None:
        """Receive once and dispatch what is complete; the bytes received (0: end), None where it would block.

        A tail kept from before goes back in front of the shared buffer, so that one receive can take many small
        frames; a large frame is collected in the connection's own buffer instead of being copied twice.
        """
        own = self.own
        shared = self.services.buffers.shared
        if own is None:
            end = self.conn.recv_into(self.services.buffers.receive_view)
            if not end:
                return end
        else:
            have = self.have
            if not have or (have >= 4 and _SIZE.unpack_from(own.data, 0)[0] >= LARGE_FRAME_BYTES):
                count = self.conn.recv_into(own.view[have:])
                if count:
                    if not have:
                        self.frame_began_at = self.last_active
                    self.have = have + count
                    self._dispatch_own()
                return count
            shared.view[:have] = own.view[:have]
            count = self.conn.recv_into(shared.view[have : have + len(self.services.buffers.receive_view)])
            if not count:
                return count
            end = have + count
        done = self._dispatch(shared, end)
        if done < end:
            self._keep_tail(shared, done, end)
        elif own is not None:
            self._give_own()
        return end

    def _dispatch_own(self) -> None:
        """Dispatch from the connection's own buffer, and give it back when it is empty and frames are small."""
        own = self.own
        assert own is not None
        self.pending_frames = False
        have = self.have
        done = self._dispatch(own, have)
        if done == 0:
            return
        left = have - done
        if left == 0:
            self.have = 0
            if done < LARGE_FRAME_BYTES:
                self._give_own()
            return
        own.view[:left] = own.view[done:have]
        self.have = left
        self.frame_began_at = self.last_active

    def _keep_tail(self, shared: PooledBuffer, start: int, end: int) -> None:
        """Copy an incomplete frame out of the shared buffer; a large one into room for all, if much of it is here."""
        left = end - start
        wanted = announced = left + 4
        if start or not self.have:
            self.frame_began_at = self.last_active
        if left >= 4:
            announced = 4 + _SIZE.unpack_from(shared.data, start)[0]
            if announced > LARGE_FRAME_BYTES:
                wanted = max(wanted, announced if announced <= 4 * left else 2 * left)
        own = self.own
        if own is None or own.size < wanted:
            self._give_own()
            buffers = self.services.buffers
            own = buffers.take(wanted, announced, self) or buffers.take_beyond(left + 4, announced, self)
            self.own = own
        own.view[:left] = shared.view[start:end]
        self.have = left

    async def _grow(self) -> None:
        """The own buffer is full and holds no complete frame: double it, or wait until the pool has room."""
        old = self.own
        assert old is not None
        announced = 4 + _SIZE.unpack_from(old.data, 0)[0]
        buffers = self.services.buffers
        size = min(max(2 * old.size, GROWN_BYTES_MIN), announced)
        grown = buffers.take(size, announced, self, old)
        if grown is None:
            self.memory = self.services.new_event()
            now = self.services.clock.monotonic()
            try:
                grown = await buffers.wait_for(size, announced, old, self.memory, now)
            finally:
                self.memory = None
            self.frame_began_at += self.services.clock.monotonic() - now
            if self.closing or grown is None:
                if grown is not None:
                    buffers.give(grown)
                raise ConnectionLost("closed while it waited for memory")
        grown.view[: self.have] = old.view[: self.have]
        self.own = grown
        buffers.give(old)

    @property
    def address(self) -> str:
        """Where the peer is."""
        return self.conn.peer_host

    def _give_own(self) -> None:
        if self.own is not None:
            own, self.own = self.own, None
            self.have = 0
            self.services.buffers.give(own)

    # -- dispatch -------------------------------------------------------------------------------------------------

    def _dispatch(self, buffer: PooledBuffer, end: int) -> int:
        """Dispatch complete frames of `buffer[:end]`; the position after the last one that was dispatched."""
        data, view = buffer.data, buffer.view
        services = self.services
        frame_bytes_max = services.frame_bytes_max
        start = frames = 0
        look_at = FRAMES_PER_LOOK
        self.dispatching = True
        try:
            while end - start >= 4:
                size = _SIZE.unpack_from(data, start)[0]
                if size < FRAME_BYTES_MIN or size > frame_bytes_max:
                    raise RemoteProtocolError(
                        f"frame of {size} bytes; allowed are {FRAME_BYTES_MIN} to {frame_bytes_max}"
                    )
                stop = start + 4 + size
                if stop > end:
                    break
                if frames == look_at:
                    look_at = self._look_again_after(frames)
                if not look_at or self.suspended is not None or self.room is not None or self.closing:
                    self.pending_frames = True
                    break
                self._dispatch_frame(view[start + 4 : stop], size)
                frames += 1
                if services.poison:
                    data[start:stop] = b"\xaa" * (stop - start)
                start = stop
        finally:
            self.dispatching = False
        if self.slots and self.slots[0].is_answered:
            self._move_answers()
        return start

    def _look_again_after(self, frames: int) -> int:
        """After how many frames of this turn to look at the clock next; 0 ends the turn."""
        if frames >= FRAMES_PER_TURN or self.services.clock.monotonic() > self.last_active + TURN_SECONDS_MAX:
            return 0
        return frames + FRAMES_PER_LOOK

    def _dispatch_frame(self, frame: memoryview, size: int) -> None:
        api_key, api_version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame)
        entry = self.services.table.get(api_key, api_version)
        context = self.context
        offset = 10
        if client_id_bytes > 0:
            offset += client_id_bytes
            raw = frame[10:offset]
            if raw != self.client_id_raw:
                self._take_client_id(raw, client_id_bytes)
        elif client_id_bytes < 0:
            context.client_id = None
            self.client_id_raw = b""
        if entry.flexible:
            if offset < size and frame[offset] == 0:
                offset += 1
            else:
                offset = skip_tags(frame, offset, size)
        context.api_version = api_version
        context.number += 1
        entry.request_bytes += size + 4
        try:
            request, _ = (entry.decode if size <= ELEMENTS_AT_ONCE else entry.decode_large)(frame, offset)
        except TooManyElements:
            result: Any = decode_beside(self.services, entry, context, frame, offset)
        else:
            result = entry.handle(context, request)
        self._answer(entry, correlation_id, size, result)

    def _answer(self, entry: ApiEntry, correlation_id: int, size: int, result: Any) -> None:
        """Encode a response that is there and next in order; queue everything else."""
        if result is None:
            entry.unanswered += 1
            return
        if isinstance(result, Delayed):
            if result.response is None:
                self._delay(self._queue_slot(entry, correlation_id, size), result)
                return
            result = result.response
        elif result is CLOSE:
            entry.unanswered += 1
            self.closing = True
            return
        elif result.__class__ is Suspend:
            slot = self._queue_slot(entry, correlation_id, size)
            slot.is_long = result.is_long
            self._hold(slot, size)
            self.suspended = (slot, result)
            return
        if self.slots:
            slot = self._queue_slot(entry, correlation_id, size)
            slot.response = result
            self._encode_early(slot)
        else:
            self._encode(entry, correlation_id, size, result)
            entry.answered_in_turn += 1
            services = self.services
            if services.answered_last is not entry:
                services.answered_last = entry
                services.answered.append(entry)

    def _queue_slot(self, entry: ApiEntry, correlation_id: int, size: int) -> Slot:
        slot = Slot(self, entry, correlation_id, size)
        if self.slots is None:
            self.slots = deque()
        self.slots.append(slot)
        if len(self.slots) >= SLOTS_MAX and self.room is None:
            self.room = self.services.new_event()
        return slot

    def _delay(self, slot: Slot, delayed: Delayed) -> None:
        """The slot's answer comes later."""
        slot.delayed = delayed
        delayed.answer = slot
        if delayed.parks:
            slot.parks = True
            self.parked += 1
            self.services.held.parked += 1
        self._hold(slot, slot.request_bytes if delayed.keeps_request else 0)

    def _hold(self, slot: Slot, count: int) -> None:
        """Count what a slot holds from now on; too much of it stops the dispatch."""
        more = count - slot.held_bytes
        slot.held_bytes = count
        self.held_bytes += more
        held = self.services.held
        held.change(more)
        if self.room is None and (
            self.held_bytes > HELD_BYTES_MAX
            or self.parked >= PARKED_MAX
            or (held.is_full and self.held_bytes > HELD_SHARE_BYTES)
        ):
            self.room = self.services.new_event()

    def _let_go(self, slot: Slot) -> None:
        """The slot has left the queue."""
        self._park_no_more(slot)
        self.held_bytes -= slot.held_bytes
        self.services.held.change(-slot.held_bytes)
        slot.held_bytes = 0

    def _park_no_more(self, slot: Slot) -> None:
        if slot.parks:
            slot.parks = False
            self.parked -= 1
            self.services.held.parked -= 1

    def _take_client_id(self, raw: memoryview, length: int) -> None:
        if len(raw) != length:
            raise RemoteProtocolError("client id is longer than its frame")
        self.client_id_raw = bytes(raw)
        try:
            self.context.client_id = self.client_id_raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("client id is not UTF-8") from error

    # -- answers --------------------------------------------------------------------------------------------------

    def _encode(self, entry: ApiEntry, correlation_id: int, request_bytes: int, response: Any) -> None:
        self.throttle(entry, request_bytes, response)
        frame = bytearray(entry.prefix)
        spills = self.services.spills
        entry.encode(frame, response, spills, entry.errors)
        queue = self.send_queue
        if not spills:
            size = len(frame)
            RESPONSE_PREFIX.pack_into(frame, 0, size - 4, correlation_id)
            queue.chunks.append(frame)
        else:
            size = splice(frame, correlation_id, spills, queue.chunks)
        queue.bytes_queued += size
        entry.response_bytes += size
        if queue.bytes_queued > SEND_QUEUE_BYTES_MAX and self.room is None:
            self.room = self.services.new_event()

    def throttle(self, entry: ApiEntry, request_bytes: int, response: Any) -> None:
        """Tell the client how long to wait, where its quota says so."""
        throttle_ms = self.context.charge(entry.api_key, request_bytes)
        if throttle_ms:
            response.throttle_time_ms = throttle_ms

    def _encode_early(self, slot: Slot) -> None:
        """Encode an answer that has to wait for an earlier one, behind what is queued, and take it out from there."""
        queue = self.send_queue
        chunks, size = len(queue.chunks), queue.bytes_queued
        response, slot.response = slot.response, None
        self._encode(slot.entry, slot.correlation_id, slot.request_bytes, response)
        slot.chunks = queue.chunks[chunks:]
        del queue.chunks[chunks:]
        size, queue.bytes_queued = queue.bytes_queued - size, size
        self._hold(slot, size)

    def answer_came(self, slot: Slot) -> None:
        """A delayed answer is there. Errors end this connection only."""
        slots = self.slots
        if not slots:
            return
        self._park_no_more(slot)
        if slots[0] is not slot:
            try:
                self._encode_early(slot)
            except Exception:  # noqa: BLE001  # `_break` logs it
                self._break()
            self.signal_room()
        elif not self.dispatching:
            self.push_answers()

    def encode_long(self, slot: Slot, response: Any) -> None:
        """A long answer is there: nothing more is dispatched until it is bytes."""
        self._park_no_more(slot)
        self.encoding += 1
        if self.room is None:
            self.room = self.services.new_event()
        self.services.tasks.start_soon(encode_beside, self.services, slot, response, name="long answer")

    def encoded(self, slot: Slot, chunks: list[Chunk], size: int) -> None:
        """A long answer is bytes now."""
        self.encoding -= 1
        if self.closing:
            release_chunks(chunks)
            return
        slot.chunks = chunks
        slot.entry.response_bytes += size
        self._hold(slot, size)
        if self.slots and self.slots[0] is slot and not self.dispatching:
            self.push_answers()
        self.signal_room()

    def encoding_failed(self) -> None:
        """A long answer could not be encoded: a bug, which ends this connection only."""
        self.encoding -= 1
        self._break()

    def _move_answers(self) -> None:
        """Encode the answers that are complete, from the head of the queue on."""
        slots = self.slots
        now = self.services.clock.monotonic()
        queue = self.send_queue
        while slots and slots[0].is_answered:
            slot = slots.popleft()
            entry, latency = slot.entry, now - slot.received_at
            if slot.chunks is None:
                self._encode(entry, slot.correlation_id, slot.request_bytes, slot.response)
            else:
                queue.chunks += slot.chunks
                queue.bytes_queued += slot.held_bytes
            self._let_go(slot)
            entry.latencies[bisect_left(LATENCY_BOUNDS_SECONDS, latency)] += 1
            entry.latency_seconds += latency
            entry.delayed += 1
        if slots is not None and not slots:
            self.slots = None
        if queue.bytes_queued > SEND_QUEUE_BYTES_MAX and self.room is None:
            self.room = self.services.new_event()

    def push_answers(self) -> None:
        """A delayed answer came: encode and send what is next in order. Errors end this connection only."""
        try:
            self._move_answers()
            if self.send_queue.chunks:
                self._flush()
        except (ConnectionLost, DiskError) as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  # `_break` logs it
            # Whoever completed the answer serves another connection and must not suffer for this one.
            self._break()
        self.signal_room()

    def _break(self) -> None:
        """End the connection for a bug."""
        self.services.log.exception("connection.bug", **self._who())
        self.services.spills.clear()
        self.close()

    def _fail(self, error: ConnectionLost | DiskError) -> None:
        """End the connection for an error that came up outside of its task."""
        if isinstance(error, DiskError):
            self.services.log.error("connection.disk_error", error=str(error), **self._who())
        self.close()

    def _end_turn(self) -> None:
        """Send what this turn has answered, and count it."""
        if not self.draining and not self.send_queue.flush(self.conn):
            self.draining = self.blocked = True
        services = self.services
        latency = services.clock.monotonic() - self.last_active
        bucket = bisect_left(LATENCY_BOUNDS_SECONDS, latency)
        answered = services.answered
        for entry in answered:
            count, entry.answered_in_turn = entry.answered_in_turn, 0
            entry.latencies[bucket] += count
            entry.latency_seconds += count * latency
        services.answered_last = None
        answered.clear()

    def _forget_turn(self) -> None:
        """An error that cuts a turn short drops its answers."""
        services = self.services
        for entry in services.answered:
            entry.answered_in_turn = 0
        services.answered_last = None
        services.answered.clear()

    def _flush(self) -> None:
        if not self.draining and not self.send_queue.flush(self.conn):
            self.draining = True
            self.services.tasks.start_soon(self._drain)

    async def _drain(self) -> None:
        """Send the rest as the socket takes it."""
        try:
            while True:
                await self.conn.writable()
                self.last_active = self.services.clock.monotonic()
                if self.send_queue.flush(self.conn):
                    break
                self.signal_room()
            self.draining = False
        except (ConnectionLost, DiskError) as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  # `_break` logs it
            self._break()
        self.signal_room()

    def signal_room(self) -> None:
        """Go on dispatching if there is room for more answers."""
        if self.room is not None and (self.closing or not self._crowded()):
            self.room.set()

    def _crowded(self) -> bool:
        slots = 0 if self.slots is None else len(self.slots)
        return (
            slots > SLOTS_MAX // 2
            or self.encoding > 0
            or self.parked >= PARKED_MAX
            or self.held_bytes > HELD_BYTES_MAX // 2
            or self.send_queue.bytes_queued > SEND_QUEUE_BYTES_MAX // 2
            or (self.held_bytes > HELD_SHARE_BYTES and self.services.held.is_full)
        )

    async def _wait_for_room(self) -> None:
        room = self.room
        if room is not None:
            if self._crowded() and not self.closing:
                waiters = self.services.held.waiters
                waiters[self] = None
                try:
                    await room.wait()
                finally:
                    waiters.pop(self, None)
            self.room = None
        if self.closing:
            raise ConnectionLost("closed while it waited for room")

    async def _run_suspended(self) -> None:
        assert self.suspended is not None
        slot, suspend = self.suspended
        result = await suspend.run()
        while result.__class__ is Suspend:
            slot.is_long |= result.is_long
            result = await result.run()
        self.suspended = None
        if result is None or result is CLOSE:
            # Nothing was dispatched since, so the slot is the last.
            assert self.slots is not None
            self.slots.remove(slot)
            self._let_go(slot)
            slot.entry.unanswered += 1
            self.signal_room()
            if result is CLOSE:
                raise ConnectionLost("a request without an answer failed")
        elif isinstance(result, Delayed) and result.response is None:
            self._delay(slot, result)
        else:
            slot.complete(result.response if isinstance(result, Delayed) else result)
        if self.closing:
            raise ConnectionLost("closed while a request was suspended")

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection from outside its task."""
        self.closing = True
        self.conn.close()
        if self.memory is not None:
            self.memory.set()
        self.signal_room()

    def trim(self) -> None:
        """Give back an empty buffer of an idle connection; not while a request is suspended, which may have copied it."""
        if self.have == 0 and not self.pending_frames and not self.dispatching and self.suspended is None:
            self._give_own()

    def _release(self) -> None:
        self.closing = True
        self.conn.close()
        self._forget_turn()
        self.services.spills.clear()
        self._give_own()
        slots, self.slots = self.slots, None
        for slot in slots or ():
            self._let_go(slot)
            if slot.delayed is not None:
                slot.delayed.answer = None
                slot.delayed.abandon()
            elif slot.chunks is not None:
                release_chunks(slot.chunks)
            elif slot.response is not None:
                release_response(slot.response)
        self.send_queue.release()
