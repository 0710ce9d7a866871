"""Real TCP over loopback: the calls of the hot path, and what peers may do to them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import struct
from pathlib import Path

import pytest
import trio
import trio.testing

from odradek.env.ports import Conn, ConnectionLost, DiskError, PeerEnd
from odradek.env.real import RealEnv
from odradek.env.real_net import TcpConn, TcpListener
from sim.machine.disk import SimDisk

pytestmark = pytest.mark.trio


async def pair(env: RealEnv) -> tuple[TcpConn, TcpConn]:
    """Open a connection over loopback. Return both ends."""
    listener = env.network.listen("127.0.0.1", 0)
    here = await env.network.connect("localhost", listener.port)
    there = await listener.accept()
    listener.close()
    return here, there


async def receive(conn: Conn, count: int) -> bytes:
    """Return exactly `count` bytes, or fewer if the stream ends before."""
    buffer = bytearray(count)
    have = 0
    while have < count:
        await conn.readable()
        got = conn.recv_into(memoryview(buffer)[have:])
        if got == 0:
            break
        have += got or 0
    return bytes(buffer[:have])


def unsent_bytes(conn: TcpConn) -> int:
    """Return how many bytes the kernel holds and has not sent yet, the corked ones included (SIOCOUTQNSD)."""
    found: bytes = fcntl.ioctl(conn._socket.fileno(), 0x894B, struct.pack("i", 0))
    return int(struct.unpack("i", found)[0])


async def test_recv_into_tells_would_block_from_end() -> None:
    """`recv_into` returns the number of bytes, 0 at the end of the stream, or None if it would block."""
    here, there = await pair(RealEnv())
    buffer = memoryview(bytearray(10))
    assert there.recv_into(buffer) is None
    assert here.send([b"abc"]) == 3
    await there.readable()
    assert there.recv_into(buffer) == 3
    here.close()
    await there.readable()
    assert there.recv_into(buffer) == 0
    there.close()


async def test_readable_waits_for_as_much_as_it_was_told() -> None:
    """`wait_for` sets a number of bytes. `readable` returns once so many bytes have arrived (socket(7),
    SO_RCVLOWAT)."""
    here, there = await pair(RealEnv())
    there.wait_for(150_000)
    block = bytes(50_000)
    counts: list[int | None] = []

    async def take() -> None:
        await there.readable()
        counts.append(there.recv_into(memoryview(bytearray(1 << 20))))

    async with trio.open_nursery() as tasks:
        tasks.start_soon(take)
        for _ in range(3):
            assert counts == []
            sent = 0
            while sent < len(block):
                sent += here.send([block[sent:]])
                if sent < len(block):
                    await here.writable()
            await trio.testing.wait_all_tasks_blocked()
    assert counts[0] == 150_000
    # The end of the stream ends the wait at once. So does a lower number, if at least so many bytes have arrived.
    assert here.send([b"abc"]) == 3
    there.wait_for(1)
    assert await receive(there, 3) == b"abc"
    there.wait_for(10)
    here.send([b"abc"])
    here.close()
    assert await receive(there, 10) == b"abc"
    there.close()
    with pytest.raises(ConnectionLost):
        there.wait_for(1)


async def test_send_joins_chunks_and_bounds_their_number() -> None:
    """If there are more chunks than IOV_MAX, `send` takes as many as allowed instead of failing."""
    here, there = await pair(RealEnv())
    chunks = [bytes([index % 256]) for index in range(3000)]
    whole = b"".join(chunks)
    sent = 0
    while sent < len(whole):
        taken = here.send(chunks[sent:])
        assert 0 < taken <= 1024
        sent += taken
    assert await receive(there, len(whole)) == whole


async def test_send_takes_what_fits_and_writable_waits_for_room() -> None:
    """`send` returns how many bytes it took, 0 if it would block. `writable` waits for room."""
    here, there = await pair(RealEnv())
    block = bytes(1 << 20)
    sent = 0
    while taken := here.send([block]):
        sent += taken
    room = trio.Event()

    async def wait_for_room() -> None:
        await here.writable()
        room.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        assert not room.is_set()
        assert len(await receive(there, sent)) == sent
        await room.wait()
    assert here.send([block]) > 0


async def test_a_reset_is_connection_lost() -> None:
    """If the peer resets (SO_LINGER 0), receives, sends and waits raise `ConnectionLost`."""
    here, there = await pair(RealEnv())
    here._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    here.close()
    await there.readable()
    with pytest.raises(ConnectionLost):
        there.recv_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionLost):
        there.send([b"x", b"y"])


async def test_close_ends_the_own_waiters() -> None:
    """If a connection is closed while a task waits for it, the task gets `ConnectionLost` instead of an exception of
    trio."""
    here, _ = await pair(RealEnv())
    ended: list[str] = []

    async def wait() -> None:
        try:
            await here.readable()
        except ConnectionLost:
            ended.append("readable")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        here.close()
        here.close()
    assert ended == ["readable"]
    for wait_again in (here.readable, here.writable):
        with pytest.raises(ConnectionLost):
            await wait_again()
    with pytest.raises(ConnectionLost):
        here.send([b"x"])
    with pytest.raises(ConnectionLost):
        here.recv_into(memoryview(bytearray(1)))


async def test_any_number_of_waits_after_close_are_connection_lost() -> None:
    """A task that begins to wait after its connection was closed gets `ConnectionLost`, and so does the next one. A
    second task at an open connection is a bug, as before.
    """
    env = RealEnv()
    here, there = await pair(env)
    for each in (here, there):
        each.close()
    for each in (here, there, here):
        with pytest.raises(ConnectionLost):
            await each.readable()
        with pytest.raises(ConnectionLost):
            await each.writable()
    for _ in range(2):
        listener = env.network.listen("127.0.0.1", 0)
        listener.close()
        with pytest.raises(ConnectionLost):
            await listener.accept()
    here, there = await pair(env)
    async with trio.open_nursery() as tasks:
        tasks.start_soon(here.readable)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await here.readable()
        tasks.cancel_scope.cancel()
    here.close()
    there.close()


async def test_sendfile_follows_a_header(tmp_path: Path) -> None:
    """For a fetch, the header is sent with `more` and then the file's bytes. Nothing stays in the kernel."""
    env = RealEnv()
    here, there = await pair(env)
    file = env.open_dir(str(tmp_path)).open("a.log", create=True)
    content = os.urandom(5000)
    file.append(content)
    assert here.send([b"head"], more=True) == 4
    assert unsent_bytes(here) == 4  # corked: a small segment waits for more data
    assert here.sendfile(file, 1000, 4000) == 4000
    assert unsent_bytes(here) == 0
    assert await receive(there, 4004) == b"head" + content[1000:]


async def test_more_is_flushed_by_the_next_send() -> None:
    """Bytes sent with `more` wait in the kernel and leave together with the next send."""
    here, there = await pair(RealEnv())
    here.send([b"a", b"b"], more=True)
    assert unsent_bytes(here) == 2
    here.send([b"c"])
    assert unsent_bytes(here) == 0
    assert await receive(there, 3) == b"abc"


async def test_sendfile_takes_what_fits(tmp_path: Path) -> None:
    """`sendfile` returns how many bytes of the file it took, 0 if it would block."""
    env = RealEnv()
    here, there = await pair(env)
    file = env.open_dir(str(tmp_path)).open("a.log", create=True)
    file.append(bytes(16 << 20))
    sent = 0
    while taken := here.sendfile(file, 0, 8 << 20):
        sent += taken
    assert 0 < sent < 1 << 30
    assert len(await receive(there, sent)) == sent


async def test_sendfile_of_a_short_file_is_a_disk_error(tmp_path: Path) -> None:
    """`sendfile` beyond the end of a file raises `DiskError`. If it returned 0, the caller would wait for ever."""
    env = RealEnv()
    here, _ = await pair(env)
    file = env.open_dir(str(tmp_path)).open("a.log", create=True)
    file.append(b"abc")
    with pytest.raises(DiskError) as caught:
        here.sendfile(file, 3, 1)
    assert caught.value.directory == str(tmp_path)
    with pytest.raises(TypeError):
        here.sendfile(SimDisk().open_dir("/d", create=True).open("a", create=True), 0, 1)


async def test_sendfile_tells_a_lost_peer_from_a_bad_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `sendfile` fails, EPIPE means a lost connection, and EIO means a bad disk."""
    env = RealEnv()
    here, there = await pair(env)
    file = env.open_dir(str(tmp_path)).open("a.log", create=True)
    file.append(b"abc")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "sendfile", fail)
        with pytest.raises(DiskError):
            here.sendfile(file, 0, 3)
    here._socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        here.sendfile(file, 0, 3)
    there.close()


async def test_connections_are_prompt_and_carry_the_peer() -> None:
    """TCP_NODELAY is set on both ends, so that no answer waits for an earlier acknowledgement. Both know the peer."""
    here, there = await pair(RealEnv())
    for conn in (here, there):
        assert conn._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not conn._socket.getblocking()
        assert conn.peer_host == "127.0.0.1"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
async def test_a_peer_of_ipv4_has_its_own_address_at_a_listener_of_ipv6() -> None:
    """As in Java, an IPv4 peer of an IPv6 listener keeps its IPv4 address, so that rules and quotas about it apply."""
    network = RealEnv().network
    listener = network.listen("::", 0)
    for host in ("127.0.0.1", "::1"):
        there = await network.connect(host, listener.port)
        here = await listener.accept()
        assert here.peer_host == host
        there.close()
        here.close()
    listener.close()


async def test_a_refused_connection_is_lost() -> None:
    """Connecting to a closed port, or to a name that is not valid, raises `ConnectionLost`."""
    env = RealEnv()
    listener = env.network.listen("127.0.0.1", 0)
    port = listener.port
    listener.close()
    with pytest.raises(ConnectionLost, match="refused"):
        await env.network.connect("127.0.0.1", port)
    with pytest.raises(ConnectionLost):
        await env.network.connect("x" * 70, port)


async def test_a_port_is_taken_once() -> None:
    """Listening on an address that is taken raises `OSError`."""
    env = RealEnv()
    listener = env.network.listen("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        env.network.listen("127.0.0.1", listener.port)
    listener.close()


async def test_close_ends_a_waiting_accept() -> None:
    """If a listener is closed, a task that waits in `accept` ends."""
    listener = RealEnv().network.listen("127.0.0.1", 0)
    ended: list[str] = []

    async def accept() -> None:
        try:
            await listener.accept()
        except ConnectionLost:
            ended.append("accept")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
        listener.close()
    assert ended == ["accept"]
    with pytest.raises(ConnectionLost):
        await listener.accept()


async def _connect_raw(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", port))
    await trio.lowlevel.wait_writable(made)
    return made


async def test_accept_survives_descriptors_used_up() -> None:
    """Without a free descriptor (accept(2), EMFILE) a new peer is turned away. Later peers are served again."""
    env = RealEnv()
    listener = env.network.listen("127.0.0.1", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    turned_away = await _connect_raw(listener.port)
    accepted: list[TcpConn] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        resource.setrlimit(resource.RLIMIT_NOFILE, (turned_away.fileno(), hard))
        try:
            nursery.start_soon(accept)
            await trio.lowlevel.wait_readable(turned_away)
            assert turned_away.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        served = await _connect_raw(listener.port)
        served.send(b"x")
    assert await receive(accepted[0], 1) == b"x"
    listener.close()


class _FailingSocket:
    """A listening socket whose `accept` fails with the given errors, then works."""

    def __init__(self, listening: socket.socket, numbers: list[int]) -> None:
        self._listening = listening
        self._numbers = numbers
        self.fileno = listening.fileno
        self.close = listening.close

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self._numbers:
            number = self._numbers.pop(0)
            raise OSError(number, os.strerror(number))
        return self._listening.accept()


async def test_accept_survives_what_peers_and_networks_do(autojump_clock: trio.testing.MockClock) -> None:
    """After an error of a peer or the network, `accept` tries again at once (accept(2)). After a lack of memory, it
    tries again a little later."""
    listener: TcpListener = RealEnv().network.listen("127.0.0.1", 0)
    numbers = [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EPERM, errno.ENOBUFS, errno.ENOMEM]
    listener._socket = _FailingSocket(listener._socket, numbers)  # type: ignore[assignment]  # a double
    peer = await _connect_raw(listener.port)
    peer.send(b"x")
    conn = await listener.accept()
    assert await receive(conn, 1) == b"x"
    assert not numbers
    listener.close()


async def test_the_segment_size_can_be_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment size can be limited. Benchmarks over loopback need it, since large segments delay fetches."""
    monkeypatch.setenv("ODRADEK_TCP_MAXSEG", "8192")
    here, there = await pair(RealEnv())
    for conn in (here, there):
        assert conn._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 8192


async def test_the_end_of_a_peer_is_seen_without_a_receive() -> None:
    """`peer_end` shows the end of the stream or a reset without a receive, even behind bytes that wait to be
    received."""
    here, there = await pair(RealEnv())
    assert there.peer_end() is PeerEnd.OPEN
    assert here.send([b"abc"]) == 3
    await there.readable()
    assert there.peer_end() is PeerEnd.OPEN
    here._socket.shutdown(socket.SHUT_WR)
    there.wait_for(100)
    await there.readable()
    assert there.peer_end() is PeerEnd.BEHIND_DATA
    assert await receive(there, 3) == b"abc"
    assert there.peer_end() is PeerEnd.ENDED
    assert there.send([b"an answer"]) == 9
    assert await receive(here, 9) == b"an answer", "a half of the connection is open"
    here.close()
    there.close()


@pytest.mark.parametrize("data", [b"", b"abc"])
async def test_a_reset_is_seen_without_a_receive(data: bytes) -> None:
    """A reset is seen without a receive, even if the peer has sent bytes before it."""
    here, there = await pair(RealEnv())
    if data:
        here.send([data])
        await there.readable()
    here._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    here.close()
    there.wait_for(100)
    await there.readable()
    with pytest.raises(ConnectionLost):
        there.peer_end()
    there.close()
