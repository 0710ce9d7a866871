"""Nodes in a simulation (`sim.machine.world.World`): functions to format their disks and serve a listener, and a
client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from odradek.env.ports import Conn, ConnectionLost, Dir, Env, Log, TaskGroup
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.replica.storage_format import StorageFormat, VoterEndpoint, format_storage
from odradek.node.connections.buffers import ReceiveBuffers
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.node.connections.connection_services import ConnectionServices
from odradek.node.connections.server import Server
from odradek.serving.api_table import ApiTable
from odradek.serving.node_env import NodeEnv

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
DATA = "/data"


def format_disks(
    env: Env,
    node_id: int,
    *,
    paths: Sequence[str] = (DATA,),
    cluster_id: str = CLUSTER_ID,
    directory_id: bytes = b"",
    voter: VoterEndpoint | None = None,
) -> None:
    """Format the log directories of a simulated machine; do nothing if they are formatted.

    The first directory has the metadata log. The id of the first directory is `directory_id`, or random if
    this is empty. The ids of the other directories are random.
    """
    directories = [env.open_dir(path, create=True) for path in paths]
    if directories[0].list():
        return
    ids = [directory_id or env.new_uuid(), *(env.new_uuid() for _ in directories[1:])]
    format_storage(
        directories,
        directories[0],
        StorageFormat(
            cluster_id=cluster_id,
            node_id=node_id,
            directory_ids=ids,
            voter=voter,
            timestamp_ms=env.clock.wall_ms(),
        ),
    )


def format_directory(
    root: Dir,
    node_id: int,
    directory_id: bytes,
    *,
    cluster_id: str = CLUSTER_ID,
    voter: VoterEndpoint | None = None,
    voters: VoterSet | None = None,
) -> None:
    """Format the only log directory of a machine before its first start. `voter` is the only voter, `voters` are
    several.
    """
    wanted = StorageFormat(
        cluster_id=cluster_id,
        node_id=node_id,
        directory_ids=[directory_id],
        voter=voter,
        voters=voters,
        timestamp_ms=1,
    )
    format_storage([root], root, wanted)


class Served(NamedTuple):
    """An open listener, and the services that its connections share."""

    server: Server
    services: ConnectionServices


def serve_table(
    env: NodeEnv,
    tasks: TaskGroup,
    table: ApiTable,
    *,
    log: Log,
    port: int = 9092,
    listener: str = "PLAINTEXT",
    buffers: ReceiveBuffers | None = None,
    frame_bytes_max: int = 1 << 24,
    idle_ms_max: int = 600_000,
    after_turn: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
) -> Served:
    """Open a listener on a simulated machine, which answers by `table`. Each received frame is overwritten after its
    dispatch, to reveal handlers that keep a view of it.
    """
    services = ConnectionServices(
        table=table,
        buffers=buffers or ReceiveBuffers(1 << 28),
        env=env,
        tasks=tasks,
        log=log,
        frame_bytes_max=frame_bytes_max,
        after_turn=after_turn,
        poison=True,
    )
    limits = limits or ConnectionLimits()
    server = Server(services, env.network.listen("", port), listener, idle_ms_max=idle_ms_max, limits=limits)
    tasks.start_soon(server.accept_loop)
    return Served(server, services)


class Client:
    """A client on a simulated connection."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        """Send all data, in pieces of the sizes that the connection accepts."""
        while data:
            taken = self.conn.send([data])
            data = data[taken:]
            if data:
                await self.conn.writable()

    async def answer(self) -> bytes:
        """Wait for the next answer, and return its body. Raises `ConnectionLost` at the end of the stream."""
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            await self.conn.readable()
            buffer = bytearray(1 << 16)
            count = self.conn.recv_into(memoryview(buffer))
            if count == 0:
                raise ConnectionLost("the node closed the connection")
            self._received += buffer[: count or 0]
        end = 4 + int.from_bytes(self._received[:4])
        body = bytes(self._received[8:end])
        del self._received[:end]
        return body

    async def is_closed(self) -> bool:
        """True if the node closes the connection instead of sending an answer."""
        try:
            await self.answer()
        except ConnectionLost:
            return True
        return False
