"""The connection loop over simulated sockets: order, limits, split frames, and release of all resources."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from odradek.data_plane.log.partition_log import FileRange
from odradek.env.ports import Env, Event, File
from odradek.node.connections.answers import SLOTS_MAX
from odradek.node.connections.buffers import WAIT_SECONDS_MAX, ReceiveBuffers
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_loop import FRAMES_PER_LOOK, FRAMES_PER_TURN, TURN_SECONDS_MAX
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS
from odradek.serving.contract import CLOSE, Delayed, PinsFiles, Suspend
from odradek.wire.errors import RemoteProtocolError
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.virtual import Client, serve_table

PORT = 9092
FRAME_BYTES_MAX = 8 << 20
IDLE_MS_MAX = 60_000
LARGE_BYTES = 300_000


class Entry:
    """An API whose requests and responses are plain bytes. A response may be a file range."""

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


class Node:
    """A server that obeys its requests: `echo:x`, `large:x`, `wait:x`, `park:x`, `suspend:x`, `file:count`, `close:`."""

    def __init__(
        self, env: Env, tasks: trio.Nursery, buffer_bytes_max: int, entry_type: type[Entry] = Entry
    ) -> None:
        self.env = env
        self.log = KeptLog()
        self.seen: list[bytes] = []
        self.turns: list[int] = []
        self.waiting: dict[bytes, Delayed] = {}
        self.abandoned: list[bytes] = []
        self.suspended: dict[bytes, Event] = {}
        self.file: File = env.open_dir("/data", create=True).open("big", create=True)
        self.entry = entry = entry_type(self.handle)
        self.buffers = ReceiveBuffers(buffer_bytes_max)
        self.server, self.services = serve_table(
            env,
            tasks,
            Table(entry),  # type: ignore[arg-type]  # the loop uses only its method `get`
            log=self.log,
            port=PORT,
            buffers=self.buffers,
            frame_bytes_max=FRAME_BYTES_MAX,
            idle_ms_max=IDLE_MS_MAX,
            after_turn=lambda: self.turns.append(len(self.seen)),
            limits=ConnectionLimits(connections_max=1000),
        )
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
    """A delayed request that records when it is abandoned."""

    __slots__ = ("node", "text")

    def __init__(self, text: bytes, node: Node) -> None:
        super().__init__()
        self.text = text
        self.node = node

    def abandon(self) -> None:
        self.node.abandoned.append(self.text)


class Parked(Waiting):
    """A delayed request that counts as parked, like a fetch."""

    __slots__ = ()

    parks = True


class Table:
    """A table that has only API 0."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def get(self, api_key: int, version: int) -> Entry:
        if api_key:
            raise RemoteProtocolError("unknown API")
        return self._entry


class Fetched(PinsFiles):
    """A response with one range of a file."""

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


Play = Callable[[World, Node, Callable[[], Awaitable[Client]]], Awaitable[None]]


def play(
    script: Play,
    *,
    weather: Weather | None = None,
    buffer_bytes_max: int = 64 << 20,
    entry_type: type[Entry] = Entry,
) -> Node:
    """Run a script against a node in a simulated world; return the node for later checks."""
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
    """Responses leave a connection in the order of its requests, whichever is ready first."""

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
    """A suspended request stops only its own connection, whose later frames are dispatched when the request is done."""

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
    """A connection with `SLOTS_MAX` unanswered requests is not read until half of them are answered."""
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
    """Three frames arrive in two pieces, cut at any byte. All are answered, and the buffer memory is released."""
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
    """Frames larger than the shared buffer arrive in odd pieces between small ones. All are answered, and the memory is
    released."""
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
    """In one turn of the loop, at most `FRAMES_PER_TURN` frames of a connection are handled."""
    total = 5 * FRAMES_PER_TURN + 3

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await client.send(b"".join(framed(b"echo:%d" % serial) for serial in range(total)))
        assert [await client.answer() for _ in range(total)] == [b"%d" % serial for serial in range(total)]

    turns = [0, *play(script).turns]
    assert max(after - before for before, after in pairwise(turns)) == FRAMES_PER_TURN


def test_a_turn_of_dear_requests_is_shorter() -> None:
    """If requests take 2 ms each, a turn ends soon after `TURN_SECONDS_MAX`, so that other connections are served."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        clock = node.services.clock
        monotonic = clock.monotonic
        node.services.clock = SimpleNamespace(  # type: ignore[assignment]  # each request takes 2 ms
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
    """Connections idle for `connections.max.idle.ms` are closed, unless they wait for a response."""

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
    """Two large half-sent frames do not fit into memory together. The connection whose client has stopped sending is
    closed, even if it waits for memory itself."""
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
    """When a client disappears, its delayed requests are abandoned, and all file ranges of its responses are
    unpinned."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        node.file.append(bytes(4 << 20))
        pins = node.file._references  # type: ignore[attr-defined]  # the port does not show the number of pins
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
    """Files are sent in pieces between other responses, through a slow socket, and are then unpinned."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        data = bytes(range(256)) * 500
        node.file.append(data)
        client = await connect()
        await client.send(b"".join(map(framed, (b"echo:a", b"file:128000", b"echo:b", b"file:5", b"echo:c"))))
        assert [await client.answer() for _ in range(5)] == [b"a", data, b"b", data[:5], b"c"]
        assert node.file._references == 1  # type: ignore[attr-defined]  # the number of pins

    play(
        script,
        weather=Weather(socket_buffer_bytes=socket_bytes, short_send_probability=0.5, split_probability=0.5),
    )


def test_errors_end_their_connection_alone() -> None:
    """An error closes only its own connection, after the responses before it. Woken requests of others are still
    served."""

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
            "only one line per peer and second is logged"
        )

    play(script)


def test_a_client_that_reads_slowly_is_not_read() -> None:
    """If a client reads its responses slowly, the node stops reading its requests until the send queue has room."""

    async def script(world: World, node: Node, connect: Callable[[], Awaitable[Client]]) -> None:
        node.file.append(bytes(9 << 20))
        client = await connect()
        await client.send(framed(b"file:9437184") * 10)
        await world.sleep(10)
        assert len(node.seen) < 10
        for _ in range(10):
            assert len(await client.answer()) == 9 << 20
        assert node.file._references == 1  # type: ignore[attr-defined]  # the number of pins

    play(script)
