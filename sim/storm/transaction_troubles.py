"""Faults aimed at transactions: at coordinators and leaders, at the moments when something hangs on them. PORTED.

A transaction's outcome stands some milliseconds before its markers are written. A fault by chance seldom comes then. So
these troubles hunt: they look into the living brokers until such a moment has come, and strike.

| kind | moment | whom it strikes |
| --- | --- | --- |
| `coordinators` | a transaction is open, or is being ended | the leader of its `__transaction_state`, or of its group's offsets |
| `markers` | a transaction is being ended | the leader of a partition that it has written |

They strike as other troubles do, within the fault model of `sim.storm.storm`. A process dies, is asked to stop, or
freezes. Or it is cut off from everybody, or in one direction from one other. A look changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from random import Random

from data_plane.groups.offsets_topic import OFFSETS_TOPIC
from data_plane.transactions.state import TopicPartitionPair, Transaction, TransactionStatus
from sim.checks.watched import Processes
from sim.machine.members import Member
from sim.storm.storm import Storm, Trouble

__all__ = ["TRANSACTION_TROUBLES"]

CALM_SECONDS_MAX = 5.0
HUNT_SECONDS_MAX = 5.0
LOOK_SECONDS = 0.001
LINGER_SECONDS = (0.0, 0.0, 0.001, 0.01, 0.1)
"""The time between the moment and the strike."""
STRIKES = ("all", "all", "stop", "pause", "pause", "cut off", "cut off", "one way")


def _transactions(storm: Storm) -> Iterator[tuple[Member, Transaction]]:
    """The transactions that are open or being ended, with the members that coordinate them."""
    for member, node in Processes(storm.cluster).living():
        shards = {} if node.broker is None else node.broker.transactions.shards
        for _, shard in sorted(shards.items()):
            state = shard.state
            if shard.is_loading or shard.is_stopped or state is None:
                continue
            for transactional_id in sorted(state.transactions):
                transaction = state.transactions[transactional_id]
                if transaction.status is TransactionStatus.ONGOING or transaction.status.is_ending:
                    yield member, transaction


def _leaders(storm: Storm, partitions: list[TopicPartitionPair]) -> list[Member]:
    """The living members that take themselves for leaders of any of these partitions."""
    wanted = set(partitions)
    return [
        each.member
        for each in Processes(storm.cluster).hosted()
        if each.partition.is_leader and (each.partition.log.topic, each.partition.log.partition) in wanted
    ]


def _victims(storm: Storm, target: str, *, is_ending: bool) -> list[Member]:
    """Whom to strike at this moment: those that `target` says, once for each reason."""
    found: list[Member] = []
    for coordinator, transaction in _transactions(storm):
        if transaction.status.is_ending is not is_ending:
            continue
        if target == "coordinator":
            found.append(coordinator)
            continue
        takes_offsets = target == "offsets"
        found += _leaders(
            storm, [pair for pair in transaction.partitions if (pair[0] == OFFSETS_TOPIC) is takes_offsets]
        )
    return found


async def _hunt(storm: Storm, random: Random, *, targets: tuple[str, ...], endings: float) -> None:
    """Hunt, strike, and begin anew. `endings` is how often it waits for a transaction that is being ended."""
    world = storm.world
    while await storm.calm(random, CALM_SECONDS_MAX):
        target, is_ending = random.choice(targets), random.random() < endings
        gives_up_at = world.now + min(HUNT_SECONDS_MAX, storm.seconds_left)
        while not (victims := _victims(storm, target, is_ending=is_ending)) and world.now < gives_up_at:
            await world.sleep(LOOK_SECONDS)
        if victims:
            await world.sleep(random.choice(LINGER_SECONDS))
            await _strike(storm, random, random.choice(victims), f"aimed at {target}")


async def _strike(storm: Storm, random: Random, member: Member, why: str) -> None:
    how = random.choice(STRIKES)
    if how in ("all", "stop"):
        await storm.process_dies(member, how, random, why)
    elif how == "pause":
        await storm.freeze(member, random, why)
    else:
        others = [each.name for each in storm.cluster.members if each is not member]
        if how == "cut off":
            others += [name for name in storm.clients if random.random() < 0.5]
            links = [(member.name, other) for other in others] + [(other, member.name) for other in others]
        else:
            ends = [member.name, random.choice(others)]
            links = [(ends[0], ends[1]) if random.random() < 0.7 else (ends[1], ends[0])]
        await storm.cut(links, f"{how} {member.name} {why}", random)


TRANSACTION_TROUBLES: Mapping[str, Trouble] = {
    "coordinators": partial(_hunt, targets=("coordinator", "coordinator", "offsets"), endings=0.6),
    "markers": partial(_hunt, targets=("written",), endings=1.0),
}
"""Troubles by their word in `StormPlan.kinds`, for runs that have copiers."""
