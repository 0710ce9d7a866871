"""The choice of a copy for a recovery, the reasons to refuse it, and the plan: over sets of stale and torn copies."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.image.metadata_image import NO_LEADER, MetadataImage
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.recovery.choice import REBUILT_END, Choice, Named, choose, key_text, rebuild
from odradek.metadata_quorum.recovery.copies import read_copy, whole_batches
from odradek.metadata_quorum.recovery.evidence import evidence, review
from odradek.metadata_quorum.recovery.found import BROKEN_OFF, CopyFiles, FoundDirectory, FoundNode
from odradek.metadata_quorum.recovery.plan import RecoveryPlan, make_plan
from odradek.metadata_quorum.recovery.recovery_files import (
    MalformedFile,
    decode_plan,
    decode_report,
    encode_plan,
    encode_report,
)
from odradek.operations.recovery.applying import may_vote
from tests.quorum.recovery.copies_world import (
    CLUSTER,
    METADATA,
    Written,
    beginning,
    copy_of,
    directory_of,
    filler,
    found,
    key_of,
    producer_ids,
    replica,
    topic,
    topic_id,
    voters_of,
    write,
)

VOTERS = voters_of(1, 2, 3)
LOST = (key_of(1), key_of(2))


def plan_of(choice: Choice, nodes: Sequence[FoundNode], absent: Sequence[int] = ()) -> RecoveryPlan:
    assert choice.refusals == ()
    assert choice.chosen is not None
    ids = iter(range(1, 1000))
    return make_plan(
        choice.chosen,
        choice.copies,
        nodes,
        absent=absent,
        topics=choice.topics,
        configs=choice.configs,
        new_uuid=lambda: b"new id %09d" % next(ids),
        timestamp_ms=1,
    )


def images_of(plan: RecoveryPlan) -> MetadataImage:
    return read_copy(CopyFiles(plan.end, plan.snapshot, b""), "plan", None, CLUSTER).image


@st.composite
def histories(draw: st.DrawFn) -> list[Written]:
    """Draw a log: topics, producer ids and no-op records in rising epochs."""
    log = beginning(VOTERS)
    epoch = 1
    for number in range(draw(st.integers(1, 8))):
        epoch += draw(st.integers(0, 3))
        kind = draw(st.sampled_from(("topic", "ids", "filler")))
        records = {
            "topic": topic(number, leader_epoch=draw(st.integers(0, 5))),
            "ids": (producer_ids(1000 * (number + 1)),),
            "filler": (filler(),),
        }[kind]
        log.append(write(log, epoch, *records))
    return log


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[Written], dict[int, tuple[OffsetAndEpoch, CopyFiles]]]:
    """Draw a history, and up to four nodes with parts of it.

    Some also have uncommitted records of their own at the end.
    """
    log = draw(histories())
    held: dict[int, tuple[OffsetAndEpoch, CopyFiles]] = {}
    for node_id in draw(st.lists(st.integers(3, 8), min_size=1, max_size=4, unique=True)):
        part = log[: draw(st.integers(2, len(log)))]
        if len(part) < len(log) and draw(st.booleans()):
            part.append(write(part, part[-1].end.epoch, filler(), filler(), filler()))
        snapshot_at = draw(st.integers(0, len(part)))
        files = copy_of(part, snapshot_at, VOTERS)
        torn = draw(st.integers(0, 20))
        tail = write(part, part[-1].end.epoch + 1, filler()).data[:torn]
        held[node_id] = part[-1].end, attrs.evolve(files, log=whole_batches([files.log + tail]))
    return log, held


@given(copies())
def test_the_greatest_copy_counts_and_no_number_is_given_twice(
    drawn: tuple[list[Written], dict[int, tuple[OffsetAndEpoch, CopyFiles]]],
) -> None:
    """The copy with the highest epoch, then the highest end, is chosen.

    The new log has higher numbers than all copies.
    """
    _, held = drawn
    nodes = [
        found(node_id, files, quorum_epoch=end.epoch + node_id, producer_id=5000 * node_id)
        for node_id, (end, files) in held.items()
    ]
    choice = choose(
        nodes,
        Named(
            lost=tuple(each for each in (*LOST, key_of(3)) if each.node_id not in held),
            absent=tuple(each for each in (1, 2, 3) if each not in held),
        ),
    )
    # Copies with tails of their own may differ from the history at the same offset and epoch, which is damage.
    damaged = [each for each in choice.refusals if "different records" in each]
    assert [each for each in choice.refusals if each not in damaged] == []
    assert choice.chosen is not None
    assert choice.chosen.rank == max((end.epoch, end.offset) for end, _ in held.values())
    if damaged:
        return
    plan = plan_of(choice, nodes, [each for each in (1, 2, 3) if each not in held])
    for end, _ in held.values():
        assert plan.end.offset >= end.offset + 1_000_000
        assert plan.end.epoch >= end.epoch + 1_000_000
    for node in nodes:
        assert plan.end.epoch >= node.quorum_epoch + 1_000_000
        assert images_of(plan).next_producer_id >= node.producer_id + 1_000_000_000
    for each in images_of(plan).topics.values():
        partition = each.partitions[0]
        assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ())
        assert partition.leader_epoch > choice.chosen.image.topics[each.name].partitions[0].leader_epoch


@given(histories(), st.sets(st.integers(1, 3)))
def test_a_recovery_is_refused_exactly_while_a_majority_is_left(log: list[Written], lost: set[int]) -> None:
    """If two or three of three voters are left, a recovery is refused. The refusal asks the operator to start them."""
    nodes = [
        found(each, None, is_blank=True) if each in lost else found(each, copy_of(log)) for each in (1, 2, 3)
    ]
    nodes.append(found(4, copy_of(log)))
    choice = choose(nodes, Named(lost=tuple(key_of(each) for each in sorted(lost))))
    assert bool(choice.refusals) == (len(lost) < 2)
    assert any("start them" in each for each in choice.refusals) == (len(lost) < 2)


def test_each_set_of_voters_that_may_hold_is_judged() -> None:
    """The last change of the voters may be uncommitted.

    If a majority of the set before it is left, it can elect, so the recovery is refused.
    """
    log = beginning(VOTERS)
    log.append(write(log, 2, voters_of(1, 2, 3, 4).to_record(), is_control=True))
    log.append(write(log, 2, voters_of(1, 2, 3, 4, 5).to_record(), is_control=True))
    left = [found(each, copy_of(log)) for each in (1, 2, 3)]
    named = Named(lost=(key_of(4), key_of(5)), gone=(4, 5))
    assert sum("start them" in each for each in choose(left, named).refusals) == 2
    two = [found(each, copy_of(log)) for each in (1, 2)]
    named = Named(lost=(key_of(3), key_of(4), key_of(5)), gone=(3, 4, 5))
    assert choose(two, named).refusals == ()


def test_a_voter_is_read_or_named_and_what_is_read_is_not_lost() -> None:
    """Each voter must be read or named by an option. The refusal names the voter in the form that the option takes."""
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    alone = [found(3, copy_of(log))]
    refusals = choose(alone, Named(absent=(1, 2))).refusals
    assert [each for each in refusals if "--lost 1:ZGlyZWN0b3J5IDAwMDAwMQ" in each]
    assert not [each for each in refusals if "start them" in each]
    assert [each for each in choose(alone, Named(lost=LOST)).refusals if "--absent 1" in each]
    refusals = choose(alone, Named(lost=(*LOST, key_of(3)), absent=(1, 2))).refusals
    assert [each for each in refusals if "is not lost" in each]
    refusals = choose(alone, Named(lost=(*LOST, ReplicaKey(2, bytes(16))), absent=(1, 2))).refusals
    assert [each for each in refusals if "2 is no voter of the copy" in each]


def test_copies_that_differ_in_one_epoch_are_damaged() -> None:
    """Two copies differ within one epoch, which cannot happen in a correct cluster.

    The refusal names the offset and how to continue.
    """
    log = beginning(VOTERS)
    one, other = [*log, write(log, 2, filler())], [*log, write(log, 2, producer_ids(7))]
    nodes = [found(3, copy_of(one)), found(4, copy_of(other))]
    offset = log[-1].end.offset
    refusals = choose(nodes, Named(lost=LOST, gone=(1, 2))).refusals
    (damage,) = (each for each in refusals if f"different records at offset {offset}" in each)
    assert (
        f"begin-anew CONFIG --has-no-vote --execute` with its properties file, then name it with --lost {key_text(key_of(3))}"
        in damage
    )
    left = [attrs.evolve(nodes[0], copy=None, copy_problem="has no metadata log"), nodes[1]]
    assert choose(left, Named(lost=(*LOST, key_of(3)), gone=(1, 2))).refusals == ()


def test_replicas_are_found_where_they_lie() -> None:
    """Replicas are found on disks though the copy of the metadata lacks them.

    The partition was reassigned later, its topic is newer, or it had a later leader epoch. The new log has them all.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1), *topic(2)))
    nodes = [
        found(1, None, replica(1, 1, leader_epoch=4), is_blank=True),
        found(2, None, is_blank=True),
        found(3, copy_of(log), replica(1, 3, leader_epoch=7), replica(9, 3)),
        found(4, copy_of(log), replica(1, 4, leader_epoch=7), replica(9, 4, end_offset=5)),
    ]
    choice = choose(nodes, Named(lost=LOST))
    image = images_of(plan_of(choice, nodes))
    partition = image.topics["t1"].partitions[0]
    assert partition.replicas == (1, 2, 3, 4)
    assert partition.last_known_elr == (1, 3, 4)
    assert partition.leader_epoch > 7
    assert image.topics["t9"].topic_id == topic_id(9)
    assert image.topics["t9"].partitions[0].replicas == (3, 4)
    assert image.topic_configs("t9") == {
        "cleanup.policy": "delete",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    assert image.topics["t2"].partitions[0].last_known_elr == ()
    texts = "\n".join(evidence(choice, nodes))
    for text in ("t9 (", "is on node 4", "leader epoch 7, but the copy has only 0"):
        assert text in texts
    assert dict(review(choice, nodes))["topics on no disk that was read"] == ["t2"]


@pytest.mark.parametrize("trouble", ["directory", "replica", "topic id"])
def test_a_partition_waits_for_a_replica_that_could_not_be_read(trouble: str) -> None:
    """A directory or a replica could not be read, and may have the longest log. Its partition waits for it."""
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3))))
    partly = found(2, None)
    if trouble == "directory":
        partly = attrs.evolve(partly, directories=(*partly.directories, FoundDirectory("/data", None)))
    elif trouble == "replica":
        partly = attrs.evolve(partly, unreadable=("/data/t1-0: Permission denied",), missing=(("t1", 0),))
    else:
        partly = attrs.evolve(partly, replicas=(attrs.evolve(replica(1, 2), topic_id=bytes(16)),))
    nodes = [found(1, None), partly, found(3, copy_of(log), replica(1, 3))]
    choice = choose(nodes, Named(lost=LOST))
    assert any("node 2" in each for each in evidence(choice, nodes))
    partition = images_of(plan_of(choice, nodes)).topics["t1"].partitions[0]
    assert set(partition.last_known_elr) == {2, 3}


def test_a_topic_that_was_made_anew_takes_the_place_of_the_one_in_the_copy() -> None:
    """A topic was deleted and created again after the copy.

    The topic that is found on disks counts; if both are found, an operator chooses.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    anew = attrs.evolve(replica(1, 3), topic_id=topic_id(77))
    nodes = [found(3, copy_of(log), anew)]
    named = Named(lost=LOST, gone=(1, 2))
    choice = choose(nodes, named)
    assert choice.topics == {"t1": topic_id(77)}
    both = [*nodes, found(4, copy_of(log), replica(1, 4))]
    assert [each for each in choose(both, named).refusals if "several topics with the name t1" in each]
    chosen = choose(both, attrs.evolve(named, topics={"t1": topic_id(1)}))
    assert images_of(plan_of(chosen, both)).topics["t1"].partitions[0].last_known_elr == (4,)


def test_lost_voters_get_new_directory_ids_and_their_partitions_follow() -> None:
    """Voters lost their logs, while their directories remain.

    They get new directory ids, and their partitions are assigned to these.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    nodes = [
        found(1, None, replica(1, 1)),
        found(2, None, is_blank=True),
        found(3, copy_of(log), replica(1, 3)),
    ]
    plan = plan_of(choose(nodes, Named(lost=LOST)), nodes)
    assert plan.voters is not None
    keys = {each.key.node_id: each.key.directory_id for each in plan.voters.voters}
    assert keys[3] == key_of(3).directory_id
    assert keys[1] != key_of(1).directory_id
    assert keys[2] != key_of(2).directory_id
    assert images_of(plan).topics["t1"].partitions[0].directories[0] == keys[1]


@given(copies())
def test_reports_and_plans_are_what_was_written(
    drawn: tuple[list[Written], dict[int, tuple[OffsetAndEpoch, CopyFiles]]],
) -> None:
    """Reports and plans are decoded to equal objects. A file that was cut or changed is refused."""
    _, held = drawn
    nodes = [found(node_id, files, replica(1, node_id)) for node_id, (_, files) in held.items()]
    data = encode_report(nodes)
    assert decode_report(data) == nodes
    log = beginning(VOTERS)
    one = [found(3, copy_of(log))]
    plan = plan_of(choose(one, Named(lost=LOST, gone=(1, 2))), one)
    assert decode_plan(encode_plan(plan)) == plan
    for wrong in (
        data[:-10],
        data.replace(b'"is_broker": true', b'"is_broker": false', 1),
        b"",
        encode_plan(plan),
    ):
        with pytest.raises(MalformedFile):
            decode_report(wrong)


def test_a_backup_is_one_more_copy() -> None:
    """A backup is one more copy.

    It is used if no node has a better one, or if the operator allows an older one. Its numbers exceed all copies.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1)))
    older, backup = [*log, write(log, 2, *topic(2))], ("b.tar.gz", copy_of(log))
    nodes = [found(3, copy_of(older))]
    named = Named(lost=LOST, gone=(1, 2))
    assert [each for each in choose(nodes, named, backup).refusals if "better copy than the backup" in each]
    choice = choose(nodes, attrs.evolve(named, backup_may_be_older=True), backup)
    plan = plan_of(choice, nodes)
    assert "t2" not in images_of(plan).topics
    assert plan.end.offset > older[-1].end.offset + 999_999
    newer = ("b.tar.gz", copy_of(older))
    choice = choose([found(3, copy_of(log))], named, newer)
    assert choice.chosen is not None
    assert (choice.chosen.node_id, choice.refusals) == (None, ())


def test_without_any_copy_the_disks_say_what_there_was() -> None:
    """Without any copy, topics are rebuilt from directories: names, ids, partitions and replicas.

    Topics keep all records, and no number is reused.
    """
    log = beginning(VOTERS)
    nodes = [
        found(1, None, replica(1, 1, leader_epoch=3), producer_id=7000),
        found(2, None, replica(1, 2, leader_epoch=4), attrs.evolve(replica(2, 2), partition=2)),
        found(3, None, is_blank=True),
    ]
    assert [each for each in choose(nodes, Named()).refusals if "metadata rebuild" in each]
    choice = rebuild(nodes, Named())
    plan = plan_of(choice, nodes)
    image = images_of(plan)
    assert {name: len(each.partitions) for name, each in image.topics.items()} == {"t1": 1, "t2": 3}
    assert image.topics["t1"].partitions[0].last_known_elr == (1, 2)
    assert image.topics["t1"].partitions[0].leader_epoch > 4
    assert image.topic_configs("t2")["retention.ms"] == "-1"
    assert image.next_producer_id == 1_000_007_000
    assert plan.end > REBUILT_END
    assert plan.voters is not None
    assert {each.key.node_id for each in plan.voters.voters} == {1, 2, 3}
    assert not {each.key for each in plan.voters.voters} & {key_of(1), key_of(2), key_of(3)}
    lines = evidence(choice, nodes)
    assert [each for each in lines if "t1 (" in each and "with 1 partition of 2 replicas" in each]
    assert [each for each in lines if "t2 (" in each and "with 3 partitions of 1 replica," in each]
    assert [
        each for each in lines if each.startswith("topic t2: 2 of its 3 partitions (0, 1) are on no disk")
    ]
    named = Named(configs={"t1": {"cleanup.policy": "compact", "min.insync.replicas": "2"}})
    choice = rebuild(nodes, named)
    assert any("t1 (" in each and "configuration of --topics" in each for each in evidence(choice, nodes))
    assert images_of(plan_of(choice, nodes)).topic_configs("t1") == {
        "cleanup.policy": "compact",
        "min.insync.replicas": "2",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    with_copy = [*nodes, found(4, copy_of(log))]
    assert [each for each in rebuild(with_copy, Named()).refusals if "node 4 has a copy" in each]
    damaged = [*nodes, found(4, copy_of(log[1:]))]
    assert [each for each in rebuild(damaged, Named()).refusals if "node 4 is damaged" in each]


def test_a_recovery_that_was_broken_off_is_not_begun_again_from_nothing() -> None:
    """A recovery was interrupted between its last two renames, so the node seems to have no log.

    Both commands refuse, and name `--from`.
    """
    nodes = [attrs.evolve(found(1, None), copy_problem=BROKEN_OFF), found(2, None), found(3, None)]
    for refusals in (choose(nodes, Named()).refusals, rebuild(nodes, Named()).refusals):
        assert [each for each in refusals if each.startswith("node 1 has a recovery") and "`--from`" in each]
    sound = [found(1, None, replica(1, 1)), found(2, None), found(3, None)]
    assert rebuild(sound, Named()).refusals == ()


def test_a_node_that_votes_by_its_own_log_may_not_lose_it_unasked() -> None:
    """`begin-anew` must not set aside the log of a voter.

    The copy says who votes, and without a readable copy any controller may.
    """
    log = beginning(VOTERS)
    assert may_vote(found(1, copy_of(log)))
    assert not may_vote(found(9, copy_of(log)))
    assert may_vote(found(9, None))
    assert not may_vote(attrs.evolve(found(9, None), is_controller=False))
    formatted_anew = (FoundDirectory(METADATA, directory_of(9)),)
    assert not may_vote(attrs.evolve(found(1, copy_of(log)), directories=formatted_anew))
