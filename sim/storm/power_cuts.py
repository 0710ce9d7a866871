"""Power losses of several machines at once, and the loss of a partition's last in-sync replica. PORTED.

`blackouts` cuts the power of some machines, even if the cluster is not whole:

| machines | the fault model permits it if |
| --- | --- |
| some brokers or controllers | each partition has a keeper that keeps its power |
| all but one; the last stops cleanly | the last machine's broker is in the ISR of each partition, and is not a majority of the voters |
| all | brokers sync everything before they acknowledge it (`log.flush.interval.messages=1`) |

A keeper is a broker in the ISR or ELR (KIP-966). Its registered process lives, and keeps its page cache. Afterwards
it stays up until the cluster is whole, as after any power loss (`sim.storm.storm`). If both ISR and ELR of a
partition are empty, no replica may lose its page cache. If brokers sync everything, no keeper is needed.

Otherwise the ISR must be certain (`is_certain`). A keeper that was silent for a moment might be removed from the ISR
while dead members remain in it (docs/internals/replication.md). So all other trouble is over when the power fails.
All nodes have the same release, all ISR proposals are decided, and all decisions are committed. The cluster need not
be whole.

`eligible` pauses followers of a partition until one of them is in the ELR. Then the last in-sync replica is killed
or loses power, and the followers resume: one from the ELR must become leader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage
from odradek.metadata_quorum.raft.voters import Voter
from sim.machine.disk import Keep
from sim.machine.members import Member
from sim.storm.storm import LONG_SECONDS_MAX, Storm, Trouble

__all__ = ["POWER_CUTS"]

HUNT_SECONDS_MAX = 20.0
"""How many seconds to wait for an eligible replica. That is longer than the allowed lag of followers, and longer than
a broker's session.
"""
LOOK_SECONDS = 0.1


def newest_image(storm: Storm) -> MetadataImage | None:
    """Return the newest committed image of all nodes, including stopped nodes; None while no controller is active."""
    services = [
        (member, member.node.metadata)
        for member in storm.cluster.members
        if member.node is not None
        and member.node.metadata is not None
        and member.node.metadata.quorum.is_open
    ]
    epochs = [metadata.quorum.core.epoch for _, metadata in services]
    active = [
        metadata.quorum.core.epoch for member, metadata in services if member.is_up() and metadata.is_active
    ]
    if not active or max(active) < max(epochs):
        return None
    return max((metadata.committed_image for _, metadata in services), key=lambda image: image.offset)


def is_certain(storm: Storm, under_way: int = 0) -> bool:
    """True if no ISR change is pending, and at most `under_way` troubles are active."""
    if storm.cluster.shape.syncs_all:
        return True
    if storm.under_way > under_way or storm.cluster.shape.older:
        return False
    for member in storm.cluster.members:
        node = member.node
        if node is None:
            continue
        if node.metadata is not None and node.metadata.quorum.is_open and member.is_up():
            quorum = node.metadata.quorum
            if quorum.core.log.end_offset > quorum.decisions.high_watermark:
                return False
        if node.broker is not None and any(
            partition.is_leader and partition.isr_state.is_pending
            for partition in node.broker.hosted.partitions()
        ):
            return False
    return True


def _partitions(image: MetadataImage) -> Iterator[PartitionImage]:
    for _, topic in sorted(image.topics.items()):
        for _, partition in sorted(topic.partitions.items()):
            yield partition


def is_keeper(member: Member, image: MetadataImage) -> bool:
    """True if this broker's present process is registered and serves, and no other trouble is about to end the
    process.
    """
    broker = None if member.node is None else member.node.broker
    known = image.brokers.get(member.config.node_id)
    return (
        broker is not None
        and known is not None
        and known.epoch == broker.replication.broker_epoch
        and member.serves()
        and not member.is_stopping
        and not member.disk_is_bad
    )


def keepers(
    storm: Storm, image: MetadataImage, victims: Sequence[Member]
) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Return for each partition (replicas that lose power, replicas that keep all their data), as machine names.

    Both sets have only members of the ISR and ELR. If ISR and ELR are empty, the first set has all replicas that lose
    power, and the second set is empty.
    """
    names = {member.config.node_id: member.name for member in storm.cluster.brokers}
    gone = {member.name for member in victims}
    sound = (
        {member.name for member in storm.cluster.brokers if is_keeper(member, image)} - gone - storm.doomed
    )
    found = []
    for partition in _partitions(image):
        may_lead = (*partition.isr, *partition.elr)
        leads = {names[each] for each in may_lead or partition.replicas if each in names}
        found.append((frozenset(leads & gone), frozenset(leads & sound if may_lead else ())))
    return found


async def _cut_power(storm: Storm, victims: Sequence[Member], keep: Keep) -> None:
    """Cut the power of these machines at once. A machine without a running process loses its page cache, too."""
    world = storm.world
    ended = []
    for member in victims:
        if member.is_up():
            running = member.running
            assert running is not None
            if running.env.alive:
                world.crash(member.name, keep)
            ended.append(running.ended)
        else:
            world.machine(member.name).disk.crash(keep)
    for each in ended:
        await each.wait()


async def _restart(storm: Storm, victims: Sequence[Member], random: Random) -> None:
    """Start the machines again, one after another."""
    for member in random.sample(victims, len(victims)):
        await storm.world.sleep(random.uniform(0.0, random.choice((0.01, 1.0, 5.0))))
        if not member.is_up():
            member.launch()


def _some(storm: Storm, image: MetadataImage, random: Random) -> list[Member]:
    """Draw how many machines lose power, and choose as many as the fault model permits."""
    members = storm.cluster.members
    wanted = random.randint(1, len(members) - 1)
    victims: list[Member] = []
    for member in random.sample(members, len(members)):
        more = [*victims, member]
        if len(more) > wanted:
            break
        if storm.cluster.shape.syncs_all or all(
            left or not gone for gone, left in keepers(storm, image, more)
        ):
            victims = more
    return victims


def _note(storm: Storm, image: MetadataImage, victims: Sequence[Member]) -> None:
    """Record the power losses in the storm, so that it lets keepers stay up until the cluster is whole."""
    brokers = [member for member in victims if member in storm.cluster.brokers]
    if brokers and not storm.cluster.shape.syncs_all:
        sets = frozenset(gone | left for gone, left in keepers(storm, image, victims) if gone)
        storm.note_losses(brokers, sets)


async def blackouts(storm: Storm, random: Random) -> None:
    """Cut the power of some machines, of all machines, or of all but one, which is asked to stop cleanly."""
    while await storm.calm(random, 15.0):
        how = random.choice(("some", "some", "all but one", "all"))
        if not await storm.is_settled():
            continue
        image = newest_image(storm)
        if image is None or not is_certain(storm):
            continue
        if how == "some":
            await _some_fail(storm, image, random)
        elif how == "all but one":
            await _all_but_one_fail(storm, image, random)
        elif storm.cluster.shape.syncs_all:
            storm.begin("blackout of all")
            await _cut_power(storm, storm.cluster.members, random.choice(("synced", "random")))
            await _restart(storm, storm.cluster.members, random)
            storm.end()


async def _some_fail(storm: Storm, image: MetadataImage, random: Random) -> None:
    victims = _some(storm, image, random)
    if not victims:
        return
    _note(storm, image, victims)
    storm.begin(f"blackout of {', '.join(member.name for member in victims)}")
    await _cut_power(storm, victims, random.choice(("synced", "random")))
    await storm.last(random)
    await _restart(storm, victims, random)
    storm.end()


async def _all_but_one_fail(storm: Storm, image: MetadataImage, random: Random) -> None:
    kept = random.choice(storm.cluster.brokers)
    victims = [member for member in storm.cluster.members if member is not kept]
    voters = [each.key.node_id for each in _voters(kept)]
    node_id = kept.config.node_id
    holds_all = all(node_id in partition.isr for partition in _partitions(image))
    may = storm.cluster.shape.syncs_all or (holds_all and kept.name not in storm.doomed)
    if not may or not is_keeper(kept, image) or not voters or voters == [node_id]:
        return
    _note(storm, image, victims)
    storm.begin(f"blackout of all but {kept.name}")
    running = kept.running
    assert running is not None
    await _cut_power(storm, victims, random.choice(("synced", "random")))
    if kept.serves():
        kept.ask_to_stop()
    await storm.world.wait(running.ended, random.uniform(0.0, LONG_SECONDS_MAX))
    await _restart(storm, storm.cluster.members, random)
    storm.end()


def _voters(member: Member) -> Sequence[Voter]:
    metadata = None if member.node is None else member.node.metadata
    return () if metadata is None or not metadata.quorum.is_open else metadata.quorum.core.voters.voters


async def eligible_leaders(storm: Storm, random: Random) -> None:
    """Pause followers until one of them is in the ELR. Then end the process of the last in-sync replica, and let the
    followers resume.
    """
    while await storm.calm(random, 12.0):
        image = newest_image(storm)
        if image is None:
            continue
        candidates = [
            partition for partition in _partitions(image) if partition.leader >= 0 and len(partition.isr) > 1
        ]
        if candidates:
            await _leave_an_eligible_one(storm, random.choice(candidates), random)


async def _leave_an_eligible_one(storm: Storm, partition: PartitionImage, random: Random) -> None:
    world = storm.world
    by_id = {member.config.node_id: member for member in storm.cluster.brokers}
    last = by_id[partition.leader]
    frozen = [by_id[each] for each in partition.isr if each != partition.leader and by_id[each].is_up()]
    if not frozen or not last.is_up():
        return
    storm.begin(f"eligible {', '.join(member.name for member in frozen)}")
    runs = [member.running for member in frozen]
    for member in frozen:
        world.pause(member.name)
    deadline = world.now + HUNT_SECONDS_MAX
    ids = {member.config.node_id for member in frozen}
    while world.now < deadline and storm.seconds_left and not _has_eligible(storm, last, ids):
        await world.sleep(LOOK_SECONDS)
    if _has_eligible(storm, last, ids) and last.is_up():
        await _take(storm, last, random)
    await world.sleep(random.uniform(0.0, random.choice((0.0, 1.0, 5.0))))
    for member, running in zip(frozen, runs, strict=True):
        if member.running is running and member.is_up():
            world.resume(member.name)
    await storm.last(random)
    if not last.is_up():
        last.launch()
    storm.end()


def _has_eligible(storm: Storm, last: Member, ids: set[int]) -> bool:
    """True if a partition has only this broker in its ISR, and one of these `ids` in its ELR."""
    image = newest_image(storm)
    return image is not None and any(
        partition.isr == (last.config.node_id,) and not ids.isdisjoint(partition.elr)
        for partition in _partitions(image)
    )


async def _take(storm: Storm, last: Member, random: Random) -> None:
    """Kill the last in-sync replica, or cut its power, as the fault model permits."""
    image = newest_image(storm)
    wants_power = storm.plan.power and random.random() < 0.5
    is_settled = wants_power and await storm.is_settled()
    if is_settled and image is not None and last.is_up() and is_certain(storm, 1):
        sets = keepers(storm, image, [last])
        if storm.cluster.shape.syncs_all or all(left or not gone for gone, left in sets):
            _note(storm, image, [last])
            storm.begin(f"power of the last in sync {last.name}")
            await _cut_power(storm, [last], random.choice(("synced", "random")))
            storm.end()
            return
    if storm.may_die(last):
        storm.begin(f"death of the last in sync {last.name}")
        storm.note_death(last)
        await last.kill("all")
        storm.end()


POWER_CUTS: Mapping[str, Trouble] = {"blackouts": blackouts, "eligible": eligible_leaders}
"""Troubles by their names in `StormPlan.kinds`."""
