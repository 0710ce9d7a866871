"""Plans that balance brokers: on hand-made clusters, and on any cluster that Hypothesis draws."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.admin.moves.balance import balance, drain, resize
from odradek.client.admin.moves.placement import (
    CannotPlan,
    Move,
    Placement,
    Site,
    seconds_of,
    traffic_of,
)
from tests.schedule import examples

MIB = 1 << 20


def cluster(
    brokers: int, partitions: int, replicas: int, sizes: Sequence[int], racks: int = 0
) -> tuple[list[Site], list[Placement]]:
    """Make brokers from 1 on and partitions that are spread round robin. Partitions take the sizes in turn."""
    sites = [Site(node, f"r{node % racks}" if racks else None, f"h{node}") for node in range(1, brokers + 1)]
    placements = [
        Placement(
            f"t{number % 3}",
            number // 3,
            tuple(1 + (number + place) % brokers for place in range(replicas)),
            sizes[number % len(sizes)],
        )
        for number in range(partitions)
    ]
    return sites, placements


def after(placements: Sequence[Placement], moves: Sequence[Move]) -> list[Placement]:
    """Return the placements as they are after the plan."""
    replicas = {(move.topic, move.partition): move.after for move in moves}
    return [
        Placement(each.topic, each.partition, replicas.get(each.key, each.replicas), each.size)
        for each in placements
    ]


def load(placements: Sequence[Placement], node: int) -> int:
    return sum(each.size for each in placements if node in each.replicas)


def leads(placements: Sequence[Placement], node: int) -> int:
    return sum(each.replicas[0] == node for each in placements)


def test_a_new_broker_gets_its_share_and_no_byte_more() -> None:
    """A new broker takes over its share and no more. Nothing moves between the old brokers."""
    sites, placements = cluster(3, 90, 2, [10 * MIB])
    moves = balance([*sites, Site(4, None, "h4")], placements)
    done = after(placements, moves)
    assert {node for move in moves for node in move.adding} == {4}
    assert [load(done, node) // MIB for node in (1, 2, 3, 4)] == [450] * 4
    assert sum(move.bytes for move in moves) == 450 * MIB
    assert [leads(done, node) for node in (1, 2, 3, 4)] in ([22, 22, 23, 23], [23, 23, 22, 22]) or (
        max(leads(done, node) for node in (1, 2, 3, 4)) - min(leads(done, node) for node in (1, 2, 3, 4)) <= 1
    )
    assert balance([*sites, Site(4, None, "h4")], done) == []


def test_a_balanced_cluster_is_left_alone() -> None:
    """If loads differ by less than the tolerance, no partition moves."""
    sites, placements = cluster(3, 30, 2, [100 * MIB, 101 * MIB])
    assert balance(sites, placements) == []


def test_one_large_partition_goes_to_the_empty_broker() -> None:
    """One move is planned if the size of one replica matches the imbalance."""
    sites = [Site(1, None, "a"), Site(2, None, "b")]
    placements = [Placement("t", 0, (1,), 500 * MIB), Placement("t", 1, (1,), 500 * MIB)]
    (move,) = balance(sites, placements)
    assert (move.before, move.after, move.bytes) == ((1,), (2,), 500 * MIB)


def test_racks_are_kept_apart() -> None:
    """A move never reduces the number of racks of a partition.

    A partition within one rack is spread even if the bytes are balanced.
    """
    sites = [Site(1, "a", "h1"), Site(2, "a", "h2"), Site(3, "b", "h3"), Site(4, "b", "h4")]
    placements = [Placement("t", 0, (1, 2), MIB), Placement("t", 1, (3, 4), MIB)]
    done = after(placements, balance(sites, placements))
    racks = {site.node_id: site.rack for site in sites}
    assert all({racks[node] for node in each.replicas} == {"a", "b"} for each in done)


def test_brokers_of_one_host_do_not_hold_the_same_partition() -> None:
    """Brokers of one host never share a partition.

    A host may run one node per disk, and a partition must lose only one replica when the host fails.
    """
    sites = [Site(1, None, "x"), Site(2, None, "x"), Site(3, None, "y"), Site(4, None, "z")]
    placements = [Placement("t", index, (3, 4), 100 * MIB) for index in range(8)]
    for each in after(placements, balance(sites, placements)):
        assert set(each.replicas) != {1, 2}


def test_a_drained_broker_holds_nothing_and_those_that_have_the_data_lead() -> None:
    """A drained broker loses all of its replicas.

    A new replica is never the preferred leader, since it is still empty.
    """
    sites, placements = cluster(4, 40, 2, [MIB, 7 * MIB, 20 * MIB])
    moves = drain(sites, placements, {4})
    assert load(after(placements, moves), 4) == 0
    assert all(4 not in move.after for move in moves)
    assert {move.before for move in moves} == {each.replicas for each in placements if 4 in each.replicas}
    assert all(len(move.after) == len(move.before) for move in moves)


def test_a_broker_that_is_needed_cannot_be_drained() -> None:
    """A broker cannot be drained if a partition has more replicas than brokers would remain.

    The error names the partition.
    """
    sites, placements = cluster(3, 3, 3, [MIB])
    with pytest.raises(CannotPlan, match="t0-0 has 3 replicas, and only 2 brokers would remain"):
        drain(sites, placements, {3})


def test_leaderships_even_out_over_chains() -> None:
    """Broker 1 can hand leaderships only to broker 2, and 2 only to 3. The plan does both.

    The three brokers then lead equally many partitions, and no data moves.
    """
    sites = [Site(node, None, f"h{node}") for node in (1, 2, 3)]
    placements = [Placement("t", index, (1, 2), 0) for index in range(4)]
    placements += [Placement("u", index, (2, 3), 0) for index in range(2)]
    moves = balance(sites, placements)
    done = after(placements, moves)
    assert [leads(done, node) for node in (1, 2, 3)] == [2, 2, 2]


def test_only_what_is_named_moves() -> None:
    """With `only`, a plan moves no other partition, whether it balances bytes, racks or leaders."""
    sites, placements = cluster(3, 30, 2, [10 * MIB])
    only = {("t0", index) for index in range(10)}
    moves = balance([*sites, Site(4, None, "h4")], placements, only=only)
    assert moves
    assert {(move.topic, move.partition) for move in moves} <= only


def test_more_and_fewer_replicas() -> None:
    """When the replication factor changes, the preferred leader stays. New replicas go to other racks first."""
    sites = [Site(1, "a", "h1"), Site(2, "a", "h2"), Site(3, "b", "h3")]
    grown = resize(sites, [Placement("t", 0, (1,), MIB)], 2)
    assert [move.after for move in grown] == [(1, 3)]
    shrunk = resize(sites, [Placement("t", 0, (1, 2, 3), MIB)], 2)
    assert [move.after for move in shrunk] == [(1, 3)]
    with pytest.raises(CannotPlan, match="there are 3"):
        resize(sites, [Placement("t", 0, (1,), MIB)], 4)


def test_traffic_and_time() -> None:
    """The time of a plan is estimated from the broker that receives the most bytes."""
    moves = [
        Move("t", 0, (1, 2), (1, 3), 10),
        Move("t", 1, (1, 2), (4, 3), 5),
        Move("t", 2, (1, 2), (2, 1), 99),
    ]
    assert traffic_of(moves) == {3: 15, 4: 5}
    assert seconds_of(moves, 5.0) == 3.0
    assert [move.bytes for move in moves] == [10, 10, 0]


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 3), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_any_plan_keeps_the_rules(seed: int, brokers: int, replicas: int, racks: int, tiny: bool) -> None:
    """Any plan keeps the replication factor and the spread over racks.

    Its heaviest broker is no heavier than before.
    """
    rng = random.Random(seed)
    replicas = min(replicas, brokers)
    sites = [
        Site(node, f"r{rng.randrange(racks)}" if racks else None, f"h{node}")
        for node in range(1, brokers + 1)
    ]
    nodes = [site.node_id for site in sites]
    placements = [
        Placement(
            f"t{number % 4}",
            number // 4,
            tuple(rng.sample(nodes, replicas)),
            0 if tiny else rng.randrange(200 * MIB),
        )
        for number in range(rng.randrange(40))
    ]
    rack_of = {site.node_id: site.rack for site in sites}
    moves = balance(sites, placements)
    done = after(placements, moves)
    for old, new in zip(placements, done, strict=True):
        assert len(set(new.replicas)) == len(new.replicas) == len(old.replicas)
        assert len({rack_of[node] for node in new.replicas}) >= len({rack_of[node] for node in old.replicas})
    if not racks:
        heaviest = max((load(placements, node) for node in nodes), default=0)
        slack = max(0.05 * sum(each.size * replicas for each in placements) / brokers, MIB)
        assert max((load(done, node) for node in nodes), default=0) <= heaviest + slack
    if brokers > replicas:
        emptied = after(placements, drain(sites, placements, {1}))
        assert all(1 not in each.replicas and len(set(each.replicas)) == replicas for each in emptied)
