"""The fault atlas: which bytes of which replica differ from the written ones, and which may be damaged next. PURE.

The model, which the injector (`sim.storm.disk_damage`) keeps and the product must live with
----------------------------------------------------------------------------------------
* **Only batches of data logs rot**, behind their headers' places and sizes, so that the checksum shows it. Files that
  voters have synced (the metadata log, `quorum-state`, snapshots) keep their bytes, and so do checkpoints.
* **One machine at a time has rot**, and only from a moment on at which all replicas were in sync and nothing else was
  wrong. It counts as a machine that has lost its page cache (`sim.storm.storm`). Until all is whole again, each of its
  partitions keeps another replica whose broker stays up. So of every batch a good copy is left on a replica that was in sync.
* **Unread damage is undone in the end**: there is no promise to read all logs again and again. Damage that was read
  must have been reported. A follower takes no such batch, and a client raises an error. A replica that was found
  rotten is set aside, and fetched anew when others are in sync. Rotten records are never served silently.
"""

from __future__ import annotations

import attrs

from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches

__all__ = ["FaultAtlas", "Flip", "places_to_rot"]


@attrs.frozen
class Flip:
    """Flipped bits of one byte. `file` is the file's bytes themselves, under any name."""

    who: str
    path: str
    file: bytearray = attrs.field(repr=False, eq=False)
    position: int
    mask: int
    value: int
    """The byte's value after the damage."""

    @property
    def is_there(self) -> bool:
        """True if the flipped byte is still in the file: it may have been cut off, or overwritten."""
        return self.position < len(self.file) and self.file[self.position] == self.value


@attrs.define
class FaultAtlas:
    """All damage of a run. `flips` are those that have not been undone."""

    flips: list[Flip] = attrs.Factory(list)
    made: int = 0
    undone: int = 0
    rotten: dict[tuple[str, str], None] = attrs.Factory(dict)
    """Machine and name of the directory of each replica that had damage at some time."""

    def flip(self, who: str, path: str, file: bytearray, position: int, mask: int) -> Flip:
        """Damage one byte. Raises `AssertionError` where the model does not allow it."""
        assert all(each.who == who for each in self.flips), "another machine has rot already"
        assert mask & 0xFF, "nothing would change"
        file[position] ^= mask
        flip = Flip(who, path, file, position, mask, file[position])
        self.flips.append(flip)
        self.rotten[who, path.rpartition("/")[0].rpartition("/")[2]] = None
        self.made += 1
        return flip

    def undo(self) -> int:
        """Undo the damage that is still there; returns the number of bytes."""
        there = [flip for flip in self.flips if flip.is_there]
        for flip in there:
            flip.file[flip.position] ^= flip.mask
        self.flips.clear()
        self.undone += len(there)
        return len(there)

    @property
    def is_clear(self) -> bool:
        """True if no damage is known to be left."""
        return not self.flips


def places_to_rot(data: bytearray) -> list[tuple[int, int]]:
    """List (position, size) of the parts of a segment that may rot: the records of each whole batch."""
    return [
        (position + HEADER_SIZE, header.size - HEADER_SIZE)
        for position, header in iter_batches(data)
        if header.size > HEADER_SIZE
    ]
