"""Replicas that could not be read, on absent nodes or on missing disks."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.controller.unclean_recovery import AWAITED_BROKERS
from odradek.metadata_quorum.recovery.choice import Named, choose
from odradek.metadata_quorum.recovery.evidence import evidence
from odradek.metadata_quorum.recovery.found import FoundDirectory
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
