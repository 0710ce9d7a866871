"""An operator that requests elections. PORTED.

It requests preferred elections at any time. When all faults have ended, it requests unclean elections of partitions
that have a leader. These requests must be refused, and no record may be lost. At the end the preferred replica of
each partition leads.
"""

from __future__ import annotations

from odradek.client.admin.admin_partitions import ElectionType, elect_leaders
from odradek.wire.errors import ErrorCode
from odradek.wire.topic_partition import TopicPartition
from sim.load.operators.duty import CALL_SECONDS, Duty

__all__ = ["Elections"]


class Elections(Duty):
    """An operator that requests elections of the workload's partitions."""

    async def step(self) -> None:
        one = [self.random.choice(self.load.partitions)]
        wanted = None if self.random.random() < 0.5 else one
        found = await self.client.run(elect_leaders(self.client.core, wanted, timeout=CALL_SECONDS))
        for error in found.values():
            if error is not None:
                raise error

    async def check(self) -> None:
        await self.must_hold(self._uncleanly_led)
        await self.must_hold(self._led_by_others)

    async def _uncleanly_led(self) -> str | None:
        partitions = self.load.partitions
        electing = elect_leaders(self.client.core, partitions, ElectionType.UNCLEAN, timeout=CALL_SECONDS)
        for key, error in (await self.client.run(electing)).items():
            if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                return f"{key} has a leader, and an unclean election is answered by {error}"
        return None

    async def _led_by_others(self) -> str | None:
        await self.client.run(elect_leaders(self.client.core, None, timeout=CALL_SECONDS))
        known = await self.client.metadata(sorted(self.load.topics))
        for topic, index in self.load.partitions:
            key = TopicPartition(topic, index)
            there = known.partition(topic, index)
            if there.leader != there.replicas[0]:
                return f"{key}: {there.leader} leads, preferred is the first of {there.replicas}"
        return None
