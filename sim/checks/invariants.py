"""Invariants of a run: one leader per epoch, high watermarks that never fall, committed batches equal on all
replicas, queues within limits. PURE.

Partitions:

1. In one leader epoch at most one broker considers itself the leader of a partition.
2. A replica's high watermark never decreases during one process run.
3. The high watermark of a leader is never beyond what a replica in its ISR holds.
4. Two replicas have the same batch at each offset below both replicas' high watermarks. If both are in the leader's
   ISR, they have the same batch at each offset below the leader's high watermark. So a committed record is the same
   on all replicas, and remains so.

Metadata:

5. In one epoch at most one voter leads the quorum, and a voter votes for at most one candidate (Raft, 5.2). A voter
   keeps to its vote even over a restart.
6. The high watermark of the metadata log never decreases during one process run.
7. Two nodes with images of the same offset have the same image.

Producers:

8. A block of producer ids belongs to one process, which assigns them in order, so that no id is assigned twice
   (KIP-730).

Each `see` raises `SafetyViolation` with one line: which rule was broken, where and by which node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import attrs

from odradek.wire.topic_partition import TopicIdPartition
from sim.history import SafetyViolation

__all__ = ["CommittedBatches", "EqualAtOffsets", "NeverFalls", "OneForEach", "StoredHeader"]


@attrs.define
class OneForEach:
    """Check that each key has a single holder. Rules 1, 5 and 8 use this check with different keys, such as a partition
    with its leader epoch. The error's text begins with `what`.
    """

    what: str
    _held: dict[Hashable, Hashable] = attrs.Factory(dict)

    def see(self, term: Hashable, holder: Hashable, told: str) -> None:
        """Record that `holder` holds the key `term`, which `told` describes in words. Raises `SafetyViolation` if the
        key already has another holder.
        """
        before = self._held.setdefault(term, holder)
        if before != holder:
            raise SafetyViolation(f"{self.what}: {told} belongs to {before} and to {holder}")


@attrs.define
class NeverFalls:
    """Check of values that never decrease (rules 2, 6 and 8). The error's text begins with `what`."""

    what: str
    _highest: dict[Hashable, tuple[object, int]] = attrs.Factory(dict)

    def see(self, who: Hashable, bearer: object, value: int, told: str) -> None:
        """Record the present value of `who`; `told` describes it in words. Raises `SafetyViolation` if the value has
        decreased. The value may be lower if `bearer` (the process or replica with the value) is a new object.
        """
        before = self._highest.get(who)
        if before is not None and before[0] is bearer and before[1] > value:
            raise SafetyViolation(f"{self.what}: {told} fell from {before[1]} to {value}")
        self._highest[who] = (bearer, value)


@attrs.define
class EqualAtOffsets:
    """Check that all nodes have the same state at the same offset (rule 7). The error's text begins with `what`."""

    what: str
    _states: dict[int, tuple[str, object]] = attrs.Factory(dict)

    def see(self, who: str, offset: int, state: object) -> None:
        """Note the state of node `who` after it has applied the record at `offset`. Raises `SafetyViolation` if another
        node had a different state after that record.
        """
        first, known = self._states.setdefault(offset, (who, state))
        if known is not state and known != state:
            raise SafetyViolation(f"{self.what}: {first} and {who} differ at offset {offset}")

    @property
    def offsets_seen(self) -> int:
        return len(self._states)


@attrs.frozen
class StoredHeader:
    """The identity of a stored batch. Its contents are represented by their checksum `crc`."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


@attrs.define
class CommittedBatches:
    """Check of the batches of each partition below a high watermark (rule 4)."""

    _batches: dict[TopicIdPartition, dict[int, tuple[str, StoredHeader]]] = attrs.Factory(dict)

    def see(self, key: TopicIdPartition, name: str, who: str, batches: Iterable[StoredHeader]) -> None:
        """Record the batches of a partition that node `who` considers committed. Raises `SafetyViolation`."""
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
    """Check rule 3. `ends` has (name, log end offset) of each in-sync replica. Raises `SafetyViolation`."""
    for who, end_offset in ends:
        if end_offset < high_watermark:
            raise SafetyViolation(
                f"{name}: {leader} leads with high watermark {high_watermark}, but {who}, which is in sync, "
                f"ends at {end_offset}"
            )


def check_bound(who: str, what: str, value: int, most: int) -> None:
    """Check that the size of a queue or cache is at most its stated limit. Raises `SafetyViolation`."""
    if value > most:
        raise SafetyViolation(f"{who}: {what}: {value}, but at most {most} are allowed")
