"""Plans of moves between the directories of one broker: rules that every plan keeps."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from odradek.client.admin.moves.disk_plans import (
    ROOM_SHARE,
    Disk,
    DiskMove,
    DiskReplica,
    plan_disk_balance,
    plan_disk_retirement,
)
from odradek.client.admin.moves.placement import CannotPlan

GIB = 1 << 30
SEEDS = range(60)


def drawn(random: Random) -> list[Disk]:
    """Draw disks of several sizes with replicas that fit. Some of the disks accept no more replicas."""
    disks = []
    for number in range(random.randint(2, 6)):
        total = random.choice((100, 100, 200)) * GIB
        replicas, used = [], 0
        for index in range(random.randint(0, 40)):
            size = random.choice((0, 1, random.randint(1, 3 * GIB)))
            if used + size < 0.9 * total:
                used += size
                replicas.append(DiskReplica(f"topic-{number}", index, size))
        takes = random.random() > 0.2
        disks.append(Disk(f"/d{number}", total, total - used, tuple(replicas), takes))
    return disks


def after(disks: Sequence[Disk], moves: Sequence[DiskMove]) -> dict[str, dict[tuple[str, int], int]]:
    """Return the replicas of each disk after the moves. Fails if a move is impossible."""
    held = {disk.path: {(r.topic, r.partition): r.size for r in disk.replicas} for disk in disks}
    for move in moves:
        assert move.source != move.target
        size = held[move.source].pop((move.topic, move.partition))
        assert size == move.size
        held[move.target][move.topic, move.partition] = size
    return held


def check_rules(disks: Sequence[Disk], moves: Sequence[DiskMove]) -> None:
    """Check that each replica moves at most once, to a disk that accepts replicas and keeps its reserve."""
    assert len({(move.topic, move.partition) for move in moves}) == len(moves)
    by_path = {disk.path: disk for disk in disks}
    assert all(by_path[move.target].takes for move in moves)
    held = after(disks, moves)
    for disk in disks:
        before = sum(each.size for each in disk.replicas)
        gain = sum(held[disk.path].values()) - before
        assert gain <= 0 or disk.usable_bytes - gain >= ROOM_SHARE * disk.total_bytes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_retirement_empties_its_disk_and_no_other(seed: int) -> None:
    """All replicas of a retired disk move, and no others. If one of them fits on no other disk, planning fails."""
    random = Random(seed)
    disks = drawn(random)
    path = random.choice(disks).path
    try:
        moves = plan_disk_retirement(disks, path)
    except CannotPlan:
        others = [disk for disk in disks if disk.takes and disk.path != path]
        retired = next(disk for disk in disks if disk.path == path)
        needed = sum(each.size for each in retired.replicas)
        rooms = [disk.usable_bytes - ROOM_SHARE * disk.total_bytes for disk in others]
        largest = max(each.size for each in retired.replicas)
        assert not rooms or sum(rooms) - len(rooms) * largest < needed
        return
    check_rules(disks, moves)
    assert not after(disks, moves)[path]
    assert {move.source for move in moves} <= {path}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_balance_narrows_the_gap_and_then_rests(seed: int) -> None:
    """If anything moves, the fullest and the emptiest disk come closer. A second plan for the result moves less."""
    disks = drawn(Random(seed))
    moves = plan_disk_balance(disks)
    check_rules(disks, moves)
    held = after(disks, moves)

    def spread(sizes: dict[str, int]) -> float:
        shares = [sizes[disk.path] / disk.total_bytes for disk in disks]
        return max(shares) - min(shares)

    before = {disk.path: sum(each.size for each in disk.replicas) for disk in disks}
    now = {path: sum(replicas.values()) for path, replicas in held.items()}
    assert spread(now) <= spread(before)
    if all(disk.takes for disk in disks):
        moved = [
            Disk(
                disk.path,
                disk.total_bytes,
                disk.usable_bytes + before[disk.path] - now[disk.path],
                tuple(DiskReplica(*key, size) for key, size in held[disk.path].items()),
            )
            for disk in disks
        ]
        assert sum(move.size for move in plan_disk_balance(moved)) <= sum(move.size for move in moves)


def test_disks_of_unknown_size_are_balanced_by_bytes() -> None:
    """If an old broker reports no sizes of disks, the plan balances the bytes of the replicas."""
    full = Disk("/a", -1, -1, tuple(DiskReplica("t", index, GIB) for index in range(4)))
    moves = plan_disk_balance([full, Disk("/b", -1, -1, ())])
    assert [(move.source, move.target) for move in moves] == [("/a", "/b")] * 2
