"""A partition's state as brokers come and go: properties over random histories of one partition.

The rules are those of metadata_quorum/controller/README.md ("Eligible leader replicas"). A leader is always in sync and
acceptable. The last in-sync replica leaves the ISR only after its unclean restart. It is elected again when it returns.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.metadata_quorum.controller.partitions.assignments import partition_records
from odradek.metadata_quorum.controller.partitions.partition_change import (
    Change,
    Election,
    acceptable_leaders,
    change_partition,
)
from odradek.metadata_quorum.controller.partitions.topic_rules import TopicRules
from odradek.metadata_quorum.image.image_builder import merge_partition
from odradek.metadata_quorum.image.metadata_image import (
    RECOVERING,
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from tests.schedule import examples

TOPIC = b"T" * 16
STEPS = st.lists(
    st.tuples(st.sampled_from(["fence", "unfence", "unclean"]), st.integers(0, 3)), min_size=1, max_size=30
)


def directory(broker_id: int) -> bytes:
    return bytes([65 + broker_id]) * 16


def image_with(active: set[int]) -> MetadataImage:
    brokers = {
        number: BrokerImage(
            number, 1, bytes(16), (), (), None, number not in active, False, (directory(number),)
        )
        for number in range(4)
    }
    return MetadataImage(brokers=brokers)


@given(STEPS, st.permutations(range(4)), st.integers(1, 4))
@settings(max_examples=examples(300), deadline=None)
def test_no_history_elects_a_replica_that_may_have_lost_data(
    steps: list[tuple[str, int]], order: list[int], factor: int
) -> None:
    """Brokers come and go.

    Only a replica that certainly has all records leads, or, if there is none, the last leader or last in-sync replica.
    """
    replicas = tuple(order[:factor])
    partition = PartitionImage(
        replicas[0], 0, 0, replicas, replicas, tuple(directory(number) for number in replicas)
    )
    active = {0, 1, 2, 3}
    complete = set(replicas)
    for verb, broker in steps:
        before = partition
        if verb == "unfence":
            active.add(broker)
            change = change_partition(TOPIC, 0, partition, acceptable_leaders(image_with(active)))
        else:
            active.discard(broker)
            change = change_partition(
                TOPIC,
                0,
                partition,
                acceptable_leaders(image_with(active)),
                TopicRules(),
                Change(removed=(broker,), lost=broker if verb == "unclean" else None),
            )
        if change is not None:
            partition = merge_partition(partition, change)
        if verb == "unclean":
            complete.discard(broker)
        if partition.isr != before.isr and len(partition.isr) < len(before.isr) and partition.isr:
            # A replica outside the ISR misses the records that are written from now on.
            complete &= set(partition.isr)
        check(before, partition, active, complete)
        if not partition.isr and len(before.isr) == 1:
            assert partition.last_known_elr == before.isr
        if partition.leader_recovery_state and not before.leader_recovery_state:
            assert (partition.leader,) == before.last_known_elr
            complete = {partition.leader}


def check(before: PartitionImage, after: PartitionImage, active: set[int], complete: set[int]) -> None:
    assert after.leader == -1 or after.leader in active
    assert after.leader == -1 or after.leader in after.isr
    assert set(after.isr) <= set(after.replicas)
    assert after.partition_epoch >= before.partition_epoch
    assert after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
    if after.isr:
        assert after.last_known_elr == ()
        assert set(after.isr) <= complete or after.leader_recovery_state
    if any(replica in active for replica in after.isr):
        assert after.leader != -1


def test_a_replica_on_an_unknown_directory_is_not_elected() -> None:
    """A broker returns with another disk. Its replica is not elected, since the records were on the old disk."""
    partition = PartitionImage(-1, 1, 1, (1,), (), (directory(3),), (), (1,))
    assert change_partition(TOPIC, 0, partition, acceptable_leaders(image_with({1}))) is None
    own = PartitionImage(-1, 1, 1, (1,), (), (directory(1),), (), (1,))
    change = change_partition(TOPIC, 0, own, acceptable_leaders(image_with({1})))
    assert change is not None
    assert (change.leader, change.isr, change.last_known_elr) == (1, [1], [])


def test_eligible_leader_replicas_are_elected_before_the_last_known_leader() -> None:
    """An eligible replica is elected before the last known leader (KIP-966).

    It left the ISR cleanly below min ISR, so it has all committed records.
    """
    partition = PartitionImage(-1, 1, 1, (1, 2), (), (directory(1), directory(2)), (2,), (1,))
    change = change_partition(TOPIC, 0, partition, acceptable_leaders(image_with({1, 2})))
    assert change is not None
    assert (change.leader, change.isr, change.eligible_leader_replicas) == (2, [2], [])
    assert change.leader_recovery_state == -1


MEMBERS = st.lists(st.integers(0, 3), unique=True)


@given(
    st.permutations(range(4)),
    MEMBERS,
    MEMBERS,
    MEMBERS,
    st.integers(0, 3),
    st.sets(st.integers(0, 3)),
    st.booleans(),
    st.sampled_from(Election),
    st.integers(1, 4),
)
@settings(max_examples=examples(500), deadline=None)
def test_a_replica_that_begins_anew_is_in_no_set(
    order: list[int],
    isr: list[int],
    elr: list[int],
    last_known: list[int],
    empty: int,
    active: set[int],
    eligible_replicas: bool,
    election: Election,
    min_isr: int,
) -> None:
    """A replica becomes empty. It leaves the ISR, the eligible replicas and the last known leaders, in any state.

    Only an unclean election without another candidate may elect it. Then the partition is RECOVERING.
    """
    replicas = tuple(order)
    leader = next((each for each in isr if each in active), -1)
    partition = PartitionImage(
        leader,
        1,
        1,
        replicas,
        tuple(isr),
        tuple(directory(each) for each in replicas),
        tuple(each for each in elr if each not in isr),
        () if isr else tuple(last_known),
    )
    rules = TopicRules(eligible_replicas=eligible_replicas, min_isr=min_isr)
    acceptable = acceptable_leaders(image_with(active))
    change = change_partition(
        TOPIC, 0, partition, acceptable, rules, Change(begun_anew=empty, election=election)
    )
    after = partition if change is None else merge_partition(partition, change)
    assert set(after.replicas) == set(replicas)
    assert all(after.directory_of(each) == directory(each) for each in replicas)
    assert empty not in after.elr
    assert empty not in after.last_known_elr
    if empty in after.isr:
        assert election is Election.UNCLEAN
        assert after.leader == empty
        assert after.leader_recovery_state == RECOVERING
        assert not active - {empty}
    elif after.leader == -1:
        assert after.replicas[-1] == empty


def test_no_record_has_others_than_replicas_in_sync() -> None:
    """A decision puts a broker without a replica into the ISR.

    This is a bug, which ends the controller before the record is written.
    """
    image = image_with({0, 1, 2})
    partition = PartitionImage(0, 0, 0, (0, 1), (0, 1), (directory(0), directory(1)))
    with pytest.raises(AssertionError, match="without a replica"):
        change_partition(TOPIC, 0, partition, acceptable_leaders(image), change=Change(isr=(0, 2)))
    with pytest.raises(AssertionError, match="without a replica"):
        change_partition(TOPIC, 0, partition, acceptable_leaders(image), change=Change(replicas=(0,)))
    with pytest.raises(AssertionError, match="not among the replicas"):
        partition_records(image, TOPIC, 0, [([0, 1], [0, 2])])
