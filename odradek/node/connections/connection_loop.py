"""The request path of one connection: receives bytes, limits the size of frames, dispatches requests to
handlers; from accept to close. PORTED.

Theory of operation
-------------------
Each connection has one task. The task waits until the socket is readable, and receives into the buffer that all
connections share. Then it dispatches **every** complete frame, and sends all answers with one call. It awaits nothing
between a receive and the dispatch of the received frames.

* Work per turn is bounded (`FRAMES_PER_TURN`, `TURN_SECONDS_MAX`, and the size of the shared buffer), so one client
  cannot block the event loop.
* An incomplete frame at the end of the received bytes moves into a buffer of the connection's own. A connection that sends large frames keeps
  that buffer while it is busy, and receives straight into it.
* Requests are dispatched in the order in which they came, and each one gets a number. Appends assert that their
  numbers are in order (`Context.note_append`).
* Answers leave in the order of the requests (`odradek.node.connections.answer_queue`).
* A handler that returns `Suspend` stops the dispatch on its connection only.
* Requests and answers of thousands of elements are decoded and encoded in a worker, beside the event loop
  (`odradek.node.connections.long_requests`).

A frame that does not parse closes its connection with one log line (`odradek.node.connections.complaints` limits
their number). Other connections go on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from odradek.data_plane.quotas.client_quotas import ClientShare
from odradek.env.ports import Conn, ConnectionCut, ConnectionLost, DiskError, Event, PeerEnd
from odradek.node.connections.answer_queue import AnswerQueue
from odradek.node.connections.buffers import PooledBuffer
from odradek.node.connections.complaints import size_refusal
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.long_requests import decode_beside
from odradek.serving.contract import Context
from odradek.serving.shared_parts import assert_unchanged
from odradek.wire.codec import ELEMENTS_AT_ONCE
from odradek.wire.errors import ProtocolError, RemoteProtocolError, TooManyElements
from odradek.wire.framing.frames import skip_tags

FRAMES_PER_TURN = 64
TURN_SECONDS_MAX = 0.005
"""The seconds after which a connection's turn on the event loop ends, at the next reading of the clock."""
FRAMES_PER_LOOK = 8
LARGE_FRAME_BYTES = 64 * 1024
GROWN_BYTES_MIN = 4096
FRAME_BYTES_MIN = 10

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


class Connection(AnswerQueue):
    """One client connection, from accept to close."""

    __slots__ = (
        "client_id_raw",
        "frame_began_at",
        "have",
        "memory",
        "on_end",
        "own",
        "pending_frames",
    )

    def __init__(
        self, services: ConnectionServices, conn: Conn, listener: str, on_end: Callable[[Connection], None]
    ) -> None:
        super().__init__(services, conn, listener)
        self.on_end = on_end
        self.own: PooledBuffer | None = None
        self.have = 0
        self.frame_began_at = 0.0
        """The time at which the first bytes in `own` arrived, plus the time for which they waited for memory."""
        self.pending_frames = False
        self.memory: Event | None = None
        """The event that the connection waits for while it needs a larger buffer; otherwise None."""
        self.client_id_raw = b""

    # -- receiving ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until the peer closes it or breaks the protocol, or this node closes it.

        It is one coroutine without bound methods on purpose, because an idle connection keeps its whole stack in
        memory.
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
                            self._charge_for_nothing()
                            continue
                        return
                services.long_work.turns += 1
                seconds = self._end_turn() if self.send_queue.chunks else 0.0
                if services.charging is not None and services.charging.measures_cpu:
                    self._charge_turn(seconds)
                services.after_turn()
                if services.buggify is not None and services.buggify("connection.close_after_answer"):
                    return
                if self.blocked and not self.closing:
                    # As in Kafka, no requests are read from a client that does not receive its answers.
                    self.blocked = False
                    await self._drain()
                if self.closing:
                    return
                if self.suspended is not None:
                    await self._run_suspended()
                if self.room is not None:
                    await self._wait_for_room()
                if self.muted_until:
                    await self._stay_muted()
                if self.own is not None and self.have == self.own.size and not self.pending_frames:
                    await self._grow()
        except ConnectionCut as error:
            services.complaints.protocol_error(services.clock.monotonic(), str(error), **self._who())
        except ConnectionLost:
            return
        except ProtocolError as error:
            services.complaints.protocol_error(services.clock.monotonic(), str(error), **self._who())
            # End the turn as usual, because the frames before the malformed one may have completed parked
            # requests of other connections.
            services.after_turn()
        except DiskError as error:
            services.log.error("connection.disk_error", error=str(error), **self._who())
        except Exception:
            # A bug in a handler must not let one client's frame end the node; the traceback is for the operator.
            services.log.exception("connection.bug", **self._who())
        finally:
            self._release()
            self.on_end(self)

    def _receive(self) -> int | None:
        """Receive once and dispatch complete frames. Return the number of bytes received (0: end), or None if it
        would block.

        An incomplete small frame from the last receive is first copied back into the shared buffer, so that one
        receive can take many small frames. A large frame is collected in the connection's own buffer instead.
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
        """Dispatch the complete frames in the connection's own buffer. Return the buffer to the pool if it is empty
        and the frames were small.
        """
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
        """Copy an incomplete frame out of the shared buffer. If the frame is large and much of it has arrived, copy
        it into a buffer for the whole frame."""
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
        """Replace the connection's own buffer, which one incomplete frame fills, by a larger one. Wait if the pool
        has no room.
        """
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
                raise ConnectionLost("this node closed the connection while it waited for memory")
        grown.view[: self.have] = old.view[: self.have]
        self.own = grown
        buffers.give(old)

    @property
    def address(self) -> str:
        """The host of the peer."""
        return self.conn.peer_host

    def _give_own(self) -> None:
        if self.own is not None:
            own, self.own = self.own, None
            self.have = 0
            self.services.buffers.give(own)

    # -- dispatch -------------------------------------------------------------------------------------------------

    def _dispatch(self, buffer: PooledBuffer, end: int) -> int:
        """Dispatch complete frames of `buffer[:end]`; return the position after the last dispatched frame."""
        data, view = buffer.data, buffer.view
        services = self.services
        frame_bytes_max = services.frame_bytes_max
        start = frames = 0
        look_at = FRAMES_PER_LOOK
        if services.charging is not None:
            services.long_work.asker = self
        self.dispatching = True
        try:
            while end - start >= 4:
                size = _SIZE.unpack_from(data, start)[0]
                if size < FRAME_BYTES_MIN or size > frame_bytes_max:
                    raise RemoteProtocolError(size_refusal(size, FRAME_BYTES_MIN, frame_bytes_max))
                stop = start + 4 + size
                if stop > end:
                    break
                if frames == look_at:
                    look_at = self._look_again_after(frames)
                if (
                    not look_at
                    or self.suspended is not None
                    or self.room is not None
                    or self.closing
                    or self.muted_until
                ):
                    self.pending_frames = True
                    break
                self._dispatch_frame(view[start + 4 : stop], size)
                frames += 1
                if services.poison:
                    data[start:stop] = b"\xaa" * (stop - start)
                    assert_unchanged()
                start = stop
        finally:
            self.dispatching = False
        if self.slots and self.slots[0].is_answered:
            self._move_answers()
        return start

    def _look_again_after(self, frames: int) -> int:
        """Return the number of dispatched frames at which this turn reads the clock next; 0 ends the turn."""
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
            charge = partial(self._charge_suspended, api_key, size)
            result: Any = decode_beside(self.services, entry, context, frame, offset, charge)
        else:
            charging = self.services.charging
            if charging is not None and charging.charge(context, api_key, size, request, self.last_active):
                self._mute(context.throttle_ms)
            result = entry.handle(context, request)
        self._answer(entry, correlation_id, size, result)

    def _charge_suspended(self, api_key: int, size: int, asker: Context, request: Any) -> None:
        """Charge the client for the request that suspends this connection, once it is decoded."""
        charging = self.services.charging
        if charging is None or self.suspended is None:
            return
        if charging.charge(asker, api_key, size, request, self.services.clock.monotonic()):
            self._mute(asker.throttle_ms)
            self.suspended[0].throttle_ms = asker.throttle_ms

    def _charge_turn(self, seconds: float) -> None:
        """Charge the processor time of this turn to the client. `seconds` is the turn's duration, 0.0 if it was not
        measured.

        All requests of the turn share one measurement.
        """
        services = self.services
        took = services.meter.turn_cpu_seconds(seconds or services.clock.monotonic() - self.last_active)
        services.long_work.asker = None
        share = self.context.quota
        if isinstance(share, ClientShare) and share.request is not None:
            share.request.charge_turn(took, self.last_active)

    def _charge_for_nothing(self) -> None:
        """Charge a turn that received no bytes: TLS may have processed records without data."""
        services = self.services
        services.long_work.turns += 1
        if services.charging is not None and services.charging.measures_cpu:
            self._charge_turn(0.0)

    def _take_client_id(self, raw: memoryview, length: int) -> None:
        if len(raw) != length:
            raise RemoteProtocolError("the client id is longer than the frame that holds it")
        self.client_id_raw = bytes(raw)
        try:
            self.context.client_id = self.client_id_raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("the client id is not UTF-8") from error

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; called from outside its own task."""
        super().close()
        if self.memory is not None:
            self.memory.set()

    def has_left(self, now: float, idle_seconds_max: float) -> bool:
        """True if this connection is muted and its client has closed it, so that this node need not keep it.

        Requests that came before the close are still served when the mute ends. A connection with such
        requests is kept until it has been idle for `idle_seconds_max`.
        """
        if self.woken is None or self.closing:
            return False
        try:
            end = self.conn.peer_end()
        except ConnectionLost:
            return True
        if end is PeerEnd.OPEN or self.slots or self.send_queue.chunks:
            return False
        if end is PeerEnd.ENDED and not self.pending_frames:
            return True
        return now - self.last_active > idle_seconds_max

    def trim(self) -> None:
        """Return the empty buffer of an idle connection to the pool, unless a request is suspended."""
        if self.have == 0 and not self.pending_frames and not self.dispatching and self.suspended is None:
            self._give_own()

    def _release(self) -> None:
        self.closing = True
        self.conn.close()
        self._give_own()
        self._release_answers()
        on_end = self.context.on_end
        if on_end is not None:
            on_end()
