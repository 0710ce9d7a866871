"""The offset map of a cleaning pass: the last offset of every key in the dirty part of a log. PURE.

Theory of operation
-------------------
The map is one numpy array of slots of 24 bytes. A slot has 16 bytes for a key's hash, and 8 bytes for the
offset plus one. In an empty slot the last 8 bytes are zero. Addressing is open: a hash determines its first
slot and its step. The number of slots is prime, so steps of any fixed length visit all slots.

All keys of a call take their steps together. As in Kafka, the map compares only hashes, never the keys
themselves; the hash is secret (`key_hash`). Two keys of one call may choose the same empty slot. Then the
later write wins, and the key that was overwritten continues with its next slot. numpy writes in the order of
the records. So if two records have the same key, the later record's offset stays.
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
"""An upper bound of the distance between successive primes below 2**40; the largest one is 540."""


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
        """Count the different hashes that are not in the map yet."""
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
            # Offsets ascend within a call, so the last record of a key is also written last.
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
        """Compute each key's first slot and its step. A step is the distance from one slot to the next that
        is tried. It lies between 1 and the number of slots minus 1.
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
