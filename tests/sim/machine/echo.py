"""A small PORTED service and its client, with which the simulator itself is tested."""

from __future__ import annotations

from odradek.env.ports import Conn, ConnectionLost, Env, File, TaskGroup

PORT = 7
BLOCK_BYTES = 8


async def serve(env: Env, tasks: TaskGroup) -> None:
    """Append each received block to a file, sync the file, and send the block back."""
    directory = env.open_dir("/data", create=True)
    directory.lock()
    file = directory.open("echo.log", create=True)
    directory.sync()
    if file.size % BLOCK_BYTES:
        file.truncate(file.size - file.size % BLOCK_BYTES)
    listener = env.network.listen("", PORT)
    while True:
        conn = await listener.accept()
        tasks.start_soon(_serve_one, env, conn, file)


async def _serve_one(env: Env, conn: Conn, file: File) -> None:
    try:
        while (block := await receive_block(conn)) is not None:
            file.append(block)
            await env.workers.run(file.sync)
            await send_all(conn, block)
    except ConnectionLost:
        return
    finally:
        conn.close()


async def receive_block(conn: Conn) -> bytes | None:
    """Receive one block; return None at the end of the stream."""
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    count = 0
    while count < BLOCK_BYTES:
        await conn.readable()
        received = conn.recv_into(view[count:])
        if received == 0:
            return None
        count += received or 0
    return bytes(block)


async def send_all(conn: Conn, data: bytes) -> None:
    """Send all of `data`, waiting for room when needed."""
    rest = memoryview(data)
    while rest:
        if (taken := conn.send([rest])) == 0:
            await conn.writable()
        rest = rest[taken:]


async def call(env: Env, host: str, block: bytes) -> bytes:
    """Send one block over a new connection; return the response. Raises `ConnectionLost`."""
    conn = await env.network.connect(host, PORT)
    try:
        await send_all(conn, block)
        answer = await receive_block(conn)
    finally:
        conn.close()
    if answer is None:
        raise ConnectionLost("no answer")
    return answer
