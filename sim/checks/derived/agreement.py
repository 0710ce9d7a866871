"""Check of agreement at the end of a run: replicas in sync have derived the same state as their leader. PURE.

Once all faults and all writes have ended, these are equal on a leader and on each follower in its ISR:

1. The ends of both logs, the high watermarks, and the last stable offsets.
2. The leader epoch of each offset that both logs have. The cleaner removes the batches with which epochs begin, so logs
   that were ever cleaned are left out.
3. The epoch, the last offset and the open transaction of each producer that both replicas remember. Each replica forgets
   silent producers on its own.

Until the last fetches are answered, these may differ. So the caller repeats the check, as long as it may.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.watched import Hosted, partition_name
from sim.history import SafetyViolation

__all__ = ["check_agreement"]


def check_agreement(hosted: Iterable[Hosted]) -> int:
    """Compare each leader with its followers in sync, and return the number of comparisons. Raises `SafetyViolation`."""
    replicas: dict[TopicIdPartition, dict[int, Hosted]] = {}
    for each in hosted:
        replicas.setdefault(each.key, {})[each.member.config.node_id] = each
    compared = 0
    for there in replicas.values():
        for leader in there.values():
            if not leader.partition.is_leader:
                continue
            for broker_id in leader.partition.isr_state.isr:
                follower = there.get(broker_id)
                if follower is not None and follower is not leader:
                    compared += 1
                    _compare(leader, follower)
    return compared


def _compare(leader: Hosted, follower: Hosted) -> None:
    for what, right, known in _differences(leader.partition.log, follower.partition.log):
        raise SafetyViolation(
            f"agreement: {partition_name(leader.partition)} has {what} {known} on {follower.member.name}, and {right} on "
            f"its leader {leader.member.name}"
        )


def _differences(leader: PartitionLog, follower: PartitionLog) -> Iterator[tuple[str, object, object]]:
    """Yield each difference between two logs: its name, and its value on the leader and on the follower."""
    if leader.offline or follower.offline:
        return
    for what in ("log_end_offset", "high_watermark", "last_stable_offset"):
        right, known = getattr(leader, what), getattr(follower, what)
        if right != known:
            yield what, right, known
    if not (_was_cleaned(leader) or _was_cleaned(follower)):
        start, end = max(leader.log_start_offset, follower.log_start_offset), leader.log_end_offset
        begins = (begin for _, begin in (*leader.epochs.entries, *follower.epochs.entries))
        for offset in sorted({start, *begins}):
            right, known = _epoch_of(leader, offset), _epoch_of(follower, offset)
            if start <= offset < end and right != known:
                yield f"at {offset} the epoch", right, known
    of_leader, of_follower = leader.producers.state, follower.producers.state
    if of_leader is not None and of_follower is not None:
        for number, entry in of_leader.entries.items():
            other = of_follower.entries.get(number)
            if other is not None:
                right = (entry.epoch, entry.last_offset, entry.current_txn_first_offset)
                known = (other.epoch, other.last_offset, other.current_txn_first_offset)
                if right != known:
                    yield f"of producer {number} the epoch, last offset and open transaction", right, known


def _was_cleaned(log: PartitionLog) -> bool:
    return log.config.is_compacted or log.first_dirty_offset > 0


def _epoch_of(log: PartitionLog, offset: int) -> int | None:
    entries = log.epochs.entries
    above = bisect_right([begin for _, begin in entries], offset)
    return entries[above - 1][0] if above else None
