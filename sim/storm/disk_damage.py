"""Disks that rot, hang and die during a storm, within the model that `sim.storm.fault_atlas` and `sim.storm.storm` state. PORTED."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from random import Random

from sim.machine.members import Member
from sim.storm.fault_atlas import places_to_rot
from sim.storm.storm import Storm, Trouble

HANG_SECONDS = 30.0
"""Longer than a session, than a follower's allowed lag, and than clients wait for an answer."""
FLIPS_MAX = 3


async def hanging_disks(storm: Storm, random: Random) -> None:
    """Let no call to a machine's disks return for a while; sometimes the loop's writes, or the loop, are caught too."""
    world = storm.world
    while await storm.calm(random, 15.0):
        member = random.choice(storm.cluster.members)
        if not member.is_up():
            continue
        seconds = random.choice((2.0, HANG_SECONDS))
        catches_loop = random.random() < 0.3
        is_silent = not catches_loop and random.random() < 0.5
        what = " with its loop" if catches_loop else " in silence" if is_silent else ""
        storm.begin(f"hang {member.name} {seconds}{what}")
        world.hang(member.name, seconds)
        if is_silent:
            roots = member.config.log_dirs
            for root in random.choice((roots, roots[-1:])):
                world.silence(member.name, root, seconds)
        if catches_loop:
            world.pause(member.name)
        await storm.last(random, seconds)
        if catches_loop:
            world.resume(member.name)
        storm.end()


async def dying_disks(storm: Storm, random: Random) -> None:
    """Let a disk answer everything with EIO from now on, and put an empty one in its place some time later."""
    world = storm.world
    while await storm.calm(random, 15.0):
        member = random.choice(storm.cluster.members)
        paths = storm.paths_to_lose(member)
        if not paths or not await storm.may_damage(member) or not (paths := storm.lose(member)):
            continue
        storm.begin(f"dying {len(paths)} of {member.name}")
        member.disk_is_bad = True
        disk = world.machine(member.name).disk
        disk.dead_paths = dict.fromkeys(paths, errno.EIO)
        await storm.last(random)
        await member.kill("all")
        disk.dead_paths = {}
        storm.cluster.replace_disks(member, paths)
        member.disk_is_bad = False
        await storm.bring_back(member, paths)
        storm.end()


async def rotting_disks(storm: Storm, random: Random) -> None:
    """Flip bits of one machine's replicas, and often let another machine lose its own, so that a reader must meet
    them.
    """
    world, atlas = storm.world, storm.atlas
    while await storm.calm(random, 12.0):
        member = random.choice(storm.cluster.brokers)
        if not await storm.may_damage(member):
            continue
        storm.begin(f"rot {member.name} {_flip_some(storm, member, random)}")
        others = [each for each in storm.cluster.brokers if each is not member]
        emptied = random.choice(others)
        paths = storm.paths_to_lose(emptied)
        if paths and random.random() < 0.7 and emptied.is_up() and storm.may_lose_disks_too(emptied):
            storm.lose(emptied)
            storm.note_second_loss(emptied)
            storm.begin(f"wipe {len(paths)} of {emptied.name}")
            await emptied.kill("all")
            storm.cluster.replace_disks(emptied, paths)
            await storm.bring_back(emptied, paths)
            storm.end()
        await storm.last(random)
        world.trace.record(world.now, "storm", "log", f"undone {atlas.undo()}")
        storm.end()


def _flip_some(storm: Storm, member: Member, random: Random) -> int:
    """Damage batches of partitions that the load reads; how many."""
    disk = storm.world.machine(member.name).disk
    places: list[tuple[str, bytearray, int, int]] = []
    for topic, index in storm.partitions:
        for root in member.config.log_dirs:
            path = f"{root}/{topic}-{index}"
            for name, data in sorted(disk.contents(path).items()):
                if name.endswith(".log"):
                    places += [(f"{path}/{name}", data, *place) for place in places_to_rot(data)]
    chosen = random.sample(places, min(len(places), random.randint(1, FLIPS_MAX)))
    for path, data, start, size in chosen:
        storm.atlas.flip(member.name, path, data, start + random.randrange(size), 1 << random.randrange(8))
    return len(chosen)


DISK_TROUBLES: Mapping[str, Trouble] = {
    "hang": hanging_disks,
    "dying": dying_disks,
    "rot": rotting_disks,
}
"""Troubles by their word in `StormPlan.kinds`."""
