"""Check of `min.insync.replicas`: with fewer in-sync replicas, no record is committed (KIP-966). PURE.

The check uses the minimum in the leader's own image. Suppose that two successive calls of `look` find too few in-sync
replicas, in the same partition epoch and with the same minimum. Then the high watermark must not have advanced
between these two calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.folds.topic_settings import topic_setting
from sim.checks.watched import Hosted, Processes, moved_of, partition_name
from sim.history import SafetyViolation

__all__ = ["MinIsr"]

KEY = "min.insync.replicas"


@attrs.frozen
class _Short:
    """A leader with too few in-sync replicas. If two calls of `look` make objects with equal `term`, the leader is
    still in the same state.
    """

    term: tuple[object, int, int, int, tuple[int, ...]]
    """(log, leader epoch, partition epoch, minimum, in-sync replicas)."""
    high_watermark: int


class MinIsr:
    """The check that a leader with too few in-sync replicas commits no record."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._short: dict[tuple[str, TopicIdPartition], _Short] = {}
        self.short_seen = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the leaders that have too few in-sync replicas. Raises `SafetyViolation`."""
        for each in moved_of(hosted):
            partition = each.partition
            image = partition.image
            place = (each.member.name, each.key)
            before = self._short.pop(place, None)
            if (
                not partition.is_leader
                or image is None
                or len(partition.isr_state.isr) == len(image.replicas)
            ):
                continue
            least = min(self._minimum(each), len(image.replicas))
            if max(len(partition.isr_state.isr), len(image.isr)) >= least:
                continue
            log = partition.log
            term = (log, partition.leader_epoch, partition.partition_epoch, least, partition.isr_state.isr)
            self._short[place] = _Short(term, log.high_watermark)
            self.short_seen += 1
            if before is not None and before.term == term and before.high_watermark < log.high_watermark:
                raise SafetyViolation(
                    f"min.insync.replicas: {partition_name(partition)} on {each.member.name} moved its high watermark from "
                    f"{before.high_watermark} to {log.high_watermark} with {len(image.isr)} in sync, and {least} are needed"
                )

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check as `look` does."""
        self.look(hosted)

    @staticmethod
    def _minimum(each: Hosted) -> int:
        """Return `min.insync.replicas` of the partition by the broker's newest image."""
        broker = each.node.broker
        assert broker is not None
        image = broker.image
        own: Mapping[str, str] = image.topic_configs(each.partition.log.topic)
        layers = (
            image.broker_configs(broker.node_id),
            image.broker_configs(None),
            broker.settings.config_layers.static,
        )
        one_min_isr = image.features.get("eligible.leader.replicas.version", 0) >= 1
        value = topic_setting(KEY, own, layers, one_min_isr=one_min_isr)
        assert isinstance(value, int)
        return value
