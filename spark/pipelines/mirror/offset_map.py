"""The offset map of a mirror: the target's offset for each offset of the source. PURE.

Theory of operation
===================

The map is a compacted topic of the target, `odradek-mirror-NAME`, with two kinds of JSON records:

    ["topic", TOPIC] -> {"source": ID, "target": ID}
    ["offsets", TOPIC, PARTITION, FIRST] -> {"next": NEXT, "runs": [[SOURCE, TARGET, COUNT], ...]}

Records of the first kind have the ids of the two topics. They show whether a topic was created again, because then its
offsets mean other records.

Records of the second kind are written at the end of each transaction, one for each partition that the transaction has
copied. Source offsets from FIRST to below NEXT are copied. A run is `COUNT` records with consecutive offsets on both
sides. A gap in the offsets ends a run. In the source, gaps come from compaction, transaction markers and aborted
records. In the target, they come from transaction markers.

So a record of the second kind is both the mirror's progress and a part of the map. This record is committed if and
only if the copied records are committed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import attrs

from odradek.wire.topic_partition import TopicPartition

__all__ = ["CopiedRange", "MapError", "OffsetMap", "Run", "TopicPair", "runs_of"]

_TOPIC, _OFFSETS = "topic", "offsets"


class MapError(ValueError):
    """Raised if the map's topic has a record that no mirror has written."""


@attrs.frozen
class Run:
    """Records with consecutive offsets both in the source and in the target."""

    source: int
    target: int
    count: int


@attrs.frozen
class TopicPair:
    """Two topics with the same name, in the source and in the target, with their ids in hexadecimal digits."""

    topic: str
    source_id: str
    target_id: str

    def encoded(self) -> tuple[bytes, bytes]:
        """Encode the pair as key and value of a record of the map."""
        return _json([_TOPIC, self.topic]), _json({"source": self.source_id, "target": self.target_id})


@attrs.frozen
class CopiedRange:
    """The range of one partition that one transaction has copied: source offsets from `first` to below `next`."""

    key: TopicPartition
    first: int
    next: int
    runs: tuple[Run, ...]

    def encoded(self) -> tuple[bytes, bytes]:
        """Encode the range as key and value of a record of the map."""
        runs = [[run.source, run.target, run.count] for run in self.runs]
        return _json([_OFFSETS, *self.key, self.first]), _json({"next": self.next, "runs": runs})


def runs_of(offsets: Sequence[int], targets: Sequence[int]) -> list[Run]:
    """Find the runs of records that were copied from the source offsets `offsets` to the target offsets `targets`,
    both ascending.
    """
    runs: list[Run] = []
    start = 0
    for index in range(1, len(offsets) + 1):
        if (
            index < len(offsets)
            and offsets[index] == offsets[index - 1] + 1
            and targets[index] == targets[index - 1] + 1
        ):
            continue
        runs.append(Run(offsets[start], targets[start], index - start))
        start = index
    return runs


@attrs.define
class _PartitionMap:
    next: int
    runs: list[Run] = attrs.field(factory=list)


class OffsetMap:
    """The content of the map's topic. Without `keep_runs` it keeps only the progress, in memory of constant size."""

    def __init__(self, *, keep_runs: bool) -> None:
        self._keep_runs = keep_runs
        self._partitions: dict[TopicPartition, _PartitionMap] = {}
        self.pairs: dict[str, TopicPair] = {}

    def take_in(self, key: bytes | None, value: bytes | None) -> None:
        """Process a record of the map's topic. Call this for all records, in the order of offsets. Raises
        `MapError`.
        """
        try:
            match json.loads(key or b"null"), json.loads(value or b"null"):
                case [[kind, str(topic)], {"source": str(source), "target": str(target)}] if kind == _TOPIC:
                    self.pairs[topic] = TopicPair(topic, source, target)
                case [
                    [kind, str(topic), int(partition), int(first)],
                    {"next": int(end), "runs": list(runs)},
                ] if kind == _OFFSETS:
                    place = TopicPartition(topic, partition)
                    self.add(CopiedRange(place, first, end, tuple(Run(*map(int, run)) for run in runs)))
                case _:
                    raise MapError(
                        f"the mirror's map holds a record that no mirror writes, with the key {key!r}"
                    )
        except MapError:
            raise
        except (TypeError, ValueError) as error:
            raise MapError(
                f"the mirror's map holds a record that no mirror writes ({error}), with the key {key!r}"
            ) from None

    def add(self, copied: CopiedRange) -> None:
        """Add the range that a transaction has copied. Raises `MapError` if it overlaps with an earlier range."""
        found = self._partitions.get(copied.key)
        if found is not None and copied.first < found.next:
            raise MapError(
                f"the map says that offsets {copied.first} to {found.next} of {copied.key} were copied twice"
            )
        if found is None:
            found = self._partitions[copied.key] = _PartitionMap(copied.next)
        found.next = copied.next
        if self._keep_runs:
            for run in copied.runs:
                _extend(found.runs, run)

    def progress(self, key: TopicPartition) -> int | None:
        """Return the next source offset to copy; None if nothing of the partition was copied."""
        found = self._partitions.get(key)
        return None if found is None else found.next

    def translate(self, key: TopicPartition, offset: int) -> int | None:
        """Return the target offset of the first record at or after a source offset. Return None if that
        record is not copied yet.

        For an offset after the last copied record, return the offset after the copy of this record. Needs
        `keep_runs`.
        """
        assert self._keep_runs
        found = self._partitions.get(key)
        if found is None or offset > found.next:
            return None
        place = bisect_right(found.runs, offset, key=lambda run: run.source) - 1
        if place >= 0 and offset < found.runs[place].source + found.runs[place].count:
            return found.runs[place].target + offset - found.runs[place].source
        if place + 1 < len(found.runs):
            return found.runs[place + 1].target
        return found.runs[-1].target + found.runs[-1].count if found.runs else 0

    def runs(self) -> Iterable[tuple[TopicPartition, Run]]:
        """Yield all runs with their partition, in the order of partitions and offsets."""
        for key in sorted(self._partitions):
            for run in self._partitions[key].runs:
                yield key, run


def _extend(runs: list[Run], run: Run) -> None:
    last = runs[-1] if runs else None
    if last is not None and last.source + last.count == run.source and last.target + last.count == run.target:
        runs[-1] = Run(last.source, last.target, last.count + run.count)
    else:
        runs.append(run)


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
