"""Safety checks of a partition's replicas, after every step of a schedule and at its end. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.producer_recovery import rebuild_producers
from odradek.data_plane.replication.partition import NO_LEADER_EPOCH, Partition
from sim.alone.logged_records import logged_records
from sim.alone.replication_broker import Broker
from sim.history import SafetyViolation

__all__ = ["Promises", "contents"]


class Promises:
    """All records that were acknowledged or seen committed; checks that none of them is lost or changed.

    All methods raise `SafetyViolation`.
    """

    def __init__(self, min_isr: int) -> None:
        self._min_isr = min_isr
        self.acknowledged: dict[int, bytes] = {}
        self._seen: dict[int, bytes] = {}
        self._checked: dict[tuple[int, int], int] = {}
        self._led: dict[int, tuple[tuple[int, int] | None, int]] = {}
        """The state of each broker at the previous check, by broker id. The first part is (process run, leader epoch),
        or None if the broker did not lead. The second part is the broker's high watermark.
        """

    def acknowledge(self, base_offset: int, values: Iterable[bytes]) -> None:
        """Note that a producer's records were acknowledged, at offsets from `base_offset` on."""
        for offset, value in enumerate(values, base_offset):
            if self.acknowledged.setdefault(offset, value) != value:
                raise SafetyViolation(f"offset {offset} was acknowledged twice, for different records")

    def look(self, living: Iterable[Broker]) -> None:
        """Check on every living broker that each committed record equals the record that was committed at the same
        offset before.
        """
        for node in living:
            key = (node.node_id, node.life)
            checked = self._checked.get(key, 0)
            high_watermark = node.log.high_watermark
            partition = node.partition
            term = (node.life, partition.leader_epoch) if partition.is_leader else None
            led, before = self._led.get(node.node_id, (None, 0))
            if term == led is not None and high_watermark > before and not self._may_commit(partition):
                raise SafetyViolation(
                    f"{node.node_id} commits up to {high_watermark} with only {partition.isr_state.isr} in sync"
                )
            self._led[node.node_id] = (term, high_watermark)
            if high_watermark > checked and not partition.reader_error(NO_LEADER_EPOCH):
                for offset, value in self._contents(node.log, checked, high_watermark).items():
                    if self._seen.setdefault(offset, value) != value:
                        raise SafetyViolation(
                            f"offset {offset} is committed as {value!r}, and was {self._seen[offset]!r}"
                        )
                self._checked[key] = high_watermark

    def _contents(self, log: PartitionLog, start: int, end: int) -> dict[int, bytes]:
        return contents(log, start, end)

    def _may_commit(self, partition: Partition) -> bool:
        return len(partition.isr_state.isr) >= self._min_isr

    def check(self, nodes: Mapping[int, Broker]) -> None:
        """Check at the end that the replicas are equal and hold each acknowledged record once and in order."""
        log = self._check_replicas(nodes)
        there = list(log.values())
        if len(dict.fromkeys(there)) != len(there):
            raise SafetyViolation("a record is there twice")
        for producer in (b"1:", b"2:"):
            serials = [int(value[2:]) for value in there if value.startswith(producer)]
            if serials != sorted(serials):
                raise SafetyViolation("records are out of order")
        for node in nodes.values():
            directory, end_offset = node.log.directory, node.log.log_end_offset
            interval = node.log.config.index_interval_bytes
            rebuilt = rebuild_producers(directory, node.log.segments, end_offset, interval)
            if node.log.load_producers().encode() != rebuilt.encode():
                raise SafetyViolation(
                    f"{node.node_id} remembers facts about its producers that its log does not have"
                )

    def _check_replicas(self, nodes: Mapping[int, Broker]) -> dict[int, bytes]:
        """Check that the replicas are equal and have every record that was acknowledged or seen committed. Return
        their values by offset.
        """
        logs = [self._contents(node.log, 0, node.log.log_end_offset) for node in nodes.values()]
        if not logs[0] == logs[1] == logs[2]:
            raise SafetyViolation("the replicas differ")
        for known in (self.acknowledged, self._seen):
            for offset, value in known.items():
                if logs[0].get(offset) != value:
                    raise SafetyViolation(f"{value!r} at {offset} is lost: {logs[0].get(offset)!r} is there")
        return logs[0]


def contents(log: PartitionLog, start: int, end: int) -> dict[int, bytes]:
    """Read the values of all records whose offsets are at least `start` and below `end`. Return them by offset."""
    return {offset: record.value or b"" for offset, record in logged_records(log, start, end).items()}
