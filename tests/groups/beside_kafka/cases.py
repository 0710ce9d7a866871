"""The conversations: each error of ConsumerGroupHeartbeat, a member's life, and each older request about a consumer
group."""

from __future__ import annotations

from odradek.wire.messages.leave_group import MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequestAssignment
from tests.groups.beside_kafka.asking import Talk, case
from tests.groups.beside_kafka.classic_bytes import assignment, subscription


@case
def invalid_requests(talk: Talk) -> None:
    talk.create(T=2)
    for version in (0, 1):
        talk.beat("", 1, version=version)
        talk.beat("", -1, version=version)
        talk.beat(" ", 1, version=version)
        talk.beat("a", 0, version=version, group="")
        talk.beat("a", 0, version=version, instance="")
        talk.beat("a", 0, version=version, rack=" ")
        talk.beat("a", 0, version=version, rebalance_ms=-1)
        talk.beat("a", 0, version=version, owns=None)
        talk.beat("a", 0, version=version, owns={"T": [0]})
        talk.beat("a", 0, version=version, topics=None)
        talk.beat("a", -2, version=version)
        talk.beat("a", -3, version=version)
        talk.beat("a", 0, version=version, assignor="none")
        talk.beat("", 0, version=version, assignor="none", topics=None)
    talk.beat("", 0)


@case
def unknown_groups_and_members(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    talk.beat("a", 3)
    talk.beat("a", -1)
    talk.beat("a", -2, instance="i")
    talk.describe()
    talk.beat("a")
    talk.beat("b", 3)
    talk.beat("b", -1)
    talk.beat("b", 3, instance="i")
    talk.beat("b", -2, instance="i")


@case
def one_member(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=3, U=1)
    talk.beat("a", topics=["T", "U", "T"])
    talk.beat("a", 2)
    talk.describe()
    talk.describe(version=0)
    talk.beat("a", 2, owns={"T": [0, 1, 2], "U": [0]})
    talk.beat("a", 2, topics=["T", "U"], owns={"T": [0, 1, 2], "U": [0]}, rebalance_ms=60_000)
    talk.beat("a", 9)
    talk.beat("a", 1)
    talk.beat("a", 0, topics=["T", "U"])
    talk.beat("a", -1)
    talk.describe()
    talk.list_groups([], [])
    talk.beat("a", 2)
    talk.beat("b")
    talk.describe()


@case
def members_without_topics(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1)
    talk.beat("a", topics=[])
    talk.describe()
    talk.beat("b", topics=["nowhere"])
    talk.describe()


@case
def two_members(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=4)
    talk.beat("a")
    talk.beat("b")
    talk.describe(by_number=True)
    talk.beat("b", 3)
    first = talk.beat("a", 2, by_number=True)
    kept = [each for topic in first.assignment.topic_partitions for each in topic.partitions]
    talk.beat("a", 2, by_number=True)
    talk.beat("b", 3)
    talk.beat("a", 2, owns={"T": kept}, by_number=True)
    talk.beat("a", 2, owns={"T": [*kept, *(each for each in range(4) if each not in kept)]}, by_number=True)
    talk.beat("a", 2, owns={"T": kept}, by_number=True)
    talk.beat("b", 3, by_number=True)
    talk.describe(by_number=True)
    talk.beat("b", -1)
    talk.beat("a", 3)


@case
def interval_between_targets(talk: Talk) -> None:
    talk.configure("consumer.assignment.interval.ms", "15000")
    talk.create(T=4)
    talk.beat("a")
    talk.beat("b")
    talk.beat("a", 2)
    talk.describe()


@case
def static_members(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    talk.beat("a", instance="i")
    talk.beat("b", instance="i")
    talk.beat("b", 2, instance="i")
    talk.beat("a", 2, instance="j")
    talk.beat("b", -1, instance="i")
    talk.beat("a", -2, instance="i")
    talk.describe()
    talk.beat("a", 2, instance="i")
    talk.beat("b", instance="i")
    talk.describe()
    talk.beat("a", 2, instance="i")
    talk.beat("b", 2, instance="i")
    talk.beat("b", -1, instance="i")
    talk.describe()


@case
def assignors(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=3, U=3)
    talk.beat("a", topics=["T", "U"], assignor="range")
    talk.beat("b", topics=["T", "U"], assignor="range")
    talk.beat("a", 2)
    talk.beat("a", 2, owns={"T": [0, 1], "U": [0, 1]})
    talk.beat("b", 3)
    talk.beat("a", 3, assignor="uniform")
    talk.describe()


@case
def different_subscriptions(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2, U=2)
    talk.beat("a", topics=["T"])
    talk.beat("b", topics=["U"])
    talk.describe()
    talk.beat("a", 2, topics=["U"])
    talk.beat("a", 2, owns={})
    talk.describe(by_number=True)


@case
def topics_change(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=1)
    talk.beat("a", topics=["T", "U"])
    talk.create(U=2)
    talk.wait_until("a", 2, lambda answer: answer.member_epoch > 2)
    talk.grow(U=3)
    talk.wait_until("a", 3, lambda answer: answer.member_epoch > 3)
    talk.delete("U")
    talk.wait_until("a", 4, lambda answer: answer.assignment is not None)
    talk.beat("a", 4, owns={"T": [0]})
    talk.describe()


@case
def patterns(talk: Talk) -> None:
    talk.create(T=1, U=2, V=1)
    stem = talk.topics["T"].rpartition("-t-")[2]
    talk.beat("a", topics=None, pattern=f"topic-[tu]-{stem}")
    talk.wait_until("a", 1, lambda answer: answer.member_epoch > 1)
    talk.describe()
    talk.beat("a", 2, pattern="")
    talk.beat("a", 2, owns={})
    talk.beat("a", 3, topics=["V"])
    talk.describe()


@case
def offsets_of_members(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2, U=1)
    talk.commit("", -1, 0)
    talk.beat("a")
    for version in (8, 9, 10):
        talk.commit("a", 2, 0, version=version)
    talk.commit("", -1, 0)
    talk.commit("a", -1, 0)
    talk.commit("b", 2, 0)
    talk.commit("a", 3, 0)
    talk.commit("a", 1, 0)
    talk.commit("a", 1, 0, topic="U")
    for version in (9, 10):
        talk.fetch("a", 2, version=version)
        talk.fetch("a", 1, version=version)
        talk.fetch("b", 2, version=version)
        talk.fetch(None, -1, version=version)
    talk.fetch(None, -1, version=8)
    talk.beat("b")
    talk.beat("a", 2, by_number=True)
    talk.delete_offset("T", 0)
    talk.delete_offset("U", 0)
    talk.beat("a", -1)
    talk.beat("b", -1)
    talk.commit("", -1, 0)
    talk.commit("a", 2, 0)
    talk.delete_offset("T", 0)


@case
def epochs_of_assignments(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    talk.beat("a")
    talk.beat("b")
    first = talk.beat("a", 2, by_number=True)
    (kept,) = [each for topic in first.assignment.topic_partitions for each in topic.partitions]
    talk.beat("a", 2, owns={"T": [kept]}, by_number=True)
    talk.beat("b", 3, by_number=True)
    # With its old epoch 2, member `a` may commit the partition that it has kept, but not the partition of `b`.
    for partition in (kept, 1 - kept):
        answer = talk.commit("a", 2, partition)
        talk.answers.pop()
        talk.answers.append(answer.topics[0].partitions[0].error_code)
    for partition in (kept, 1 - kept):
        for epoch in (2, 3, 4):
            answer = talk.commit("b", epoch, partition)
            talk.answers.pop()
            talk.answers.append(answer.topics[0].partitions[0].error_code)


@case
def old_requests_about_new_groups(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=2)
    talk.beat("a")
    for version in (0, 5, 6):
        talk.describe_as_classic(version)
    for states, types in (
        ([], []),
        (["stable"], []),
        (["Empty"], []),
        ([], ["consumer"]),
        ([], ["Classic"]),
        (["STABLE"], ["CONSUMER"]),
        (["assigning", "reconciling"], []),
    ):
        talk.list_groups(states, types)
    talk.delete_group()
    talk.keep(talk.heartbeat("a", 2))
    talk.keep(talk.sync("a", 2))
    talk.keep(talk.leave(MemberIdentity("b", None), MemberIdentity("", "i")))
    talk.beat("a", -1)
    talk.keep(talk.heartbeat("a", 2))
    talk.keep(talk.sync("a", 2))
    talk.list_groups(["empty"], ["consumer"])
    talk.delete_group()
    talk.describe()
    talk.delete_group()


@case
def consumers_among_classic_groups(talk: Talk) -> None:
    talk.create(T=2)
    talk.describe(groups=[talk.group, "", talk.group])
    talk.commit("", -1, 0)
    talk.describe()
    talk.beat("a", 2)
    member = talk.join("", subscription(talk.topics["T"]), version=3).member_id
    talk.sync(member, 1, [SyncGroupRequestAssignment(member, assignment(talk.topics["T"], [0, 1]))])
    talk.describe()
    talk.beat("a", 2)
    talk.beat("a", -1)


@case
def upgrade_and_back(talk: Talk) -> None:
    talk.assign_at_once()
    talk.create(T=4)
    topic = talk.topics["T"]
    joined = talk.join("", subscription(topic), version=3)
    member = joined.member_id
    talk.sync(member, 1, [SyncGroupRequestAssignment(member, assignment(topic, [0, 1, 2, 3]))])
    talk.beat("a", by_number=True)
    talk.keep(talk.heartbeat(member, 1))
    talk.keep(talk.sync(member, 1))
    again = talk.join(member, subscription(topic, owned={topic: [0, 1, 2, 3]}))
    talk.answers.append([again.error_code, again.generation_id, again.protocol_name, again.leader])
    synced = talk.sync(member, again.generation_id)
    kept = [int.from_bytes(synced.assignment[-8 - 4 * each : -4 - 4 * each], "big") for each in range(2)]
    talk.answers.append(
        [synced.error_code, synced.protocol_type, synced.protocol_name, len(synced.assignment)]
    )
    talk.keep(talk.heartbeat(member, again.generation_id))
    last = talk.join(member, subscription(topic, owned={topic: kept}))
    talk.answers.append([last.error_code, last.generation_id])
    talk.keep(talk.heartbeat(member, last.generation_id))
    talk.beat("a", 2, by_number=True)
    talk.commit(member, last.generation_id, kept[0])
    talk.answers.pop()
    talk.beat("a", -1)
    talk.describe_as_classic(6)
    talk.answers.pop()
    talk.list_groups([], [])
    talk.keep(talk.heartbeat(member, last.generation_id))


@case
def policies_of_groups(talk: Talk) -> None:
    for key, value in (
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.assignment.interval.ms", "15001"),
        ("consumer.assignment.interval.ms", "-1"),
        ("consumer.session.timeout.ms", "many"),
        ("consumer.other", "1"),
    ):
        talk.configure(key, value, kept=True)
    talk.create(T=1)
    talk.configure("consumer.heartbeat.interval.ms", "6000")
    talk.beat("a")
