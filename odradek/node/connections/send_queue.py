"""The queue of a connection's unsent bytes and file ranges, sent in order without blocking."""

from __future__ import annotations

from typing import TypeAlias

from odradek.data_plane.log.partition_log import FileRange
from odradek.env.ports import Conn

Chunk: TypeAlias = bytes | bytearray | memoryview | FileRange

SENDFILE_BYTES_MAX = 1024 * 1024
"""The maximum number of bytes of one sendfile call, which takes about 174 us from cached pages."""
FLUSH_BYTES_MAX = 4 * 1024 * 1024
"""The maximum number of bytes that one connection sends in a turn, so that other work gets the loop."""
GATHER_CHUNKS_MAX = 64


class SendQueue:
    """A queue of chunks in order. File ranges are released once they are sent, or when the connection closes."""

    __slots__ = ("bytes_queued", "chunks")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.bytes_queued = 0

    def push(self, chunk: Chunk) -> None:
        """Queue one chunk. A file range then belongs to the queue."""
        self.chunks.append(chunk)
        self.bytes_queued += len(chunk)

    def flush(self, conn: Conn) -> bool:
        """Send as much as the socket accepts now. Return True if nothing is left. Raises `ConnectionLost`,
        `DiskError`.
        """
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
                self.bytes_queued -= sent
                self._drop(sent)
                return False
        budget = FLUSH_BYTES_MAX
        while chunks and budget > 0:
            first = chunks[0]
            sent = self._send_range(conn, first) if isinstance(first, FileRange) else self._send_bytes(conn)
            if not sent:
                return False
            self.bytes_queued -= sent
            budget -= sent
        return not chunks

    def _send_range(self, conn: Conn, found: FileRange) -> int:
        left = found.count
        sent = conn.sendfile(
            found.file, found.position, left if left < SENDFILE_BYTES_MAX else SENDFILE_BYTES_MAX
        )
        if sent == left:
            del self.chunks[0]
            found.release()
        else:
            found.position += sent
            found.count = left - sent
        return sent

    def _send_bytes(self, conn: Conn) -> int:
        """Send the bytes before the next file range with one call. Return how many were sent."""
        run: list[bytes | bytearray | memoryview] = []
        size, more = 0, False
        for chunk in self.chunks[:GATHER_CHUNKS_MAX]:
            if isinstance(chunk, FileRange):
                more = True
                break
            run.append(chunk)
            size += len(chunk)
        sent = conn.send(run, more)
        if sent == size:
            del self.chunks[: len(run)]
        else:
            self._drop(sent)
        return sent

    def _drop(self, sent: int) -> None:
        """Remove `sent` bytes from the front of the queue. There must be more bytes than that before the next file
        range.
        """
        done = 0
        while (size := len(self.chunks[done])) <= sent:
            sent -= size
            done += 1
        del self.chunks[:done]
        if sent:
            first = self.chunks[0]
            assert not isinstance(first, FileRange)
            self.chunks[0] = memoryview(first)[sent:]

    def release(self) -> None:
        """Called when the connection is gone: unpin the files."""
        for chunk in self.chunks:
            if isinstance(chunk, FileRange):
                chunk.release()
        self.chunks.clear()
        self.bytes_queued = 0
