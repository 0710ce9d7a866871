"""Members of an older generation commit nothing, at once or in a transaction. PURE.

A coordinator announces a generation by its first answer to a JoinGroup. From then on it takes no commit of an older one
(KIP-447 for those in transactions), unless the group has begun anew. What another coordinator has announced does not count,
since two may take themselves for the coordinator.
"""

from __future__ import annotations

from typing import Any

from odradek.wire.api_keys import ApiKey
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation

__all__ = ["FencedMembers"]

FIRST_GENERATION = 1


class FencedMembers:
    """Hears JoinGroup, OffsetCommit and TxnOffsetCommit."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._newest: dict[tuple[Any, str], int] = {}
        """The newest generation that a coordinator has announced, by its shard and the group."""
        self.late_commits = 0
        """Commits that were too late, and were refused."""

    def asked(self, exchange: Exchange) -> bool:
        """Note the coordinator of the request, and the newest announced generation."""
        shard = self._shard(exchange)
        if shard is None:
            return False
        known = self._newest.get((shard, exchange.request.group_id), 0)
        exchange.memo = (shard, known)
        return exchange.api == ApiKey.JOIN_GROUP or 0 <= _generation(exchange) < known

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check an answer. Raises `SafetyViolation`."""
        shard, known = exchange.memo
        if self._shard(exchange) is not shard:
            return
        group = exchange.request.group_id
        newest = self._newest.get((shard, group), 0)
        if exchange.api == ApiKey.JOIN_GROUP:
            if not answer.error_code:
                generation = answer.generation_id
                has_begun_anew = generation == FIRST_GENERATION
                self._newest[shard, group] = generation if has_begun_anew else max(newest, generation)
            return
        codes = [each.error_code for topic in answer.topics for each in topic.partitions]
        if all(codes):
            self.late_commits += 1
        elif newest >= known:
            member = exchange.request.member_id
            raise SafetyViolation(
                f"{ApiKey(exchange.api).name}: {exchange.conn.peer.host_name} takes offsets of {member} of generation "
                f"{_generation(exchange)}, and group {group} was at {known}"
            )

    def _shard(self, exchange: Exchange) -> Any:
        """Find the group's coordinator at the receiver of the request; None where there is none."""
        found = self._processes.at(exchange.conn.peer)
        if found is None or found[1].broker is None:
            return None
        groups = found[1].broker.groups
        index = groups.partition_for(exchange.request.group_id)
        return None if index is None else groups.shards.get(index)


def _generation(exchange: Exchange) -> int:
    request = exchange.request
    is_plain = exchange.api == ApiKey.OFFSET_COMMIT
    generation: int = request.generation_id_or_member_epoch if is_plain else request.generation_id
    return generation
