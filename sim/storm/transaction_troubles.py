"""Faults aimed at transactions: at coordinators and leaders, at the moments when something hangs on them. PORTED.

A transaction's outcome stands some milliseconds before its markers are written. A fault by chance seldom comes then. So
these troubles hunt: they look into the living brokers until such a moment has come, and strike.

| moment | what it is |
| --- | --- |
| `open` | a transaction is open |
| `deciding` | its coordinator has decided the outcome, which may not be committed |
| `marking` | the outcome is committed, and markers are on their way |

| kind | moments | whom it strikes |
| --- | --- | --- |
| `coordinators` | all | the leader of the transaction's `__transaction_state`, or of its group's offsets |
| `markers` | `deciding`, `marking` | the leader of a partition that it has written, or its coordinator |

They strike as other troubles do, within the fault model of `sim.storm.storm`. A process dies, is asked to stop, or
freezes. Or it is cut off from everybody, or in one direction from one other. A look changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from random import Random

import attrs

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


def _transactions(storm: Storm, moment: str) -> Iterator[tuple[Member, Transaction]]:
    """The transactions for which it is this moment, with the members that coordinate them."""
    for member, node in Processes(storm.cluster).living():
        if node.broker is None:
            continue
        if moment == "marking":
            for ending in node.broker.transactions.markers.endings():
                yield member, attrs.evolve(ending.transaction, partitions=frozenset(ending.left))
            continue
        for _, shard in sorted(node.broker.transactions.shards.items()):
            state = shard.state
            if shard.is_loading or shard.is_stopped or state is None:
                continue
            for transactional_id in sorted(state.transactions):
                transaction = state.transactions[transactional_id]
                is_open = transaction.status is TransactionStatus.ONGOING
                if is_open if moment == "open" else transaction.status.is_ending:
                    yield member, transaction


def _leaders(storm: Storm, partitions: list[TopicPartitionPair]) -> list[Member]:
    """The living members that take themselves for leaders of any of these partitions."""
    wanted = set(partitions)
    return [
        each.member
        for each in Processes(storm.cluster).hosted()
        if each.partition.is_leader and (each.partition.log.topic, each.partition.log.partition) in wanted
    ]


def _victims(storm: Storm, target: str, moment: str) -> list[Member]:
    """Whom to strike now: those that `target` says, once for each reason."""
    found: list[Member] = []
    for coordinator, transaction in _transactions(storm, moment):
        if target == "coordinator":
            found.append(coordinator)
        else:
            wants_offsets = target == "offsets"
            wanted = [pair for pair in transaction.partitions if (pair[0] == OFFSETS_TOPIC) is wants_offsets]
            found += _leaders(storm, wanted)
    return found


async def _hunt(storm: Storm, random: Random, *, targets: tuple[str, ...], moments: tuple[str, ...]) -> None:
    """Hunt, strike, and begin anew."""
    world = storm.world
    while await storm.calm(random, CALM_SECONDS_MAX):
        target, moment = random.choice(targets), random.choice(moments)
        gives_up_at = world.now + min(HUNT_SECONDS_MAX, storm.seconds_left)
        while not (victims := _victims(storm, target, moment)) and world.now < gives_up_at:
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
    "coordinators": partial(
        _hunt, targets=("coordinator", "coordinator", "offsets"), moments=("open", "deciding", "marking")
    ),
    "markers": partial(
        _hunt, targets=("written", "written", "coordinator"), moments=("deciding", "marking", "marking")
    ),
}
"""Troubles by their word in `StormPlan.kinds`, for runs that have copiers."""
