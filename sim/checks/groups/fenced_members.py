"""Check of fencing: a coordinator rejects commits of an older generation, inside and outside of transactions. PURE.

A coordinator announces a generation by its first answer to a JoinGroup. From then on it must reject commits of older
generations, unless the group was deleted and created again. For commits in transactions KIP-447 demands this. Only the
coordinator that announced the generation is checked, since two brokers may consider themselves the coordinator. If the
group was created again between a request and its answer, the answer may belong to the former group, and is left out.

A group may become a consumer group (KIP-848) and a classic one again. Its epochs go on where its generations ended, unless
the group was created again meanwhile. An epoch below the newest generation shows that.
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
    """The check of JoinGroup, OffsetCommit and TxnOffsetCommit."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._newest: dict[tuple[Any, str], int] = {}
        """The newest announced generation, by (coordinator shard, group id)."""
        self._lives: dict[tuple[Any, str], int] = {}
        """How often the group was created again, by (coordinator shard, group id)."""
        self.late_commits = 0
        """How many commits of an older generation were rejected."""

    def asked(self, exchange: Exchange) -> bool:
        """Record the coordinator that receives the request, and the newest generation that it has announced. Returns
        False if there is nothing to check.
        """
        shard = self._shard(exchange)
        if shard is None:
            return False
        place = (shard, exchange.request.group_id)
        if self._is_consumer_group(place):
            # A consumer group has member epochs instead of generations, so this check does not apply. Other checks
            # cover such groups.
            return False
        known = self._newest.get(place, 0)
        exchange.memo = (shard, known, self._lives.get(place, 0))
        return exchange.api == ApiKey.JOIN_GROUP or 0 <= _generation(exchange) < known

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check that the answer rejects older generations. Raises `SafetyViolation`."""
        shard, known, life = exchange.memo
        if self._shard(exchange) is not shard:
            return
        group = exchange.request.group_id
        if self._is_consumer_group((shard, group)):
            return
        newest = self._newest.get((shard, group), 0)
        if exchange.api == ApiKey.JOIN_GROUP:
            if not answer.error_code:
                self._announced((shard, group), answer.generation_id, life)
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

    def _announced(self, place: tuple[Any, str], generation: int, life: int) -> None:
        """Record an announced generation. `life` is how often the group had been created again at the time of the
        request.
        """
        newest = self._newest.get(place, 0)
        if generation == FIRST_GENERATION:
            self._newest[place] = generation
            self._lives[place] = self._lives.get(place, 0) + (newest > generation)
        elif self._lives.get(place, 0) == life:
            self._newest[place] = max(newest, generation)

    def _is_consumer_group(self, place: tuple[Any, str]) -> bool:
        shard, group_id = place
        found = None if shard.is_loading else shard.newest_state.consumers.get(group_id)
        if found is not None and found.epoch < self._newest.get(place, 0):
            self._newest[place] = 0
            self._lives[place] = self._lives.get(place, 0) + 1
        return found is not None

    def _shard(self, exchange: Exchange) -> Any:
        """Return the group's coordinator shard at the receiver of the request; None if there is none."""
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
