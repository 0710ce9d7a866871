"""The order of one key's records: the offsets at which a record was seen, numbered without gaps. PURE."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection

_FEW = 4


class VersionOrder:
    """The records of one key: the values at each offset, and the index of each offset.

    A history has millions of records, most with one offset and one value. So tuples hold them, which take a fifth of
    the memory of dicts.
    """

    def __init__(self) -> None:
        self.values_at: dict[int, Collection[int]] = {}
        """The values that were seen at each offset. Two values at one offset are an anomaly."""
        self.offsets_of: dict[int, Collection[int]] = {}
        """The offsets at which each value was seen."""
        self._offsets = array("q")

    def see(self, offset: int, value: int) -> None:
        _add(self.values_at, offset, value)
        _add(self.offsets_of, value, offset)

    def close(self) -> None:
        """Assign the indices of the offsets, once all offsets have been added."""
        self._offsets = array("q", sorted(self.values_at))

    def index(self, offset: int) -> int:
        """Return the index of an offset at which a record was seen."""
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
