"""Plans moves between the directories of one broker, in order to empty one disk or to balance all disks
(KIP-113). PURE.

A replica moves only to a disk that is online and accepts new replicas. The share `ROOM_SHARE` of that disk
stays free. Disks of different sizes are compared by the share that is used, not by bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.moves.placement import CannotPlan

if TYPE_CHECKING:
    from odradek.client.admin.admin_logs import LogDirDescription

__all__ = [
    "Disk",
    "DiskMove",
    "DiskReplica",
    "Loads",
    "disks_of",
    "plan_disk_balance",
    "plan_disk_retirement",
]

ROOM_SHARE = 0.05
"""The share of a disk that a plan leaves free."""
SLACK_BYTES = 1 << 20
"""A plan ignores differences between disks that are smaller than this number of bytes."""


@attrs.frozen
class DiskReplica:
    """A replica on a disk, and its size in bytes."""

    topic: str
    partition: int
    size: int


@attrs.frozen
class Disk:
    """One online directory of a broker. `total_bytes` and `usable_bytes` are -1 if the broker does not report
    them.

    `takes` is False if the directory must get no further replicas.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: tuple[DiskReplica, ...]
    takes: bool = True


@attrs.frozen
class DiskMove:
    """A replica that moves from one directory of its broker to another."""

    topic: str
    partition: int
    source: str
    target: str
    size: int


def disks_of(directories: Iterable[LogDirDescription], closed: Collection[str] = ()) -> list[Disk]:
    """Describe the online disks of a broker, from its `LogDirDescription`s. Directories in `closed` must get
    no replicas.

    A replica that is moving between disks counts only on its target.
    """
    online = [each for each in directories if each.error is None]
    moving = {
        (replica.topic, replica.partition): replica
        for each in online
        for replica in each.replicas
        if replica.is_future
    }
    disks = []
    for each in online:
        held = []
        for replica in each.replicas:
            key = replica.topic, replica.partition
            if replica.is_future or key not in moving:
                held.append(DiskReplica(*key, replica.size))
        disks.append(
            Disk(
                each.path,
                each.total_bytes,
                each.usable_bytes,
                tuple(held),
                each.path not in closed,
            )
        )
    return disks


class Loads:
    """The loads of a broker's disks as they would be after the moves planned so far."""

    def __init__(self, disks: Sequence[Disk]) -> None:
        self.disks = {disk.path: disk for disk in disks}
        self.gained = dict.fromkeys(self.disks, 0)
        self.count = {disk.path: len(disk.replicas) for disk in disks}

    def room(self, path: str) -> float:
        """Compute how many bytes a plan may still add to a disk; infinite if the disk's size is unknown."""
        disk = self.disks[path]
        if disk.total_bytes <= 0 or disk.usable_bytes < 0:
            return float("inf")
        return disk.usable_bytes - self.gained[path] - ROOM_SHARE * disk.total_bytes

    def load(self, path: str) -> float:
        """Compute the share of a disk that its logs use, from 0 to 1. If the size of any disk is unknown,
        return the logs' bytes instead.
        """
        disk = self.disks[path]
        held = sum(replica.size for replica in disk.replicas) + self.gained[path]
        return held / disk.total_bytes if self._are_known else float(held)

    @property
    def _are_known(self) -> bool:
        return all(disk.total_bytes > 0 for disk in self.disks.values())

    def scale(self, path: str) -> float:
        """Return the bytes that correspond to a `load` of 1: the disk's size, or 1 if sizes are unknown."""
        return float(self.disks[path].total_bytes) if self._are_known else 1.0

    def move(self, replica: DiskReplica, source: str, target: str) -> DiskMove:
        """Count a planned move in the loads of both disks, and return the move."""
        self.gained[source] -= replica.size
        self.gained[target] += replica.size
        self.count[source] -= 1
        self.count[target] += 1
        return DiskMove(replica.topic, replica.partition, source, target, replica.size)


def plan_disk_retirement(disks: Sequence[Disk], path: str) -> list[DiskMove]:
    """Plan the moves that empty a directory, the largest replica first. Each replica goes to the least loaded
    disk with room for it.

    Raises `CannotPlan` if no disk has room for a replica.
    """
    loads = Loads(disks)
    takers = [disk.path for disk in disks if disk.takes and disk.path != path]
    moves = []
    for replica in sorted(
        loads.disks[path].replicas, key=lambda each: (-each.size, each.topic, each.partition)
    ):
        fitting = [taker for taker in takers if loads.room(taker) >= replica.size]
        if not fitting:
            raise CannotPlan(
                f"no other directory of the broker has room for {replica.topic}-{replica.partition}"
                if takers
                else "the broker has no other directory that accepts replicas"
            )
        target = min(fitting, key=lambda taker: (loads.load(taker), loads.count[taker], taker))
        moves.append(loads.move(replica, path, target))
    return moves


def plan_disk_balance(disks: Sequence[Disk], tolerance: float = 0.05) -> list[DiskMove]:
    """Plan moves until the loads of a broker's disks differ by at most `tolerance`, relative to their mean.

    Each move narrows the gap between the fullest and an emptier disk, and each replica moves at most once.
    """
    loads = Loads(disks)
    moves: list[DiskMove] = []
    held = {disk.path: list(disk.replicas) for disk in disks}
    while True:
        found = _balancing_step(loads, disks, held, tolerance)
        if found is None:
            return moves
        replica, source, target = found
        held[source].remove(replica)
        moves.append(loads.move(replica, source, target))


def _balancing_step(
    loads: Loads, disks: Sequence[Disk], held: dict[str, list[DiskReplica]], tolerance: float
) -> tuple[DiskReplica, str, str] | None:
    mean = sum(loads.load(disk.path) for disk in disks) / max(len(disks), 1)
    rising = sorted((disk.path for disk in disks), key=lambda path: (loads.load(path), path))
    for source in reversed(rising):
        for target in rising:
            gap = loads.load(source) - loads.load(target)
            if gap <= mean * tolerance or gap * loads.scale(source) <= SLACK_BYTES:
                break
            if not loads.disks[target].takes:
                continue
            best = _narrowing(loads, held[source], source, target, gap)
            if best is not None:
                return best, source, target
    return None


def _narrowing(
    loads: Loads, replicas: Iterable[DiskReplica], source: str, target: str, gap: float
) -> DiskReplica | None:
    """Choose the replica whose move from `source` to `target` makes the gap between the two disks smallest.
    Return None if no move narrows the gap.
    """

    def left(replica: DiskReplica) -> float:
        return abs(gap - replica.size / loads.scale(source) - replica.size / loads.scale(target))

    fitting = [
        replica for replica in replicas if 0 < replica.size <= loads.room(target) and left(replica) < gap
    ]
    return min(fitting, key=lambda each: (left(each), each.topic, each.partition), default=None)
