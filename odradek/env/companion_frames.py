"""Messages between a node and its companion: values as frames on a Unix stream socket. SHELL.

A frame consists of a head, a table, a pickle (protocol 5, PEP 574), and the buffers that the table lists.
Each byte string of `APART_BYTES_MIN` bytes or more is such a buffer. A buffer is sent from the sender's
memory and received into its final place, so each side copies it only once. Descriptors are sent together with
the head (SCM_RIGHTS).

Both processes run the same release, and no other process can reach the socket. So frames need neither versions nor
checksums.
"""

from __future__ import annotations

import array
import io
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from odradek.env.ports import FILES_MAX

APART_BYTES_MIN = 32 << 10
"""The size in bytes from which a byte string is sent as a separate buffer. For a smaller byte string, one
more system call costs more than a copy.
"""
_HEAD = struct.Struct("!QII")
"""The head of a frame: the size of the pickle in bytes, the number of buffers, the number of descriptors."""
_ROW = struct.Struct("!?Q")
"""A row of the table, which describes one buffer: true if the receiver may write to it, and its size in
bytes.
"""
_APART = 0
"""The persistent id (of pickle) that stands for the next separate buffer. The persistent id of a lent file is a tuple.
"""

_Apart: TypeAlias = list[tuple[bool, memoryview]]


class FramePickler(pickle.Pickler):
    """Pickles a value; long byte strings go to the list `apart` instead of the pickle."""

    def __init__(self, file: io.BytesIO, apart: _Apart) -> None:
        super().__init__(file, 5, buffer_callback=partial(_keep_apart, apart))
        self._apart = apart
        self.descriptors: list[int] = []

    def persistent_id(self, value: object) -> Any:
        if isinstance(value, (bytes, bytearray)):
            if len(value) < APART_BYTES_MIN or type(value) not in (bytes, bytearray):
                return None
            self._apart.append((isinstance(value, bytearray), memoryview(value)))
            return _APART
        if isinstance(value, memoryview):
            flat = value if value.c_contiguous and value.nbytes else memoryview(value.tobytes())
            self._apart.append((False, flat.cast("B")))
            return _APART
        return None


def _keep_apart(apart: _Apart, buffer: pickle.PickleBuffer) -> bool:
    """Add an array's memory to the separate buffers. Return False if it was added, True to leave it in the pickle."""
    raw = buffer.raw()
    if raw.nbytes < APART_BYTES_MIN:
        return True
    apart.append((not raw.readonly, raw))
    return False


class _Unpickler(pickle.Unpickler):
    """Reads a value from a pickle and its separate buffers, which are in the order of their use in the pickle."""

    def __init__(
        self, file: io.BytesIO, apart: Iterator[bytes | bytearray], lend: Callable[..., Any] | None
    ) -> None:
        super().__init__(file, buffers=apart)
        self._apart = apart
        self._lend = lend

    def persistent_load(self, pid: Any) -> Any:
        if pid == _APART:
            return next(self._apart)
        if self._lend is None:
            raise pickle.UnpicklingError("a companion process must not lend a file to its node")
        return self._lend(*pid)


class Outgoing:
    """A frame to send. Raises pickle's error for a value that cannot be pickled."""

    def __init__(self, value: object, pickler: type[FramePickler] = FramePickler) -> None:
        file, apart = io.BytesIO(), _Apart()
        writer = pickler(file, apart)
        writer.dump(value)
        self._apart = [view for _, view in apart]
        self._descriptors = writer.descriptors
        if len(self._descriptors) > FILES_MAX:
            raise ValueError(
                f"one call passes {len(self._descriptors)} files to a companion, but at most {FILES_MAX} are allowed"
            )
        table = b"".join(_ROW.pack(is_writable, view.nbytes) for is_writable, view in apart)
        # No `getbuffer`: the collector cannot close a file with such a view. Python 3.13 reports that on stderr.
        body = memoryview(file.getvalue())
        self._head = _HEAD.pack(body.nbytes, len(apart), len(self._descriptors)) + table
        self._body = body

    def send(self, sock: socket.socket) -> None:
        """Send the whole frame. Raises `OSError`."""
        lent = array.array("i", self._descriptors)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, lent)] if lent else []
        sent = sock.sendmsg((self._head, self._body), beside)
        for chunk in (memoryview(self._head), self._body, *self._apart):
            if sent < chunk.nbytes:
                sock.sendall(chunk[sent:])
            sent = max(0, sent - chunk.nbytes)


class Incoming:
    """A frame that was received completely, with its descriptors. The receiver must close them."""

    def __init__(self, body: bytes, apart: Sequence[bytes | bytearray], descriptors: Sequence[int]) -> None:
        self._body = body
        self._apart = apart
        self.descriptors = descriptors

    def value(self, lend: Callable[..., Any] | None = None) -> Any:
        """Read the value of the frame. `lend` makes the lent files, in the order of the descriptors.

        Raises pickle's errors, and the errors of code that runs when the value is made.
        """
        return _Unpickler(io.BytesIO(self._body), iter(self._apart), lend).load()


def receive(sock: socket.socket) -> Incoming:
    """Receive the next frame. Raises `OSError`, and `EOFError` at the end of the stream."""
    head, descriptors, _, _ = socket.recv_fds(sock, _HEAD.size, FILES_MAX, socket.MSG_CMSG_CLOEXEC)
    if not head:
        raise EOFError
    body_bytes, buffers, descriptor_count = _HEAD.unpack(head + _receive_bytes(sock, _HEAD.size - len(head)))
    if len(descriptors) != descriptor_count:
        raise OSError(
            f"only {len(descriptors)} of {descriptor_count} file descriptors reached the companion process"
        )
    rows = list(_ROW.iter_unpack(_receive_bytes(sock, buffers * _ROW.size)))
    body = _receive_bytes(sock, body_bytes)
    apart = [
        _receive_bytearray(sock, count) if writable else _receive_bytes(sock, count)
        for writable, count in rows
    ]
    return Incoming(body, apart, descriptors)


def _receive_bytes(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count, socket.MSG_WAITALL) if count else b""
    while len(data) < count:  # a signal or the end of the stream may cut a receive short
        more = sock.recv(count - len(data), socket.MSG_WAITALL)
        if not more:
            raise EOFError
        data += more
    return data


def _receive_bytearray(sock: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        got = sock.recv_into(rest, 0, socket.MSG_WAITALL)
        if not got:
            raise EOFError
        rest = rest[got:]
    return data
