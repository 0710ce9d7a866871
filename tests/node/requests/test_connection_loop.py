"""The connection loop over simulated sockets: order, bounds, pieces, and that nothing stays held."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from odradek.data_plane.log.partition_log import FileRange
from odradek.env.ports import Conn, ConnectionLost, Env, Event, File
from odradek.node.connections.answers import SLOTS_MAX
from odradek.node.connections.buffers import WAIT_SECONDS_MAX, ReceiveBuffers
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_loop import FRAMES_PER_LOOK, FRAMES_PER_TURN, TURN_SECONDS_MAX
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.server import Server
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS
from odradek.serving.contract import CLOSE, Delayed, PinsFiles, Suspend
from odradek.wire.errors import RemoteProtocolError
from sim.machine.weather import Weather
from sim.machine.world import World

PORT = 9092
FRAME_BYTES_MAX = 8 << 20
IDLE_MS_MAX = 60_000
LARGE_BYTES = 300_000


class Entry:
    """An API whose requests and responses are plain bytes; a response may be a file range."""

    api_key = 0
    flexible = False
    prefix = bytes(8)

    def __init__(self, handle: Callable[[Any, bytes], Any]) -> None:
        self.handle = handle
        self.errors: dict[int, int] = {}
        self.latencies = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.latency_seconds = 0.0
        self.elements = 0
        self.answered_in_turn = self.unanswered = self.delayed = self.request_bytes = self.response_bytes = 0

    @staticmethod
    def decode(frame: memoryview, offset: int) -> tuple[bytes, int]:
        return bytes(frame[offset:]), len(frame)

    decode_large = decode

    @staticmethod
    def encode(
        frame: bytearray, response: Any, spills: list[tuple[int, Any]], errors: dict[int, int]
    ) -> None:
        if isinstance(response, Fetched):
            spills.append((len(frame), response.found))
        else:
            frame += response


class Log:
    """Remembers events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **_: object) -> None:
        self.events.append(event)

    error = exception = info = warning


class Node:
    """A server whose requests say what it shall do: `echo:x`, `large:x`, `wait:x`, `park:x`, `suspend:x`, `file:count`,
    `close:`."""

    def __init__(
        self, env: Env, tasks: trio.Nursery, buffer_bytes_max: int, entry_type: type[Entry] = Entry
    ) -> None:
        self.env = env
        self.log = Log()
        self.seen: list[bytes] = []
        self.turns: list[int] = []
        self.waiting: dict[bytes, Delayed] = {}
        self.abandoned: list[bytes] = []
        self.suspended: dict[bytes, Event] = {}
        self.file: File = env.open_dir("/data", create=True).open("big", create=True)
        self.entry = entry = entry_type(self.handle)
        self.buffers = ReceiveBuffers(buffer_bytes_max)
        services = self.services = ConnectionServices(
            table=Table(entry),  # type: ignore[arg-type]  # the loop asks it for `get` alone
            buffers=self.buffers,
            env=env,
            tasks=tasks,
            log=self.log,
            frame_bytes_max=FRAME_BYTES_MAX,
            after_turn=lambda: self.turns.append(len(self.seen)),
            poison=True,
        )
        listener = env.network.listen("", PORT)
        self.server = Server(
            services,
            listener,
            "PLAINTEXT",
            idle_ms_max=IDLE_MS_MAX,
            limits=ConnectionLimits(connections_max=1000),
        )
        tasks.start_soon(self.server.accept_loop)
        tasks.start_soon(self.server.reap_loop)

    def handle(self, context: Any, request: bytes) -> Any:
        self.seen.append(request)
        command, _, text = request.partition(b":")
        if command == b"wait":
            delayed = self.waiting[text] = Waiting(text, self)
            return delayed
        if command == b"park":
            delayed = self.waiting[text] = Parked(text, self)
            return delayed
        if command == b"large":
            return text.ljust(LARGE_BYTES, b".")
        if command == b"suspend":
            event = self.suspended[text] = self.env.event()
            return Suspend(lambda: answer_after(event, text))
        if command == b"file":
            self.file.pin()
            return fetched(FileRange(self.file, 0, int(text)))
        if command == b"close":
            return CLOSE
        if command == b"bug":
            raise ZeroDivisionError
        return text


class Waiting(Delayed):
    """A delayed request that tells when it is abandoned."""

    __slots__ = ("node", "text")

    def __init__(self, text: bytes, node: Node) -> None:
        super().__init__()
        self.text = text
        self.node = node

    def abandon(self) -> None:
        self.node.abandoned.append(self.text)


class Parked(Waiting):
    """One that may wait for long, as a fetch."""

    __slots__ = ()

    parks = True


class Table:
    """Serves API 0 alone."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def get(self, api_key: int, version: int) -> Entry:
        if api_key:
            raise RemoteProtocolError("unknown API")
        return self._entry


class Fetched(PinsFiles):
    """An answer with one range of a file."""

    def __init__(self, found: FileRange) -> None:
        self.found = found

    def release_files(self) -> None:
        self.found.release()


def fetched(found: FileRange) -> Fetched:
    return Fetched(found)


async def answer_after(event: Event, text: bytes) -> bytes:
    await event.wait()
    return text


def framed(text: bytes, correlation_id: int = 0, api_key: int = 0) -> bytes:
    body = struct.pack(">hhih", api_key, 0, correlation_id, -1) + text
    return struct.pack(">i", len(body)) + body


class Client:
    """A peer on a simulated connection."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        while data:
            taken = self.conn.send([data])
            data = data[taken:]
            if data:
                await self.conn.writable()

    async def answer(self) -> bytes:
        """The body of the next answer. Raises `ConnectionLost` at the end of the stream."""
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            await self.conn.readable()
            buffer = bytearray(1 << 16)
            count = self.conn.recv_into(memoryview(buffer))
            if count == 0:
                raise ConnectionLost("closed by the node")
            self._received += buffer[: count or 0]
        end = 4 + int.from_bytes(self._received[:4], "big")
        body = bytes(self._received[8:end])
        del self._received[:end]
        return body

    async def is_closed(self) -> bool:
        try:
            await self.answer()
        except ConnectionLost:
            return True
        return False


Play = Callable[[World, Node, Callable[[], Awaitable[Client]]], Awaitable[None]]


def play(
    script: Play,
    *,
    weather: Weather | None = None,
    buffer_bytes_max: int = 64 << 20,
    entry_type: type[Entry] = Entry,
) -> Node:
    """Run a script against a node in a world; the node, for what is to be seen afterwards."""
    world = World(1, weather or Weather())
    nodes: list[Node] = []

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            node = Node(world.node_env("server"), tasks, buffer_bytes_max, entry_type)
            nodes.append(node)

            async def connect() -> Client:
                return Client(await world.node_env("client").network.connect("server", PORT))

            await script(world, node, connect)
            tasks.cancel_scope.cancel()

    world.run(main)
    return nodes[0]


def test_answers_keep_their_order() -> None:
    """ "Answers leave a connection in the order of its requests", whichever is ready first."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await client.send(b"".join(map(framed, (b"wait:1", b"echo:2", b"wait:3", b"echo:4"))))
        await world.sleep(0.1)
        assert node.seen == [b"wait:1", b"echo:2", b"wait:3", b"echo:4"]
        node.waiting[b"3"].complete(b"3")
        await world.sleep(0.1)
        node.waiting[b"1"].complete(b"1")
        assert [await client.answer() for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    play(script)


def test_a_suspended_connection_waits_alone() -> None:
    """ "A `Suspend` stops dispatch on its connection only"; frames behind it are dispatched when it is done."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client, other = await connect(), await connect()
        await client.send(b"".join(map(framed, (b"wait:0", b"suspend:1", b"echo:2"))))
        await world.sleep(0.1)
        await other.send(framed(b"echo:other"))
        assert await other.answer() == b"other"
        assert b"echo:2" not in node.seen
        node.suspended[b"1"].set()
        await world.sleep(0.1)
        node.waiting[b"0"].complete(b"0")
        assert [await client.answer() for _ in range(3)] == [b"0", b"1", b"2"]

    play(script)


def test_the_queue_of_answers_is_bounded() -> None:
    """`SLOTS_MAX` waiting requests stop the reading; it goes on when half of them are answered."""
    total = 3 * SLOTS_MAX

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await client.send(b"".join(framed(b"wait:%d" % serial) for serial in range(total)))
        await world.sleep(0.1)
        assert len(node.seen) == SLOTS_MAX
        for serial in range(total):
            node.waiting[b"%d" % serial].complete(b"%d" % serial)
            assert len(node.waiting) - serial <= SLOTS_MAX
            assert await client.answer() == b"%d" % serial
            await world.sleep(0.001)

    play(script)


def test_frames_split_at_every_byte() -> None:
    """Three frames that arrive in two pieces, cut anywhere, with the receive buffer poisoned after dispatch."""
    stream = b"".join(map(framed, (b"echo:first", b"echo:" + b"x" * 40, b"echo:last")))

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        for cut in range(1, len(stream)):
            client = await connect()
            await client.send(stream[:cut])
            await world.sleep(0.01)
            await client.send(stream[cut:])
            assert [await client.answer() for _ in range(3)] == [b"first", b"x" * 40, b"last"]
            client.conn.close()
        await world.sleep(0.1)
        assert node.buffers.bytes_used == 0

    play(script)


@pytest.mark.parametrize("size", [60_000, 70_000, 300 << 10, 1 << 20, 5 << 20])
def test_frames_larger_than_the_shared_buffer(size: int) -> None:
    """In odd pieces, small frames around them; the memory comes back."""
    large = bytes(range(251)) * (size // 251 + 1)
    stream = framed(b"echo:a") + framed(b"echo:" + large) * 2 + framed(b"echo:z")

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()

        async def send() -> None:
            for at in range(0, len(stream), 77_777):
                await client.send(stream[at : at + 77_777])

        async with trio.open_nursery() as tasks:
            tasks.start_soon(send)
            assert await client.answer() == b"a"
            assert await client.answer() == large
            assert await client.answer() == large
            assert await client.answer() == b"z"
        await world.sleep(30)
        assert node.buffers.bytes_used == 0

    play(script)


def test_the_work_of_a_turn_is_bounded() -> None:
    """No more than `FRAMES_PER_TURN` frames of one connection between two turns of the loop."""
    total = 5 * FRAMES_PER_TURN + 3

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await client.send(b"".join(framed(b"echo:%d" % serial) for serial in range(total)))
        assert [await client.answer() for _ in range(total)] == [b"%d" % serial for serial in range(total)]

    turns = [0, *play(script).turns]
    assert max(after - before for before, after in pairwise(turns)) == FRAMES_PER_TURN


def test_a_turn_of_dear_requests_is_shorter() -> None:
    """Requests of two milliseconds each: a turn ends soon after `TURN_SECONDS_MAX`, so that others come in between."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        clock = node.services.clock
        monotonic = clock.monotonic
        node.services.clock = SimpleNamespace(  # type: ignore[assignment]  # time passes while a request is handled
            monotonic=lambda: monotonic() + 0.002 * len(node.seen), sleep_until=clock.sleep_until
        )
        client = await connect()
        await client.send(b"".join(framed(b"echo:%d" % serial) for serial in range(50)))
        assert [await client.answer() for _ in range(50)] == [b"%d" % serial for serial in range(50)]

    turns = [0, *play(script).turns]
    assert (
        max(after - before for before, after in pairwise(turns)) <= TURN_SECONDS_MAX / 0.002 + FRAMES_PER_LOOK
    )


def test_idle_connections_are_reaped() -> None:
    """`connections.max.idle.ms`; one that waits for an answer is not idle."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        idle, waiting = await connect(), await connect()
        await waiting.send(framed(b"wait:1"))
        await world.sleep(IDLE_MS_MAX / 1000 + 5)
        assert await idle.is_closed()
        node.waiting[b"1"].complete(b"1")
        assert await waiting.answer() == b"1"
        assert node.server.statistics()["reaped"] == 1

    play(script)


def test_half_frames_that_hold_memory_are_evicted() -> None:
    """A connection that has stopped sending is closed if two large frames do not fit, even if it waits for memory."""
    large = framed(b"echo:" + b"x" * 900_000)

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        stalled, living = await connect(), await connect()
        for client, start, stop in ((stalled, 0, 200_000), (living, 0, 300_000), (stalled, 200_000, 524_288)):
            await client.send(large[start:stop])
            await world.sleep(1)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(living.send, large[300_000:])
            await world.sleep(1)
            assert node.buffers.contended
            with trio.fail_after(WAIT_SECONDS_MAX * 4):
                assert len(await living.answer()) == 900_000
        assert await stalled.is_closed()
        assert "connection.evicted" in node.log.events

    play(script, buffer_bytes_max=1 << 20)


def test_a_vanished_client_leaves_nothing_behind() -> None:
    """Delayed requests are abandoned, and file ranges unpinned: queued, partly sent, or behind a delayed answer."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        node.file.append(bytes(4 << 20))
        pins = node.file._references  # type: ignore[attr-defined]  # how often a file is pinned is no business of the port
        client = await connect()
        requests = (b"file:4194304", b"file:1000", b"wait:a", b"file:4000000", b"wait:b")
        await client.send(b"".join(map(framed, requests)))
        await world.sleep(1)
        assert node.file._references == pins + 3  # type: ignore[attr-defined]  # as above
        client.conn.close()
        await world.sleep(1)
        assert node.abandoned == [b"a", b"b"]
        assert node.file._references == pins  # type: ignore[attr-defined]  # as above
        node.waiting[b"a"].complete(b"too late")
        assert node.server.statistics()["connections"] == 0

    play(script)


@pytest.mark.parametrize("socket_bytes", [1000, 65536])
def test_file_ranges_are_sent_in_pieces(socket_bytes: int) -> None:
    """Between other answers, through a socket that takes little at a time, and unpinned then."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        data = bytes(range(256)) * 500
        node.file.append(data)
        client = await connect()
        await client.send(b"".join(map(framed, (b"echo:a", b"file:128000", b"echo:b", b"file:5", b"echo:c"))))
        assert [await client.answer() for _ in range(5)] == [b"a", data, b"b", data[:5], b"c"]
        assert node.file._references == 1  # type: ignore[attr-defined]  # how often it is pinned

    play(
        script,
        weather=Weather(socket_buffer_bytes=socket_bytes, short_send_probability=0.5, split_probability=0.5),
    )


def test_errors_end_their_connection_alone() -> None:
    """CLOSE, a bug in a handler, a broken frame: answers before it are sent, others live, woken requests are served."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        other = await connect()
        for bad in (framed(b"close:"), framed(b"bug:"), framed(b"", api_key=9), struct.pack(">i", -5)):
            client = await connect()
            await client.send(framed(b"echo:before"))
            assert await client.answer() == b"before"
            turns = len(node.turns)
            await client.send(framed(b"echo:x") + bad)
            while not await client.is_closed():
                continue
            assert (len(node.turns) > turns) or bad == framed(b"bug:")
            await other.send(framed(b"echo:lives"))
            assert await other.answer() == b"lives"
        assert node.services.complaints.protocol_errors == 2
        assert node.log.events == ["connection.bug", "connection.protocol_error"], (
            "one line per peer and second"
        )

    play(script)


def test_a_client_that_reads_slowly_is_not_read() -> None:
    """More than the send queue may hold: the reading stops until the peer takes its answers."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        node.file.append(bytes(9 << 20))
        client = await connect()
        await client.send(framed(b"file:9437184") * 10)
        await world.sleep(10)
        assert len(node.seen) < 10
        for _ in range(10):
            assert len(await client.answer()) == 9 << 20
        assert node.file._references == 1  # type: ignore[attr-defined]  # how often it is pinned

    play(script)
