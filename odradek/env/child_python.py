"""Child processes that run modules of this package: how they are started, and how they end with their parent. SHELL.

Files beside a user's script or in the current directory cannot replace such a module.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

from odradek.env.real_descriptors import readable

__all__ = ["child_environment", "child_program", "end_with_parent"]

_HOME = str(Path(__file__).parents[2])


def child_program(module: str) -> list[str]:
    """Return the first words of a command that runs a module. The option `-P` keeps the current directory out of
    Python's path.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Return this process's environment, with a `PYTHONPATH` that lets a child find the packages of this process.

    The first entry of Python's path is the folder of the user's script, or the current directory. The child gets that
    entry only if Odradek itself is there, as in a checkout that is not installed.
    """
    paths = [os.path.abspath(path) for path in (sys.path if sys.flags.safe_path else sys.path[1:])]
    if _HOME not in paths:
        paths.insert(0, _HOME)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def end_with_parent(lifeline: int) -> None:
    """Let the kernel end this process when the parent's end of the pipe closes, even in the middle of a call.

    The closing pipe sends SIGIO (fcntl(2), O_ASYNC), which ends a process by default. PR_SET_PDEATHSIG is
    unsuitable, because it signals the end of the thread that started the process, here a worker. Raises `EOFError` if the
    parent has ended already.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGIO,))
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if readable((lifeline,), 0):
        raise EOFError("the parent has ended")
