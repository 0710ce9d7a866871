"""More kinds of trouble for a storm: faulty links, slow machines, wrong clocks, other configurations. PORTED.

Disks keep their contents, so each kind may hit any machine at any time. The seed draws the kinds in a storm
(`sim.options`). Each kind is a separate task, as in `sim.storm.storm`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from sim.storm.storm import Storm, Trouble

NARROW_BYTES_PER_SECOND = (20_000.0, 200_000.0)
SLOW_MACHINE_SECONDS = (0.02, 0.2)
"""Choices for the longest delay of a segment to or from a slow machine, in seconds."""
SLOW_WORK_FACTORS = (5.0, 50.0)
DRIFT_MAX = 0.05
"""The largest drift of a wall clock, as a share of the time: about an hour per day. Real clocks drift less, but
operators set clocks wrong by more.
"""
RATE_OFF_MAX = 0.001
DAY_MS = 86_400_000
JUMPS_MS = (8 * DAY_MS, 8 * DAY_MS, -DAY_MS)
"""Choices for the jumps of clocks in milliseconds: ahead by more than Kafka's retention of a week, and back by one
day.
"""
JUMP_SHARE = 0.6
"""The longest duration of a jump, as a share of the interval after which a node would accept the new time."""
JUMP_SECONDS_MAX = 60.0
INTERVAL_KEY = "log.retention.check.interval.ms"


def _machines(storm: Storm) -> list[str]:
    return [member.name for member in storm.cluster.members]


async def narrow_links(storm: Storm, random: Random) -> None:
    """Let one link carry few bytes per second for a while, in one direction or both."""
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
    """Make new connections to a machine fail, from all others or from one. They are refused, or never answered."""
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
        if random.random() < 0.5:
            # Lose open connections, too, so that processes must connect again.
            for source in sources:
                world.fabric.sever(source, target)
        await storm.last(random)
        for source in sources:
            world.fabric.close_link(source, target, None)
        storm.end()


async def forgotten_connections(storm: Storm, random: Random) -> None:
    """Drop the connections between two machines without notice to the ends, as a firewall does when it forgets
    connections.
    """
    while await storm.calm(random, 6.0):
        one, other = random.sample([*_machines(storm), *storm.clients], 2)
        storm.begin(f"forgotten {one} {other} {storm.world.fabric.sever(one, other)}")
        storm.end()


async def slow_machines(storm: Storm, random: Random) -> None:
    """Make one machine slow for a while: its calls to workers (such as disk operations), and its messages."""
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
    """Let wall clocks drift, and monotonic clocks run at different rates. Nothing important may depend on them."""
    world = storm.world
    while await storm.calm(random, 10.0):
        member = random.choice(storm.cluster.members)
        rate = 1.0 + random.uniform(-RATE_OFF_MAX, RATE_OFF_MAX)
        world.set_clocks(member.name, rate=rate, drift=random.uniform(-DRIFT_MAX, DRIFT_MAX))


async def jumping_clocks(storm: Storm, random: Random) -> None:
    """Let a wall clock jump by days, and set it right again before the node accepts the new time. Nothing may be
    deleted, expire or end because of the jump.

    Only the running process has the wrong time. A process that starts during the jump gets the right time, since it
    would accept any time.
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
    """Restart brokers and controllers with an older configuration file, which lacks the tuning, and later with the
    new file.
    """
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
    """Take a node's free file descriptors away for a while, as a leak or too many connections do."""
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
"""Troubles by their names in `StormPlan.kinds`."""
LATER_TROUBLES: Mapping[str, Trouble] = {"descriptors": no_descriptors, "jumps": jumping_clocks}
"""Further troubles, which are drawn by a separate random generator."""
