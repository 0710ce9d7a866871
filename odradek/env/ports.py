"""The ports: the interfaces through which a node uses clocks, disks, the network, worker threads and other
processes, and their errors.

Theory of operation
-------------------
Production code never touches a clock, a socket, a file, a thread or a source of randomness by itself. It uses the
ports of the `Env` that it receives. There are two implementations: `odradek.env.real` (this machine) and `sim` (a
virtual machine). The simulator may delay, split or fail every call, as a seed decides. `run_node(config, env)` is the
only way to start a node, so the simulator runs the code that production runs.

Rules
-----
* Only `Clock.sleep_until`, `Conn.readable`, `Conn.writable`, `Listener.accept`, `Network.connect`,
  `Event.wait` and `Workers.run` await. All other calls return at once, so no other task can run between the
  receipt of bytes and their handling. (`Companion` blocks; only workers use it.)
* `File` and `Dir` calls block the caller. On the loop that is allowed for appends, and for reads that do not
  wait for the device according to `File.is_warm`. (`File.read_warm` only makes reads that do not wait.) Calls
  that may wait for a device go through `Workers.run`: sync, cold reads, listing big trees.
* A file may be closed, removed or renamed while a worker reads it. So a worker pins the files that it reads.
  If a worker gets `FileClosed`, the file was closed before the worker could read it; the device is not at
  fault. When the loop gets the worker's result, the file may have changed again.
* A failed file operation raises `DiskError`, which names the log directory that it came from. So one bad disk
  takes down only its own partitions. Calls to a dead device raise only `DiskError`; this is true even of
  `exists`. Calls that release a file or a lock succeed even then: `unpin`, `rest`, `close`, `unlock`.
* Neither a node nor its companion may change a value that they have exchanged. In the simulator both have the
  same object.
* mmap is not used, because it would bypass the port. Clean-up code (`finally`) must not rely on the ports:
  after a simulated crash they fail at once.

This module is a leaf that every package may import.
"""

from __future__ import annotations

import errno as _errno
import pickle
import random as _random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview

FILES_MAX = 250
"""The maximum number of files in one call of a companion. Linux sends up to 253 descriptors at once (unix(7),
SCM_RIGHTS).
"""


class DiskError(Exception):
    """A file or directory operation failed.

    `directory` is the path of the root directory (a log directory, `Env.open_dir`), and `path` is the path of
    the file. `errno` is the system's error number, or 0. `operation` is a word such as `append` or `sync`.
    """

    def __init__(self, directory: str, path: str, operation: str, errno: int, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.directory = directory
        self.path = path
        self.operation = operation
        self.errno = errno
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the fields for pickle, because an error may be raised in a companion and sent to the node."""
        return type(self), (self.directory, self.path, self.operation, self.errno, self.reason), self.__dict__


class DiskRefused(DiskError):
    """The system refused the call for now, but the device works, so the same call may succeed later."""


class DiskFull(DiskRefused):
    """No space is left (ENOSPC, EDQUOT). After an append, the file may have a prefix of the data."""


class ResourcesShort(DiskRefused):
    """The process or the machine is out of descriptors or memory (EMFILE, ENFILE, ENOMEM), or was interrupted."""


class DiskHung(DiskRefused):
    """The device has not answered in time. The call has no effect: when the device answers, the call is
    undone.

    If `goes_on` is true, the call is completed instead (`Dir.in_time`). `Dir.settle` waits until the call is
    undone or completed.
    """

    goes_on = False


class FileMissing(DiskError):
    """There is no such file or directory (ENOENT)."""


class FileClosed(FileMissing):
    """The file's owner has closed it, perhaps to remove it, before a worker could read it."""


_FULL = (_errno.ENOSPC, _errno.EDQUOT)
_SHORT = (_errno.EMFILE, _errno.ENFILE, _errno.ENOMEM, _errno.EINTR)


def disk_error(directory: str, path: str, operation: str, number: int, reason: str) -> DiskError:
    """Make the exception for the system's error `number`. A failed sync gives an error that is final, unless the disk
    is full.
    """
    if number in _FULL:
        return DiskFull(directory, path, operation, number, reason)
    if number in _SHORT and operation != "sync":
        return ResourcesShort(directory, path, operation, number, reason)
    if number == _errno.ENOENT:
        return FileMissing(directory, path, operation, number, reason)
    return DiskError(directory, path, operation, number, reason)


class DocumentMissing(Exception):
    """Raised if a document that a setting names could not be fetched. The text says why in one line."""


class ConnectionLost(Exception):
    """The connection is lost, because it was reset, refused, or closed during a send."""


class ConnectionRefused(ConnectionLost):
    """The host has refused the connection: no program listens on this port. A firewall may refuse in the same way."""


class ConnectionCut(ConnectionLost):
    """This node ended the connection because of bytes that the peer sent. The text says why."""


class CompanionLost(Exception):
    """The companion's process ended, or the companion was closed, before the method returned. All further calls fail
    too.
    """


class CompanionRefused(CompanionLost):
    """The system could not start the companion (memory, processes, descriptors). The same call may succeed later."""


class CompanionFailed(Exception):
    """The companion's method raised an exception that cannot be pickled. The text has the type and text of that
    exception.
    """


class Scope(Protocol):
    """The context that `Clock.timeout_at` yields. `expired` is true if the deadline ended the block early."""

    @property
    def expired(self) -> bool: ...


class Clock(Protocol):
    """The clocks of one node. In the simulator each node has its own, which can be paused, slowed and skewed."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; the value never falls."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by the system's wall clock; the value may jump."""

    async def sleep_until(self, deadline: float) -> None:
        """Wait until `monotonic()` reaches `deadline`. Other tasks may run meanwhile, even if the deadline has passed
        already.
        """

    def timeout_at(self, deadline: float) -> AbstractContextManager[Scope]:
        """End the `with` block early at `deadline`. It costs microseconds, so never use it per frame."""


class Event(Protocol):
    """A flag that tasks can wait for. Once set, it stays set."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


class TaskGroup(Protocol):
    """A group of tasks of a node, which end together."""

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None: ...


class File(Protocol):
    """An append-only file with reads at any position. Its owner has one reference; `pin` adds more.

    Every call on a file without references raises `FileClosed`.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """The bytes in the file, including those that are not synced."""

    def append(self, data: Buffer) -> int:
        """Append all of `data`; return the position of its first byte.

        Raises `DiskFull` or `DiskError`. After such an error, the file may have a prefix of the data (`size`
        includes it), and the owner must truncate. After `DiskHung` the file has no part of the data.
        """

    def pread(self, count: int, offset: int) -> bytes:
        """Read `count` bytes at `offset`; fewer only at the end of the file."""

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes from `offset` on. Return the number of bytes read; it is smaller only at the
        end of the file.
        """

    def is_warm(self, offset: int, count: int) -> bool:
        """True if the page cache probably has this range, so that reading it does not wait for the device.

        This check is cheap.
        """

    def read_warm(self, count: int, offset: int) -> bytes | bytearray | None:
        """Read `count` bytes at `offset`. Return None if the read would wait for the device, or if the file
        has fewer bytes there.
        """

    def open_past_cache(self) -> UncachedFile:
        """Open the file for reads that bypass the page cache. It blocks, so call it in a worker. Raises `DiskError`."""

    def truncate(self, size: int) -> None:
        """Shorten the file to `size` bytes."""

    def sync(self) -> int:
        """Make all bytes durable that were written before the call. Return the number of bytes from the start
        of the file that are durable now.

        A failure is final, because the kernel may have dropped the dirty pages. So the caller must take the directory
        offline, and never sync again.
        """

    def pin(self) -> None:
        """Keep the file readable until `unpin`, even if it is closed or removed meanwhile."""

    def unpin(self) -> None: ...

    def rest(self) -> bool:
        """Close the descriptor unless the file is pinned; the next use opens it again. Return True if it was closed.

        Call this in the loop, the only thread that uses files without a pin. Any other thread may call it only while no
        thread uses the file.
        """

    def close(self) -> None:
        """Drop the owner's reference. The descriptor is closed when no pin is left, even if the device fails."""


class UncachedFile(Protocol):
    """A file whose reads come from the device, and do not fill the page cache. Only one thread at a time may use it."""

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes from `offset` on. Return the number of bytes read; it is smaller only at the
        end of the file.
        """

    def close(self) -> None: ...


class Dir(Protocol):
    """A directory of files. File names are relative to it, and may include one folder (`topic-0/000.log`)."""

    @property
    def path(self) -> str: ...

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and appending. Raises `FileMissing` if it does not exist, unless `create`."""

    def subdir(self, name: str, *, create: bool = False) -> Dir:
        """Open a directory inside this one. Raises `FileMissing` if it does not exist, unless `create`."""

    def list_directories(self) -> list[str]:
        """List the names of directories in this directory, sorted."""

    def list(self) -> list[str]:
        """List the names of files and directories in this directory, sorted."""

    def exists(self, name: str) -> bool:
        """True if there is a file or directory of this name. Raises `DiskError` if the device fails."""

    def is_dir(self, name: str) -> bool:
        """True if there is a directory of this name. Raises `DiskError` if the device fails."""

    def file_size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises `FileMissing`."""

    def modified_ms(self, name: str) -> int:
        """Return the time of the last write to a file, in wall-clock milliseconds since 1970."""

    def read_bytes(self, name: str, size_max: int = 64 << 20) -> bytes:
        """Read a whole file. Raises `FileMissing`, or `DiskError` if the file has more than `size_max` bytes."""

    def write_atomic(self, name: str, data: bytes) -> None:
        """Replace a file's content: write a temporary file, sync it, rename it, sync the directory. After a crash the
        file has either the old or the new content.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within this directory. The change is durable after the next `sync`."""

    def remove(self, name: str) -> None:
        """Remove a file. Raises `FileMissing`."""

    def remove_tree(self, name: str) -> None:
        """Remove a directory with everything in it."""

    def sync(self) -> None:
        """Make creations, renames and removals in this directory durable."""

    def bound_calls(self, wait_seconds: float, *, looks: bool = True) -> None:
        """Limit the time for which calls of the current thread wait for the disk of this directory.

        From then on, the thread's appends and creations in or below this directory raise `DiskHung` if the device does
        not answer in `wait_seconds`. While a call hangs, truncations raise `DiskHung` as well. With `looks`, this is
        also true of reads, openings and listings. All other work of that thread on the disk must use `in_time`. The
        limit applies to files that are opened later, from this directory or below it. It does not apply to other
        results of `Env.open_dir` for the same path.
        """

    def in_time(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Do work on files below the root as one call with limited time, and return its result.

        If the caller's calls have no limit, `work` is simply called. Otherwise another thread may call it
        while the caller waits; so `work` and the caller must not change shared data. If the time is up,
        raises `DiskHung`. The other thread still finishes the work when the device answers, and then calls
        `undo` with the work's result. Without `undo` (`DiskHung.goes_on`), the effect of the work stays, and
        its result is dropped. While an earlier call hangs, `DiskHung` is raised at once, and `work` is not
        started. Also raises the errors of `work`.
        """

    def settle(self) -> None:
        """Wait until the call that raised `DiskHung` is undone or completed; this blocks. Raises `DiskError` if it
        failed.
        """

    def free_bytes(self) -> int:
        """Return the free bytes on the device that this process may use."""

    def total_bytes(self) -> int:
        """Return the size of the device in bytes."""

    def lock(self) -> None:
        """Lock this directory for this process until the process ends. Raises `DiskError` if another process has the
        lock.
        """

    def unlock(self) -> None:
        """Release the lock. After that, this directory must not be used any more."""

    def is_open(self) -> bool:
        """True while this process has any file or directory below the root open. While anything is open, the
        disk cannot be unmounted.
        """
        ...


class PeerEnd(Enum):
    """The state of the peer's half of a connection: the peer may send more, or the half has ended."""

    OPEN = "it may send more"
    BEHIND_DATA = "it sends no more, but earlier bytes are still to be received"
    ENDED = "all has been received, and it sends no more"


class Conn(Protocol):
    """A non-blocking stream connection, made for the hot path. Only the two waits are async."""

    @property
    def peer_host(self) -> str: ...

    @property
    def peer_port(self) -> int: ...

    async def readable(self) -> None:
        """Wait until `recv_into` would return a number. Returns at once if TLS has decrypted bytes left."""

    async def writable(self) -> None: ...

    def wait_for(self, count: int) -> None:
        """Make `readable` wait for about `count` bytes (1: for any). This is a hint that saves wake-ups for large
        frames.
        """

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive bytes into `buffer`. Return their number: 0 at the end of the stream, None if it would block.
        Raises `ConnectionLost`.
        """

    def peer_end(self) -> PeerEnd:
        """Check whether the peer has ended its half of the connection, without receiving. Raises `ConnectionLost` if
        the peer has reset it.

        A peer that has ended its half may still receive answers. With TLS, its close message counts as data.
        """

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        """Send the concatenated chunks. Return the number of bytes accepted; 0 if it would block. Raises
        `ConnectionLost`.

        `more` is true if other bytes follow at once (MSG_MORE).
        """

    def sendfile(self, file: File, offset: int, count: int) -> int:
        """Send bytes of a file. Return the number of bytes accepted; 0 if it would block. Raises `ConnectionLost` or
        `DiskError`.
        """

    def close(self) -> None: ...


@runtime_checkable
class LimitedConn(Protocol):
    """A connection with a login that expires (KIP-368)."""

    renew_at: float
    """The monotonic time, in seconds, from which a new connection should replace this one."""


def renewal_time(conn: Conn) -> float:
    """Return the monotonic time from which a new connection should replace this one; infinite if its login does not
    expire.
    """
    return conn.renew_at if isinstance(conn, LimitedConn) else float("inf")


class Listener(Protocol):
    """An open listening socket."""

    @property
    def port(self) -> int: ...

    async def accept(self) -> Conn:
        """Accept the next connection. Aborted connections and a lack of descriptors raise no error."""

    def close(self) -> None: ...


class Network(Protocol):
    """TCP connections of a node."""

    def listen(
        self,
        host: str,
        port: int,
        *,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> Listener:
        """Listen on an address. The buffer sizes set the kernel's buffers of each connection; with None, the
        kernel chooses them.

        Raises `OSError` if the address cannot be bound.
        """

    async def connect(self, host: str, port: int, *, address: str | None = None) -> Conn:
        """Connect to a host. With `address`, which is one of the host's addresses, connect only to this
        address. Raises `ConnectionLost`, and `ConnectionRefused` if all addresses refuse.
        """

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all IP addresses of a host name. Raises `ConnectionLost`."""


class Workers(Protocol):
    """Threads for work off the loop: sync, cleaning, cold reads, compression. In the simulator the work runs on the
    loop, at some moment during a simulated delay.
    """

    async def run(self, function: Callable[..., T], *args: Any) -> T: ...


class LentFile(Protocol):
    """A file that a companion may read during one call. It shares the node's open file."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """The bytes in the file when the call began."""

    def pread(self, count: int, offset: int) -> bytes:
        """Read `count` bytes at `offset`; fewer only at the end of the file. Raises `DiskError`."""


class Companion(Protocol):
    """An object in another process, for work that would hold the interpreter for long. In the simulator it is in the
    same process.

    Both methods block, so only workers may call them.
    """

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and return its result. Concurrent calls run one at a time.

        Arguments and results must be picklable. Long byte strings are cheap, because each side copies them
        only once. A memoryview arrives as bytes. A `File` among the arguments (at most `FILES_MAX`) arrives
        as a `LentFile`; the caller must have pinned it. The first call starts the process and makes the
        object. Raises the errors of the method and the factory; an error that cannot be pickled becomes
        `CompanionFailed`. Also raises `CompanionLost`, and `CompanionRefused` if the process could not be
        started.
        """

    def close(self) -> None:
        """End the process, within seconds. A call that runs in another thread raises `CompanionLost`. A
        second call has no effect.
        """


class Meter(Protocol):
    """Measures processor time, for request quotas and reports."""

    def cpu_seconds(self) -> float:
        """Return the processor time of the whole process, in seconds."""

    def thread_cpu_seconds(self) -> float:
        """Return the processor time of the current thread (the loop, or a worker), in seconds. A reading costs a
        microsecond.
        """

    def turn_cpu_seconds(self, seconds: float) -> float:
        """Return the processor time, in seconds, of the turn of the loop that ends now. The turn took
        `seconds` of wall-clock time.

        Call it at the end of each turn. The result is at most `seconds`. For a short turn the result may be `seconds`
        itself, because such a turn was hardly interrupted. So the thread's clock need not be read after each short
        turn.
        """


class Log(Protocol):
    """The log for operators. Each line has an event name, such as `partition.not_hosted`, and fields. docs/logs.md
    lists the events.
    """

    def info(self, event: str, /, **fields: Any) -> Any: ...

    def warning(self, event: str, /, **fields: Any) -> Any: ...

    def error(self, event: str, /, **fields: Any) -> Any: ...

    def exception(self, event: str, /, **fields: Any) -> Any:
        """Log an error event with the traceback of the exception that is being handled."""


class Env(Protocol):
    """All ports of one node, in one object."""

    @property
    def clock(self) -> Clock: ...

    @property
    def network(self) -> Network: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def random(self) -> _random.Random: ...

    def new_workers(self, threads_max: int | None = None) -> Workers:
        """Make a separate set of threads, for work that may block all threads of the set. Examples are calls
        to one of several disks, and work that any client may request. With `threads_max` None, the set has as
        many threads as the node's other workers.
        """

    def new_companion(self, factory: str, *args: Any) -> Companion:
        """Make a companion. In its process, `factory` (such as "package.module:Class") makes the companion's object
        from `args`.

        The process starts with the first call.
        """

    def open_dir(self, path: str, *, create: bool = False) -> Dir:
        """Open a root directory (a log directory). Raises `FileMissing` if it does not exist, unless `create`."""

    def is_blank_disk(self, path: str) -> bool:
        """True if a separate file system is mounted at `path` or above it, and `path` has only empty folders.

        If `path` is on the root file system, the answer is false, because a disk may be missing that should
        be mounted there. Raises `DiskError`.
        """

    def event(self) -> Event: ...

    def new_uuid(self) -> bytes:
        """Return 16 random bytes that are a valid Kafka Uuid: neither zero nor one. Its text does not begin with a
        dash.
        """

    @property
    def provokes(self) -> bool:
        """True if `buggify` may ever return true. A hot loop reads this once instead of calling `buggify`
        each time. False in production.
        """

    def buggify(self, point: str) -> bool:
        """True if the caller should cause trouble at this point (simulator only).

        A node must survive such trouble at any time: a short answer, a lost connection, work that is done early or
        late. Always False in production.
        """


def carried_error(error: Exception) -> Exception:
    """Return the error that the caller of a companion gets for `error`: the same error, or its text if pickle would
    change it.
    """
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error that the class raises here would also be raised in the node
        again = None
    if type(again) is type(error) and str(again) == str(error):
        return error
    return CompanionFailed("".join(traceback.format_exception_only(error)).strip())


def load_factory(name: str) -> Callable[..., Any]:
    """Import the callable with this name, which has the form "package.module:Class". It is the factory of a
    companion.
    """
    module, _, attribute = name.partition(":")
    factory: Callable[..., Any] = getattr(import_module(module), attribute)
    return factory


def never(point: str) -> bool:
    """Return False. Code that has no `Env` uses this function instead of `Env.buggify`."""
    return False
