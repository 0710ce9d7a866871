"""The copiers' transactions with the outcomes that the copiers learned, and the checks of both topics at the end.
PURE.

A transaction copies records of the source topic, and commits their offsets. Each copied record has the name of its
transaction, its number in that transaction, and the place (partition, offset) of its original. So a read_committed
reader sees which transactions were committed:

1. A transaction is visible completely, in the order in which it was written, or not at all.
2. A transaction that was acknowledged as committed is visible. A transaction that was aborted, or that no copier
   has tried to commit, is invisible.
3. Two visible transactions never copy the same original. The visible transactions have copied exactly the originals
   below the group's offset. A visible transaction has committed that offset.
4. Records that a reader has seen at any time are in the topic at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from sim.history import SafetyViolation

__all__ = ["Copy", "CopyLedger", "Outcome", "copy_value"]

Found = tuple[int, bytes]
"""(offset, value) of a record."""


class Outcome(Enum):
    """The outcome of a transaction, as far as its client knows it."""

    OPEN = "was never ended"
    TRIED = "was perhaps committed"
    COMMITTED = "was committed"
    ABORTED = "was aborted"


@attrs.define(eq=False)
class Copy:
    """A transaction. `records` has (partition of the sink, value), `offsets` the committed offset by partition of the
    source.
    """

    name: str
    records: list[tuple[int, bytes]] = attrs.Factory(list)
    offsets: dict[int, int] = attrs.Factory(dict)
    outcome: Outcome = Outcome.OPEN


def copy_value(name: str, number: int, partition: int, offset: int, filler: bytes) -> bytes:
    """Make the value of a copied record. `partition` and `offset` are the place of its original."""
    return b"%s|%d|%d|%d|" % (name.encode(), number, partition, offset) + filler


def _parsed(value: bytes) -> tuple[str, int, int, int]:
    name, number, partition, offset, _ = value.split(b"|", 4)
    return name.decode(), int(number), int(partition), int(offset)


class CopyLedger:
    """All copy transactions of a run."""

    def __init__(self) -> None:
        self.copies: dict[str, Copy] = {}
        self.progress: dict[int, int] = {}
        """For each partition of the source topic, the group's committed offset, as the group's members know it."""
        self.ends: dict[int, int] | None = None
        """The end offset of each partition of the source topic; None until the workload has ended."""
        self._seen: dict[str, dict[int, list[Found]]] = {}

    def begin(self, name: str) -> Copy:
        """Record that a copier opens a transaction."""
        copy = self.copies[name] = Copy(name)
        return copy

    def advance(self, offsets: Mapping[int, int]) -> None:
        """Record the group's committed offsets."""
        for partition, offset in offsets.items():
            self.progress[partition] = max(self.progress.get(partition, 0), offset)

    @property
    def is_done(self) -> bool:
        """True once the whole source is copied."""
        ends = self.ends
        return ends is not None and all(
            self.progress.get(partition, 0) >= end for partition, end in ends.items()
        )

    def see(self, reader: str, partition: int, found: Sequence[Found]) -> None:
        """Check committed records that a reader has received, in order. Raises `SafetyViolation`."""
        seen = self._seen.setdefault(reader, {}).setdefault(partition, [])
        for offset, value in found:
            if seen and seen[-1][0] >= offset:
                raise SafetyViolation(f"{reader}: sink {partition} offset {offset} follows {seen[-1][0]}")
            copy = self.copies.get(_parsed(value)[0])
            if copy is None or copy.outcome in (Outcome.OPEN, Outcome.ABORTED):
                raise SafetyViolation(
                    f"{reader}: sink {partition} offset {offset} has {value[:60]!r}, whose transaction "
                    f"{Outcome.OPEN.value if copy is None else copy.outcome.value}"
                )
            seen.append((offset, value))

    def check(
        self,
        sink: Mapping[int, Sequence[Found]],
        source: Mapping[int, Sequence[Found]],
        committed: Mapping[int, int],
    ) -> None:
        """Check the final committed records of both topics and the group's offsets. Raises `SafetyViolation`."""
        self._check_readers(sink)
        counting = self._check_transactions(sink)
        self._check_originals(sink, source, committed)
        highest: dict[int, int] = {}
        for copy in counting:
            for partition, offset in copy.offsets.items():
                highest[partition] = max(highest.get(partition, 0), offset)
        for partition, offset in committed.items():
            if offset != highest.get(partition, 0):
                raise SafetyViolation(
                    f"group offset of source {partition}: {offset}, and the transactions that count have committed "
                    f"{highest.get(partition, 0)}"
                )

    def _check_readers(self, sink: Mapping[int, Sequence[Found]]) -> None:
        for reader, partitions in self._seen.items():
            for partition, seen in partitions.items():
                there = list(sink[partition][: len(seen)])
                if there != seen:
                    at = next(
                        (one for one, other in zip(seen, there, strict=False) if one != other), seen[-1]
                    )
                    raise SafetyViolation(
                        f"{reader}: sink {partition} had {at[1][:60]!r} at offset {at[0]}, which is not there at the end"
                    )

    def _check_transactions(self, sink: Mapping[int, Sequence[Found]]) -> list[Copy]:
        """Return the transactions that are visible in the sink. Raises `SafetyViolation` if one has the wrong outcome
        or is incomplete.
        """
        visible: dict[str, dict[int, list[bytes]]] = {}
        for partition, found in sink.items():
            for _, value in found:
                name = _parsed(value)[0]
                visible.setdefault(name, {}).setdefault(partition, []).append(value)
        unknown = sorted(visible.keys() - self.copies.keys())
        if unknown:
            raise SafetyViolation(f"transaction {unknown[0]} is in the sink, and nobody has made it")
        counting = []
        for name, copy in self.copies.items():
            there = visible.get(name)
            if there is None:
                if copy.outcome is Outcome.COMMITTED and copy.records:
                    raise SafetyViolation(
                        f"transaction {name} was committed, and none of its records is there"
                    )
                continue
            if copy.outcome in (Outcome.OPEN, Outcome.ABORTED):
                raise SafetyViolation(f"transaction {name} {copy.outcome.value}, and its records are there")
            written: dict[int, list[bytes]] = {}
            for partition, value in copy.records:
                written.setdefault(partition, []).append(value)
            for partition in sorted({*written, *there}):
                if written.get(partition, []) != there.get(partition, []):
                    raise SafetyViolation(
                        f"transaction {name} {copy.outcome.value} and is torn: sink {partition} has "
                        f"{len(there.get(partition, []))} of its {len(written.get(partition, []))} records, or another order"
                    )
            counting.append(copy)
        return counting

    def _check_originals(
        self,
        sink: Mapping[int, Sequence[Found]],
        source: Mapping[int, Sequence[Found]],
        committed: Mapping[int, int],
    ) -> None:
        copied: dict[tuple[int, int], str] = {}
        for found in sink.values():
            for _, value in found:
                name, _, partition, offset = _parsed(value)
                before = copied.setdefault((partition, offset), name)
                if before != name:
                    raise SafetyViolation(
                        f"source {partition} offset {offset} is copied twice: by transaction {before} and by {name}"
                    )
        for partition, originals in source.items():
            for offset, _ in originals:
                is_passed = offset < committed.get(partition, 0)
                if is_passed and (partition, offset) not in copied:
                    raise SafetyViolation(
                        f"source {partition} offset {offset} is lost: the group is at {committed.get(partition, 0)}, and "
                        f"no transaction that counts has copied it"
                    )
