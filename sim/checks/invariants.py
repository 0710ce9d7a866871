"""Invariants of a run, at every moment: ledgers that are shown the present state, and refuse an impossible one. PURE.

Partitions:

1. In one leader epoch at most one broker takes itself for the leader of a partition.
2. A replica's high watermark never falls while its process lives.
3. The high watermark of a leader is never beyond what a replica in its ISR holds.
4. Two replicas have the same batch at each offset below the high watermark of both. The same holds below the
   leader's, where both are in its ISR. So what was committed once is the same everywhere, and for ever.

Metadata:

5. In one epoch at most one voter leads the quorum, and a voter votes for at most one (Raft, 5.2). That holds also
   when it has died and come back in between.
6. The high watermark of the metadata log never falls while a process lives.
7. Two nodes with images of the same offset have the same image.

Producers:

8. A block of producer ids belongs to one process, which hands them out in order: so no id is given twice (KIP-730).

Each `see` raises `SafetyViolation` with one line that says which rule was broken, where and by whom.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import attrs

from odradek.wire.topic_partition import TopicIdPartition
from sim.history import SafetyViolation

__all__ = ["CommittedBatches", "EqualAtOffsets", "NeverFalls", "OneForEach", "StoredHeader"]


@attrs.define
class OneForEach:
    """Checks that each term has a single holder (rules 1, 5 and 8 use different terms). `what` begins the
    complaint.
    """

    what: str
    _held: dict[Hashable, Hashable] = attrs.Factory(dict)

    def see(self, term: Hashable, holder: Hashable, told: str) -> None:
        """Note that `holder` has the term, which `told` describes. Raises `SafetyViolation`."""
        before = self._held.setdefault(term, holder)
        if before != holder:
            raise SafetyViolation(f"{self.what}: {told} belongs to {before} and to {holder}")


@attrs.define
class NeverFalls:
    """Figures that only grow: rules 2, 6 and 8. `what` is the beginning of the error's text."""

    what: str
    _highest: dict[Hashable, tuple[object, int]] = attrs.Factory(dict)

    def see(self, who: Hashable, bearer: object, value: int, told: str) -> None:
        """Note that the figure of `who` is `value`; another `bearer` (a new process, a new replica) begins anew.

        Raises `SafetyViolation`.
        """
        before = self._highest.get(who)
        if before is not None and before[0] is bearer and before[1] > value:
            raise SafetyViolation(f"{self.what}: {told} fell from {before[1]} to {value}")
        self._highest[who] = (bearer, value)


@attrs.define
class EqualAtOffsets:
    """States that depend on their offset alone: rule 7. `what` is the beginning of the error's text."""

    what: str
    _states: dict[int, tuple[str, object]] = attrs.Factory(dict)

    def see(self, who: str, offset: int, state: object) -> None:
        """Note the state of `who` after the record at `offset`. Raises `SafetyViolation`."""
        first, known = self._states.setdefault(offset, (who, state))
        if known is not state and known != state:
            raise SafetyViolation(f"{self.what}: {first} and {who} differ at offset {offset}")

    @property
    def offsets_seen(self) -> int:
        return len(self._states)


@attrs.frozen
class StoredHeader:
    """The identity of a batch at its place in a log: everything but the bytes that `crc` stands for."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


@attrs.define
class CommittedBatches:
    """The batches of each partition that lie below a high watermark: rule 4."""

    _batches: dict[TopicIdPartition, dict[int, tuple[str, StoredHeader]]] = attrs.Factory(dict)

    def see(self, key: TopicIdPartition, name: str, who: str, batches: Iterable[StoredHeader]) -> None:
        """Note the batches of a partition that `who` takes for committed. Raises `SafetyViolation`."""
        known = self._batches.setdefault(key, {})
        for batch in batches:
            first, there = known.setdefault(batch.base_offset, (who, batch))
            if there != batch:
                raise SafetyViolation(
                    f"{name}: {first} and {who} have different committed batches at offset {batch.base_offset}"
                    f" (epochs {there.epoch} and {batch.epoch})"
                )

    @property
    def batches_seen(self) -> int:
        return sum(map(len, self._batches.values()))


def check_isr_holds(name: str, leader: str, high_watermark: int, ends: Sequence[tuple[str, int]]) -> None:
    """Check rule 3 for in-sync replicas and the ends of their logs. Raises `SafetyViolation`."""
    for who, end_offset in ends:
        if end_offset < high_watermark:
            raise SafetyViolation(
                f"{name}: {leader} leads with high watermark {high_watermark}, but {who}, which is in sync, "
                f"ends at {end_offset}"
            )


def check_bound(who: str, what: str, value: int, most: int) -> None:
    """Check that a queue or memory keeps its stated bound. Raises `SafetyViolation`."""
    if value > most:
        raise SafetyViolation(f"{who}: {what}: {value}, and at most {most} are allowed")
