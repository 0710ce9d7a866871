"""The assignors' results: Kafka's own examples for range and round robin, and properties of cooperative-sticky."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.consumer.assignors import (
    Assignment,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    assignor_for,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.wire.errors import MalformedMessage
from odradek.wire.topic_partition import TopicPartition

STICKY = CooperativeStickyAssignor()


def member(name: str, *topics: str, instance: str | None = None) -> MemberSubscription:
    return MemberSubscription(name, topics, group_instance_id=instance)


def text(assignment: Assignment) -> dict[str, str]:
    return {name: " ".join(map(str, keys)) for name, keys in assignment.items()}


def test_range_gives_each_topic_in_contiguous_ranges() -> None:
    """Kafka's RangeAssignor gives this example: two consumers share two topics with three partitions each. C0 gets
    `[t0p0, t0p1, t1p0, t1p1]`, C1 gets `[t0p2, t1p2]`."""
    found = RangeAssignor().assign({"t0": 3, "t1": 3}, [member("C1", "t0", "t1"), member("C0", "t0", "t1")])
    assert text(found) == {"C0": "t0-0 t0-1 t1-0 t1-1", "C1": "t0-2 t1-2"}


def test_round_robin_deals_all_partitions_in_one_circle() -> None:
    """Kafka's RoundRobinAssignor gives these examples.

    Equal subscriptions: C0: [t0p0, t0p2, t1p1], C1: [t0p1, t1p0, t1p2]. Unequal ones: C0: [t0p0], C1: [t1p0], C2:
    [t1p1, t2p0, t2p1, t2p2].
    """
    found = RoundRobinAssignor().assign(
        {"t0": 3, "t1": 3}, [member("C0", "t0", "t1"), member("C1", "t0", "t1")]
    )
    assert text(found) == {"C0": "t0-0 t0-2 t1-1", "C1": "t0-1 t1-0 t1-2"}
    members = [member("C0", "t0"), member("C1", "t0", "t1"), member("C2", "t0", "t1", "t2")]
    found = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert text(found) == {"C0": "t0-0", "C1": "t1-0", "C2": "t1-1 t2-0 t2-1 t2-2"}


def test_static_members_keep_their_place_under_new_member_ids() -> None:
    """Members are sorted by instance id if they have one (KIP-345), so a restart with a new member id moves nothing."""
    first = [member("x", "t", instance="a"), member("y", "t", instance="b"), member("m", "t")]
    second = [member("q", "t", instance="b"), member("z", "t", instance="a"), member("m", "t")]
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        before, after = assignor.assign({"t": 7}, first), assignor.assign({"t": 7}, second)
        assert (before["x"], before["y"], before["m"]) == (after["z"], after["q"], after["m"])


def joined(
    members: Sequence[MemberSubscription], found: Assignment, generation: int
) -> list[MemberSubscription]:
    """Return the members' next subscriptions, which list the partitions that they own."""
    return [
        MemberSubscription(m.member_id, m.topics, tuple(found.get(m.member_id, ())), generation)
        for m in members
    ]


def settle(
    counts: dict[str, int], members: Sequence[MemberSubscription], found: Assignment, generation: int = 1
) -> tuple[Assignment, int]:
    """Rebalance until nothing moves. Return the number of rounds."""
    for rounds in range(10):
        new = STICKY.assign(counts, joined(members, found, generation + rounds))
        for name, keys in new.items():
            others = [key for other, owned in found.items() if other != name for key in owned]
            kept = [key for key in keys if key in others]
            assert not [key for key in kept if other_keeps(key, name, found, new)], (
                "two members have one partition"
            )
        if {n: sorted(k) for n, k in new.items()} == {n: sorted(found.get(n, [])) for n in new}:
            return found, rounds
        found = new
    raise AssertionError("partitions still move after 10 rounds")


def other_keeps(key: TopicPartition, name: str, found: Assignment, new: Assignment) -> bool:
    """True if a member other than `name` owned the partition before (`found`) and is still in the group (`new`)."""
    return any(other != name and key in owned and other in new for other, owned in found.items())


def test_cooperative_sticky_gives_a_partition_up_before_it_gives_it_on() -> None:
    """A partition that moves is assigned to no member in the first round (KIP-429).

    Its new owner gets it in the second.
    """
    alone = STICKY.assign({"t": 4}, [member("a", "t")])
    assert len(alone["a"]) == 4
    both = [member("a", "t"), member("b", "t")]
    first = STICKY.assign({"t": 4}, joined(both, alone, 1))
    assert [len(first["a"]), len(first["b"])] == [2, 0]
    second = STICKY.assign({"t": 4}, joined(both, first, 2))
    assert second["a"] == first["a"]
    assert len(second["b"]) == 2


def test_of_two_claims_the_later_generation_holds() -> None:
    """Two members claim one partition. The claim of the later generation wins (KIP-341, KIP-792)."""
    t0 = TopicPartition("t", 0)
    stale = MemberSubscription("a", ("t",), (t0,), 3)
    fresh = MemberSubscription("b", ("t",), (t0,), 5)
    assert STICKY.assign({"t": 1}, [stale, fresh]) == {"a": [], "b": [t0]}


@given(
    counts=st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(0, 9), min_size=1),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_cooperative_sticky_balances_and_lets_stay_what_may(counts: dict[str, int], sizes: list[int]) -> None:
    """Members with equal subscriptions come and go. All partitions are assigned, and loads differ by at most one.

    A partition moves only if it must (KIP-54: 'preserve as many existing assignments as possible').
    """
    found: Assignment = {}
    topics = tuple(sorted(counts))
    total = sum(counts.values())
    for generation, size in enumerate(sizes):
        members = [member(f"m{n}", *topics) for n in range(size)]
        before = {name: keys for name, keys in found.items() if name in {m.member_id for m in members}}
        found, rounds = settle(counts, members, before, 10 * generation)
        assert rounds <= 2
        loads = [len(found.get(m.member_id, [])) for m in members]
        assert sum(loads) == total
        assert max(loads) - min(loads) <= 1
        for name, keys in before.items():
            lost = [key for key in keys if key not in found[name]]
            assert len(lost) <= max(0, len(keys) - total // size)


@given(
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(1, 5), min_size=1),
    wishes=st.lists(st.sets(st.sampled_from("tuv"), min_size=1), min_size=1, max_size=5),
)
def test_every_assignor_gives_every_readable_partition_to_one_subscriber(
    counts: dict[str, int], wishes: list[set[str]]
) -> None:
    """Members have unlike subscriptions.

    Every partition of a subscribed topic is assigned to a member that subscribes to it.
    """
    members = [member(f"m{n}", *sorted(wish)) for n, wish in enumerate(wishes)]
    readable = sorted(
        TopicPartition(topic, index)
        for topic, count in counts.items()
        for index in range(count)
        if any(topic in wish for wish in wishes)
    )
    for assignor in (RangeAssignor(), RoundRobinAssignor(), STICKY):
        found = assignor.assign(counts, members)
        assert sorted(key for keys in found.values() for key in keys) == readable
        assert all(key.topic in m.topics for m in members for key in found[m.member_id])


def test_members_speak_the_formats_of_kafkas_consumers() -> None:
    """Subscriptions and assignments have Kafka's formats: a version, then the structure.

    Newer versions only add fields at the end.
    """
    words = MemberSubscription(
        "m", ("a", "b"), (TopicPartition("a", 1), TopicPartition("b", 0)), 7, None, "rack", b"user"
    )
    data = encode_subscription(words)
    assert data == (
        b"\0\3" + b"\0\0\0\2" + b"\0\1a\0\1b" + b"\0\0\0\4user"
        b"\0\0\0\2" + b"\0\1a\0\0\0\1\0\0\0\1" + b"\0\1b\0\0\0\1\0\0\0\0" + b"\0\0\0\7" + b"\0\4rack"
    )
    assert decode_subscription("m", None, data) == words
    assert decode_subscription("m", None, b"\0\x09" + data[2:] + b"later") == words
    oldest = decode_subscription("m", "i", b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff")
    assert oldest == MemberSubscription("m", ("a",), group_instance_id="i")
    keys = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
    assert decode_assignment(encode_assignment(keys)) == keys
    assert decode_assignment(b"") == []
    for damaged in (b"\0", b"\xff\xff", data[:-1]):
        with pytest.raises(MalformedMessage):
            decode_subscription("m", None, damaged)


def test_cooperative_sticky_tells_its_generation_to_old_leaders() -> None:
    """The generation is also in the user data, where leaders that know only version 1 of the subscription read it."""
    data = encode_subscription(MemberSubscription("m", ("t",), user_data=STICKY.user_data(9)))
    assert decode_subscription("m", None, data).generation == 9


def test_assignors_are_known_by_kafkas_names() -> None:
    """`partition.assignment.strategy` accepts short names, Kafka's class names, and assignors of the application."""
    assert assignor_for("org.apache.kafka.clients.consumer.CooperativeStickyAssignor") == STICKY
    assert assignor_for("range") == RangeAssignor()
    assert assignor_for(STICKY) is STICKY
    with pytest.raises(ValueError, match="unknown assignor 'sticky'"):
        assignor_for("sticky")
    with pytest.raises(ValueError, match="is not an assignor"):
        assignor_for(object())
