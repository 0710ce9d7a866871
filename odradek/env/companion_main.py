"""The program of a companion process: `python -m odradek.env.companion_main CHANNEL LIFELINE FACTORY`. SHELL.

`odradek.env.companion` starts it. The first frame has the arguments for the factory, which makes the
companion's object. Each further frame names a method of the object to call. The process ends when the node
closes the channel.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

from odradek.env.child_python import end_with_parent
from odradek.env.companion_frames import Incoming, Outgoing, receive
from odradek.env.low_priority import give_way
from odradek.env.ports import FileClosed, LentFile, carried_error, load_factory
from odradek.env.real_descriptors import close_descriptor, disk_error


class DescriptorFile:
    """Implements `odradek.env.ports.LentFile` with a descriptor that the node has sent. It is valid until the call
    returns.
    """

    __slots__ = ("_directory", "_fd", "path", "size")

    def __init__(self, fd: int, directory: str, path: str, size: int) -> None:
        self._fd = fd
        self._directory = directory
        self.path = path
        self.size = size

    def pread(self, count: int, offset: int) -> bytes:
        if self._fd < 0:
            raise FileClosed(self._directory, self.path, "read", 0, "the call that lent this file has ended")
        try:
            data = os.pread(self._fd, count, offset)
            while len(data) < count and (rest := os.pread(self._fd, count - len(data), offset + len(data))):
                data += rest
        except OSError as error:
            raise disk_error(self._directory, self.path, "read", error) from error
        return data

    def forget(self) -> None:
        """Drop the descriptor, because the call has ended."""
        self._fd = -1


class _Server:
    """The companion's object, and the loop that calls its methods."""

    def __init__(self, channel: socket.socket, factory: str) -> None:
        self._channel = channel
        self._factory = factory
        self._made: Any = None

    def serve_next(self) -> None:
        """Receive one frame, and send the answer. Raises `EOFError` when the node has closed the channel."""
        self._answer(receive(self._channel)).send(self._channel)

    def _answer(self, frame: Incoming) -> Outgoing:
        descriptors = iter(frame.descriptors)
        lent: list[DescriptorFile] = []

        def lend(directory: str, path: str, size: int) -> DescriptorFile:
            lent.append(DescriptorFile(next(descriptors), directory, path, size))
            return lent[-1]

        try:
            return Outgoing((True, self._act(frame.value(lend)), ""))
        except Exception as error:  # noqa: BLE001 - raised in the node, by the call
            return _failure(error)
        finally:
            for file in lent:
                file.forget()
            for fd in frame.descriptors:
                close_descriptor(fd)

    def _act(self, asked: Any) -> Any:
        if self._made is None:
            self._made = load_factory(self._factory)(*asked)
            return None
        method, args = asked
        return getattr(self._made, method)(*args)


def _failure(error: Exception) -> Outgoing:
    """Make the frame that raises this error in the node. If pickle would change the error, the frame has the
    error's text instead.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = " > ".join(
        f"{os.path.basename(code.co_filename)}:{line} {code.co_name}" for code, line in frames
    )
    return Outgoing((False, carried_error(error), places))


def main(channel: str, lifeline: str, factory: str) -> None:
    """Answer the node's frames until the node closes the channel or ends."""
    # A terminal or a service manager sends these signals to all processes; but the node itself stops its companions,
    # in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_way()
    with socket.socket(fileno=int(channel)) as connected:
        server = _Server(connected, factory)
        try:
            end_with_parent(int(lifeline))
            while True:
                server.serve_next()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


if TYPE_CHECKING:

    def _conforms(file: DescriptorFile) -> LentFile:
        return file


if __name__ == "__main__":
    main(*sys.argv[1:])
