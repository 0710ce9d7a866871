"""More kinds of trouble for a storm: links that are narrow, closed or forgetful, slow machines, drifting clocks.

PORTED.

Disks keep their contents, so each kind may hit any machine at any time. The kinds in a storm are drawn from the seed
(`sim.options`). Each is a task of its own, as in `sim.storm.storm`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from sim.storm.storm import Storm, Trouble

NARROW_BYTES_PER_SECOND = (20_000.0, 200_000.0)
SLOW_MACHINE_SECONDS = (0.02, 0.2)
"""The most by which each segment to and from a slow machine is late."""
SLOW_WORK_FACTORS = (5.0, 50.0)
DRIFT_MAX = 0.05
"""The largest drift of a wall clock: an hour a day is beyond any machine's, and below an operator's hand."""
RATE_OFF_MAX = 0.001
DAY_MS = 86_400_000
JUMPS_MS = (8 * DAY_MS, 8 * DAY_MS, -DAY_MS)
"""Further than Kafka's retention of a week, and a day back."""
JUMP_SHARE = 0.6
"""How long a jump lasts at most, as a share of the interval after which a node believes it."""
JUMP_SECONDS_MAX = 60.0
INTERVAL_KEY = "log.retention.check.interval.ms"


def _machines(storm: Storm) -> list[str]:
    return [member.name for member in storm.cluster.members]


async def narrow_links(storm: Storm, random: Random) -> None:
    """Let one link carry few bytes per second for a while, in both directions or in one."""
    world = storm.world
    while await storm.calm(random, 10.0):
        one, other = random.sample([*_machines(storm), *storm.clients], 2)
        ends = [(one, other), (other, one)][: random.choice((1, 2))]
        rate = random.choice(NARROW_BYTES_PER_SECOND)
        storm.begin(f"narrow {one} {other} {len(ends)}")
        for source, target in ends:
            world.fabric.narrow(source, target, rate)
        await storm.last(random)
        for source, target in ends:
            world.fabric.narrow(source, target, math.inf)
        storm.end()


async def closed_links(storm: Storm, random: Random) -> None:
    """Make new connections to a machine fail, from all others or from one: refused, or never answered."""
    world = storm.world
    while await storm.calm(random, 10.0):
        everybody = [*_machines(storm), *storm.clients]
        target = random.choice(_machines(storm))
        others = [name for name in everybody if name != target]
        sources = others if random.random() < 0.5 else [random.choice(others)]
        how = "refuses" if random.random() < 0.5 else "swallows"
        storm.begin(f"closed {how} {target} to {len(sources)}")
        for source in sources:
            world.fabric.close_link(source, target, "refuses" if how == "refuses" else "swallows")
        if random.random() < 0.5:  # open connections are severed, too, so that a process must connect again
            for source in sources:
                world.fabric.sever(source, target)
        await storm.last(random)
        for source in sources:
            world.fabric.close_link(source, target, None)
        storm.end()


async def forgotten_connections(storm: Storm, random: Random) -> None:
    """Let a firewall forget the connections between two machines: half open, and without notice to the ends."""
    while await storm.calm(random, 6.0):
        one, other = random.sample([*_machines(storm), *storm.clients], 2)
        storm.begin(f"forgotten {one} {other} {storm.world.fabric.sever(one, other)}")
        storm.end()


async def slow_machines(storm: Storm, random: Random) -> None:
    """Make one machine slow in everything: its disk's work, and all its messages."""
    world = storm.world
    while await storm.calm(random, 10.0):
        name = random.choice(_machines(storm))
        others = [each for each in (*_machines(storm), *storm.clients) if each != name]
        seconds, factor = random.choice(SLOW_MACHINE_SECONDS), random.choice(SLOW_WORK_FACTORS)
        storm.begin(f"slow machine {name} {factor}")
        world.slow_down(name, factor)
        for other in others:
            world.slow(name, other, seconds)
        await storm.last(random)
        world.slow_down(name, 1.0)
        for other in others:
            world.slow(name, other, 0.0)
        storm.end()


async def drifting_clocks(storm: Storm, random: Random) -> None:
    """Let wall clocks run away, and oscillators differ; nothing that matters may depend on them."""
    world = storm.world
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.members)
        rate = 1.0 + random.uniform(-RATE_OFF_MAX, RATE_OFF_MAX)
        world.set_clocks(member.name, rate=rate, drift=random.uniform(-DRIFT_MAX, DRIFT_MAX))


async def jumping_clocks(storm: Storm, random: Random) -> None:
    """Let a wall clock jump by days, and return before the node believes it: nothing may be deleted, expire or end.

    A process that starts meanwhile has the right time, since it would believe any.
    """
    world = storm.world
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.members)
        env = world.machine(member.name).env
        if not member.serves() or env is None:
            continue
        jump_ms = random.choice(JUMPS_MS)
        believed_after = member.config.get_int(INTERVAL_KEY) / 1000
        storm.begin(f"jump of {member.name} by {jump_ms // DAY_MS} days")
        env.clock.wall_offset_ms += jump_ms
        await storm.last(random, random.uniform(0.0, min(JUMP_SHARE * believed_after, JUMP_SECONDS_MAX)))
        env.clock.wall_offset_ms -= jump_ms
        storm.end()


async def other_configurations(storm: Storm, random: Random) -> None:
    """Restart brokers and controllers with an older file, without tuning, and later with the new one."""
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.members)
        if not member.is_up() or not storm.may_die(member):
            continue
        older = member.config is member.newest_config
        storm.begin(f"configuration of {member.name}: {'older' if older else 'newest'}")
        await storm.stop(member)
        member.config = member.older_config if older else member.newest_config
        if not member.is_up():
            member.launch()
        storm.end()


async def no_descriptors(storm: Storm, random: Random) -> None:
    """Take a node's file descriptors away for a while, as a leak or a crowd of connections does."""
    world = storm.world
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.members)
        if not member.serves():
            continue
        storm.begin(f"descriptors of {member.name}")
        world.take_descriptors(member.name)
        await storm.last(random)
        world.give_descriptors(member.name)
        storm.end()


TROUBLES: Mapping[str, Trouble] = {
    "narrow": narrow_links,
    "closed": closed_links,
    "forgotten": forgotten_connections,
    "slow_machines": slow_machines,
    "drift": drifting_clocks,
    "configurations": other_configurations,
}
"""Troubles by their word in `StormPlan.kinds`."""
LATER_TROUBLES: Mapping[str, Trouble] = {"descriptors": no_descriptors, "jumps": jumping_clocks}
"""Further troubles, each drawn by a stream of its own."""
