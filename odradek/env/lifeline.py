"""The lifeline of a child process: a pipe whose other end the parent holds. The kernel ends the child with it. SHELL."""

from __future__ import annotations

import fcntl
import os
import select
import signal

__all__ = ["end_with_parent"]


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
    if select.select((lifeline,), (), (), 0)[0]:
        raise EOFError("the parent has ended")
