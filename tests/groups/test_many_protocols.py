"""What a member's list of protocols costs its group: as much as the list is long, not its square."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from data_plane.groups.classic_group import ClassicGroup, GroupPhase, Member, Protocols


class Counted:
    """Protocols that count how often they are gone through."""

    def __init__(self, count: int) -> None:
        self.protocols: Protocols = tuple((f"p{number}", b"") for number in range(count))
        self.times = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.times += 1
        return iter(self.protocols)


def test_a_newcomer_with_thousands_of_protocols_is_compared_once() -> None:
    """Two JoinGroups of a megabyte must not keep the coordinator busy for minutes."""
    counted = Counted(3)
    group = ClassicGroup("g")
    group.add(Member("a", None, "c", "h", 10_000, 10_000, cast(Protocols, counted)), "consumer", None)
    group.transition_to(GroupPhase.PREPARING_REBALANCE, 0)
    assert not group.supports_protocols("consumer", [f"q{number}" for number in range(1_000)])
    assert group.supports_protocols("consumer", ["q", "p2"])
    assert counted.times == 2
