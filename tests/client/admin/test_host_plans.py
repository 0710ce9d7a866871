"""Plans of moves between the disks of several brokers: rules that every plan keeps."""

from __future__ import annotations

from random import Random

import pytest

from odradek.client.admin.moves.disk_plans import ROOM_SHARE, Disk, DiskReplica
from odradek.client.admin.moves.host_plans import plan_balance_over_hosts
from odradek.client.admin.moves.placement import Placement, Site

GIB = 1 << 30
Disks = dict[int, list[Disk]]


def drawn(random: Random) -> tuple[Disks, list[Site], list[Placement]]:
    """Draw brokers with or without racks, their disks of several sizes, and partitions on them.

    Some disks are cordoned.
    """
    nodes = range(1, random.randint(2, 6) + 1)
    has_racks = random.random() < 0.5
    sites = [Site(node, f"rack-{node % 3}" if has_racks else None, f"host-{node}") for node in nodes]
    room = {
        (node, f"/d{number}"): random.choice((100, 200)) * GIB
        for node in nodes
        for number in range(random.randint(1, 3))
    }
    held: dict[tuple[int, str], list[DiskReplica]] = {place: [] for place in room}
    favourites = random.sample(list(nodes), random.randint(1, len(nodes)))
    placements = []
    for index in range(random.randint(0, 60)):
        size = random.choice((0, random.randint(1, 2 * GIB)))
        replicas = tuple(random.sample(favourites, min(len(favourites), random.randint(1, 3))))
        placements.append(Placement("t", index, replicas, size))
        for node in replicas:
            path = random.choice([path for owner, path in room if owner == node])
            held[node, path].append(DiskReplica("t", index, size))
    disks: Disks = {node: [] for node in nodes}
    for (node, path), total in room.items():
        used = sum(each.size for each in held[node, path])
        disks[node].append(Disk(path, total, total - used, tuple(held[node, path]), random.random() > 0.2))
    return disks, sites, placements


def share(disks: list[Disk], gain: int = 0) -> float:
    used = sum(replica.size for disk in disks for replica in disk.replicas)
    return (used + gain) / sum(disk.total_bytes for disk in disks)


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_keeps_its_rules_and_narrows_the_gap(seed: int) -> None:
    """Each partition moves at most once, to an allowed broker and disk, within its spread of racks.

    The fullest and emptiest disk come closer.
    """
    disks, sites, placements = drawn(Random(seed))
    moves = plan_balance_over_hosts(disks, sites, placements)
    assert len({(each.move.topic, each.move.partition) for each in moves}) == len(moves)
    placed = {each.partition: each for each in placements}
    by_place = {(node, disk.path): disk for node, each in disks.items() for disk in each}
    racks = {site.node_id: site.rack for site in sites}
    gains = dict.fromkeys(by_place, 0)
    for each in moves:
        move, key = each.move, (each.move.topic, each.move.partition)
        source, target = by_place[each.source, each.source_path], by_place[each.target, each.target_path]
        assert key in {(replica.topic, replica.partition) for replica in source.replicas}
        assert target.takes
        assert move.before == placed[move.partition].replicas
        assert len(set(move.after)) == len(move.after) == len(move.before)
        assert (move.removing, move.adding) == ((each.source,), (each.target,))
        assert len({racks[node] for node in move.after}) >= len({racks[node] for node in move.before})
        gains[each.source, each.source_path] -= move.size
        gains[each.target, each.target_path] += move.size
    for place, gain in gains.items():
        disk = by_place[place]
        assert gain <= 0 or disk.usable_bytes - gain >= ROOM_SHARE * disk.total_bytes

    def spread(counts: dict[tuple[int, str], int]) -> float:
        shares = [
            share(each, sum(gain for (node, _), gain in counts.items() if node == broker))
            for broker, each in disks.items()
        ]
        return max(shares) - min(shares)

    assert spread(gains) <= spread(dict.fromkeys(by_place, 0))


def test_a_host_with_twice_the_room_gets_twice_the_bytes() -> None:
    """One host has one disk, another has two of this size. Two thirds of the bytes move, and all disks end up equal."""
    full = Disk("/a", 100 * GIB, 70 * GIB, tuple(DiskReplica("t", index, GIB) for index in range(30)))
    empty = [Disk(path, 100 * GIB, 100 * GIB, ()) for path in ("/a", "/b")]
    sites = [Site(1, None, "one"), Site(2, None, "two")]
    placements = [Placement("t", index, (1,), GIB) for index in range(30)]
    moves = plan_balance_over_hosts({1: [full], 2: empty}, sites, placements, tolerance=0.0)
    assert [each.target_path for each in moves].count("/a") == [each.target_path for each in moves].count(
        "/b"
    )
    assert len(moves) == 20
    assert all(each.move.after == (2,) for each in moves)
