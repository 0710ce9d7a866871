"""Two hosts of a simulated world with a connection between them, for tests of links and of repeated requests."""

from __future__ import annotations

from odradek.env.ports import Conn
from sim.machine.world import World

PORT = 9


async def pair(world: World, source: str = "a") -> tuple[Conn, Conn]:
    """Connect `source` to `b`; return both ends, the client's first."""
    env = world.node_env("b")
    fabric = world.fabric
    listener = fabric.hosts["b"].listeners.get(PORT) or env.network.listen("", PORT)
    here = await world.node_env(source).network.connect("b", PORT)
    return here, await listener.accept()


async def receive(conn: Conn, count: int) -> bytes:
    """Receive exactly `count` bytes, or fewer at the end of the stream."""
    found = b""
    while len(found) < count:
        await conn.readable()
        buffer = bytearray(count - len(found))
        got = conn.recv_into(memoryview(buffer))
        if got == 0:
            break
        found += bytes(buffer[: got or 0])
    return found
