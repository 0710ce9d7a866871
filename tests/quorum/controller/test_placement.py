"""The placement of replicas: over racks and hosts, with first replicas round robin and the others shifted."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.metadata_quorum.controller.partitions.placement import TooFewBrokers, place_replicas
from odradek.metadata_quorum.image.metadata_image import BrokerImage, ListenerImage
from tests.schedule import examples


def broker(
    broker_id: int, rack: str | None = None, host: str | None = None, fenced: bool = False
) -> BrokerImage:
    directory = broker_id.to_bytes(16, "big")
    listener = ListenerImage("PLAINTEXT", host or f"h{broker_id}", 9092, 0)
    return BrokerImage(broker_id, broker_id, directory, (listener,), (), rack, fenced, False, (directory,))


BROKERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["x", "y", "z"]), st.booleans()),
    min_size=1,
    max_size=9,
)


@given(BROKERS, st.integers(1, 30), st.integers(1, 5), st.integers(0, 1 << 16))
@settings(max_examples=examples(150), deadline=None)
def test_replicas_are_distinct_and_led_by_active_brokers(
    places: list[tuple[str | None, str, bool]], partitions: int, factor: int, seed: int
) -> None:
    """In every cluster a partition's replicas are distinct and its leader is active.

    The numbers of partitions that brokers lead differ by one at most, and racks are used evenly.
    """
    brokers = [broker(number, rack, host, fenced) for number, (rack, host, fenced) in enumerate(places)]
    active = [each for each in brokers if not each.fenced]
    if not active or factor > len(brokers):
        with pytest.raises(TooFewBrokers):
            place_replicas(brokers, partitions, factor, Random(seed))
        return
    assignments = place_replicas(brokers, partitions, factor, Random(seed))
    assert len(assignments) == partitions
    leaders = Counter(replicas[0] for replicas in assignments)
    assert all(len(set(replicas)) == factor for replicas in assignments)
    assert set(leaders) <= {each.broker_id for each in active}
    assert max(leaders.values()) - min(leaders[each.broker_id] for each in active) <= 1
    for replicas in assignments:
        if factor <= len(active):
            assert not any(brokers[replica].fenced for replica in replicas)


def test_replicas_are_in_different_racks_then_on_different_hosts() -> None:
    """There are two racks, each with two hosts of two nodes.

    The first two replicas are in both racks, and all four on different hosts.
    """
    brokers = [broker(number, "ab"[number // 4], f"h{number // 2}") for number in range(8)]
    for replicas in place_replicas(brokers, 32, 4, Random(5)):
        assert len({brokers[replica].rack for replica in replicas[:2]}) == 2
        assert len({brokers[replica].listeners[0].host for replica in replicas}) == 4


def test_a_dead_brokers_load_spreads_over_all_survivors() -> None:
    """If a broker dies, its leaderships go in equal shares to all other brokers."""
    brokers = [broker(number) for number in range(5)]
    assignments = place_replicas(brokers, 40, 3, Random(2))
    for dead in range(5):
        heirs = Counter(replicas[1] for replicas in assignments if replicas[0] == dead)
        assert sorted(heirs.values()) == [2, 2, 2, 2]


def test_fenced_brokers_help_only_when_they_must() -> None:
    """Fenced brokers get replicas only if there are too few active brokers. A fenced broker never has the first
    replica."""
    brokers = [broker(0), broker(1, fenced=True), broker(2)]
    for replicas in place_replicas(brokers, 6, 3, Random(1)):
        assert replicas[-1] == 1
