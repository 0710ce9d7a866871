"""A process with four connections that send one expensive frame, once a second or back to back.

The process does as little work as possible. It gets the bytes of the frame, which are made once. The kernel
discards answers (`MSG_TRUNC`) instead of copying them. When the cost of this process itself is measured,
`sink` replaces the node.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import attrs

from bench.budget.login import connect

ATTACKERS = 4
ANSWER_SECONDS_MAX = 60.0
DRAIN_BYTES = 1 << 20
REOPEN_SECONDS = 0.01
"""The shortest time, in seconds, before an attacker reconnects after the node has closed its connection. A real client
needs a round trip to connect.
"""
_NOWHERE = bytearray(DRAIN_BYTES)


@attrs.define
class Attack:
    """The numbers of frames by outcome, and the bytes of the answers, both summed over all connections."""

    answered: int = 0
    closed: int = 0
    unanswered: int = 0
    """The number of frames that got no answer within `ANSWER_SECONDS_MAX`."""
    answer_bytes: int = 0
    cpu_seconds: float = 0.0
    """The CPU seconds of the attackers' process."""

    @property
    def ended(self) -> int:
        """The number of frames whose exchange has ended in any way."""
        return self.answered + self.closed + self.unanswered


def _drain(connection: socket.socket, count: int) -> bool:
    """Receive and discard `count` bytes. Return False if the stream ends before that."""
    while count:
        got = connection.recv_into(_NOWHERE, min(count, DRAIN_BYTES), socket.MSG_TRUNC)
        if not got:
            return False
        count -= got
    return True


def _exchange(connection: socket.socket, frame: bytes) -> int | None:
    """Send a frame and discard its answer. Return the answer's bytes; None if the connection was closed. Raises
    `TimeoutError`.
    """
    try:
        connection.sendall(frame)
        size = connection.recv(4, socket.MSG_WAITALL)
        if len(size) < 4:
            return None
        count = int.from_bytes(size, "big")
        return 4 + count if _drain(connection, count) else None
    except ConnectionError:
        return None


def _attack(bootstrap: str, frame: bytes, pause_seconds: float, stop: threading.Event, met: Attack) -> None:
    """Send the frame repeatedly on one connection until `stop` is set; wait for the last answer. The outcomes are
    added to `met`.
    """
    connection: socket.socket | None = None
    while not stop.is_set():
        started = time.monotonic()
        if connection is None:
            try:
                connection = connect(bootstrap)
            except OSError:
                stop.wait(REOPEN_SECONDS)
                continue
            connection.settimeout(ANSWER_SECONDS_MAX)
        pause = pause_seconds
        try:
            size = _exchange(connection, frame)
        except TimeoutError:
            met.unanswered += 1
            size = None
        else:
            met.closed += size is None
        if size is None:
            connection.close()
            connection = None
            pause = max(pause, REOPEN_SECONDS)
        else:
            met.answered += 1
            met.answer_bytes += size
        if pause:
            stop.wait(max(REOPEN_SECONDS, pause - (time.monotonic() - started)))
    if connection is not None:
        connection.close()


def _sum(met: list[Attack], cpu_seconds: float) -> Attack:
    return Attack(
        sum(each.answered for each in met),
        sum(each.closed for each in met),
        sum(each.unanswered for each in met),
        sum(each.answer_bytes for each in met),
        cpu_seconds,
    )


def _serve_attacks(pipe: Connection) -> None:
    """Run the attacks that the messages on the pipe request. The message (bootstrap, frame, pause) begins an attack,
    False requests its results so far, and True ends it.
    """
    pipe.send(None)
    while True:
        bootstrap, frame, pause_seconds = pipe.recv()
        stop, met = threading.Event(), [Attack() for _ in range(ATTACKERS)]
        cpu = time.process_time()
        threads = [
            threading.Thread(target=_attack, args=(bootstrap, frame, pause_seconds, stop, each), daemon=True)
            for each in met
        ]
        for thread in threads:
            thread.start()
        ends = False
        while not ends:
            ends = pipe.recv()
            if ends:
                stop.set()
                for thread in threads:
                    thread.join()
            pipe.send(_sum(met, time.process_time() - cpu))


@attrs.define
class Attackers:
    """The process with the four attacking connections."""

    pipe: Connection

    def begin(self, bootstrap: str, frame: bytes, pause_seconds: float) -> None:
        """Send `frame` on each connection every `pause_seconds`. With 0, the next frame follows each answer at once."""
        self.pipe.send((bootstrap, frame, pause_seconds))

    def so_far(self) -> Attack:
        """Return the results of the exchanges that have ended since `begin`."""
        return self._ask(False)

    def end(self) -> Attack:
        """Stop sending, wait until all exchanges have ended, and return the results."""
        return self._ask(True)

    def _ask(self, ends: bool) -> Attack:
        self.pipe.send(ends)
        found: Attack = self.pipe.recv()
        return found


@contextmanager
def attackers() -> Iterator[Attackers]:
    """Start the attackers' process for the block."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve_attacks, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield Attackers(ours)
    finally:
        process.terminate()
        process.join()
        ours.close()


# -- a sink that replaces the node ------------------------------------------------------------------------------------


def _swallow(connection: socket.socket, answer_bytes: int, seconds: float) -> None:
    answer = answer_bytes.to_bytes(4, "big") + bytes(answer_bytes)
    with connection:
        while size := connection.recv(4, socket.MSG_WAITALL):
            _drain(connection, int.from_bytes(size, "big"))
            time.sleep(seconds)
            connection.sendall(answer)


def _serve_sink(pipe: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        answer_bytes, seconds = pipe.recv()
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_swallow, args=(connection, answer_bytes, seconds), daemon=True).start()


@contextmanager
def sink(answer_bytes: int, seconds: float) -> Iterator[str]:
    """Run a process that answers each frame after `seconds` with `answer_bytes`. Yield its address."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve_sink, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        port = ours.recv()
        ours.send((answer_bytes, seconds))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()
        ours.close()
