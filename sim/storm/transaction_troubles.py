"""Faults aimed at transactions: they hit coordinators and leaders at the most critical moments. PORTED.

A transaction's outcome is final some milliseconds before its markers are written. A random fault seldom hits that
interval. So these troubles inspect the running brokers until a transaction is at such a moment, and then cause a
fault.

| moment | meaning |
| --- | --- |
| `open` | a transaction is open |
| `deciding` | its coordinator has decided the outcome, which may not be committed yet |
| `marking` | the outcome is committed, and the markers are being sent |

| kind | moments | where the fault occurs |
| --- | --- | --- |
| `coordinators` | all | at the leader of the transaction's partition in `__transaction_state`, or of its group's offsets |
| `markers` | `deciding`, `marking` | at the leader of a partition that the transaction has written, or at its coordinator |
| `handovers` | `open`, `deciding` | on the link from its coordinator to such a leader, then at the coordinator |

The kind `handovers` makes markers late. They wait in the link while their coordinator is frozen, and arrive after
another coordinator has ended the transaction.

Like other troubles, these obey the fault model of `sim.storm.storm`. A fault may kill, stop or freeze a process. It may
also cut a node off from all other nodes, or from one other node in one direction. Inspection changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import TypeVar

import attrs

from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.transactions.state import (
    TopicPartitionPair,
    Transaction,
    TransactionsState,
    TransactionStatus,
)
from sim.checks.watched import Processes
from sim.machine.members import Member
from sim.storm.storm import Storm, Trouble

__all__ = ["TRANSACTION_TROUBLES"]

_Found = TypeVar("_Found")

CALM_SECONDS_MAX = 5.0
HUNT_SECONDS_MAX = 5.0
LOOK_SECONDS = 0.001
HANDOVER_SECONDS_MAX = 15.0
"""How many seconds another coordinator may take to end a transaction that the frozen coordinator has decided."""
LINGER_SECONDS = (0.0, 0.0, 0.001, 0.01, 0.1)
"""Choices for how many seconds after the critical moment the fault occurs."""
STRIKES = ("all", "all", "stop", "pause", "pause", "cut off", "cut off", "one way")


def _transactions(storm: Storm, moment: str) -> Iterator[tuple[Member, Transaction]]:
    """Yield (coordinator's node, transaction) for each transaction that is at the critical moment `moment`."""
    if moment == "marking":
        for member, node in Processes(storm.cluster).living():
            if node.broker is not None:
                for ending in node.broker.transactions.markers.endings():
                    yield member, attrs.evolve(ending.transaction, partitions=frozenset(ending.left))
        return
    for member, state in _states(storm):
        for transactional_id in sorted(state.transactions):
            transaction = state.transactions[transactional_id]
            is_open = transaction.status is TransactionStatus.ONGOING
            if is_open if moment == "open" else transaction.status.is_ending:
                yield member, transaction


def _states(storm: Storm) -> Iterator[tuple[Member, TransactionsState]]:
    """Yield (node, state of its transactions) for each coordinator that serves."""
    for member, node in Processes(storm.cluster).living():
        if node.broker is None:
            continue
        for _, shard in sorted(node.broker.transactions.shards.items()):
            if not (shard.is_loading or shard.is_stopped or shard.state is None):
                yield member, shard.state


def _leaders(storm: Storm, partitions: list[TopicPartitionPair]) -> list[Member]:
    """Find the running nodes that consider themselves leaders of any of these partitions."""
    wanted = set(partitions)
    return [
        each.member
        for each in Processes(storm.cluster).hosted()
        if each.partition.is_leader and (each.partition.log.topic, each.partition.log.partition) in wanted
    ]


def _victims(storm: Storm, target: str, moment: str) -> list[Member]:
    """List the nodes that a fault may hit now. `target` is their role in a transaction. A node is listed once for
    each such transaction.
    """
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
    """Find a node at a critical moment and cause a fault there, again and again."""
    world = storm.world
    while await storm.calm(random, CALM_SECONDS_MAX):
        target, moment = random.choice(targets), random.choice(moments)
        victims = await _until(storm, partial(_victims, storm, target, moment), HUNT_SECONDS_MAX)
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


async def _hand_over(storm: Storm, random: Random) -> None:
    """Let markers of a coordinator arrive only after another coordinator has taken over and has ended the
    transaction.
    """
    world = storm.world
    while await storm.calm(random, CALM_SECONDS_MAX):
        found = await _until(storm, partial(_far_leaders, storm), HUNT_SECONDS_MAX)
        if not found:
            continue
        coordinator, leader, name = random.choice(found)
        storm.begin(f"handover {name} from {coordinator.name}, cut off from {leader.name}")
        world.cut(coordinator.name, leader.name)
        # Wait until the outcome is committed. Before that, the leader may have to leave the ISR of the
        # coordinator's log.
        await _until(storm, partial(_marking, storm, name), HUNT_SECONDS_MAX)
        if coordinator.is_up():
            world.pause(coordinator.name)
            await _until(storm, partial(_ended_elsewhere, storm, coordinator, name), HANDOVER_SECONDS_MAX)
        world.fabric.heal(coordinator.name, leader.name)
        await storm.last(random, random.choice((0.1, 1.0)))
        world.resume(coordinator.name)
        storm.end()


async def _until(storm: Storm, look: Callable[[], list[_Found]], seconds_max: float) -> list[_Found]:
    """Call `look` until it finds something, and return that. Returns an empty list if the time is over first."""
    world = storm.world
    gives_up_at = world.now + min(seconds_max, storm.seconds_left)
    found, seen = look(), world.wakes
    while not found and world.now < gives_up_at:
        await world.sleep(LOOK_SECONDS)
        if seen != world.wakes:  # If no process has run since the last call, `look` would find nothing new.
            found, seen = look(), world.wakes
    return found


def _marking(storm: Storm, transactional_id: str) -> list[Transaction]:
    return [each for _, each in _transactions(storm, "marking") if each.transactional_id == transactional_id]


def _far_leaders(storm: Storm) -> list[tuple[Member, Member, str]]:
    """List triples: the coordinator of an open or ending transaction, the leader of one of its partitions on another
    node, and the transactional id.
    """
    return [
        (coordinator, leader, transaction.transactional_id)
        for moment in ("open", "deciding")
        for coordinator, transaction in _transactions(storm, moment)
        for leader in _leaders(storm, sorted(transaction.partitions))
        if leader is not coordinator
    ]


def _ended_elsewhere(storm: Storm, coordinator: Member, transactional_id: str) -> list[Member]:
    """Find the other nodes that coordinate the transactional id and have finished its transaction."""
    return [
        member
        for member, state in _states(storm)
        if member is not coordinator
        and transactional_id in state.transactions
        and not state.transactions[transactional_id].status.is_ending
    ]


TRANSACTION_TROUBLES: Mapping[str, Trouble] = {
    "coordinators": partial(
        _hunt, targets=("coordinator", "coordinator", "offsets"), moments=("open", "deciding", "marking")
    ),
    "markers": partial(
        _hunt, targets=("written", "written", "coordinator"), moments=("deciding", "marking", "marking")
    ),
    "handovers": _hand_over,
}
"""Troubles by their names in `StormPlan.kinds`, for runs that have copiers."""
