"""The ports: everything that a node asks of the world outside its own memory.

Theory of operation
-------------------
Production code never touches a clock, a socket, a file, a thread or a source of randomness by itself. It receives an
`Env` and asks that. There are two families of implementation: `odradek.env.real` (the machine) and `sim` (a virtual
machine). A seed may delay, split or fail every call of the second. `run_node(config, env)` is the only way to start a
node, so the simulator runs the code that production runs.

Rules
-----
* Only `Clock.sleep_until`, `Conn.readable`, `Conn.writable`, `Listener.accept`, `Network.connect`, `Event.wait`
  and `Workers.run` await. Everything else returns at once, so nothing can be interleaved between a receive and
  its dispatch. (`Companion` blocks, and is for workers.)
* `File` and `Dir` calls block the caller. On the loop that is allowed for appends, and for reads that `File.is_warm`
  vouches for (`File.read_warm` reads only such). Calls that may wait for a device go through `Workers.run`: sync,
  cold reads, listing big trees.
* A file may be closed, removed or renamed while a worker is at it. So a worker pins what it reads. For a worker,
  `FileClosed` means that it came too late; the device is sound. When the loop gets the result, the file may have
  changed again.
* A failed file operation raises `DiskError`, which names the log directory that it came from: one bad disk takes
  down only its own partitions. A call to a dead device raises `DiskError` alone; so does `exists`, rather than answer
  False. Calls that let a file or a lock go succeed there all the same: `unpin`, `rest`, `close`, `unlock`.
* What has passed between a node and its companion stays as it is: neither side changes it. In the simulator both have
  the same object.
* mmap is not used, because it would bypass the port. Clean-up code may have no effects: after a crash the ports fail
  first.

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
"""The most files in one call of a companion. Linux passes up to 253 descriptors at once (unix(7), SCM_RIGHTS)."""


class DiskError(Exception):
    """A file or directory operation failed.

    `directory` is the root that `Env.open_dir` was given (a log directory), and `path` the file. `errno` is the
    system's number, 0 where there is none. `operation` is a word such as `append` or `sync`.
    """

    def __init__(self, directory: str, path: str, operation: str, errno: int, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.directory = directory
        self.path = path
        self.operation = operation
        self.errno = errno
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the fields, for pickle: an error crosses from a companion's process."""
        return type(self), (self.directory, self.path, self.operation, self.errno, self.reason), self.__dict__


class DiskRefused(DiskError):
    """The system refuses for now, although the device is sound: the same call may succeed later."""


class DiskFull(DiskRefused):
    """No space left (ENOSPC, EDQUOT). The file may hold a prefix of the data to be appended."""


class ResourcesShort(DiskRefused):
    """The process or the machine is out of descriptors or memory (EMFILE, ENFILE, ENOMEM), or was interrupted."""


class DiskHung(DiskRefused):
    """The device has not answered in time. Nothing has changed: when the device answers, the call is undone.

    If the call `goes_on`, it is done then instead (`Dir.in_time`), and `Dir.settle` waits for that.
    """

    goes_on = False


class FileMissing(DiskError):
    """No such file or directory (ENOENT)."""


class FileClosed(FileMissing):
    """The owner has closed the file, perhaps to remove it, before a worker read it."""


_FULL = (_errno.ENOSPC, _errno.EDQUOT)
_SHORT = (_errno.EMFILE, _errno.ENFILE, _errno.ENOMEM, _errno.EINTR)


def disk_error(directory: str, path: str, operation: str, number: int, reason: str) -> DiskError:
    """Make the exception for a system's error `number`. A failed sync is final, unless space is lacking."""
    if number in _FULL:
        return DiskFull(directory, path, operation, number, reason)
    if number in _SHORT and operation != "sync":
        return ResourcesShort(directory, path, operation, number, reason)
    if number == _errno.ENOENT:
        return FileMissing(directory, path, operation, number, reason)
    return DiskError(directory, path, operation, number, reason)


class DocumentMissing(Exception):
    """A document that a setting names could not be fetched; the text says why in one line."""


class ConnectionLost(Exception):
    """The connection is lost: reset, refused, or closed under a send."""


class ConnectionCut(ConnectionLost):
    """The connection was ended from here for the peer's bytes; the text says why."""


class CompanionLost(Exception):
    """A companion's process ended, or it was closed, before the method returned. The companion stays lost."""


class CompanionRefused(CompanionLost):
    """The system cannot start a companion (memory, processes, descriptors): the same call may succeed later."""


class CompanionFailed(Exception):
    """A companion's method raised an exception that cannot be pickled: its type and text."""


class Scope(Protocol):
    """The context that `Clock.timeout_at` yields: `expired` is true if the deadline cut the body short."""

    @property
    def expired(self) -> bool: ...


class Clock(Protocol):
    """Time of one node, so that the simulator can pause, slow and skew a single node."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never falls."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by the operator's clock; may jump."""

    async def sleep_until(self, deadline: float) -> None:
        """Wait until `monotonic()` reaches `deadline` (a checkpoint even if it has)."""

    def timeout_at(self, deadline: float) -> AbstractContextManager[Scope]:
        """Cut the body short at `deadline`. Costs microseconds: never per frame."""


class Event(Protocol):
    """A flag that tasks wait for; once set it stays set."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


class TaskGroup(Protocol):
    """The tasks of a node, or of a part of it."""

    def start_soon(
        self, function: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None
    ) -> None: ...


class File(Protocol):
    """An append-only file with positioned reads. The owner holds one reference; a reader pins more.

    Every call on a file without references raises `FileClosed`.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes appended so far (synced or not)."""

    def append(self, data: Buffer) -> int:
        """Append all of `data`; return the position at which it begins.

        Raises `DiskFull` or `DiskError`; a prefix may then be in the file (`size` counts it), and the owner
        truncates. After `DiskHung` nothing is in the file.
        """

    def pread(self, count: int, offset: int) -> bytes:
        """Read up to `count` bytes at `offset`; fewer only at the end of the file."""

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`. Return the number of bytes read, fewer only at the end of the file."""

    def is_warm(self, offset: int, count: int) -> bool:
        """True if the page cache probably holds this range, so a read need not wait for the device.

        The probe is cheap.
        """

    def read_warm(self, count: int, offset: int) -> bytes | bytearray | None:
        """Read all `count` bytes at `offset`; None if that would wait for the device, or if the file ends before."""

    def open_past_cache(self) -> UncachedFile:
        """Open the file for reads that go to the device itself; blocking, for a worker. Raises `DiskError`."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> int:
        """Make durable all bytes written before the call; return the size that this covers.

        A failure is final: the kernel may have dropped the dirty pages, so the caller takes the directory
        offline and never tries again.
        """

    def pin(self) -> None:
        """Keep the file readable until `unpin`, even if it is closed or removed meanwhile."""

    def unpin(self) -> None: ...

    def rest(self) -> bool:
        """Give up the descriptor unless the file is pinned; it is opened again when needed. Return True if it was
        given up.

        Only the thread that uses the file without a pin (the loop) may call it, or any thread while it is the only
        one.
        """

    def close(self) -> None:
        """Give up the owner's reference; the descriptor is closed with the last pin, whatever the device answers."""


class UncachedFile(Protocol):
    """A file whose reads come from the device, and leave the page cache alone. For one thread at a time."""

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; the number of bytes read, fewer only at the end of the file."""

    def close(self) -> None: ...


class Dir(Protocol):
    """A directory. Names are relative to it and may have one level of folders (`topic-0/000.log`)."""

    @property
    def path(self) -> str: ...

    def open(self, name: str, *, create: bool = False) -> File:
        """Open for reading and appending. Raises `FileMissing` unless `create`."""

    def subdir(self, name: str, *, create: bool = False) -> Dir:
        """Open a directory below this one. Raises `FileMissing` unless it exists or `create`."""

    def list_directories(self) -> list[str]:
        """List names of directories alone, sorted."""

    def list(self) -> list[str]:
        """List names of files and directories, sorted."""

    def exists(self, name: str) -> bool:
        """True if there is a file or directory of this name. Raises `DiskError` if the device does not say."""

    def is_dir(self, name: str) -> bool:
        """True if there is a directory of this name. Raises `DiskError` if the device does not say."""

    def file_size(self, name: str) -> int:
        """Size in bytes. Raises `FileMissing`."""

    def modified_ms(self, name: str) -> int:
        """Return wall-clock milliseconds of the last write."""

    def read_bytes(self, name: str, size_max: int = 64 << 20) -> bytes:
        """Read the whole file. Raises `FileMissing`, or `DiskError` when it is larger than `size_max`."""

    def write_atomic(self, name: str, data: bytes) -> None:
        """Replace the file: temporary file, sync, rename, sync of the directory. Old or new after a crash."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within this directory (durable after `sync`)."""

    def remove(self, name: str) -> None:
        """Remove a file. Raises `FileMissing`."""

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is in it."""

    def sync(self) -> None:
        """Make creations, renames and removals in this directory durable."""

    def bound_calls(self, wait_seconds: float, *, looks: bool = True) -> None:
        """Bound the time that the calling thread waits for files and directories below this one. From then on its
        appends and creations raise `DiskHung` if the device does not answer, and until it has. So does a truncation
        meanwhile. So do its `looks`: reads, openings, and listings of directories. Any other work here belongs into
        `in_time`. This holds for files that are opened from now on, from this directory or below it. Another
        `Env.open_dir` of the same path is apart.
        """

    def in_time(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Do work on files below the root, through this port, as one bounded call; return its result.

        Where the caller's calls are not bounded, it is simply done. Otherwise another thread may do it, and the
        caller waits meanwhile. An abandoned work and its caller must not change anything that they share. Raises the
        errors of `work`, and `DiskHung`. While an earlier call hangs, nothing is begun. Otherwise the work is done
        when the device answers. Then `undo` is called with its result, in the other thread. If there is no `undo`,
        the work `goes_on`, and its result is dropped.
        """

    def settle(self) -> None:
        """Wait until a call that has met `DiskHung` is undone, or done (blocking). Raises `DiskError` if it could not be."""

    def free_bytes(self) -> int:
        """Return the room on the device that this process may use, in bytes."""

    def total_bytes(self) -> int:
        """Return the size of the device in bytes."""

    def lock(self) -> None:
        """Hold this directory for one process until it ends. Raises `DiskError` when another holds it."""

    def unlock(self) -> None:
        """Give up the lock. Nothing more is done in this directory."""

    def is_open(self) -> bool:
        """True while this process has a file or directory below the root open, which keeps its disk from being unmounted."""
        ...


class PeerEnd(Enum):
    """Whether a connection's peer sends more."""

    OPEN = "it may send more"
    BEHIND_DATA = "it sends no more than what has come, and is still to be received"
    ENDED = "all has been received, and it sends no more"


class Conn(Protocol):
    """One non-blocking stream connection: the surface of the hot path. Only the two waits await."""

    @property
    def peer_host(self) -> str: ...

    @property
    def peer_port(self) -> int: ...

    async def readable(self) -> None:
        """Wait until `recv_into` would not return None (at once while TLS holds decrypted bytes)."""

    async def writable(self) -> None: ...

    def wait_for(self, count: int) -> None:
        """Let `readable` wait for about this number of bytes (1: for any). It is a hint, which saves wakes for large
        frames.
        """

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive bytes; returns their number, 0 at the end of the stream, None where it would block. Raises
        `ConnectionLost`.
        """

    def peer_end(self) -> PeerEnd:
        """Look for the end of the stream, and receive nothing. Raises `ConnectionLost` if the peer has reset it.

        A peer that has ended its half may still take answers. With TLS its farewell counts as data.
        """

    def send(self, chunks: Sequence[Buffer], more: bool = False) -> int:
        """Send the concatenated chunks; returns the number of bytes taken, 0 where it would block. Raises
        `ConnectionLost`.

        `more` says that other bytes follow at once (MSG_MORE).
        """

    def sendfile(self, file: File, offset: int, count: int) -> int:
        """Send bytes of a file; returns the number taken, 0 where it would block. Raises `ConnectionLost`, or
        `DiskError`.
        """

    def close(self) -> None: ...


@runtime_checkable
class LimitedConn(Protocol):
    """A connection whose login expires (KIP-368)."""

    renew_at: float
    """The monotonic time from which another connection should take its place."""


def renewal_time(conn: Conn) -> float:
    """Return the time from which another connection should take this one's place; infinite for most."""
    return conn.renew_at if isinstance(conn, LimitedConn) else float("inf")


class Listener(Protocol):
    """An open listening socket."""

    @property
    def port(self) -> int: ...

    async def accept(self) -> Conn:
        """Accept the next connection. Survives all that a peer can do (aborted connections, descriptors used up)."""

    def close(self) -> None: ...


class Network(Protocol):
    """TCP as a node sees it."""

    def listen(
        self,
        host: str,
        port: int,
        *,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> Listener:
        """Listen. The buffers are the kernel's, per connection; None leaves their size to it.

        Raises `OSError` when the address cannot be bound.
        """

    async def connect(self, host: str, port: int, *, address: str | None = None) -> Conn:
        """Connect to a host; with `address`, only to this one of its addresses. Raises `ConnectionLost`."""

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all addresses that a host's name leads to. Raises `ConnectionLost`."""


class Workers(Protocol):
    """Off-loop work: sync, cleaning, cold reads, compression. In the simulator inline, at some moment of a virtual delay."""

    async def run(self, function: Callable[..., T], *args: Any) -> T: ...


class LentFile(Protocol):
    """The part of a `File` that a companion has during one call, over the same open file."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes in the file when the call began."""

    def pread(self, count: int, offset: int) -> bytes:
        """Read up to `count` bytes at `offset`; fewer only at the end of the file. Raises `DiskError`."""


class Companion(Protocol):
    """An object in another process, for work that would hold the interpreter. In the simulator it is in this process.

    Both methods block, so only workers may call them.
    """

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object and return its result. Concurrent calls have their turns one by one.

        Arguments and results can be pickled. Long bytes are cheap: each side copies them once. A memoryview arrives
        as bytes. A `File` among the arguments, at most `FILES_MAX` in all, arrives as a `LentFile`; the caller has
        pinned it. The first call starts the process and makes the object. Raises the errors of the method and the
        factory. An error that cannot be pickled becomes `CompanionFailed`. Raises `CompanionLost`, and
        `CompanionRefused` if the process could not be started.
        """

    def close(self) -> None:
        """End the process, within seconds. A call that runs in another thread raises `CompanionLost`. Idempotent."""


class Meter(Protocol):
    """Processor time, for request quotas and reports."""

    def cpu_seconds(self) -> float:
        """Return processor time of the whole process."""

    def thread_cpu_seconds(self) -> float:
        """Return processor time of the calling thread: the loop, or a worker. A reading costs a microsecond."""

    def turn_cpu_seconds(self, seconds: float) -> float:
        """Return the processor time of a turn of the loop that ends now and took so many seconds.

        Called at the end of each turn. The figure is at most `seconds`. A short turn was hardly interrupted, so the
        figure may be `seconds` itself, and several turns then share one reading of the thread's clock.
        """


class Log(Protocol):
    """The log for operators: each event has a name such as `partition.not_hosted`, and fields. docs/logs.md lists
    them."""

    def info(self, event: str, /, **fields: Any) -> Any: ...

    def warning(self, event: str, /, **fields: Any) -> Any: ...

    def error(self, event: str, /, **fields: Any) -> Any: ...

    def exception(self, event: str, /, **fields: Any) -> Any:
        """Log an error, with the traceback of the exception that is being handled."""


class Env(Protocol):
    """The world of one node."""

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
        """Make separate threads, for work that may block all of them: calls to one of several devices, or work that
        any client may request. With None, they are as many as the node's other workers.
        """

    def new_companion(self, factory: str, *args: Any) -> Companion:
        """Make a companion whose object `factory`, such as "package.module:Class", makes of `args` in the
        companion's process.

        Nothing is started before its first call.
        """

    def open_dir(self, path: str, *, create: bool = False) -> Dir:
        """Open a root directory (a log directory). Raises `FileMissing` unless it exists or `create`."""

    def is_blank_disk(self, path: str) -> bool:
        """True if a separate file system is mounted at `path`, or above it, and holds only empty folders there.

        False on the root's file system, because the disk may merely be unmounted. Raises `DiskError`.
        """

    def event(self) -> Event: ...

    def new_uuid(self) -> bytes:
        """Return 16 random bytes that are a valid Kafka Uuid: neither zero nor one. The text never begins with a
        dash.
        """

    @property
    def provokes(self) -> bool:
        """True if `buggify` may ever be true, for hot loops that ask once. False in production."""

    def buggify(self, point: str) -> bool:
        """True if the caller should provoke trouble at this point.

        A node must survive such trouble at any time: a short answer, a lost connection, work that is done early or
        late. Always False in production.
        """


def carried_error(error: Exception) -> Exception:
    """Return the error as a companion's caller gets it: itself, or its text where pickle would change it."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever the error's class raises here, it would raise in the node
        again = None
    if type(again) is type(error) and str(again) == str(error):
        return error
    return CompanionFailed("".join(traceback.format_exception_only(error)).strip())


def load_factory(name: str) -> Callable[..., Any]:
    """Import the callable that a companion's factory names: "package.module:Class"."""
    module, _, attribute = name.partition(":")
    factory: Callable[..., Any] = getattr(import_module(module), attribute)
    return factory


def never(point: str) -> bool:
    """Return False: `Env.buggify` for parts that have no `Env`."""
    return False
