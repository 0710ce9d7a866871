"""Server-side assignors (KIP-848): they compute which member should have which partitions. PURE.

An assignor is a function of the topics and of the members, with their subscriptions and their previous targets.
As in Apache Kafka 4.3, no assignor considers racks. A change of racks only causes the assignment to be computed
again.

`uniform` spreads partitions evenly and moves as few as it can. `range` gives each member neighbouring
partitions of every topic, so that one member gets the same partition numbers of all topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import TypeAlias

import attrs

from odradek.data_plane.groups.consumers.consumer_group import Owned, Target
from odradek.data_plane.groups.group_settings import ASSIGNOR_NAMES

__all__ = ["ASSIGNORS", "Assignor", "Subscriber"]

BALANCING_ROUNDS_MAX = 16
"""The limit of balancing rounds over all topics, for members with different subscriptions. After so many
rounds, `uniform` accepts the assignment as it is.
"""


@attrs.frozen
class Subscriber:
    """A group member as the input of an assignor."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    """The ids of the existing topics to which the member subscribes."""
    target: Target
    """The partitions that the previous target gives the member."""


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Target]]
"""A function that computes the target of each member. Its arguments are the members, sorted by id, and the
number of partitions of each topic, by topic id.
"""


def assign_uniformly(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Compute targets by the `uniform` assignor. All members get even shares. As far as the shares stay even,
    members keep the partitions of their previous target.
    """
    if not members:
        return {}
    if all(each.topics == members[0].topics for each in members):
        return _uniform_for_equals(members, counts)
    return _Uneven(members, counts).assign()


def _kept(member: Subscriber, counts: Mapping[bytes, int], taken: set[Owned]) -> list[Owned]:
    """List, in order, those partitions of the member's previous target that it may keep. Add them to `taken`.

    Partitions in `taken` are left out.
    """
    kept = [
        (topic_id, partition)
        for topic_id in sorted(member.target)
        if topic_id in member.topics
        for partition in sorted(member.target[topic_id])
        if partition < counts[topic_id] and (topic_id, partition) not in taken
    ]
    taken.update(kept)
    return kept


def _as_target(owned: Sequence[Owned]) -> Target:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in owned:
        topics.setdefault(topic_id, []).append(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


def _uniform_for_equals(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Compute targets for members that all read the same topics. Each member gets an equal share, and some
    members get one partition more.
    """
    topics = sorted(members[0].topics)
    least, extras = divmod(sum(counts[topic_id] for topic_id in topics), len(members))
    taken: set[Owned] = set()
    shares = [_kept(each, counts, taken) for each in members]
    # The remainder of the division goes first to members that can keep more partitions than the least share.
    # Each of them gets one partition more.
    quotas = []
    for share in shares:
        has_extra = extras > 0 and len(share) > least
        extras -= has_extra
        quotas.append(least + has_extra)
    for index, share in enumerate(shares):
        if extras and quotas[index] == least:
            quotas[index] += 1
            extras -= 1
        taken.difference_update(share[quotas[index] :])
        del share[quotas[index] :]
    free = (
        (topic_id, partition)
        for topic_id in topics
        for partition in range(counts[topic_id])
        if (topic_id, partition) not in taken
    )
    for share, quota in zip(shares, quotas, strict=True):
        share.extend(islice(free, quota - len(share)))
    return {each.member_id: _as_target(share) for each, share in zip(members, shares, strict=True)}


class _Uneven:
    """The computation of targets for members that read different topics.

    A partition without an owner goes to the least loaded reader of its topic. Then partitions of each topic
    move from the most loaded owner to the least loaded reader. The moves end when the loads of these two differ
    by at most 1, or after `BALANCING_ROUNDS_MAX` rounds.
    """

    def __init__(self, members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> None:
        self._members = members
        self._counts = counts
        readers: dict[bytes, list[int]] = {}
        for index, member in enumerate(members):
            for topic_id in sorted(member.topics):
                readers.setdefault(topic_id, []).append(index)
        self._readers = readers
        self._topics = sorted(
            readers, key=lambda each: (-counts[each] / len(readers[each]), len(readers[each]), each)
        )
        self._shares: list[dict[bytes, list[int]]] = []
        taken: set[Owned] = set()
        for member in members:
            share: dict[bytes, list[int]] = {}
            for topic_id, partition in _kept(member, counts, taken):
                share.setdefault(topic_id, []).append(partition)
            self._shares.append(share)
        self._loads = [sum(map(len, share.values())) for share in self._shares]
        self._taken = taken

    def assign(self) -> dict[str, Target]:
        for topic_id in self._topics:
            self._give_free(topic_id)
        for _ in range(BALANCING_ROUNDS_MAX):
            if not sum(self._balance(topic_id) for topic_id in self._topics):
                break
        return {
            member.member_id: {
                topic_id: frozenset(partitions) for topic_id, partitions in share.items() if partitions
            }
            for member, share in zip(self._members, self._shares, strict=True)
        }

    def _give_free(self, topic_id: bytes) -> None:
        readers = [(self._loads[index], index) for index in self._readers[topic_id]]
        heapify(readers)
        for partition in range(self._counts[topic_id]):
            if (topic_id, partition) not in self._taken:
                load, index = readers[0]
                heapreplace(readers, (load + 1, index))
                self._loads[index] += 1
                self._shares[index].setdefault(topic_id, []).append(partition)

    def _balance(self, topic_id: bytes) -> int:
        """Move partitions of one topic from the most loaded member to the least loaded member, while the
        loads of these two differ by more than 1. Returns the number of moves.
        """
        loads, shares = self._loads, self._shares
        least = [(loads[index], index) for index in self._readers[topic_id]]
        most = [(-loads[index], index) for index in self._readers[topic_id] if shares[index].get(topic_id)]
        heapify(least)
        heapify(most)
        moved = 0
        while most:
            # Drop a heap entry with an outdated load when it reaches the top.
            if -most[0][0] != loads[most[0][1]] or not shares[most[0][1]].get(topic_id):
                heappop(most)
                continue
            if least[0][0] != loads[least[0][1]]:
                heappop(least)
                continue
            giver, taker = most[0][1], least[0][1]
            if loads[giver] - loads[taker] <= 1:
                break
            shares[taker].setdefault(topic_id, []).append(shares[giver][topic_id].pop())
            loads[giver] -= 1
            loads[taker] += 1
            moved += 1
            for index in (giver, taker):
                heappush(least, (loads[index], index))
                heappush(most, (-loads[index], index))
        return moved


def assign_ranges(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Compute targets by the `range` assignor. Each member gets neighbouring partitions of each topic that it
    reads. Static members come first.
    """
    readers: dict[bytes, int] = {}
    for member in members:
        for topic_id in member.topics:
            readers[topic_id] = readers.get(topic_id, 0) + 1
    next_partition = dict.fromkeys(readers, 0)
    extras = {topic_id: counts[topic_id] % count for topic_id, count in readers.items()}
    targets: dict[str, Target] = {}
    for member in sorted(members, key=_range_order):
        target: dict[bytes, frozenset[int]] = {}
        for topic_id in sorted(member.topics):
            start = next_partition[topic_id]
            size = counts[topic_id] // readers[topic_id] + (extras[topic_id] > 0)
            extras[topic_id] -= extras[topic_id] > 0
            next_partition[topic_id] = start + size
            if size:
                target[topic_id] = frozenset(range(start, start + size))
        targets[member.member_id] = target
    return targets


def _range_order(member: Subscriber) -> tuple[bool, str]:
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.member_id


ASSIGNORS: Mapping[str, Assignor] = dict(zip(ASSIGNOR_NAMES, (assign_uniformly, assign_ranges), strict=True))
