"""What a connection still has to send: bytes and file ranges, in order, pushed without blocking."""

from __future__ import annotations

from typing import TypeAlias

from data_plane.log.partition_log import FileRange
from odradek.env.ports import Conn

Chunk: TypeAlias = bytes | bytearray | memoryview | FileRange

SENDFILE_BYTES_MAX = 1024 * 1024
"""One sendfile call: about 174 us from warm pages."""
FLUSH_BYTES_MAX = 4 * 1024 * 1024
"""One turn: after this many bytes others get the loop."""
GATHER_CHUNKS_MAX = 64


class SendQueue:
    """FIFO of chunks. File ranges are released as soon as they are sent, or when the connection closes."""

    __slots__ = ("bytes_queued", "chunks")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.bytes_queued = 0

    def push(self, chunk: Chunk) -> None:
        """Queue one chunk (a file range changes owner)."""
        self.chunks.append(chunk)
        self.bytes_queued += len(chunk)

    def flush(self, conn: Conn) -> bool:
        """Send what the socket takes now; True when nothing is left. Raises `ConnectionLost`, `DiskError`."""
        chunks = self.chunks
        if len(chunks) == 1:
            chunk = chunks[0]
            if chunk.__class__ is bytearray:
                size = len(chunk)
                sent = conn.send(chunks)  # type: ignore[arg-type]  # one bytearray: the common answer
                if sent == size:
                    chunks.clear()
                    self.bytes_queued = 0
                    return True
                self._drop(sent)
                return False
        budget = FLUSH_BYTES_MAX
        while chunks and budget > 0:
            sent = self._send_some(conn)
            if not sent:
                return False
            budget -= sent
        return not chunks

    def _send_some(self, conn: Conn) -> int:
        first = self.chunks[0]
        if isinstance(first, FileRange):
            wanted = min(first.count, SENDFILE_BYTES_MAX)
            sent = conn.sendfile(first.file, first.position, wanted)
        else:
            run: list[bytes | bytearray | memoryview] = []
            more = False
            for chunk in self.chunks[:GATHER_CHUNKS_MAX]:
                if isinstance(chunk, FileRange):
                    more = True
                    break
                run.append(chunk)
            sent = conn.send(run, more)
        self._drop(sent)
        return sent

    def _drop(self, sent: int) -> None:
        """Forget `sent` bytes from the front."""
        self.bytes_queued -= sent
        done = 0
        for chunk in self.chunks:
            size = len(chunk)
            if size > sent:
                break
            sent -= size
            done += 1
            if isinstance(chunk, FileRange):
                chunk.release()
        del self.chunks[:done]
        if sent:
            chunk = self.chunks[0]
            if isinstance(chunk, FileRange):
                chunk.position += sent
                chunk.count -= sent
            else:
                self.chunks[0] = memoryview(chunk)[sent:]

    def release(self) -> None:
        """The connection is gone: unpin the files."""
        for chunk in self.chunks:
            if isinstance(chunk, FileRange):
                chunk.release()
        self.chunks.clear()
        self.bytes_queued = 0
