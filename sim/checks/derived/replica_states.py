"""Check of the values that replicas compute: they must follow from image, configuration and log. PURE.

Between two steps of a broker's event loop, these rules hold for each replica that has an image:

1. It leads if its image says so, in the image's leader epoch. A process that has just started, or a replica that has
   resigned, may refuse to lead.
2. A leader knows exactly the other replicas of its image as followers. Any other replica knows none.
3. The in-sync replicas are those of the image. Only an answer to AlterPartition may be newer.
4. Enough replicas are in sync if they number `min.insync.replicas`, or all replicas of the partition.
5. An append raises the high watermark by itself if the leader is the only replica, and nothing waits for a sync.
6. A leader with enough replicas in sync commits the records that all of its followers have confirmed.
7. No record below the high watermark waits for acknowledgements.
8. The last leader epoch does not begin behind the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from odradek.data_plane.replication.partition import Partition
from sim.checks.folds.topic_settings import LONG_MAX
from sim.checks.watched import Hosted, moved_of, partition_name
from sim.history import SafetyViolation

__all__ = ["ReplicaStates"]


class ReplicaStates:
    """The check of the values that replicas compute."""

    def __init__(self) -> None:
        self.replicas_seen = self.leaders_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the replicas that have changed. Raises `SafetyViolation`."""
        for each in moved_of(hosted):
            self.look_at(each)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check all replicas. Raises `SafetyViolation`."""
        for each in hosted:
            self.look_at(each)

    def look_at(self, each: Hosted) -> None:
        """Check one replica. Raises `SafetyViolation`."""
        partition = each.partition
        if partition.image is None:
            return
        self.replicas_seen += 1
        self.leaders_seen += partition.is_leader
        for wrong in _differences(partition, each.member.config.node_id):
            raise SafetyViolation(f"replica: {partition_name(partition)} on {each.member.name} {wrong}")


def _differences(partition: Partition, node_id: int) -> Iterator[str]:
    """Yield each difference between a replica and its image, configuration and log, in words."""
    image, log = partition.image, partition.log
    assert image is not None
    leads, isr = partition.is_leader, partition.isr_state.isr
    if partition.leader_epoch != image.leader_epoch or (leads and image.leader != node_id):
        yield f"is in epoch {partition.leader_epoch}, leads: {leads}, and its image says {image}"
    others = {each for each in image.replicas if each != node_id} if leads else set()
    followers = {each.broker_id: each.log_end_offset for each in partition.followers}
    if followers.keys() != others:
        yield f"has the followers {sorted(followers)}, and its image says {sorted(others)}"
    if partition.partition_epoch <= image.partition_epoch and set(isr) != set(image.isr):
        yield f"has {isr} in sync, and its image says {image.isr}"
    flushes = log.config.flush_messages < LONG_MAX
    has_enough = len(isr) >= min(log.config.min_insync_replicas, len(image.replicas))
    if partition.has_min_isr != has_enough:
        yield (
            f"has enough in sync: {partition.has_min_isr}, with {isr} of {image.replicas} and a minimum of "
            f"{log.config.min_insync_replicas}"
        )
    alone = leads and len(image.replicas) == 1 and not flushes
    if partition.advances_alone != alone:
        yield f"commits alone: {partition.advances_alone}, leads: {leads}, flushes: {flushes}, with {image.replicas}"
    if log.offline or log.is_closed:
        return
    if leads:
        confirmed = min((log.log_end_offset, *followers.values()))
        if has_enough and not flushes and log.high_watermark < confirmed:
            yield f"has committed {log.high_watermark}, and all replicas have confirmed {confirmed}"
        waiting = partition._waiting.for_acks
        if waiting and waiting[0].last_offset < log.high_watermark:
            yield f"has committed {log.high_watermark}, and a producer waits for {waiting[0].last_offset}"
    epochs = log.epochs.entries
    if epochs and epochs[-1][1] > log.log_end_offset:
        yield f"ends at {log.log_end_offset}, and its last leader epoch begins at {epochs[-1][1]}"
