"""An operator that moves replicas between brokers and cancels moves. PORTED.

At the end each partition has the replicas of the last acknowledged move. All these replicas are in sync and equal,
and no other broker has any file of the partition.
"""

from __future__ import annotations

from odradek.client.admin.admin_partitions import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from odradek.wire.topic_partition import TopicPartition
from sim.load.operators.duty import CALL_SECONDS, Duty, Possible

TOPIC = "moved"
PARTITIONS = 2
CANCEL_PROBABILITY = 0.2

__all__ = ["PARTITIONS", "TOPIC", "Moves"]


class Moves(Duty):
    """An operator that moves the replicas of topic `moved`, which the workload writes and reads."""

    async def setup(self) -> None:
        await self.must_hold(self._unknown)

    async def _unknown(self) -> str | None:
        """Record which brokers have the replicas now. Always returns None, which means that nothing is wrong."""
        known = await self.client.metadata([TOPIC])
        self._replicas = {
            TopicPartition(TOPIC, index): Possible(tuple(sorted(known.partition(TOPIC, index).replicas)))
            for index in range(PARTITIONS)
        }
        return None

    async def step(self) -> None:
        random = self.random
        key = random.choice(list(self._replicas))
        possible = self._replicas[key]
        ids = [member.config.node_id for member in self.cluster.brokers]
        cancels = random.random() < CANCEL_PROBABILITY
        target = None if cancels else random.sample(ids, min(self.site.replicas, len(ids)))
        moving = alter_partition_reassignments(self.client.core, {key: target}, timeout=CALL_SECONDS)
        error: Exception | None = None
        try:
            error = (await self.client.run(moving))[key]
        except Exception as raised:
            error = raised
            raise
        finally:
            if target is None:
                possible.revert()
            elif error is None:
                possible.acknowledge(tuple(sorted(target)))
            else:
                possible.ask(tuple(sorted(target)))
        if error is not None:
            raise error

    async def check(self) -> None:
        await self.must_hold(self._wrong)

    async def _wrong(self) -> str | None:
        under_way = await self.client.run(
            list_partition_reassignments(self.client.core, list(self._replicas), timeout=CALL_SECONDS)
        )
        if under_way:
            return f"moves do not end: {under_way}"
        known = await self.client.metadata([TOPIC])
        for key, possible in self._replicas.items():
            there = known.partition(*key)
            replicas = tuple(sorted(there.replicas))
            if not possible.allows(replicas) and replicas != self.cluster.recovered.get(key):
                return f"{key} is on {replicas}, asked for was {possible}"
            if tuple(sorted(there.isr)) != replicas:
                return f"{key} on {replicas} has in sync only {there.isr}"
            ids = {member.name: member.config.node_id for member in self.cluster.brokers}
            holding = tuple(sorted(ids[name] for name in self.cluster.replica_logs(*key)))
            if holding != replicas:
                return f"{key} is on {replicas}, but files are on {holding}"
        return None
