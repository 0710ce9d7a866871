"""Starts nodes by forking a process (the nursery) that has imported all modules already. Such a start takes a tenth of
the CPU time of a start by the command.

The nursery is a separate process, so that a node inherits no threads, files or memory of a test. A node has the
arguments, environment, directory and umask of the test process at the moment of its start, and dies with it. Other
tests run the command `odradek` itself. They cover the code that the command executes before `main`.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TypedDict

from odradek.env.real_descriptors import readable
from testkit.processes import command_prefix

MESSAGE_BYTES_MAX = 1 << 17
_ROOT = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1


class Wanted(TypedDict):
    """The description of a node to be started, as sent to the nursery."""

    words: list[str]
    environment: dict[str, str]
    directory: str
    umask: int


class Nursery:
    """The test's side of the nursery: starts nodes, and receives their exit statuses."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*command_prefix(), sys.executable, "-m", "testkit.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
            )
        self._lock = threading.Lock()
        self._started: list[tuple[int, int]] = []
        """For each node that was just started: its number, and its process id."""
        self._ended: dict[int, int] = {}
        """The exit status of each node that has ended, by its number. The system gives a process id again."""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(self, words: Sequence[str | Path], log_path: Path) -> Nursling:
        """Start `odradek WORDS` in the nursery; its output is appended to a log."""
        with log_path.open("ab") as log:
            return self._start(words, log.fileno(), log.fileno())

    def start_with_pipes(self, words: Sequence[str | Path]) -> Nursling:
        """Start `odradek WORDS` in the nursery; its `stdout` and `stderr` are pipes to read from."""
        pipes = [os.pipe(), os.pipe()]
        try:
            process = self._start(words, *(writer for _, writer in pipes))
        finally:
            for _, writer in pipes:
                os.close(writer)
        process.stdout, process.stderr = (os.fdopen(reader, "rb") for reader, _ in pipes)
        return process

    def _start(self, words: Sequence[str | Path], out: int, err: int) -> Nursling:
        (umask,) = (
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("Umask:")
        )
        wanted = Wanted(
            words=list(map(str, words)),
            environment=dict(os.environ),
            directory=os.getcwd(),
            umask=int(umask, 8),
        )
        with self._lock:
            socket.send_fds(self._control, [json.dumps(wanted).encode()], [out, err])
            while not self._started:
                self._hear(None)
            return Nursling(self, wanted["words"], *self._started.pop())

    def status(self, number: int, seconds_max: float | None) -> int | None:
        """Return the exit status of a node as in `Popen.returncode`; None if it still runs after `seconds_max` (None:
        wait for ever).
        """
        until = None if seconds_max is None else time.monotonic() + seconds_max
        with self._lock:
            while number not in self._ended:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not self._hear(left) and left == 0.0:
                    return None
            return self._ended[number]

    def _hear(self, seconds_max: float | None) -> bool:
        """Receive one message of the nursery. Return false if none came in time. Raises `ChildProcessError` if the
        nursery has died.
        """
        if not readable([self._control.fileno()], seconds_max):
            return False
        data = self._control.recv(MESSAGE_BYTES_MAX)
        if not data:
            raise ChildProcessError("the nursery process has died, so it can start no more nodes")
        message: dict[str, int] = json.loads(data)
        if "status" in message:
            self._ended[message["number"]] = message["status"]
        else:
            self._started.append((message["number"], message["pid"]))
        return True


class Nursling(subprocess.Popen[bytes]):
    """A node that the nursery has forked, with the interface of `Popen`."""

    def __init__(self, nursery: Nursery, words: list[str], number: int, pid: int) -> None:
        """Represent a node that runs already; this starts no process."""
        self._nursery = nursery
        self._number = number
        self.args = words
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = False

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.status(self._number, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            status = self._nursery.status(self._number, timeout)
            if status is None:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = status
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Read the rest of both streams, and wait until the node has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        streams = [each for each in (self.stdout, self.stderr) if each is not None]
        read = {each.fileno(): b"" for each in streams}
        # Bytes that were read from the pipe but not returned as lines are still in the stream's buffer.
        for each in streams:
            os.set_blocking(each.fileno(), False)
            while data := each.read(1 << 16):
                read[each.fileno()] += data
        open_ones = set(read)
        while open_ones:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = readable(open_ones, left)
            if not ready:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            for number in ready:
                data = os.read(number, 1 << 16)
                read[number] += data
                if not data:
                    open_ones.discard(number)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        out, err = (b"" if each is None else read[each.fileno()] for each in (self.stdout, self.stderr))
        for each in streams:
            each.close()
        return out, err


def main(control: socket.socket) -> list[str]:
    """Fork a node for each request of the parent process, until the parent ends. In the process of each node,
    return the words of its command.
    """
    nursery = os.getpid()
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    number, numbers = 0, dict[int, int]()
    while True:
        ready = readable([control.fileno(), reader])
        if reader in ready:
            os.read(reader, 4096)
            _report_ends(control, numbers)
        if control.fileno() in ready:
            data, streams, *_ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
            if not data:
                os._exit(0)
            wanted: Wanted = json.loads(data)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                os.close(reader)
                os.close(writer)
                _become(wanted, streams, nursery)
                return wanted["words"]
            for each in streams:
                os.close(each)
            number += 1
            numbers[pid] = number
            control.send(json.dumps({"number": number, "pid": pid}).encode())


def _report_ends(control: socket.socket, numbers: dict[int, int]) -> None:
    """Reap the nodes that have ended, and send their exit statuses to the parent. `numbers` has the number of each
    node that runs, by its process id.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        message = {"number": numbers.pop(pid), "status": os.waitstatus_to_exitcode(status)}
        control.send(json.dumps(message).encode())


def _become(wanted: Wanted, streams: Sequence[int], nursery: int) -> None:
    """Give a forked node the environment that it would get from the parent. The node dies with the nursery."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(1)
    os.umask(wanted["umask"])
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    for each, number in zip(streams, (1, 2), strict=True):
        os.dup2(each, number)
        os.close(each)
    # Make the streams as Python does at its start. The nursery's own streams may be seekable, but a pipe is not.
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    sys.argv = ["odradek", *wanted["words"]]


def _run() -> NoReturn:
    from odradek.cli import __main__ as command

    # Imported now, so that no node has to import them.
    for module in ("odradek.cli.commands.server", "odradek.node.main"):
        import_module(module)
    # The garbage collector of a node need not visit objects that it shares with the nursery.
    gc.collect()
    gc.freeze()
    words = main(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(command.main(words))


if __name__ == "__main__":
    _run()
