"""The ports of a node on a real machine: trio, the machine's clocks, threads, files and sockets. SHELL.

`RealEnv` implements the ports of `odradek.env.ports`; files are in `real_files` and `real_dirs`, sockets in
`real_net`, other processes in `companion`.

`Clock.monotonic` reads the system's clock rather than trio's, so that worker threads may use it as well. A deadline
is converted to trio's clock when a wait begins.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from odradek.env.companion import RealCompanion
from odradek.env.ports import Env, Event, Scope
from odradek.env.real_dirs import RealDir, is_blank_disk, open_dir
from odradek.env.real_net import TcpNetwork

T = TypeVar("T")

WORKERS_DEFAULT = 8
NO_THREAD_RETRY_SECONDS = 0.1
UUID_BYTES = 16
_UUID_ZERO = bytes(UUID_BYTES)
_UUID_ONE = bytes(15) + b"\x01"
_DASH_SEXTET = 62


class _Timeout:
    """Implements `odradek.env.ports.Scope` with a trio cancel scope."""

    __slots__ = ("_scope",)

    def __init__(self, seconds: float) -> None:
        self._scope = trio.move_on_after(seconds)

    @property
    def expired(self) -> bool:
        return self._scope.cancelled_caught

    def __enter__(self) -> _Timeout:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._scope.__exit__(kind, error, traceback)


class RealClock:
    """Implements `odradek.env.ports.Clock` with this machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            await trio.lowlevel.checkpoint()
        while remaining > 0:
            await trio.sleep(remaining)
            remaining = deadline - time.monotonic()

    def timeout_at(self, deadline: float) -> AbstractContextManager[Scope]:
        return _Timeout(max(0.0, deadline - time.monotonic()))


class RealWorkers:
    """Implements `odradek.env.ports.Workers` with threads, whose number has its own limit.

    A started function runs to its end, and its caller waits for it even when cancelled, because a sync must
    not go on unnoticed. If the system cannot start a thread now, the function waits until it can.
    """

    __slots__ = ("_limiter",)

    def __init__(self, workers_max: int) -> None:
        self._limiter = trio.CapacityLimiter(workers_max)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        has_begun = False

        def begin() -> tuple[T | None, Exception | None]:
            nonlocal has_begun
            has_begun = True
            try:
                return function(*args), None
            except Exception as error:  # noqa: BLE001  # raised in the task that waits for the work
                return None, _without_frames(error)

        while True:
            try:
                result, failure = await trio.to_thread.run_sync(begin, limiter=self._limiter)
                break
            except (RuntimeError, MemoryError):
                # The error says "can't start new thread": processes or memory are used up, and may be free again later.
                if has_begun:
                    raise
                await trio.sleep(NO_THREAD_RETRY_SECONDS)
        if failure is None:
            return cast("T", result)
        try:
            raise failure
        finally:
            del failure


def _without_frames(error: Exception) -> Exception:
    """Remove the stack frames from an error, and add a note that says where it was raised.

    The thread's frames refer to the error, and its traceback refers to the frames. This cycle would keep their
    values, perhaps megabytes of a request, until a full garbage collection.
    """
    places = [
        f"{os.path.basename(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    error.add_note("a worker thread raised this at: " + " > ".join(places[1:]))
    seen: list[BaseException] = []
    chained: BaseException | None = error
    # Stop at an error that was seen before, because the chain of causes may be a circle.
    while chained is not None and chained not in seen:
        seen.append(chained)
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error


UNREAD_SECONDS_MAX = 0.00025
"""While successive turns together are shorter than this many seconds, the wall-clock duration of each turn counts as
its processor time. The duration is measured anyway, but reading the thread's clock needs a system call of half a
microsecond. A turn that was interrupted for long exceeds this limit, so the thread's clock is read after it.
"""


class RealMeter:
    """Implements `odradek.env.ports.Meter`: the processor time of all threads of the process."""

    __slots__ = ("_read_at", "_unread_seconds")

    def __init__(self) -> None:
        self._read_at = 0.0
        self._unread_seconds = UNREAD_SECONDS_MAX
        """The seconds of all turns since the thread's clock was last read. With this initial value, the first
        turn reads the clock.
        """

    def cpu_seconds(self) -> float:
        return time.process_time()

    def thread_cpu_seconds(self) -> float:
        return time.thread_time()

    def turn_cpu_seconds(self, seconds: float) -> float:
        unread = self._unread_seconds + seconds
        if unread < UNREAD_SECONDS_MAX:
            self._unread_seconds = unread
            return seconds
        ended = time.thread_time()
        took = ended - self._read_at - self._unread_seconds
        self._read_at, self._unread_seconds = ended, 0.0
        # The thread's clock also counts the loop's other work between two turns. That work must not be
        # charged to a client.
        return seconds if took > seconds else max(took, 0.0)


class RealEnv:
    """Implements `odradek.env.ports.Env` with this machine.

    `seed` makes `random` repeatable (uuids never are). `tcp_maxseg` (default: the variable `ODRADEK_TCP_MAXSEG`)
    limits the segment size of every socket, for benchmarks only.
    """

    def __init__(
        self, seed: int | None = None, *, workers_max: int = WORKERS_DEFAULT, tcp_maxseg: int | None = None
    ) -> None:
        if tcp_maxseg is None and (text := os.environ.get("ODRADEK_TCP_MAXSEG")):
            tcp_maxseg = int(text)
        self.clock = RealClock()
        self.network = TcpNetwork(tcp_maxseg)
        self.workers = RealWorkers(workers_max)
        self.meter = RealMeter()
        self.random = random.Random(seed)
        self._dirs: list[RealDir] = []
        self._companions: list[RealCompanion] = []

    def new_workers(self, threads_max: int | None = None) -> RealWorkers:
        return RealWorkers(WORKERS_DEFAULT if threads_max is None else threads_max)

    def new_companion(self, factory: str, *args: Any) -> RealCompanion:
        companion = RealCompanion(factory, args)
        self._companions = [each for each in self._companions if not each.is_closed]
        self._companions.append(companion)
        return companion

    def open_dir(self, path: str, *, create: bool = False) -> RealDir:
        directory = open_dir(path, create=create)
        self._dirs.append(directory)
        return directory

    def is_blank_disk(self, path: str) -> bool:
        return is_blank_disk(path)

    def event(self) -> Event:
        return trio.Event()

    def new_uuid(self) -> bytes:
        while not is_valid_uuid(value := os.urandom(UUID_BYTES)):
            continue
        return value

    provokes = False

    def buggify(self, point: str) -> bool:
        return False

    def close(self) -> None:
        """End the companions, and release the locks of the directories. The end of the process has the same
        effect.
        """
        for companion in self._companions:
            companion.close()
        for directory in self._dirs:
            directory.unlock()


if TYPE_CHECKING:

    def _conforms(env: RealEnv) -> Env:
        return env


def is_valid_uuid(value: bytes) -> bool:
    """True if Kafka may generate this id. Kafka never generates zero, one, or an id whose text begins with a dash.
    (Tools would take such a text for an option.)
    """
    return value not in (_UUID_ZERO, _UUID_ONE) and value[0] >> 2 != _DASH_SEXTET


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the allowed maximum, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def keep_memory_out_of_files() -> None:
    """Prevent core files after a crash, because this process's memory contains private keys and passwords."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
