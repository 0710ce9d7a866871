"""Connections to other nodes in the simulator: pipelining, broken links, silence and deadlines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.env.ports import Conn, ConnectionLost, Env
from odradek.metadata_quorum.replica.peers import (
    CONNECT_SECONDS_MAX,
    RECEIVES_MAX,
    NeverSent,
    Peer,
    PeerConnections,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.framing.connection import RequestReceived, ServerConnection
from odradek.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog

PORT = 9093
FLOOD_BYTES = 8 << 20
MUTE = 1000
"""Heartbeats of brokers with this id or a higher one are never answered."""


def heartbeat(broker_id: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(broker_id, 1, 1)


async def serve(env: Env) -> None:
    """Answer heartbeats with the broker's id as the throttle time."""
    listener = env.network.listen("server", PORT)
    while True:
        await serve_one(await listener.accept())


async def serve_one(conn: Conn) -> None:
    wire = ServerConnection()
    buffer = memoryview(bytearray(4096))
    try:
        while True:
            await conn.readable()
            count = conn.recv_into(buffer)
            if count is None:
                continue
            wire.receive_data(buffer[:count])
            while isinstance(event := wire.next_event(), RequestReceived):
                asked: Any = event.request()
                if asked.broker_id >= MUTE:
                    continue
                answer: Any = wire.send(BrokerHeartbeatResponse(throttle_time_ms=asked.broker_id))
                conn.send(answer)
            if count == 0:
                return
    except ConnectionLost:
        return


Script = Callable[[World, PeerConnections, Peer], Awaitable[None]]


def play(script: Script, *, served: bool = True) -> None:
    """Run a script with connections from `client` to `server`."""
    world = World(1, Weather())

    async def main() -> None:
        if served:
            world.start("server", serve)
        connections = PeerConnections(
            world.node_env("client"), world.tasks, client_id="raft-client-1", log=KeptLog()
        )
        await script(world, connections, connections.channel("server", PORT))
        connections.close()

    world.run(main)


async def ask(world: World, peer: Peer, number: int, seconds: float = 5.0) -> Any:
    """Send a heartbeat. Return the throttle time of the answer, or the exception that was raised."""
    clock = world.node_env("client").clock
    try:
        response = await peer.request(heartbeat(number), clock.monotonic() + seconds)
    except (ConnectionLost, KafkaError) as error:
        return error
    return response.throttle_time_ms


async def ask_together(world: World, peer: Peer, numbers: list[int], seconds: float = 5.0) -> list[Any]:
    answers: dict[int, Any] = {}

    async def one(number: int) -> None:
        answers[number] = await ask(world, peer, number, seconds)

    for done in [world.spawn(one, number) for number in numbers]:
        await done.wait()
    return [answers[number] for number in numbers]


def test_requests_share_a_connection_and_each_gets_its_answer() -> None:
    """Requests share one connection, even those that were made before it was open. Each gets its own answer."""

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        assert await ask_together(world, peer, list(range(20))) == list(range(20))
        assert connections.channel("server", PORT) is peer
        assert connections.statistics() == {"peers": 1, "connections": 1, "attempts": 1}
        assert world.fabric.connection_count == 1

    play(script)


class Endless:
    """A connection whose peer sends one endless answer. It counts consecutive receives without a wait."""

    peer_host = "server"
    peer_port = 0

    def __init__(self) -> None:
        self.in_a_row = 0
        self.most_in_a_row = 0
        self.received = 0

    async def readable(self) -> None:
        if self.received >= FLOOD_BYTES:
            raise ConnectionLost("enough")
        self.in_a_row = 0

    def recv_into(self, buffer: memoryview) -> int:
        size = len(buffer)
        buffer[:] = bytes(size)
        if not self.received:
            buffer[:4] = (2 * FLOOD_BYTES).to_bytes(4)
        self.received += size
        self.in_a_row += 1
        self.most_in_a_row = max(self.most_in_a_row, self.in_a_row)
        return size

    def send(self, chunks: Any, more: bool = False) -> int:
        return sum(map(len, chunks))

    def close(self) -> None:
        """Do nothing."""


def test_an_answer_without_end_leaves_the_loop_to_others() -> None:
    """A peer sends an endless answer. Other tasks run after a few receives, and in the end the connection is closed."""
    conn = Endless()

    class Network:
        async def connect(self, host: str, port: int) -> Endless:
            return conn

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        world.node_env("client").network = Network()  # type: ignore[assignment]
        assert isinstance(await ask(world, peer, 1), ConnectionLost)
        assert conn.received >= FLOOD_BYTES
        assert conn.most_in_a_row <= RECEIVES_MAX

    play(script, served=False)


def test_who_is_not_there_has_not_seen_the_request() -> None:
    """A connection is refused. All waiting requests raise `NeverSent`, and the next request connects again."""

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        world.machine("server")
        world.node_env("server")
        first = await ask_together(world, peer, [1, 2])
        assert all(isinstance(answer, NeverSent) for answer in first)
        world.start("server", serve)
        while isinstance(await ask(world, peer, 3), NeverSent):
            await world.sleep(0.01)
        assert await ask(world, peer, 4) == 4

    play(script, served=False)


def test_a_crash_of_the_peer_breaks_what_is_under_way_and_nothing_later() -> None:
    """A peer crashes.

    Requests under way raise `ConnectionLost`, as they may have been performed. Later requests use a new connection.
    """

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        assert await ask(world, peer, 1) == 1
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await ask(world, peer, MUTE, 60.0))

        done = world.spawn(one)
        await world.sleep(1.0)
        world.crash("server")
        await done.wait()
        assert isinstance(answers[0], ConnectionLost)
        assert not isinstance(answers[0], NeverSent)
        world.start("server", serve)
        while (answer := await ask(world, peer, 2)) != 2:
            assert isinstance(answer, ConnectionLost)
            await world.sleep(0.01)

    play(script)


def test_a_silent_connection_is_given_up_with_the_first_overdue_request() -> None:
    """A request gets no answer by its deadline.

    The connection is closed, since it may be dead for a quarter of an hour before TCP notices.
    """

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        assert await ask(world, peer, 1) == 1
        world.partition("client", "server")
        late = await ask(world, peer, 2, 1.0)
        assert isinstance(late, KafkaError)
        assert late.code == ErrorCode.REQUEST_TIMED_OUT
        assert not peer.is_connected
        began_at = world.now
        assert isinstance(await ask(world, peer, 3, 60.0), NeverSent)
        assert world.now - began_at == pytest.approx(CONNECT_SECONDS_MAX, abs=0.5)
        world.heal("client", "server")
        assert await ask(world, peer, 4) == 4

    play(script)


def test_a_short_deadline_does_not_break_the_connection_of_others() -> None:
    """A request with a very short deadline times out.

    Other requests continue on the connection, and the late answer is dropped.
    """

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        assert await ask(world, peer, 1) == 1
        late = await ask(world, peer, 2, 0.0)
        assert isinstance(late, KafkaError)
        assert await ask_together(world, peer, [3, 4]) == [3, 4]
        assert world.fabric.connection_count == 1

    play(script)


def test_nothing_is_asked_after_the_end() -> None:
    """`close` fails requests under way, and refuses later ones."""

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await ask(world, peer, MUTE, 60.0))

        assert await ask(world, peer, 1) == 1
        done = world.spawn(one)
        await world.sleep(1.0)
        connections.close()
        await done.wait()
        assert isinstance(answers[0], ConnectionLost)
        assert isinstance(await ask(world, peer, 2), NeverSent)

    play(script)


async def count_attempts(world: World, seconds: float, peers: list[Peer]) -> int:
    """Send requests in all channels without a pause for some time. Return the number of connection attempts."""
    env = world.node_env("client")
    until = env.clock.monotonic() + seconds
    connect, attempts, answers = env.network.connect, 0, []

    async def count(host: str, port: int) -> Conn:
        nonlocal attempts
        attempts += 1
        return await connect(host, port)

    async def hurry(peer: Peer) -> None:
        while env.clock.monotonic() < until:
            answers.append(await ask(world, peer, 1, 1.0))
            await world.sleep(0.02)

    env.network.connect = count  # type: ignore[method-assign]  # counts calls
    for done in [world.spawn(hurry, peer) for peer in peers]:
        await done.wait()
    env.network.connect = connect  # type: ignore[method-assign]
    assert all(isinstance(answer, (ConnectionLost, KafkaError)) for answer in answers)
    return attempts


async def hang_up(env: Env) -> None:
    """Accept connections and close them at once, as a forwarder does whose target is down."""
    listener = env.network.listen("server", PORT)
    while True:
        (await listener.accept()).close()


@pytest.mark.parametrize("lanes", [("", "clients"), ("",)], ids=["refused", "taken and closed"])
def test_a_dead_peer_is_tried_twice_a_second_at_most(lanes: tuple[str, ...]) -> None:
    """Many callers in several lanes send to a dead peer.

    The peer is tried at most twice a second, and reached within a second after its return.
    """

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        world.machine("server")
        world.node_env("server")
        if len(lanes) == 1:
            world.start("server", hang_up)
        peers = [connections.channel("server", PORT, lane) for lane in lanes]
        await count_attempts(world, 5.0, peers)
        assert await count_attempts(world, 20.0, peers) <= 2 * 20
        if len(lanes) == 1:
            world.crash("server")
        world.start("server", serve)
        began_at = world.now
        while isinstance(await ask(world, peer, 3), ConnectionLost):
            await world.sleep(0.001)
        assert world.now - began_at < 1.0
        assert await ask(world, peer, 4) == 4

    play(script, served=False)


def test_all_connections_of_a_node_know_who_is_away() -> None:
    """The quorum's and the broker's connections of one node send to a dead peer.

    Together they try it at most twice a second.
    """

    async def script(world: World, connections: PeerConnections, peer: Peer) -> None:
        world.machine("server")
        world.node_env("server")
        env = world.node_env("client")
        others = PeerConnections(
            env, world.tasks, client_id="node-1", log=KeptLog(), addresses=connections.addresses
        )
        peers = [peer, others.channel("server", PORT)]
        await count_attempts(world, 5.0, peers)
        assert await count_attempts(world, 20.0, peers) <= 2 * 20
        others.close()

    play(script, served=False)
