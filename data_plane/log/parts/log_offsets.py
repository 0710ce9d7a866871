"""The offsets that bound a log, and their rules after each change.

    log_start_offset <= high_watermark <= log_end_offset

* The high watermark grows up to the log's end, and falls only with truncations. A follower may receive a high
  watermark from its leader that lies beyond the follower's own log end. Then the follower uses its log end
  instead.
* The log end offset grows with appends, and falls with truncations.
* The log start offset grows up to the high watermark, and falls only with truncations.
* The stored start is the log start offset that the next process would find, even after a loss of power. It is in
  the checkpoint, or in the name of the first segment. It never exceeds the log start offset. A replica reports records as deleted only if
  they lie below its stored start.

A broken rule raises `AssertionError`, because wrong offsets would lose records, or invent them.
"""

from __future__ import annotations


class LogOffsets:
    """Start offset, high watermark and end offset of a log. `PartitionLog` inherits from this class, so that
    the hot paths read the offsets directly.
    """

    __slots__ = ("high_watermark", "log_end_offset", "log_start_offset", "stored_start_offset")

    def __init__(self, offset: int) -> None:
        self.log_start_offset = self.stored_start_offset = offset
        self.high_watermark = offset
        self.log_end_offset = offset

    def check_order(self) -> None:
        """Raise `AssertionError` unless log start offset, high watermark and log end offset are in ascending
        order.
        """
        if not self.log_start_offset <= self.high_watermark <= self.log_end_offset:
            raise AssertionError(
                f"{self}: the log start offset {self.log_start_offset}, high watermark "
                f"{self.high_watermark} and log end offset {self.log_end_offset} are out of order"
            )

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`; a lower offset changes nothing. Raises `AssertionError` for
        an offset beyond the log's end.
        """
        if offset > self.high_watermark:
            if offset > self.log_end_offset:
                raise AssertionError(
                    f"{self}: the high watermark cannot become {offset}, because the log ends at "
                    f"offset {self.log_end_offset}"
                )
            self.high_watermark = offset

    def extend(self, end_offset: int) -> None:
        """Raise the log end offset, because records up to `end_offset` have been appended."""
        if not self.high_watermark <= self.log_end_offset < end_offset:
            raise AssertionError(
                f"{self}: an append ends at offset {end_offset}, but the log end offset is "
                f"{self.log_end_offset} and the high watermark {self.high_watermark}"
            )
        self.log_end_offset = end_offset

    def raise_start(self, offset: int) -> None:
        """Raise the log start offset, because records below `offset` are deleted; a lower offset changes
        nothing.
        """
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.check_order()

    @property
    def is_start_stored(self) -> bool:
        """True if the log start offset is stored on disk, so that the next process would find it."""
        return self.stored_start_offset >= self.log_start_offset

    def store_start(self, offset: int) -> None:
        """Record that `offset` is now stored on disk as the log start offset. If a higher offset is stored
        already, nothing changes.
        """
        self.stored_start_offset = min(max(self.stored_start_offset, offset), self.log_start_offset)

    def cut(self, offset: int) -> None:
        """Lower the offsets, because records from `offset` on were removed."""
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.stored_start_offset = min(self.stored_start_offset, offset)
        self.check_order()

    def start_over(self, offset: int) -> None:
        """Set all offsets for an empty log that begins at `offset`."""
        self.log_start_offset = self.stored_start_offset = offset
        self.high_watermark = self.log_end_offset = offset

    def settle(self, start_offset: int, stored_start_offset: int, high_watermark: int) -> None:
        """Set the offsets found at the start of the process. A high watermark beyond `log_end_offset` is
        lowered to it.
        """
        self.log_start_offset, self.stored_start_offset = start_offset, stored_start_offset
        self.high_watermark = min(max(high_watermark, start_offset), self.log_end_offset)
        self.check_order()
