"""The memory pool for half-received frames: who gets memory, in which order, and whose connection is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.env.ports import ConnectionLost
from odradek.node.connections.buffers import (
    BYTES_PER_SECOND_MIN,
    SMALL_FRAME_BYTES,
    SMALL_SHARE,
    WAIT_SECONDS_MAX,
    PooledBuffer,
    ReceiveBuffers,
)
from sim.machine.world import World
from testkit.virtual import Client
from tests.node.requests.test_connection_loop import Node, framed, play

MIB = 1 << 20
POOL = 64 * MIB
SMALL_PART = POOL // SMALL_SHARE
LARGE_FRAME = 32 * MIB

Connect = Callable[[], Awaitable[Client]]


@attrs.define(eq=False)
class Holding:
    """A stub of a connection, as the pool sees it."""

    address: str
    have: int = 0
    frame_began_at: float = 0.0
    closing: bool = False
    frame_bytes: int = 0
    buffer: PooledBuffer | None = None
    waits: bool = False
    granted: list[int] = attrs.field(factory=list)
    event: trio.Event = attrs.field(factory=trio.Event)

    def close(self) -> None:
        self.closing = True


steps = st.lists(
    st.tuples(
        st.sampled_from(("begin", "begin", "grow", "grow", "end", "leave", "tick")),
        st.integers(0, 30),
        st.sampled_from((3000, MIB, SMALL_FRAME_BYTES, LARGE_FRAME)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps, st.integers(1, 3))
def test_the_pool_keeps_its_rules(script: list[tuple[str, int, int]], addresses: int) -> None:
    """The pool counts its bytes exactly, serves small and large frames each in the order of arrival, and is empty when
    all have left. A small frame never waits while the part for small frames has room."""

    async def main() -> None:
        pool = ReceiveBuffers(POOL)
        holders: list[Holding] = []
        queue: dict[bool, list[Holding]] = {False: [], True: []}
        now = 0.0

        async def wait(holder: Holding, size: int, began: float) -> None:
            assert holder.buffer is not None
            old = holder.buffer
            grown = await pool.wait_for(size, holder.frame_bytes, old, holder.event, began)
            holder.waits = False
            is_small = holder.frame_bytes <= SMALL_FRAME_BYTES
            if grown is not None:
                assert queue[is_small][0] is holder, "a connection was served before its turn"
                holder.buffer = grown
                pool.give(old)
            queue[is_small].remove(holder)

        def check() -> None:
            held = [holder.buffer for holder in holders if holder.buffer is not None]
            assert pool.statistics()["bytes_used"] == sum(buffer.size for buffer in held)
            assert pool.bytes_used <= POOL + LARGE_FRAME + SMALL_FRAME_BYTES
            small = sum(buffer.size for buffer in held if buffer.is_small)
            for holder in queue[True][:1]:
                assert holder.buffer is not None
                assert small + 2 * holder.buffer.size > SMALL_PART, (
                    "a small frame waits although its part has room"
                )
            assert pool.statistics()["waiting"] == len(queue[False]) + len(queue[True])

        async with trio.open_nursery() as tasks:
            for action, number, frame_bytes in script:
                now += 0.7
                idle = [holder for holder in holders if not holder.waits]
                if action == "begin":
                    holder = Holding(f"10.0.0.{number % addresses}", frame_began_at=now)
                    holder.frame_bytes = frame_bytes
                    size = min(frame_bytes, MIB)
                    holder.buffer = pool.take(size, frame_bytes, holder)
                    if holder.buffer is not None:
                        holder.have = holder.buffer.size
                        holders.append(holder)
                elif action == "grow" and idle:
                    holder = idle[number % len(idle)]
                    assert holder.buffer is not None
                    old, size = holder.buffer, 2 * holder.buffer.size
                    if size > holder.frame_bytes:
                        continue
                    grown = pool.take(size, holder.frame_bytes, holder, old)
                    if grown is not None:
                        holder.buffer = grown
                        pool.give(old)
                    else:
                        holder.waits = True
                        queue[holder.frame_bytes <= SMALL_FRAME_BYTES].append(holder)
                        tasks.start_soon(wait, holder, size, now)
                elif action == "end" and idle:
                    holder = idle[number % len(idle)]
                    holders.remove(holder)
                    assert holder.buffer is not None
                    pool.give(holder.buffer)
                elif action == "leave" and holders:
                    await leave(holders[number % len(holders)], holders, pool)
                elif action == "tick":
                    now += number
                    for evicted in pool.to_evict(now):
                        assert isinstance(evicted, Holding)
                        await leave(evicted, holders, pool)
                await trio.testing.wait_all_tasks_blocked()
                check()
            for holder in list(holders):
                await leave(holder, holders, pool)
            await trio.testing.wait_all_tasks_blocked()
            assert (pool.bytes_used, pool.contended) == (0, False)

    trio.run(main)


async def leave(holder: Holding, holders: list[Holding], pool: ReceiveBuffers) -> None:
    """Close a connection: it stops waiting and returns its buffer."""
    holder.event.set()
    await trio.testing.wait_all_tasks_blocked()
    holders.remove(holder)
    assert holder.buffer is not None
    pool.give(holder.buffer)


def test_the_largest_share_goes_first_and_of_it_the_slowest() -> None:
    """While connections wait for memory, one connection a second is closed: the slowest of the address with the
    largest share. All connections slower than `BYTES_PER_SECOND_MIN` may be closed together."""

    async def main() -> None:
        pool = ReceiveBuffers(POOL)
        holders = []
        for address, have, count in (("many", 8 * MIB, 4), ("few", MIB, 1)):
            for number in range(count):
                holder = Holding(address, have + number, frame_began_at=0.0, frame_bytes=LARGE_FRAME)
                holder.buffer = pool.take(8 * MIB, LARGE_FRAME, holder)
                assert holder.buffer is not None
                holders.append(holder)
        waiting = Holding("few", 8 * MIB, frame_began_at=10.0, frame_bytes=LARGE_FRAME)
        waiting.buffer = pool.take(8 * MIB, LARGE_FRAME, waiting)
        assert waiting.buffer is not None
        async with trio.open_nursery() as tasks:
            tasks.start_soon(pool.wait_for, 32 * MIB, LARGE_FRAME, waiting.buffer, waiting.event, 10.0)
            await trio.testing.wait_all_tasks_blocked()
            assert pool.to_evict(10.0 + WAIT_SECONDS_MAX) == []
            fast = pool.to_evict(11.0 + WAIT_SECONDS_MAX)
            assert fast == [holders[0]]
            assert fast[0].have / (11.0 + WAIT_SECONDS_MAX) > BYTES_PER_SECOND_MIN
            slow = pool.to_evict(10_000.0)
            assert slow == [*holders[:3], holders[4]]
            waiting.event.set()

    trio.run(main)


def test_a_small_frame_passes_beside_half_sent_large_ones() -> None:
    """Half-sent large frames fill their part of the pool. A request of 900 KB is still answered at once."""
    pool = 16 * MIB
    large = framed(b"echo:" + bytes(7 * MIB))

    async def script(world: World, node: Node, connect: Connect) -> None:
        async with trio.open_nursery() as tasks:
            await fill(tasks, world, connect, large, 40)
            assert node.buffers.contended
            client = await connect()
            before = world.now
            await client.send(framed(b"echo:" + bytes(900_000)))
            assert len(await client.answer()) == 900_000
            assert world.now - before < 1
            tasks.cancel_scope.cancel()

    play(script, buffer_bytes_max=pool)


def test_half_sent_small_frames_are_given_up_for_others() -> None:
    """If dozens of half-sent small frames block a request, enough of them are closed at once to answer it within
    seconds."""
    pool = 16 * MIB
    small = framed(b"echo:" + bytes(1900 << 10))

    async def script(world: World, node: Node, connect: Connect) -> None:
        async with trio.open_nursery() as tasks:
            await fill(tasks, world, connect, small, 60)
            assert node.buffers.contended
            client = await connect()
            with trio.fail_after(30):
                await client.send(framed(b"echo:" + bytes(900_000)))
                assert len(await client.answer()) == 900_000
            assert "connection.evicted" in node.log.events
            tasks.cancel_scope.cancel()

    play(script, buffer_bytes_max=pool)


async def fill(tasks: trio.Nursery, world: World, connect: Connect, frame: bytes, count: int) -> None:
    """Begin a frame on each of many connections, then send one byte every three seconds."""

    async def hold() -> None:
        client = await connect()
        try:
            await client.send(frame[:MIB])
            for at in range(MIB, len(frame)):
                await world.sleep(3)
                await client.send(frame[at : at + 1])
        except ConnectionLost:
            return

    for _ in range(count):
        tasks.start_soon(hold)
    await world.sleep(2)
