"""Faults outside the fault model: disks that lose or damage synced bytes, and a voter that loses its vote. PORTED.

The profile `broken` has one of these faults in each run. One guarantee remains: damage is never silent. Either the
damage has no effect, since the other replicas have everything. Or a node has reported the damage: the node has
stopped with a reason, or has logged an error. `sim.scenarios.cluster_scenario` checks this.

* `lost_writes`: a power loss after which the end of a log is missing, although it was synced.
* `misdirected_writes`: the last batch of a log was written over an earlier batch, and its own place has zeros.
* `wiped_voter`: a voter returns with an empty disk and votes again, without an operator's commands (KIP-853).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

from odradek.metadata_quorum.replica.storage_format import METADATA_LOG_DIRECTORY
from odradek.wire.batches.batch_header import iter_batches
from sim.machine.members import Member
from sim.storm.storm import Storm, Trouble

CALM_SECONDS_MAX = 6.0

__all__ = ["BREAKAGES", "lose_end", "misdirect"]


async def _break(storm: Storm, random: Random, *, how: str) -> None:
    """Cause one fault outside the fault model: kill a node, and damage a log or replace a voter's disk. `how` is the
    kind of fault.
    """
    if not await storm.calm(random, CALM_SECONDS_MAX):
        return
    for member in storm.cluster.members:
        member.may_be_damaged = True
    is_wiped = how == "wiped_voter"
    member = random.choice(storm.cluster.controllers if is_wiped else storm.cluster.members)
    storm.begin(f"{how} of {member.name}")
    await member.kill("synced")
    if is_wiped:
        storm.cluster.replace_disks(member, member.config.log_dirs)
    else:
        _damage_a_log(storm, member, random, how)
    await storm.last(random, random.uniform(0.0, 3.0))
    member.launch()
    storm.end()


def _damage_a_log(storm: Storm, member: Member, random: Random, how: str) -> None:
    """Damage the node's metadata log, or, if it is a broker, perhaps a partition's log."""
    disk = storm.world.machine(member.name).disk
    paths = [f"{member.config.metadata_log_dir}/{METADATA_LOG_DIRECTORY}"]
    if member in storm.cluster.brokers and random.random() < 0.5:
        paths = [
            f"{root}/{topic}-{index}" for root in member.config.log_dirs for topic, index in storm.partitions
        ]
    files = [
        (path, name, data)
        for path in paths
        for name, data in sorted(disk.contents(path).items())
        if name.endswith(".log") and data
    ]
    if files:
        path, name, data = random.choice(files)
        damage = lose_end if how == "lost_writes" else misdirect
        disk.rewrite(f"{path}/{name}", damage(data, random))


def lose_end(data: bytearray, random: Random) -> bytes:
    """Return the log without its last batches. One to three batches are removed."""
    places = [position for position, _ in iter_batches(data)]
    return bytes(data[: random.choice(places[-3:])]) if places else b""


def misdirect(data: bytearray, random: Random) -> bytes:
    """Return the log with its last batch written over an earlier batch."""
    places = [(position, header.size) for position, header in iter_batches(data)]
    if not places:
        return bytes(data)
    position, size = places[-1]
    damaged = bytearray(data)
    damaged[position : position + size] = bytes(size)
    if len(places) > 1:  # If there is only one batch, assume that the write went into another file.
        target = random.choice(places[:-1])[0]
        damaged[target : target + size] = data[position : position + size]
    return bytes(damaged[: len(data)])


BREAKAGES: Mapping[str, Trouble] = {
    how: partial(_break, how=how) for how in ("lost_writes", "misdirected_writes", "wiped_voter")
}
"""Troubles by their names in `StormPlan.kinds`."""
