"""Ordinary clients of a node during an attack. Each is a process that does little work itself.

A client sends the same small frame repeatedly. It measures times with its own clock, so a late report is still exact.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import attrs

from testkit.raw_requests import connect

ANSWER_BYTES_MAX = 64 * 1024
ANSWER_SECONDS_MAX = 120.0


@attrs.frozen
class Served:
    """The answers that a client has received since the last report."""

    answers: int
    seconds: float
    longest_seconds: float
    """The longest wait for an answer, including a request that was not yet answered at the time of the report."""
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


def _ask_on(bootstrap: str, frame: bytes, pause_seconds: float, pipe: Connection) -> None:
    """Send the frame repeatedly. Answer each message on the pipe with a `Served` about the time since the last
    message.

    After the message True, the client stops sending frames. The next message of any kind lets it continue, and gets no
    answer.
    """
    answer = memoryview(bytearray(ANSWER_BYTES_MAX))
    clock = time.perf_counter
    with connect(bootstrap) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        pipe.send(None)
        answers, longest, since, cpu = 0, 0.0, clock(), time.process_time()
        while True:
            if pipe.poll():
                pauses = pipe.recv()
                now, cpu_now = clock(), time.process_time()
                pipe.send(Served(answers, now - since, longest, cpu_now - cpu))
                if pauses:
                    pipe.recv()
                    now, cpu_now = clock(), time.process_time()
                answers, longest, since, cpu = 0, 0.0, now, cpu_now
            started = clock()
            connection.sendall(frame)
            have, wanted = 0, 4
            while have < wanted:
                got = connection.recv_into(answer[have:])
                if not got:
                    raise ConnectionError("the node closed the connection of an ordinary client")
                have += got
                if have >= 4:
                    wanted = 4 + int.from_bytes(answer[:4], "big")
            longest = max(longest, clock() - started)
            answers += 1
            if pause_seconds:
                time.sleep(pause_seconds)


@attrs.define
class Asker:
    """An ordinary client in a process of its own."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection

    def since_last(self) -> Served:
        """Return the client's report since the last call. Raises `EOFError` if the client has ended."""
        return self._ask(False)

    def pause(self) -> Served:
        """Return the client's report as `since_last` does, and stop sending until `resume`."""
        return self._ask(True)

    def resume(self) -> None:
        self.pipe.send(False)

    def _ask(self, pauses: bool) -> Served:
        self.pipe.send(pauses)
        found: Served = self.pipe.recv()
        return found


@contextmanager
def askers(bootstrap: str, frames: Sequence[bytes], pause_seconds: float) -> Iterator[list[Asker]]:
    """Start one client process for each frame, connect all of them, and yield them for the block."""
    spawn = multiprocessing.get_context("spawn")
    started: list[Asker] = []
    try:
        for frame in frames:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_ask_on, args=(bootstrap, frame, pause_seconds, theirs), daemon=True
            )
            process.start()
            theirs.close()
            started.append(Asker(process, ours))
        for asker in started:
            asker.pipe.recv()
        yield started
    finally:
        for asker in started:
            asker.process.terminate()
            asker.process.join()
            asker.pipe.close()
