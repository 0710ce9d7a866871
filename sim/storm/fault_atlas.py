"""The record of bit rot in a run: which bytes of which replicas were flipped, and which bytes may be flipped. PURE.

The model, which the injector (`sim.storm.disk_damage`) obeys and the product must survive
----------------------------------------------------------------------------------------
* **Only records in batches of data logs rot** while their broker runs. Batch headers stay intact, so that the
  checksum reveals the damage. Files that voters have synced (the metadata log, `quorum-state`, snapshots) keep
  their bytes. Small files of data logs are damaged only while their broker is down (`sim.storm.disk_damage`).
* **Only one machine at a time has rot.** It starts while all replicas are in sync and no other fault is active. From
  then on the machine counts as a machine that has lost its page cache (`sim.storm.storm`). So each of its partitions
  keeps another replica whose broker stays up until the cluster is whole again. So every batch has an intact copy on a
  replica that was in sync.
* **Damage is undone at the end if it was never read**, since logs are read only when needed. Damage that was read
  must have been reported. A follower appends no such batch, and a client raises an error. A replica that was found
  damaged is set aside, and fetched again if others are in sync. Damaged records are never served silently.
"""

from __future__ import annotations

import attrs

from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches

__all__ = ["FaultAtlas", "Flip", "places_to_rot"]


@attrs.frozen
class Flip:
    """Flipped bits of one byte. `file` is the file's own buffer, which stays the same even if the file is renamed."""

    who: str
    path: str
    file: bytearray = attrs.field(repr=False, eq=False)
    position: int
    mask: int
    value: int
    """The byte's value after the damage."""

    @property
    def is_there(self) -> bool:
        """True if the flipped byte is still in the file. It may have been truncated or overwritten since."""
        return self.position < len(self.file) and self.file[self.position] == self.value


@attrs.define
class FaultAtlas:
    """All bit rot of a run. `flips` has the damage that was not undone yet."""

    flips: list[Flip] = attrs.Factory(list)
    made: int = 0
    undone: int = 0
    rotten: dict[tuple[str, str], None] = attrs.Factory(dict)
    """(machine, directory name) of each replica that was ever damaged."""

    def flip(self, who: str, path: str, file: bytearray, position: int, mask: int) -> Flip:
        """Flip the bits of `mask` in one byte. Raises `AssertionError` if the model does not allow it."""
        assert all(each.who == who for each in self.flips), "another machine has rot already"
        assert mask & 0xFF, "nothing would change"
        file[position] ^= mask
        flip = Flip(who, path, file, position, mask, file[position])
        self.flips.append(flip)
        self.rotten[who, path.rpartition("/")[0].rpartition("/")[2]] = None
        self.made += 1
        return flip

    def undo(self) -> int:
        """Undo the damage that is still in the files. Return the number of bytes."""
        there = [flip for flip in self.flips if flip.is_there]
        for flip in there:
            flip.file[flip.position] ^= flip.mask
        self.flips.clear()
        self.undone += len(there)
        return len(there)

    @property
    def is_clear(self) -> bool:
        """True if no damage is left."""
        return not self.flips


def places_to_rot(data: bytearray) -> list[tuple[int, int]]:
    """List (position, size) of the parts of a segment that may rot: the records of each complete batch."""
    return [
        (position + HEADER_SIZE, header.size - HEADER_SIZE)
        for position, header in iter_batches(data)
        if header.size > HEADER_SIZE
    ]
