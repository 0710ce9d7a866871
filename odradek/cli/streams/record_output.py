"""Standard output for records, without a buffer: when `write` returns, the operating system has all bytes.

With a buffer, a command could count a record as printed although it was never written. Before each write into
a pipe, `write` waits until the pipe has room. So a signal can interrupt the wait, but not the write.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.cli.streams.ending import Ending

__all__ = ["RecordOutput"]

_FILE_BYTES = 64 << 10


class RecordOutput:
    """A writer to standard output. After a signal that `ending` has noted, it raises `Ended` before a write
    or while it waits for the reader.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending
        sys.stdout.flush()
        try:
            self._descriptor = sys.stdout.fileno()
        except OSError:
            # The stream has no descriptor, because a test or another program has set a stream in memory.
            self._descriptor = -1
        self.bytes_per_write = _FILE_BYTES
        """The maximum number of bytes of one system call. Larger calls are cheaper. But a pipe might accept only a part
        of a larger call, which would then block until the rest is read.
        """
        if self._descriptor >= 0:
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)
            mode = os.fstat(self._descriptor).st_mode
            if not stat.S_ISREG(mode):
                self.bytes_per_write = select.PIPE_BUF

    def write(self, data: bytes | bytearray) -> None:
        """Write all of the data. After an `OSError`, a part of the data may have been written; the caller
        counts it as not written.

        Raises `Ended` after a signal, even if the reader is so fast that no write waits.
        """
        if self._ending is not None:
            self._ending.check()
        if self._descriptor < 0:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        left = memoryview(data)
        while left:
            if not self._poll.poll(0):
                with nullcontext() if self._ending is None else self._ending.waiting():
                    self._poll.poll()
            try:
                left = left[os.write(self._descriptor, left[: self.bytes_per_write]) :]
            except BlockingIOError:
                continue  # another writer has filled the pipe meanwhile
