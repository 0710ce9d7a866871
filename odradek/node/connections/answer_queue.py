"""The answers of one connection: in the order of its requests, several at once, with limited memory; the pause
of a muted client. PORTED.

An answer that is ready at once goes straight to the send queue. As soon as one request is delayed, it and all
later requests get a `Slot` in a queue (`odradek.node.connections.answers`). This queue is limited in number
and in bytes. While it is full, no requests are read from the connection. The code that completes a delayed
answer also sends it, without waking the connection's task. If the socket is full, a separate task (`_drain`)
waits until the socket is writable.

Every request is counted in its `ApiEntry`. All answers of a turn are sent with one call and have the same latency, so
the clock is read once per turn.
"""

from __future__ import annotations

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
from odradek.node.connections.charging import CHANGING, CHARGED_ANSWERS, throttled
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.long_requests import encode_beside
from odradek.node.connections.send_queue import Chunk, SendQueue
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS, ApiEntry
from odradek.serving.contract import CLOSE, Context, Delayed, Suspend

SEND_QUEUE_BYTES_MAX = 16 * 1024 * 1024


class _Who(TypedDict):
    """The peer of a connection, for log lines."""

    peer: str
    client_id: str | None


class AnswerQueue:
    """The half of a connection that answers requests. `Connection` adds the half that receives them. The two
    halves are one object, because every frame uses both of them.
    """

    __slots__ = (
        "blocked",
        "closing",
        "conn",
        "context",
        "dispatching",
        "draining",
        "encoding",
        "held_bytes",
        "last_active",
        "muted_rate",
        "muted_until",
        "parked",
        "room",
        "send_queue",
        "services",
        "slots",
        "suspended",
        "woken",
    )

    def __init__(self, services: ConnectionServices, conn: Conn, listener: str) -> None:
        self.services = services
        self.conn = conn
        self.context = Context(listener, conn.peer_host, conn.peer_port)
        self.send_queue = SendQueue()
        self.slots: deque[Slot] | None = None
        self.held_bytes = 0
        """The bytes that this connection's slots hold (`odradek.node.connections.answers`)."""
        self.parked = 0
        """The number of this connection's parked fetches."""
        self.encoding = 0
        """The number of long answers that still have to be encoded. No request is dispatched until this is 0."""
        self.suspended: tuple[Slot, Suspend] | None = None
        self.room: Event | None = None
        self.draining = False
        self.blocked = False
        """True while this connection's own task still has to send the rest of a turn's answers."""
        self.dispatching = False
        self.closing = False
        self.last_active = self.context.opened_seconds = services.clock.monotonic()
        self.woken: Event | None = None
        """The event that ends a mute early; None if the connection is not muted."""
        self.muted_until = 0.0
        """The time until which no requests are read, because the client used up its quota; 0 if they are read."""
        self.muted_rate: float | None = None
        """The client's quota of metadata changes, if the controller mutes the client because of this quota;
        otherwise None.
        """

    def _who(self) -> _Who:
        return {"peer": self.conn.peer_host, "client_id": self.context.client_id}

    # -- one answer ---------------------------------------------------------------------------------------------

    def _answer(self, entry: ApiEntry, correlation_id: int, size: int, result: Any) -> None:
        """Encode an answer that is ready and next in order; put any other answer into the queue."""
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
        if self.context.throttle_ms:
            result = throttled(result, self.context.throttle_ms)
        if self.slots:
            slot = self._queue_slot(entry, correlation_id, size)
            slot.response = result
            self._encode_early(slot)
        else:
            self._encode(entry, correlation_id, result)
            entry.answered_in_turn += 1
            services = self.services
            if services.answered_last is not entry:
                services.answered_last = entry
                services.answered.append(entry)

    def _queue_slot(self, entry: ApiEntry, correlation_id: int, size: int) -> Slot:
        slot = Slot(self, entry, correlation_id, size)
        slot.throttle_ms = self.context.throttle_ms
        if self.slots is None:
            self.slots = deque()
        self.slots.append(slot)
        if len(self.slots) >= SLOTS_MAX and self.room is None:
            self.room = self.services.new_event()
        return slot

    def _delay(self, slot: Slot, delayed: Delayed) -> None:
        """Put a slot into the queue for an answer that will come later."""
        slot.delayed = delayed
        delayed.answer = slot
        if delayed.parks:
            slot.parks = True
            self.parked += 1
            self.services.held.parked += 1
        self._hold(slot, slot.request_bytes if delayed.keeps_request else 0)

    def _hold(self, slot: Slot, count: int) -> None:
        """Count `count` bytes as held by a slot from now on. If the connection's slots together hold too many, no
        more requests are dispatched.
        """
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
        """Stop counting the bytes of a slot that has left the queue."""
        self._park_no_more(slot)
        self.held_bytes -= slot.held_bytes
        self.services.held.change(-slot.held_bytes)
        slot.held_bytes = 0

    def _park_no_more(self, slot: Slot) -> None:
        if slot.parks:
            slot.parks = False
            self.parked -= 1
            self.services.held.parked -= 1

    # -- encoding and sending --------------------------------------------------------------------------------------------------

    def _encode(self, entry: ApiEntry, correlation_id: int, response: Any) -> None:
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
        if self.services.charging is not None and entry.api_key in CHARGED_ANSWERS:
            self.charge_answer(entry, response, size)
        if queue.bytes_queued > SEND_QUEUE_BYTES_MAX and self.room is None:
            self.room = self.services.new_event()

    def charge_answer(self, entry: ApiEntry, response: Any, size: int) -> None:
        """Charge the bytes of an answer to the client's quota. Mute the client if the controller's answer demands it
        (KIP-599).
        """
        services = self.services
        if services.charging is not None:
            now = services.clock.monotonic()
            services.charging.charge_answer(self.context, entry.api_key, response, size, now)
            if entry.api_key in CHANGING and response.throttle_time_ms:
                self.muted_until = max(self.muted_until, now + response.throttle_time_ms / 1000)
                self.muted_rate = services.charging.mutation_rate(self.context)

    def _encode_early(self, slot: Slot) -> None:
        """Encode an answer that has to wait for an earlier one. The encoder appends its bytes to the send
        queue. They are then moved from the queue to the slot.
        """
        queue = self.send_queue
        chunks, size = len(queue.chunks), queue.bytes_queued
        response, slot.response = slot.response, None
        self._encode(slot.entry, slot.correlation_id, response)
        slot.chunks = queue.chunks[chunks:]
        del queue.chunks[chunks:]
        size, queue.bytes_queued = queue.bytes_queued - size, size
        self._hold(slot, size)

    def answer_came(self, slot: Slot) -> None:
        """Called when a delayed answer is complete: sends it if it is next in order. Errors end this
        connection only.
        """
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
        """Have a worker encode a long answer. No request is dispatched until it is encoded."""
        self._park_no_more(slot)
        self.encoding += 1
        if self.room is None:
            self.room = self.services.new_event()
        self.services.tasks.start_soon(encode_beside, self.services, slot, response, name="long answer")

    def encoded(self, slot: Slot, chunks: list[Chunk], size: int) -> None:
        """Called when a long answer is encoded: queues its bytes, and sends them if they are next."""
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
        """Called when a long answer could not be encoded, which is a bug: ends the connection."""
        self.encoding -= 1
        self._break()

    def _move_answers(self) -> None:
        """Move completed answers from the head of the queue to the send queue, and encode those that are not encoded
        yet.
        """
        slots = self.slots
        now = self.services.clock.monotonic()
        queue = self.send_queue
        while slots and slots[0].is_answered:
            slot = slots.popleft()
            entry, latency = slot.entry, now - slot.received_at
            if slot.chunks is None:
                self._encode(entry, slot.correlation_id, slot.response)
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
        """Encode and send the answers that are complete and next in order. Errors end this connection only."""
        try:
            self._move_answers()
            if self.send_queue.chunks:
                self._flush()
        except (ConnectionLost, DiskError) as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  # `_break` logs it
            # The caller serves another connection, whose request has completed this answer. An error here
            # must not end that other connection.
            self._break()
        self.signal_room()

    def _break(self) -> None:
        """End the connection because of a bug, and log it."""
        self.services.log.exception("connection.bug", **self._who())
        self.services.spills.clear()
        self.close()

    def _fail(self, error: ConnectionLost | DiskError) -> None:
        """End the connection because of an error that another task has met."""
        if isinstance(error, DiskError):
            self.services.log.error("connection.disk_error", error=str(error), **self._who())
        self.close()

    def _end_turn(self) -> float:
        """Send the answers of this turn, and count them. Return how long the turn took, in seconds."""
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
        return latency

    def _forget_turn(self) -> None:
        """Drop the counts of a turn that an error has ended."""
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
        """Send the rest of the send queue, whenever the socket has room."""
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
        """Resume dispatching if there is room for more answers."""
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
            raise ConnectionLost("this node closed the connection while an answer waited for room to be sent")

    async def _run_suspended(self) -> None:
        assert self.suspended is not None
        slot, suspend = self.suspended
        services = self.services
        result: Any = suspend
        while result.__class__ is Suspend:
            slot.is_long |= result.is_long
            if services.charging is not None:
                # Charge the client for the work of each result, even if long work produced the result.
                services.long_work.asker = self
            result = await result.run()
        self.suspended = None
        if result is None or result is CLOSE:
            # No request was dispatched meanwhile, so the slot is the last.
            assert self.slots is not None
            self.slots.remove(slot)
            self._let_go(slot)
            slot.entry.unanswered += 1
            self.signal_room()
            if result is CLOSE:
                raise ConnectionLost(
                    "a request with acks=0 failed, and closing the connection is its only answer"
                )
        elif isinstance(result, Delayed) and result.response is None:
            self._delay(slot, result)
        else:
            slot.complete(result.response if isinstance(result, Delayed) else result)
        if self.closing:
            raise ConnectionLost("this node closed the connection while a request waited")

    # -- quotas ---------------------------------------------------------------------------------------------------

    def payer(self) -> Callable[[float, float], object] | None:
        """Return a function that charges processor time of long work to the client of the present request; None
        without quotas.
        """
        charging = self.services.charging
        return None if charging is None else charging.payer(self.context)

    def _mute(self, throttle_ms: int) -> None:
        """Read no further requests for `throttle_ms`, as in Kafka (KIP-219)."""
        self.muted_until = self.last_active + throttle_ms / 1000

    async def _stay_muted(self) -> None:
        """Wait until the client is no longer muted."""
        services = self.services
        services.muted[self] = None
        try:
            while services.clock.monotonic() < self.muted_until and not self.closing:
                self.woken = services.new_event()
                with services.clock.timeout_at(self.muted_until):
                    await self.woken.wait()
        finally:
            del services.muted[self]
            self.woken = self.muted_rate = None
            self.muted_until = 0.0
            self.context.throttle_ms = 0
            # The connection counts as idle from now on.
            self.last_active = self.context.opened_seconds = services.clock.monotonic()
        if self.closing:
            raise ConnectionLost("this node closed the connection while it was muted for a quota")

    def judge_wait(self) -> None:
        """Called when quotas have changed: shortens the wait of a muted client to the wait that its debts require
        now.

        The debts under all quotas count, not only the debt that muted the client. Otherwise each change of a
        quota would admit a request of every muted client. The wait never becomes longer than before.
        """
        charging, now = self.services.charging, self.services.clock.monotonic()
        until = 0.0
        if charging is not None:
            until = now + charging.seconds_left(self.context, now)
            if self.muted_rate is not None and charging.mutation_rate(self.context) == self.muted_rate:
                until = self.muted_until
        if until < self.muted_until:
            self.muted_until, self.last_active = until, now
            self._wake()

    def _wake(self) -> None:
        if self.woken is not None:
            self.woken.set()

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; called from outside its own task."""
        self.closing = True
        self.conn.close()
        self._wake()
        self.signal_room()

    def _release_answers(self) -> None:
        """Drop the unsent answers, and release the files and memory that they hold."""
        self._forget_turn()
        self.services.spills.clear()
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
