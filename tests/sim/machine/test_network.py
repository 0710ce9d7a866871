"""The simulated network: split streams, back pressure, cut links, and what peers notice when a process dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from odradek.env.ports import Conn, ConnectionLost, DiskError
from sim.machine.network import CONNECT_SECONDS_MAX, SimConn
from sim.machine.waiting import NodeCrashed
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.sim.machine.echo import send_all

TORN = Weather(
    latency_seconds=(0.0001, 0.02),
    spike_probability=0.05,
    split_probability=0.8,
    short_send_probability=0.8,
    short_recv_probability=0.8,
    spurious_wake_probability=0.3,
    socket_buffer_bytes=1000,
)
CALM = Weather()


def in_world(test: Callable[[World], Awaitable[None]], weather: Weather = CALM, seed: int = 1) -> World:
    """Run a scenario in a new world."""
    world = World(seed, weather)
    world.run(test, world)
    return world


async def pair(world: World) -> tuple[SimConn, SimConn]:
    """Connect machine a to machine b; return both ends."""
    listener = world.node_env("b").network.listen("", 9092)
    here = await world.node_env("a").network.connect("b", 9092)
    there = await listener.accept()
    listener.close()
    return here, there


async def receive_all(conn: Conn) -> bytes:
    """Receive everything up to the end of the stream."""
    buffer, received = bytearray(700), b""
    while True:
        await conn.readable()
        count = conn.recv_into(memoryview(buffer))
        if count == 0:
            return received
        received += buffer[: count or 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_arrives_whole_and_in_order(seed: int) -> None:
    """The bytes of a stream arrive complete and in order, however writes are split and delayed."""
    data = bytes(range(256)) * 40

    async def scenario(world: World) -> None:
        here, there = await pair(world)

        async def send() -> None:
            await send_all(here, data)
            here.close()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(send)
            assert await receive_all(there) == data
        assert world.now > 0.01

    in_world(scenario, TORN, seed)


def test_writes_are_split_at_any_byte() -> None:
    """Receivers see a write split at any byte, even within a length prefix."""
    sizes: set[int] = set()

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        buffer = memoryview(bytearray(100))
        for _ in range(200):
            assert here.send([b"01234567"]) == 8
            left = 8
            while left:
                await there.readable()
                count = there.recv_into(buffer)
                assert count
                sizes.add(count)
                left -= count

    in_world(scenario, Weather(latency_seconds=(0.0, 0.01), split_probability=0.8))
    assert sizes == set(range(1, 9))


def test_a_full_window_blocks_the_sender_until_the_receiver_reads() -> None:
    """`send` returns 0 when the buffer is full. Senders see freed room in steps of a quarter of the buffer; `writable`
    waits for a third."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        assert here.send([bytes(600), bytes(600)]) == 1000
        assert here.send([b"x"]) == 0
        writable = trio.Event()

        async def wait() -> None:
            await here.writable()
            writable.set()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(wait)
            await world.sleep(1)
            assert not writable.is_set()
            assert there.recv_into(memoryview(bytearray(300))) == 300
            await world.sleep(1)
            assert not writable.is_set()
            assert here.send([b"x"]) == 1
            assert there.recv_into(memoryview(bytearray(100))) == 100
            await world.sleep(1)
            assert not writable.is_set()
            assert there.recv_into(memoryview(bytearray(150))) == 150
            await writable.wait()
        assert here.send([bytes(999)]) == 549

    in_world(scenario, Weather(socket_buffer_bytes=1000))


def test_readable_waits_for_as_much_as_it_was_told() -> None:
    """`readable` returns when the wanted bytes are there, the buffer is full or the stream ends, like SO_RCVLOWAT."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        woken: list[float] = []

        async def wait() -> None:
            await there.readable()
            woken.append(world.now)

        there.wait_for(10_000)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(wait)
            here.send([bytes(332)])
            await world.sleep(1)
            assert woken == []
            here.send([b"x"])
        assert there.recv_into(memoryview(bytearray(1000))) == 333
        here.send([b"abc"])
        await world.sleep(1)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(wait)
            await world.sleep(1)
            assert len(woken) == 1
            there.wait_for(1)
        there.wait_for(100)
        here.close()
        assert await receive_all(there) == b"abc"

    in_world(scenario, Weather(socket_buffer_bytes=1000))


def test_spurious_wakes_read_nothing() -> None:
    """`readable` may return without data. `recv_into` then returns None, which does not mean the end of the stream."""

    async def scenario(world: World) -> None:
        _, there = await pair(world)
        await there.readable()
        assert there.recv_into(memoryview(bytearray(1))) is None

    in_world(scenario, Weather(spurious_wake_probability=1.0))


def test_close_is_the_end_of_the_stream_or_a_reset() -> None:
    """Bytes sent before a close arrive. Closing with unread bytes resets the connection, as TCP does."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        here.send([b"bye"])
        here.close()
        assert await receive_all(there) == b"bye"
        there.send([b"too late"])
        await world.sleep(1)
        with pytest.raises(ConnectionLost, match="reset"):
            there.send([b"x"])

        here, there = await pair(world)
        here.send([b"unread"])
        await world.sleep(1)
        there.close()
        await here.readable()
        with pytest.raises(ConnectionLost, match="reset"):
            here.recv_into(memoryview(bytearray(1)))

    in_world(scenario)


def test_close_ends_the_own_waiters() -> None:
    """Closing a connection or listener raises `ConnectionLost` in the tasks that wait for it, like a real socket."""

    async def scenario(world: World) -> None:
        here, _ = await pair(world)
        listener = world.node_env("b").network.listen("", 1)
        ended: list[str] = []

        async def wait(name: str, wait: Callable[[], Awaitable[object]]) -> None:
            try:
                await wait()
            except ConnectionLost:
                ended.append(name)

        async with trio.open_nursery() as tasks:
            tasks.start_soon(wait, "readable", here.readable)
            tasks.start_soon(wait, "accept", listener.accept)
            await world.sleep(1)
            here.close()
            listener.close()
        assert sorted(ended) == ["accept", "readable"]
        with pytest.raises(ConnectionLost):
            here.send([b"x"])
        with pytest.raises(ConnectionLost):
            await listener.accept()

    in_world(scenario)


def test_an_empty_receive_buffer_is_a_bug() -> None:
    """Receiving into an empty buffer is refused, because 0 bytes would look like the end of the stream."""

    async def scenario(world: World) -> None:
        here, _ = await pair(world)
        with pytest.raises(ValueError, match="no room"):
            here.recv_into(memoryview(b""))

    in_world(scenario)


def test_connecting_to_nobody_fails() -> None:
    """Connecting to an unknown name or a closed port fails at once. Connecting to a machine without power fails after
    a timeout."""

    async def scenario(world: World) -> None:
        network = world.node_env("a").network
        with pytest.raises(ConnectionLost, match="no such host"):
            await network.connect("nowhere", 1)
        world.node_env("b")
        with pytest.raises(ConnectionLost, match="refused"):
            await network.connect("b", 1)
        world.crash("b", "synced")
        before = world.now
        with pytest.raises(ConnectionLost, match="timed out"):
            await network.connect("b", 1)
        assert world.now == before + CONNECT_SECONDS_MAX

    in_world(scenario)


def test_ports_are_taken_once_and_hosts_have_names_and_addresses() -> None:
    """A node can listen on its name, its address, all addresses or the loopback. Port 0 means any free port."""

    async def scenario(world: World) -> None:
        network = world.node_env("a").network
        listener = network.listen("a", 0)
        with pytest.raises(OSError, match="in use"):
            network.listen("0.0.0.0", listener.port)
        world.node_env("b")
        with pytest.raises(OSError, match="not an address"):
            network.listen("b", 0)
        other = world.node_env("b").network
        for host in ("a", "10.0.0.1"):
            await other.connect(host, listener.port)
            assert (await listener.accept()).peer_host == "10.0.0.2"
        await network.connect("localhost", listener.port)
        assert (await listener.accept()).peer_host == "10.0.0.1"

    in_world(scenario)


def test_a_cut_link_holds_what_was_sent_until_it_is_healed() -> None:
    """A cut link delays the data of a stream until it is healed. No data is lost."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        world.partition("a", "b")
        here.send([b"one"])
        here.send([b"two"])
        await world.sleep(30)
        assert there.recv_into(memoryview(bytearray(9))) is None
        world.heal("a", "b")
        here.send([b"three"])
        here.close()
        assert await receive_all(there) == b"onetwothree"

    in_world(scenario, TORN.__class__(latency_seconds=(0.0, 0.5)))


def test_a_link_can_be_cut_in_one_direction() -> None:
    """If a link is cut in one direction, requests arrive, but responses do not."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        world.fabric.cut("b", "a")
        here.send([b"request"])
        there.send([b"answer"])
        await world.sleep(1)
        buffer = memoryview(bytearray(9))
        assert there.recv_into(buffer) == 7
        assert here.recv_into(buffer) is None
        world.fabric.heal("b", "a")
        await here.readable()
        assert here.recv_into(buffer) == 6

    in_world(scenario)


def test_the_death_of_a_process_resets_its_connections() -> None:
    """When a process is killed (`keep="all"`), the machine's kernel resets its connections."""

    async def scenario(world: World) -> None:
        here, _ = await pair(world)
        world.crash("b", "all")
        await here.readable()
        with pytest.raises(ConnectionLost, match="reset"):
            here.recv_into(memoryview(bytearray(1)))

    in_world(scenario)


def test_a_loss_of_power_is_silent_until_the_machine_is_back() -> None:
    """After a power loss peers notice nothing. When the machine is up again, it answers old connections with a
    reset."""

    async def scenario(world: World) -> None:
        here, _ = await pair(world)
        world.crash("b", "synced")
        here.send([b"into the void"])
        await world.sleep(100)
        assert here.recv_into(memoryview(bytearray(1))) is None
        world.node_env("b")
        here.send([b"anybody?"])
        await here.readable()
        with pytest.raises(ConnectionLost, match="reset"):
            here.recv_into(memoryview(bytearray(1)))

    in_world(scenario)


def test_a_dead_node_cannot_reach_the_network() -> None:
    """A dead process cannot send anything more."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        network = world.node_env("a").network
        world.crash("a")
        for attempt in (lambda: here.send([b"x"]), lambda: here.recv_into(memoryview(bytearray(1)))):
            with pytest.raises(ConnectionLost, match="crashed"):
                attempt()
        here.close()
        with pytest.raises((NodeCrashed, ConnectionLost)):
            await here.readable()
        with pytest.raises(ConnectionLost):
            await network.connect("b", 1)
        with pytest.raises(OSError, match="crashed"):
            network.listen("", 1)
        await there.readable()

    in_world(scenario)


def test_sendfile_sends_a_range_of_a_file() -> None:
    """`sendfile` sends a range in bounded pieces. If the file ends early, it raises `DiskError`, as on a real disk."""

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        file = world.node_env("a").open_dir("/data", create=True).open("f", create=True)
        file.append(bytes(range(256)) * 20)
        received: list[bytes] = []
        ended: list[tuple[int, str, str]] = []

        async def receive() -> None:
            received.append(await receive_all(there))

        async with trio.open_nursery() as tasks:
            tasks.start_soon(receive)
            position = 100
            while position < 5121:
                try:
                    taken = here.sendfile(file, position, 5121 - position)
                except DiskError as error:
                    ended.append((position, error.directory, error.reason))
                    break
                position += taken
                if not taken:
                    await here.writable()
            here.close()
        assert ended == [(5120, "/data", "ends before 5121")]
        assert received == [(bytes(range(256)) * 20)[100:]]

    in_world(scenario, Weather(socket_buffer_bytes=1000))


def test_late_closes_end_with_the_storm() -> None:
    """In some weather peers notice a close late. Without `may_close_late` they notice it at once."""
    noticed: list[float] = []

    async def scenario(world: World) -> None:
        for may in (True, False):
            world.fabric.may_close_late = may
            here, there = await pair(world)
            began = world.now
            here.close()
            assert await receive_all(there) == b""
            noticed.append(world.now - began)

    in_world(scenario, Weather(late_probability=1.0, late_seconds=40.0))
    late, soon = noticed
    assert soon < 0.001 < 1.0 < late <= 40.0


def test_after_a_storm_a_narrow_connection_carries_what_a_run_writes() -> None:
    """A small buffer with long latency spikes is too slow for a run's load; `settled` weather is fast enough."""
    narrow = Weather(
        latency_seconds=(0.00005, 0.001),
        spike_probability=0.02,
        spike_seconds=1.0,
        split_probability=0.5,
        short_send_probability=0.5,
        short_recv_probability=0.5,
        socket_buffer_bytes=4096,
    )
    seconds: list[float] = []

    async def scenario(world: World) -> None:
        here, there = await pair(world)
        began = world.now

        async def send() -> None:
            await send_all(here, bytes(400_000))
            here.close()

        async with trio.open_nursery() as tasks:
            tasks.start_soon(send)
            assert len(await receive_all(there)) == 400_000
        seconds.append(world.now - began)

    in_world(scenario, narrow)
    in_world(scenario, narrow.settled())
    stormy, settled = seconds
    assert stormy > 4.0
    assert settled < 2.0


@pytest.mark.parametrize(
    "weather",
    [
        Weather(spike_probability=0.02, spike_seconds=1.0, socket_buffer_bytes=64 << 10),
        Weather(spike_probability=0.02, spike_seconds=0.1, socket_buffer_bytes=4 << 10),
        Weather(spike_probability=0.001, spike_seconds=1.0, socket_buffer_bytes=4 << 10),
        CALM,
    ],
)
def test_weather_that_carries_the_loads_stays_after_a_storm(weather: Weather) -> None:
    """`settled` changes only weather that is too slow for any product."""
    assert weather.settled() == weather
