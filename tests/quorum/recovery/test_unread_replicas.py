"""Replicas that could not be read, on absent nodes or on missing disks."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.controller.unclean_recovery import AWAITED_BROKERS, UNREAD_BROKERS
from odradek.metadata_quorum.recovery.choice import Named, choose
from odradek.metadata_quorum.recovery.evidence import evidence
from odradek.metadata_quorum.recovery.found import CopyFiles, FoundDirectory
from odradek.wire.messages.metadata_records import RegisterControllerRecord
from tests.quorum.recovery.copies_world import (
    beginning,
    copy_of,
    found,
    key_of,
    replica,
    topic,
    voters_of,
    write,
)
from tests.quorum.recovery.test_choice import images_of, plan_of

VOTERS = voters_of(1, 2, 3)
LOST = (key_of(1), key_of(2))


def test_an_absent_node_may_hold_any_partition() -> None:
    """An absent node may have a replica of any partition, by a later reassignment.

    Each partition waits for it, and drops it when the others are in sync.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3)), *topic(2, (3, 4))))
    nodes = [found(1, None), found(2, None, replica(1, 2)), found(3, copy_of(log), replica(1, 3))]
    choice = choose(nodes, Named(lost=LOST, absent=(4,)))
    assert any(
        "node 4 is absent: every partition gets its leader" in each for each in evidence(choice, nodes)
    )
    image = images_of(plan_of(choice, nodes, [4]))
    unplaced, placed = (image.topics[name].partitions[0] for name in ("t1", "t2"))
    assert unplaced.replicas == (2, 3, 4)
    assert unplaced.removing_replicas == (4,)
    assert set(unplaced.last_known_elr) == {2, 3, 4}
    assert placed.replicas == (3, 4)
    assert placed.removing_replicas == ()
    assert image.broker_configs(None)[AWAITED_BROKERS] == "1,2,3,4"


def test_an_absent_node_that_is_only_a_controller_is_not_waited_for() -> None:
    """An absent node is only a controller, so it has no replicas. Partitions do not wait for it."""
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3)), RegisterControllerRecord(9, bytes(16), 1)))
    nodes = [found(1, None), found(2, None), found(3, copy_of(log), replica(1, 3))]
    image = images_of(plan_of(choose(nodes, Named(lost=LOST, absent=(9,))), nodes, [9]))
    assert image.topics["t1"].partitions[0].replicas == (2, 3)
    assert image.broker_configs(None)[AWAITED_BROKERS] == "1,2,3"


def test_a_disk_that_is_away_may_hold_any_partition() -> None:
    """A missing disk may hold a replica of any partition. An unreadable replica holds up only its own partition."""
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3)), *topic(2, (2, 3))))
    unreadable = attrs.evolve(found(1, None), unreadable=("/data/t1-0: I/O error",), missing=(("t1", 0),))
    unmounted = attrs.evolve(
        found(1, None), directories=(*found(1, None).directories, FoundDirectory("/data", None))
    )
    for node, waiting in ((unreadable, ["t1"]), (unmounted, ["t1", "t2"])):
        nodes = [node, found(2, None), found(3, copy_of(log), replica(1, 3), replica(2, 3))]
        image = images_of(plan_of(choose(nodes, Named(lost=LOST)), nodes))
        held = [name for name in ("t1", "t2") if 1 in image.topics[name].partitions[0].last_known_elr]
        assert held == waiting


def test_an_absent_node_brings_a_topic_that_the_recovered_metadata_lack() -> None:
    """The copy lacks a topic, which only an absent node has. When that node is back, another recovery restores the
    topic, although a majority of the voters is left.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3))))
    first = [found(1, None), found(2, None, replica(1, 2)), found(3, copy_of(log), replica(1, 3))]
    plan = plan_of(choose(first, Named(lost=LOST, absent=(4,))), first, [4])
    assert images_of(plan).broker_configs(None)[UNREAD_BROKERS] == "4"
    assert plan.voters is not None
    new = CopyFiles(plan.end, plan.snapshot, b"")
    keys = {each.key.node_id: each.key.directory_id for each in plan.voters.voters}
    nodes = [
        attrs.evolve(
            each,
            copy=new,
            directories=tuple(attrs.evolve(at, directory_id=keys[each.node_id]) for at in each.directories),
        )
        for each in first
    ]
    known, unknown = (found(4, None, replica(1, 4)), found(4, None, replica(1, 4), replica(7, 4)))
    assert any("start them instead" in each for each in choose([*nodes, known], Named()).refusals)
    choice = choose([*nodes, unknown], Named())
    assert choice.refusals == ()
    image = images_of(plan_of(choice, [*nodes, unknown]))
    assert image.topics["t7"].partitions[0].last_known_elr == (4,)
    assert UNREAD_BROKERS not in image.broker_configs(None)
    assert image.broker_configs(None)[AWAITED_BROKERS] == "1,2,3,4"
    stranger = [*nodes, attrs.evolve(unknown, node_id=5)]
    assert choose(stranger, Named(absent=(4,))).refusals == (), "the copy does not know node 5 either"


def test_disks_that_were_read_only_in_part_are_unread() -> None:
    """A node has an unmounted disk, or a replica that could not be read. Its disks may have unknown topics. A replica
    that lost its topic id has been read, too.
    """
    log = beginning(VOTERS)
    log.append(write(log, 1, *topic(1, (2, 3))))
    whole = found(1, None)
    gaps = [
        attrs.evolve(whole, missing=(("t1", 0),)),
        attrs.evolve(whole, directories=(*whole.directories, FoundDirectory("/data", None))),
        attrs.evolve(whole, directories=(*whole.directories, FoundDirectory("/data", None, "I/O error"))),
    ]
    nameless = attrs.evolve(whole, replicas=(attrs.evolve(replica(1, 1), topic_id=bytes(16)),))
    unread_by_node = [(whole, None), (nameless, None), (gaps[0], "1:1"), (gaps[1], "1:2"), (gaps[2], "1:2")]
    for node, unread in unread_by_node:
        nodes = [node, found(2, None), found(3, copy_of(log), replica(1, 3))]
        image = images_of(plan_of(choose(nodes, Named(lost=LOST)), nodes))
        assert image.broker_configs(None).get(UNREAD_BROKERS) == unread
