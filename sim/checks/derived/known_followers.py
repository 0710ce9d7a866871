"""Check of a leader's knowledge: no follower has less than its leader believes. PURE.

A leader counts the records that a fetch has confirmed. Suppose that this fetch came from the follower's present process,
and both replicas are in the same leader epoch. Then the follower has these records in its page cache. In one epoch, a
follower never cuts records that it has confirmed.

A replica whose directory has failed begins with a new log, in the same leader epoch. Until the end of that epoch, nothing
is expected of the new log.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.data_plane.log.partition_log import PartitionLog
from sim.checks.watched import Hosted, moved_of, partition_name
from sim.history import SafetyViolation

__all__ = ["KnownFollowers"]


class KnownFollowers:
    """The check that no follower has less than its leader believes."""

    def __init__(self) -> None:
        self._logs: dict[tuple[object, int], tuple[tuple[int, int], PartitionLog]] = {}
        """For each key and broker, the leader epoch and the broker epoch, and the first log that the broker had in
        both.
        """
        self.followers_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the partitions of which a replica has changed. Raises `SafetyViolation`."""
        keys = {each.key for each in moved_of(hosted)}
        there: dict[object, list[Hosted]] = {}
        for each in hosted:
            if each.key in keys:
                there.setdefault(each.key, []).append(each)
        for replicas in there.values():
            for leader in replicas:
                if leader.partition.is_leader and len(replicas) > 1:
                    self._look_at(leader, replicas)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check as `look` does."""
        self.look(hosted)

    def _look_at(self, leader: Hosted, replicas: Sequence[Hosted]) -> None:
        partition = leader.partition
        for each in replicas:
            if each is leader:
                continue
            broker_id, log, broker = each.member.config.node_id, each.partition.log, each.node.broker
            known = partition.followers.find(broker_id)
            if known is None or broker is None or log.offline or log.is_closed:
                continue
            if each.partition.leader_epoch != partition.leader_epoch:
                continue
            epochs = (partition.leader_epoch, broker.replication.broker_epoch)
            if known.broker_epoch != epochs[1]:
                continue
            self.followers_seen += 1
            then, first = self._logs.get((each.key, broker_id), (None, log))
            if then != epochs:
                self._logs[each.key, broker_id] = (epochs, log)
            elif first is not log:
                continue
            if known.log_end_offset > log.log_end_offset:
                raise SafetyViolation(
                    f"followers: {partition_name(partition)} on {leader.member.name} takes {each.member.name} to end at "
                    f"{known.log_end_offset}, and its log ends at {log.log_end_offset}"
                )
