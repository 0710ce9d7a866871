"""The offset map: the last offset of every key of the dirty part of a log, 24 bytes each. PURE.

Theory of operation
-------------------
One numpy array of slots: 16 bytes of hash, and 8 of an offset plus one (zero: the slot is empty). Addressing
is open: a hash determines its first slot and its step. The number of slots is prime, so each step visits all
of them. All keys of a call take their steps together. Keys are distinguished by their hashes alone (as in
Kafka); the hash is secret, see `key_hash`.

If two keys of one call choose the same empty slot, the later write wins, and the other key continues with its
next slot. numpy writes equal indexes in order, so of two records of one key the later one stays.
"""

from __future__ import annotations

import math

import numpy as np

from odradek.data_plane.log.cleaning.key_hash import Hashes
from odradek.wire.batches.record_columns import Int64s

SLOT_BYTES = 24
_SLOTS_MIN = 2
_NONE = -1
_PRIME_GAP_MAX = 1_000
"""More than the largest distance between successive primes below 2**40, which is 540."""


class OffsetMap:
    """A map from keys' hashes to offsets, with a fixed number of slots. Offsets must be put in ascending
    order.
    """

    def __init__(self, buffer_bytes: int, load_factor: float) -> None:
        """Make a map of as many slots as fit into `buffer_bytes`. At most the fraction `load_factor` of them
        may be used.
        """
        self.slots = _prime_at_most(max(buffer_bytes // SLOT_BYTES, _SLOTS_MIN))
        self.keys_max = max(1, int(self.slots * load_factor))
        # The kernel allocates zeroed pages at the first write, so a part that a small log does not use costs nothing.
        self._table = np.zeros((self.slots, 3), np.uint64)
        self.size = 0

    def clear(self) -> None:
        """Remove all keys."""
        if self.size:
            self._table = np.zeros((self.slots, 3), np.uint64)
            self.size = 0

    def count_new(self, hashes: Hashes) -> int:
        """Return the number of different hashes among these that the map lacks."""
        missing = hashes[self.find(hashes) == _NONE]
        if len(missing) < 2:
            return len(missing)
        order = np.lexsort((missing[:, 1], missing[:, 0]))
        ordered = missing[order]
        return 1 + int((ordered[1:] != ordered[:-1]).any(axis=1).sum())

    def put(self, hashes: Hashes, offsets: Int64s) -> None:
        """Set the offsets of the keys with these hashes. The caller has checked that there is room
        (`count_new`).
        """
        table = self._table
        rows = np.empty((len(hashes), 3), np.uint64)
        rows[:, :2] = hashes
        rows[:, 2] = offsets + 1
        slot, step = self._begin(hashes)
        while len(rows):
            empty = table[slot, 2] == 0
            if empty.any():
                begun = slot[empty]
                table[begun] = rows[empty]
                self.size += len(np.unique(begun))
            there = table[slot]
            same = (there[:, 0] == rows[:, 0]) & (there[:, 1] == rows[:, 1])
            # Ascending offsets: the last of several records of a key is written last.
            table[slot[same], 2] = rows[same, 2]
            left = ~same
            rows, slot, step = rows[left], slot[left], step[left]
            slot = (slot + step) % np.uint64(self.slots)
        if self.size > self.keys_max:
            raise AssertionError(
                f"the cleaner's map of keys holds {self.size} keys, and has room for {self.keys_max}"
            )

    def find(self, hashes: Hashes) -> Int64s:
        """Return the offset of each key; -1 for a key that the map lacks."""
        found = np.full(len(hashes), _NONE, np.int64)
        if not self.size:
            return found
        table = self._table
        index = np.arange(len(hashes))
        slot, step = self._begin(hashes)
        while len(index):
            there = table[slot]
            same = (there[:, 0] == hashes[index, 0]) & (there[:, 1] == hashes[index, 1])
            same &= there[:, 2] != 0
            found[index[same]] = there[same, 2].astype(np.int64) - 1
            left = ~same & (there[:, 2] != 0)
            index, slot, step = index[left], slot[left], step[left]
            slot = (slot + step) % np.uint64(self.slots)
        return found

    def _begin(self, hashes: Hashes) -> tuple[Hashes, Hashes]:
        """Compute the first slot of each key, and its step between slots: from 1 to one less than the number
        of slots.
        """
        slots = np.uint64(self.slots)
        return hashes[:, 0] % slots, hashes[:, 1] % (slots - np.uint64(1)) + np.uint64(1)


def bytes_for(keys: int, load_factor: float) -> int:
    """Return the size in bytes of a map with room for this number of keys. The map rounds its number of slots
    down to a prime.
    """
    return SLOT_BYTES * (math.ceil(keys / load_factor) + _PRIME_GAP_MAX)


def _prime_at_most(number: int) -> int:
    """Return the greatest prime that is at most `number`."""
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
