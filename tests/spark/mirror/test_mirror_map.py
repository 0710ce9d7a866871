"""The offset map, the plan and the translation of groups: parts of a mirror that need no cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.admin import CommittedOffset
from odradek.client.admin.admin_acls import Acl
from odradek.security.acls.rules import Operation, PatternType, Permission, ResourceType
from odradek.spark.pipelines.mirror.groups import translated
from odradek.spark.pipelines.mirror.offset_map import (
    CopiedRange,
    MapError,
    OffsetMap,
    Run,
    TopicPair,
    runs_of,
)
from odradek.spark.pipelines.mirror.plan import ClusterFacts, Plan, TopicFacts, matching, plan_of
from odradek.wire.topic_partition import TopicPartition

PLACE = TopicPartition("t", 0)


def content(ranges: list[tuple[bytes, bytes]]) -> OffsetMap:
    found = OffsetMap(keep_runs=True)
    for key, value in ranges:
        found.take_in(key, value)
    return found


@given(st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=20), max_size=5))
def test_every_offset_translates_to_the_next_record(transactions: list[list[tuple[int, int]]]) -> None:
    """With any gaps and transactions on both sides, an offset translates to the copy of the first record at or after
    it."""
    source = target = 0
    pairs: list[tuple[int, int]] = []
    written: list[tuple[bytes, bytes]] = []
    for steps in transactions:
        first, begin = source, len(pairs)
        for on_source, on_target in steps:
            source, target = source + on_source, target + on_target
            pairs.append((source - 1, target - 1))
        runs = runs_of([each for each, _ in pairs[begin:]], [each for _, each in pairs[begin:]])
        target += 1
        written.append(CopiedRange(PLACE, first, source, tuple(runs)).encoded())
    found = content(written)
    assert found.progress(PLACE) == (source if transactions else None)
    for offset in range(source + 1 if transactions else 0):
        behind = [copy for record, copy in pairs if record >= offset]
        assert found.translate(PLACE, offset) == (behind[0] if behind else pairs[-1][1] + 1 if pairs else 0)
    assert found.translate(PLACE, source + 1) is None


def test_a_transaction_is_a_line() -> None:
    """For a topic without gaps, the map has one run for each transaction, because each transaction leaves a marker."""
    assert runs_of(range(10_000), range(7, 10_007)) == [Run(0, 7, 10_000)]
    key, value = CopiedRange(PLACE, 0, 1_000_000, (Run(0, 7, 1_000_000),)).encoded()
    assert (key, value) == (b'["offsets","t",0,0]', b'{"next":1000000,"runs":[[0,7,1000000]]}')


def test_topics_are_known_by_their_ids() -> None:
    """If a topic's name has several ids in the map, the last one counts."""
    found = content([TopicPair("t", "aa", "bb").encoded(), TopicPair("t", "aa", "cc").encoded()])
    assert found.pairs == {"t": TopicPair("t", "aa", "cc")}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"\xff", b"{}"),
        (b'["offsets","t",0,0]', b"nonsense"),
        (b'["offsets","t",0,0]', b'{"next":1}'),
        (b'["offsets","t",0,0]', b'{"next":1,"runs":[[1]]}'),
        (b'["offsets","t",0,0]', b'{"next":1,"runs":[["x",1,1]]}'),
        (b'["other","t"]', b'{"source":"a","target":"b"}'),
    ],
)
def test_records_of_others(key: bytes | None, value: bytes | None) -> None:
    """A record that the mirror did not write stops the job."""
    with pytest.raises(MapError):
        OffsetMap(keep_runs=True).take_in(key, value)


def test_a_range_that_is_copied_twice_is_an_error() -> None:
    """If two ranges of the map overlap, records may be duplicated, so this is an error."""
    twice = [CopiedRange(PLACE, 0, 5, ()).encoded(), CopiedRange(PLACE, 4, 6, ()).encoded()]
    with pytest.raises(MapError, match="offsets 4 to 5 of t-0 were copied twice"):
        content(twice)


def test_groups() -> None:
    """A group's offset only moves forward. Offsets that are not copied yet are reported."""
    runs = (Run(0, 100, 10), Run(20, 110, 5))
    found = content([CopiedRange(PLACE, 0, 25, runs).encoded()])

    def of(offset: int, present: int | None = None) -> tuple[object, int, list[str]]:
        there = {} if present is None else {PLACE: CommittedOffset(present)}
        return translated(found, {PLACE: CommittedOffset(offset, 3, "text")}, there)

    assert of(4) == ({PLACE: CommittedOffset(104, metadata="text")}, 0, [])
    assert of(15) == ({PLACE: CommittedOffset(110, metadata="text")}, 0, [])
    assert of(25, 111) == ({PLACE: CommittedOffset(115, metadata="text")}, 0, [])
    assert of(4, 104) == ({}, 1, [])
    assert of(4, 108) == ({}, 0, ["t-0: the target's group has committed offset 108, which is beyond 104"])
    assert of(26) == ({}, 0, ["t-0: the record at offset 26 is not copied yet"])


# The plan


def acl(kind: ResourceType, name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(kind, name, pattern, "User:ann", "*", Operation.READ, Permission.ALLOW)


def facts(cluster_id: str, *topics: TopicFacts, **more: object) -> ClusterFacts:
    values: dict[str, object] = {"brokers": 3, "acls": None, **more}
    return ClusterFacts(cluster_id, topics={each.name: each for each in topics}, **values)  # type: ignore[arg-type]  # any value


def topic(name: str, partitions: int = 2, replicas: int = 1, **settings: str) -> TopicFacts:
    return TopicFacts(
        name, "00", partitions, replicas, {key.replace("_", "."): value for key, value in settings.items()}
    )


def lines(plan: Plan) -> list[str]:
    return [line for line in plan.lines() if "transactions of the source" not in line]


def test_topics_of_a_plan() -> None:
    """A plan creates topics, adds partitions, changes settings, or leaves topics as they are."""
    source = facts("a", topic("made", cleanup_policy="compact"), topic("grown", 4), topic("kept"), topic("set", retention_ms="5"))  # fmt: skip
    target = facts("b", topic("grown"), topic("kept", retention_ms="7"), topic("set", retention_ms="6"))
    assert lines(plan_of(source, target)) == [
        "grow    grown: 2 to 4 partitions",
        "keep    kept",
        "create  made: 2 partitions, 1 replicas cleanup.policy=compact",
        "set     set retention.ms=5",
    ]


def test_losses_of_a_plan() -> None:
    """A plan lists everything that stays behind, with the reason."""
    there = topic("t", 2, 3, min_insync_replicas="2", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")  # fmt: skip
    plan = plan_of(facts("a", there), facts("b", brokers=1))
    assert str(plan.topics[0]) == "create  t: 2 partitions, 1 replicas"
    assert [loss.partition(":")[0::2] for loss in plan.losses[1:]] == [
        ("t", " message.timestamp.before.max.ms=1000: the target would refuse records for their age: set this after the move"),
        ("t", " message.timestamp.type=LogAppendTime: the copies keep these times as CreateTime; set this after the move"),
        ("t", " 3 replicas cannot be kept, because the target has 1 brokers"),
        ("t", " min.insync.replicas=2"),
    ]  # fmt: skip
    assert "transactions of the source" in plan.losses[0]


def test_refusals_of_a_plan() -> None:
    """A plan that would lose partitions or timestamps is refused."""
    assert lines(plan_of(facts("a"), facts("a"))) == ["refused source and target are the same cluster"]
    wide = plan_of(facts("a", topic("t")), facts("b", topic("t", 3)))
    assert wide.refusals == ("t has 3 partitions in the target, and 2 in the source",)
    stamped = plan_of(facts("a", topic("t")), facts("b", topic("t", message_timestamp_type="LogAppendTime")))
    assert stamped.refusals == (
        "t has message.timestamp.type=LogAppendTime in the target, so timestamps would be lost",
    )


def test_acls_of_a_plan() -> None:
    """ACLs of the copied topics and groups are added. Others are only counted."""
    of_topic, of_all = acl(ResourceType.TOPIC, "orders"), acl(ResourceType.TOPIC, "*")
    prefixed = acl(ResourceType.TOPIC, "ord", PatternType.PREFIXED)
    of_group, of_cluster = acl(ResourceType.GROUP, "billing"), acl(ResourceType.CLUSTER, "kafka-cluster")
    other = acl(ResourceType.TOPIC, "other")
    everything = frozenset({of_topic, of_all, prefixed, of_group, of_cluster, other})
    source = facts("a", topic("orders"), acls=everything, groups=("billing", "search"))
    target = facts("b", acls=frozenset({of_all}))
    plan = plan_of(source, target, group_patterns=["bill*"])
    assert set(plan.acls) == {of_topic, prefixed, of_group}
    assert plan.groups == ("billing",)
    assert plan.losses[1].startswith("2 ACLs of other topics")
    assert set(plan_of(source, target).acls) == {of_topic, prefixed}
    assert plan_of(source, facts("b")).losses[1].startswith("6 ACLs: the target has no authorizer")


def test_names_are_chosen_as_files_are() -> None:
    """Names may contain `*` and `?`, as for files. Case matters."""
    assert matching(["a", "ab", "B"], ["a*"]) == ("a", "ab")
    assert matching(["a", "ab", "B"], ["b", "?"]) == ("B", "a")


def test_the_map_is_json() -> None:
    """The map is JSON, so people and other programs can read it."""
    key, value = CopiedRange(PLACE, 3, 9, (Run(4, 1, 2), Run(8, 3, 1))).encoded()
    assert json.loads(key) == ["offsets", "t", 0, 3]
    assert json.loads(value) == {"next": 9, "runs": [[4, 1, 2], [8, 3, 1]]}
