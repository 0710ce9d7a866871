"""Power losses of several machines stay within the fault model: each partition keeps a replica that may lead."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage
from odradek.node.node import Node
from sim.load.operators import Operator
from sim.machine.cluster_members import Cluster, Shape
from sim.machine.members import Member
from sim.machine.world import World
from sim.options import RunOptions
from sim.storm.power_cuts import _cut_power, _note, _some, is_keeper, keepers
from sim.storm.registry import ALL_TROUBLES
from sim.storm.storm import Storm
from sim.storm.storm_plan import StormPlan

EPOCHS = {1: 11, 2: 12, 3: 13}


def _image(*partitions: PartitionImage) -> MetadataImage:
    """Make an image of one topic, with each broker registered by its epoch."""
    topics = {"t": SimpleNamespace(partitions=dict(enumerate(partitions)))}
    brokers = {broker_id: SimpleNamespace(epoch=epoch) for broker_id, epoch in EPOCHS.items()}
    return cast("MetadataImage", SimpleNamespace(topics=topics, brokers=brokers))


def _in_sync(*isr: int, elr: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(isr[0] if isr else -1, 1, 1, (1, 2, 3), isr, elr=elr)


def _storm(shape: Shape | None = None) -> Storm:
    """Make a storm over three brokers whose processes are the registered ones."""
    cluster = Cluster(World(1), Shape(3, 3) if shape is None else shape)
    for member in cluster.brokers:
        replication = SimpleNamespace(broker_epoch=EPOCHS[member.config.node_id])
        member.node = cast("Node", SimpleNamespace(broker=SimpleNamespace(replication=replication)))
    operator = Operator(cluster, [], 3)
    return Storm(cluster, StormPlan(60.0, ("blackouts",)), (), operator, ALL_TROUBLES)


@pytest.fixture(autouse=True)
def serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all processes count as serving."""
    monkeypatch.setattr(Member, "serves", lambda self: True)


def test_a_keeper_is_the_registered_process_and_nothing_is_about_to_end_it() -> None:
    """A broker counts as a keeper of data only if its disk is sound, its process is registered, and no planned fault
    will stop it."""
    storm = _storm()
    one, two, three = storm.cluster.brokers
    image = _image(_in_sync(1, 2, 3))
    assert is_keeper(one, image)
    one.disk_is_bad = True
    assert not is_keeper(one, image)
    cast("Any", two.node).broker.replication.broker_epoch = 99
    assert not is_keeper(two, image)
    storm.doomed.add(three.name)
    assert keepers(storm, image, []) == [(frozenset(), frozenset())]


def test_each_partition_of_a_victim_keeps_a_replica_that_may_lead() -> None:
    """Each partition keeps a replica that may lead, from its ISR or an eligible one. The broker of this replica stays
    up until the cluster is whole."""
    for partitions in ((_in_sync(1, 2, 3),), (_in_sync(1), _in_sync(2)), (_in_sync(1, elr=(2,)),)):
        seen = set()
        for seed in range(40):
            storm = _storm()
            image = _image(*partitions)
            victims = _some(storm, image, Random(seed))
            gone = {member.config.node_id for member in victims}
            for partition in partitions:
                may_lead = {*partition.isr, *partition.elr}
                assert not gone & may_lead or may_lead - gone
            _note(storm, image, victims)
            left = [member for member in storm.cluster.brokers if member not in victims]
            for partition in partitions:
                may_lead = {*partition.isr, *partition.elr}
                last = [member for member in left if member.config.node_id in may_lead]
                if gone & may_lead and len(last) == 1:
                    assert not storm.may_die(last[0])
            seen.add(len(gone & set(EPOCHS)))
        assert max(seen) == (2 if len(partitions) == 1 and len(partitions[0].isr) == 3 else max(seen))
        assert len(seen) > 1


def test_all_may_lose_power_where_all_is_synced() -> None:
    """If all writes are synced, all brokers may lose power at once, since page caches do not matter."""
    storm = _storm(Shape(3, 3).synced())
    assert storm.cluster.shape.syncs_all
    sizes = {len(_some(storm, _image(_in_sync(1)), Random(seed))) for seed in range(40)}
    assert max(sizes) == len(storm.cluster.members) - 1
    assert not storm.cluster.shape.unsynced().syncs_all


def test_a_dead_process_loses_its_page_cache_with_its_machine() -> None:
    """A killed process leaves its page cache with the kernel until the machine loses power."""
    storm = _storm()
    world, (member, *_) = storm.world, storm.cluster.brokers

    async def main() -> None:
        directory = world.node_env(member.name).open_dir("/data", create=True)
        directory.open("kept", create=True).append(b"synced by nobody")
        world.crash(member.name, "all")
        assert world.machine(member.name).disk.peek("/data")["kept"]
        await _cut_power(storm, [member], "synced")
        assert "kept" not in world.machine(member.name).disk.peek("/data")

    world.run(main)


def test_runs_that_sync_everything_have_nobody_who_changes_that() -> None:
    """Runs that sync everything have no operator or workload that changes `flush.messages`."""
    drawn = [RunOptions.draw(seed) for seed in range(400)]
    synced = [each for each in drawn if each.shape.syncs_all]
    assert 0.05 < len(synced) / len(drawn) < 0.2
    assert all("settings" not in each.duties and "pipeline" not in each.workloads for each in synced)
    for kind in ("blackouts", "eligible"):
        share = sum(kind in each.storm.kinds for each in drawn) / len(drawn)
        assert 0.05 < share < 0.25
    assert all(each.storm.power for each in drawn if {"blackouts", "eligible"}.intersection(each.storm.kinds))
    assert any(
        name == "shape synced" and not each.shape.syncs_all
        for name, each in attrs.evolve(synced[0], profile="default").simpler()
    )
