"""The order of one key's versions: its offsets that hold something, numbered without gaps. PURE."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection

_FEW = 4


class VersionOrder:
    """The records of one key: what each offset holds, and the indices of offsets and values.

    A history has millions of records, each with one offset and one value: a tuple takes a fifth of a dict.
    """

    def __init__(self) -> None:
        self.values_at: dict[int, Collection[int]] = {}
        """offset -> the values seen there, in their order; more than one is an anomaly."""
        self.offsets_of: dict[int, Collection[int]] = {}
        """value -> the offsets where it was seen."""
        self._offsets = array("q")

    def see(self, offset: int, value: int) -> None:
        _add(self.values_at, offset, value)
        _add(self.offsets_of, value, offset)

    def close(self) -> None:
        """Assign the numbers of the offsets, once all of them have been seen."""
        self._offsets = array("q", sorted(self.values_at))

    def index(self, offset: int) -> int:
        """Return the number of an offset that was seen."""
        return bisect_left(self._offsets, offset)


def _add(found: dict[int, Collection[int]], key: int, number: int) -> None:
    known = found.get(key)
    if known is None:
        found[key] = (number,)
    elif number in known:
        return
    elif isinstance(known, dict):
        known[number] = None
    elif len(known) < _FEW:
        found[key] = (*known, number)
    else:
        found[key] = dict.fromkeys((*known, number))
