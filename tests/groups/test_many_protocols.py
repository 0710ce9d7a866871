"""The work for the protocols of a group's members: each list of protocols and each subscription is read only once."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import cast

from odradek.data_plane.groups.classic_group import ClassicGroup, GroupPhase, Member, Protocols


class Counted:
    """Protocols that count how often they are iterated."""

    def __init__(self, count: int) -> None:
        self.protocols: Protocols = tuple((f"p{number}", b"") for number in range(count))
        self.times = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.times += 1
        return iter(self.protocols)


def test_a_newcomer_with_thousands_of_protocols_is_compared_once() -> None:
    """A new member with a thousand protocols is compared in one pass, so large JoinGroups take no minutes."""
    counted = Counted(3)
    group = ClassicGroup("g")
    group.add(Member("a", None, "c", "h", 10_000, 10_000, cast(Protocols, counted)), "consumer", None)
    group.transition_to(GroupPhase.PREPARING_REBALANCE, 0)
    assert not group.supports_protocols("consumer", [f"q{number}" for number in range(1_000)])
    assert group.supports_protocols("consumer", ["q", "p2"])
    assert counted.times == 2


def test_of_a_subscription_the_topics_are_read_once() -> None:
    """The topics of a subscription are read once. A megabyte of owned partitions behind them is skipped."""
    owned = (1 << 20) // 6
    metadata = struct.pack(">hih1sii", 1, 1, 1, b"t", -1, owned) + bytes(6) * owned
    member = Member("a", None, "c", "h", 10_000, 10_000, (("range", metadata),))
    group = ClassicGroup("g")
    group.add(member, "consumer", None)
    group.protocol = "range"
    tracemalloc.start()
    topics = group.compute_subscribed_topics()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert topics == frozenset("t")
    assert peak < 1 << 20
    assert member.subscribed_topics("range") is member.subscribed_topics("range")


def test_more_topics_than_a_stranger_may_name_are_none() -> None:
    """A subscription with more topics than a request may name counts as unreadable. The topics of its group are then
    unknown."""
    names = 150_000
    metadata = struct.pack(">hi", 0, names) + bytes(2) * names + struct.pack(">i", -1)
    group = ClassicGroup("g")
    group.add(Member("a", None, "c", "h", 10_000, 10_000, (("range", metadata),)), "consumer", None)
    group.protocol = "range"
    assert group.compute_subscribed_topics() is None
