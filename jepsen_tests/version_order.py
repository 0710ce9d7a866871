"""The order of one key's versions: its offsets that hold something, numbered without gaps. PURE."""

from __future__ import annotations


class VersionOrder:
    """The records of one key: what each offset holds, and the indices of offsets and values."""

    def __init__(self) -> None:
        self.values_at: dict[int, dict[int, None]] = {}
        """offset -> the values seen there (a dict for its order); more than one is an anomaly."""
        self.offsets_of: dict[int, dict[int, None]] = {}
        """value -> the offsets where it was seen."""
        self._indices: dict[int, int] = {}

    def see(self, offset: int, value: int) -> None:
        self.values_at.setdefault(offset, {})[value] = None
        self.offsets_of.setdefault(value, {})[offset] = None

    def close(self) -> None:
        """Number the offsets, once everything has been seen."""
        self._indices = {offset: index for index, offset in enumerate(sorted(self.values_at))}

    def index(self, offset: int) -> int:
        return self._indices[offset]
