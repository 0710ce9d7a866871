"""Maintenance by operators while clients are working: rolling restarts, and brokers that leave and return. PORTED.

A broker that leaves is stopped and unregistered (KIP-631). It returns with its disks and its id, and registers again.
In the fault model (`sim.storm.storm`), both kinds of maintenance count as deaths of a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from odradek.client.admin.admin_quorum import unregister_broker
from odradek.client.errors import ClientError
from odradek.wire.errors import KafkaError
from sim.storm.storm import LONG_SECONDS_MAX, Storm, Trouble

CALL_SECONDS = 5.0


async def rolling_restarts(storm: Storm, random: Random) -> None:
    """Stop and start each node in turn, cleanly. Sometimes a node is stopped before the previous node is up again."""
    while await storm.calm(random, 15.0):
        members = random.sample(storm.cluster.members, len(storm.cluster.members))
        waits = random.random() < 0.7
        storm.begin(f"rolling restart{'' if waits else ' in a hurry'}")
        for member in members:
            if not member.is_up() or not storm.may_die(member):
                continue
            await storm.stop(member)
            if member.is_up():
                continue  # Another task has started the node.
            serving = member.launch()
            if waits:
                await storm.world.wait(serving, LONG_SECONDS_MAX)
        storm.end()


async def unregistered_brokers(storm: Storm, random: Random) -> None:
    """Stop a broker, unregister it, and start it again."""
    client = storm.cluster.observer
    while await storm.calm(random, 15.0):
        member = random.choice(storm.cluster.brokers)
        if not member.is_up() or not storm.may_die(member):
            continue
        node_id = member.config.node_id
        storm.begin(f"unregister {member.name}")
        storm.note_death(member)
        storm.doomed.add(member.name)
        # In the other cases the broker is unregistered while it runs, and restarted later.
        if random.random() < 0.8:
            await storm.stop(member)
        try:
            await client.run(unregister_broker(client.core, node_id, timeout=CALL_SECONDS))
        except (KafkaError, ClientError) as error:
            storm.world.trace.record(storm.world.now, "storm", "log", "not unregistered", member.name, error)
        await storm.last(random)
        await storm.stop(member)
        storm.doomed.discard(member.name)
        if not member.is_up():
            member.launch()
        storm.end()


UPKEEP: Mapping[str, Trouble] = {"rolling": rolling_restarts, "unregister": unregistered_brokers}
"""Troubles by their names in `StormPlan.kinds`."""
