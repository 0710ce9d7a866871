"""Disk faults during a storm: bit rot, hangs, dead disks and damaged small files, within the fault model. PORTED.

`sim.storm.fault_atlas` and `sim.storm.storm` define the model. Small files are damaged while their broker is down, as
by torn, lost or misdirected writes. Several files may be damaged at a time. A broker survives this damage, since its
own logs or other replicas have the same facts:

* checkpoints of recovery points, high watermarks and the cleaner: cut anywhere, zeroed, or replaced by random
  bytes;
* leader epochs: zeroed, or replaced by random bytes;
* producer snapshots, which have a checksum: cut, zeroed, replaced by random bytes, or with a flipped bit;
* indexes: cut within an entry.

Wrong numbers in checkpoints and indexes are left out, since Kafka's formats have no checksum for them. Other files
stay intact, since damage to them needs an operator. With a damaged `partition.metadata` the log is not served. With a
damaged `quorum-state`, metadata log or metadata snapshot the node stops with a reason. With a damaged log-start
checkpoint, deleted records reappear.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from random import Random

from odradek.data_plane.log.directory.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    RECOVERY_POINT_FILE,
)
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE
from odradek.data_plane.log.segments.file_names import INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX
from sim.machine.members import Member
from sim.storm.fault_atlas import places_to_rot
from sim.storm.storm import Storm, Trouble

HANG_SECONDS = 30.0
"""The longer of the two durations of hangs, in seconds. It exceeds a session, the allowed lag of a follower, and the
time for which clients wait for an answer.
"""
FLIPS_MAX = 3
SPOILED_MAX = 4


async def hanging_disks(storm: Storm, random: Random) -> None:
    """Let a machine's disks answer no call of a worker for a while. Sometimes the disks do not answer the event loop
    either, or the loop is paused, too.
    """
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


DEATHS: Sequence[tuple[int, frozenset[str]]] = (
    (errno.EIO, frozenset()),
    (errno.EIO, frozenset(("stat", "list"))),
    (errno.ENODEV, frozenset(("read", "stat", "list"))),
    (errno.EROFS, frozenset(("open", "read", "stat", "list"))),
)
"""Ways in which a disk dies: the error number, and the operations that it still answers. A dead XFS answers no
operation. A dead ext4 answers from its memory. A file system that has become read-only can still be read.
"""
SPARED_BY_CHANCE = ("open", "create", "read", "list", "stat", "rename", "remove", "lock")
"""Operations that may succeed on a dead disk. Writes and syncs always fail, so a replica on a dead disk acknowledges
nothing.
"""
STARTS_BESIDE_A_DEAD_DISK = 0.5


def way_to_die(random: Random) -> tuple[int, frozenset[str]]:
    """Draw the error number of a dead disk, and the operations that it still answers."""
    if random.random() < 0.3:
        return errno.EIO, frozenset(word for word in SPARED_BY_CHANCE if random.random() < 0.5)
    return random.choice(DEATHS)


async def dying_disks(storm: Storm, random: Random) -> None:
    """Let disks of a node fail with errors, and replace them by empty disks some time later.

    A node that has other disks may be stopped or killed meanwhile, and started again with the dead disk.
    """
    world = storm.world
    deaths = Random(f"{world.seed}/ways to die")
    while await storm.calm(random, 15.0):
        member = random.choice(storm.cluster.members)
        paths = storm.paths_to_lose(member)
        if not paths or not await storm.may_damage(member) or not (paths := storm.lose(member)):
            continue
        storm.begin(f"dying {len(paths)} of {member.name}")
        member.disk_is_bad = True
        disk = world.machine(member.name).disk
        number, disk.spared = way_to_die(deaths)
        disk.dead_paths = dict.fromkeys(paths, number)
        await storm.last(random)
        if paths[0] != member.config.log_dirs[0] and deaths.random() < STARTS_BESIDE_A_DEAD_DISK:
            await _start_again(storm, member, deaths)
        await member.kill("all")
        disk.dead_paths, disk.spared = {}, frozenset()
        storm.cluster.replace_disks(member, paths)
        member.disk_is_bad = False
        await storm.bring_back(member, paths)
        storm.end()


async def _start_again(storm: Storm, member: Member, random: Random) -> None:
    """Stop or kill a node that has a dead disk, start it again, and wait a while."""
    if random.random() < 0.5:
        await storm.stop(member)
    else:
        await member.kill("all")
    if not member.is_up():
        member.launch()
    await storm.last(random)


async def rotting_disks(storm: Storm, random: Random) -> None:
    """Flip bits in one machine's replicas. Often replace another machine's disks, so that its broker must read the
    damaged replicas.
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


async def spoiled_files(storm: Storm, random: Random) -> None:
    """Kill a broker, and damage some of its small files before it is started again."""
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.brokers)
        if not member.is_up() or not storm.may_die(member):
            continue
        storm.note_death(member)
        await member.kill("all")
        storm.begin(f"spoil {' '.join(_spoil_some(storm, member, random))} of {member.name}")
        await storm.last(random)
        if not member.is_up():
            member.launch()
        storm.end()


def _spoil_some(storm: Storm, member: Member, random: Random) -> list[str]:
    """Damage some small files of one log directory. Return their names."""
    disk = storm.world.machine(member.name).disk
    root = random.choice(member.config.log_dirs)
    paths = [(root, name) for name in sorted(disk.contents(root))]
    for topic, index in storm.partitions:
        paths += [
            (f"{root}/{topic}-{index}", name) for name in sorted(disk.contents(f"{root}/{topic}-{index}"))
        ]
    known = [(path, name, ways) for path, name in paths if (ways := _ways_to_spoil(name))]
    names = []
    for path, name, ways in random.sample(known, min(len(known), random.randint(1, SPOILED_MAX))):
        data = bytes(disk.contents(path)[name])
        if data:
            names.append(name)
            disk.rewrite(f"{path}/{name}", random.choice(ways)(data, random))
    return names


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def _cut_within_an_entry(data: bytes, random: Random) -> bytes:
    """Cut the file at an odd position, within an entry: entries of all indexes have an even size."""
    return data[: 2 * random.randrange(len(data) // 2 or 1) + 1]


def _zeroed(data: bytes, random: Random) -> bytes:
    return bytes(len(data))


def _foreign(data: bytes, random: Random) -> bytes:
    return random.randbytes(random.randint(1, 512))


def _flipped(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _ways_to_spoil(name: str) -> Sequence[Callable[[bytes, Random], bytes]]:
    """List the functions that damage a file of this name in such a way that its broker survives."""
    if name in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE):
        return (_cut, _zeroed, _foreign)
    if name == EPOCHS_FILE:
        return (_zeroed, _foreign)
    if name.endswith(SNAPSHOT_SUFFIX):
        return (_cut, _zeroed, _foreign, _flipped)
    if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
        return (_cut_within_an_entry,)
    return ()


def _flip_some(storm: Storm, member: Member, random: Random) -> int:
    """Flip bits in batches of partitions that the workload reads. Return the number of flips."""
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
"""Troubles by their names in `StormPlan.kinds`."""
FILE_TROUBLES: Mapping[str, Trouble] = {"spoil": spoiled_files}
"""Troubles that damage small files, by their names. The seed draws them after all other troubles."""
