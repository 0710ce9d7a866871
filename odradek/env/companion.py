"""The node's side of a companion process: implements `odradek.env.ports.Companion` on this machine. SHELL.

Theory of operation
-------------------
The process runs `odradek.env.companion_main`. Two descriptors connect it: a socket for calls (`companion_frames`),
and the lifeline, a pipe to which the node never writes. When the node ends, even by kill -9, the node's end of the
pipe closes. The kernel then ends the companion at once, even in the middle of a call.

Of all other descriptors, the companion inherits only standard error. If it had the files of log directories' locks,
those `flock`s would outlive the node.

There are two locks: `_turn` is held for a whole call, `_state` only briefly. `close` shuts the socket down,
which ends a call under way, and ends the process. It closes the descriptors only after that call has
returned. Otherwise the system might reuse their numbers for other files while the call still uses them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from odradek.env.child_python import child_environment, child_program
from odradek.env.companion_frames import FramePickler, Outgoing, receive
from odradek.env.ports import Companion, CompanionLost, CompanionRefused
from odradek.env.real_files import RealFile

END_SECONDS_MAX = 1.0
"""The seconds that an idle companion has to end before it is killed. It normally needs some milliseconds."""
KILLED_SECONDS_MAX = 3.0
"""Seconds to wait for a killed process. A process that reads from a hung device ends only when the device answers. Such
a process is reaped later, when `subprocess` starts the next process.
"""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""The environment that limits numeric libraries to one thread. By default such a library starts one thread per core,
each with its own memory. But the node needs the cores.
"""


class _LendingPickler(FramePickler):
    """A pickler that sends the descriptor of each `File` instead of the object."""

    def persistent_id(self, value: object) -> Any:
        if not isinstance(value, RealFile):
            return super().persistent_id(value)
        self.descriptors.append(value.fileno())
        return value.directory, value.path, value.size


class _Process:
    """A started process, with the two descriptors that connect it to the node. Raises `OSError` if the system has no
    descriptors left.
    """

    def __init__(self, factory: str) -> None:
        with contextlib.ExitStack() as opened:
            self.socket, theirs = socket.socketpair()
            opened.callback(self.socket.close)
            with theirs:
                lifeline, self._lifeline = os.pipe()
                opened.callback(os.close, self._lifeline)
                try:
                    self.process = _spawn(factory, theirs.fileno(), lifeline)
                finally:
                    os.close(lifeline)
            opened.pop_all()

    def shut(self) -> None:
        """Shut down both descriptors, so that the process reads the end of the stream."""
        with contextlib.suppress(OSError):  # the process may have shut it down already
            self.socket.shutdown(socket.SHUT_RDWR)

    def end(self, patience_seconds: float) -> str:
        """Wait until the process ends, kill it after `patience_seconds`, and reap it. Return a text that says how it
        ended.
        """
        try:
            status = self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(KILLED_SECONDS_MAX)
            return "was killed"
        return (
            f"ended by {signal.Signals(-status).name}"
            if status < 0
            else f"the companion process ended with status {status}"
        )

    def release(self) -> None:
        """Close both descriptors. It must be called only once."""
        self.socket.close()
        os.close(self._lifeline)


def _spawn(factory: str, channel: int, lifeline: int) -> subprocess.Popen[bytes]:
    """Start the companion's program. `factory` is among its arguments, so that a list of processes shows it."""
    program = [*child_program("odradek.env.companion_main"), str(channel), str(lifeline), factory]
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        close_fds=True,
        pass_fds=(channel, lifeline),
        env={**child_environment(), **ONE_THREAD},
    )


class RealCompanion:
    """Implements `odradek.env.ports.Companion` with a child process."""

    def __init__(self, factory: str, args: tuple[Any, ...]) -> None:
        self._factory = factory
        self._args = args
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._process: _Process | None = None
        self._lost: str | None = None
        """The reason why no process will be started again; None while one may be."""

    @property
    def pid(self) -> int | None:
        """The id of the companion's process; None if no process runs."""
        with self._state:
            return None if self._process is None else self._process.process.pid

    @property
    def is_closed(self) -> bool:
        """True if the companion was closed or has ended, so that no process runs."""
        return self._lost is not None

    def call(self, method: str, *args: Any) -> Any:
        question = Outgoing((method, args), _LendingPickler)
        with self._turn:
            process = self._process or self._start()
            return self._ask(process, question)

    def close(self) -> None:
        with self._state:
            if self._lost is None:
                self._lost = "was closed"
            process = self._process
            if process is not None:
                process.shut()
        if process is not None:
            # Do not wait for a method that is running: its caller gets `CompanionLost`.
            process.end(0.0 if self._turn.locked() else END_SECONDS_MAX)
        with self._turn:
            self._forget()

    def _start(self) -> _Process:
        """Start the process, and let it make its object. If the factory raises, the next call starts another process."""
        making = Outgoing(self._args)
        with self._state:
            if self._lost is not None:
                raise self._lost_error()
            try:
                process = self._process = _Process(self._factory)
            except OSError as error:
                raise CompanionRefused(
                    f"the companion process for {self._factory} did not start: {error}"
                ) from error
        is_made = False
        try:
            self._ask(process, making)
            is_made = True
        finally:
            if not is_made:
                process.shut()
                process.end(END_SECONDS_MAX)
                self._forget()
        return process

    def _ask(self, process: _Process, question: Outgoing) -> Any:
        try:
            question.send(process.socket)
            answer = receive(process.socket)
        except (OSError, EOFError) as error:
            self._lose(process)
            raise self._lost_error() from error
        except (
            BaseException
        ):  # after a lack of memory or an interrupt, the next call must not read the rest of this answer
            self._lose(process)
            raise
        is_result, value, places = answer.value()
        if is_result:
            return value
        value.add_note(f"the companion process raised this at: {places}")
        try:
            raise value
        finally:
            # The error refers to its traceback, the traceback to this frame, and this frame's variable to the
            # error. Without `del`, they would stay in memory until a garbage collection.
            del value

    def _lose(self, process: _Process) -> None:
        process.shut()
        how = process.end(END_SECONDS_MAX)
        with self._state:
            if self._lost is None:
                self._lost = f"(process {process.process.pid}) {how}"
        self._forget()

    def _forget(self) -> None:
        """Close the descriptors. The caller holds `_turn`, so no other thread reads from them."""
        with self._state:
            process, self._process = self._process, None
            if process is not None:
                process.release()

    def _lost_error(self) -> CompanionLost:
        return CompanionLost(f"the companion {self._factory} {self._lost}")


if TYPE_CHECKING:

    def _conforms(companion: RealCompanion) -> Companion:
        return companion
