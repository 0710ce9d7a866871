"""Buffers for large frames. A buffer is reused as soon as no view of it exists. PURE.

A client that reads megabytes at a time would otherwise need fresh pages of memory for each answer. The kernel
takes longer to provide a fresh page than the process takes to fill it. With records of 1 KiB this took a
quarter of a consumer's time (measured). Users of a frame get views of its buffer. Python refuses to resize a
buffer while a view of it exists. By trying this, the pool finds out whether a buffer is in use.
"""

from __future__ import annotations

__all__ = ["FramePool"]

_BUFFERS_MAX = 4
_KEPT_BYTES_MAX = 16 << 20


class FramePool:
    """Buffers for the frames of one connection. The pool keeps a buffer that it has handed out, and reuses it
    later.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes that has no views. Its content is arbitrary."""
        for number, buffer in enumerate(self._buffers):
            if _is_free(buffer):
                if len(buffer) >= size:
                    return buffer
                del self._buffers[number]
                break
        fresh = bytearray(1 << (size - 1).bit_length())
        if len(fresh) <= _KEPT_BYTES_MAX and len(self._buffers) < _BUFFERS_MAX:
            self._buffers.append(fresh)
        return fresh

    def statistics(self) -> dict[str, int]:
        """Return the numbers of kept buffers and of their bytes."""
        return {"buffers": len(self._buffers), "bytes": sum(map(len, self._buffers))}


def _is_free(buffer: bytearray) -> bool:
    """True if no memoryview of the buffer exists; Python refuses to resize a buffer that has one."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
