"""The lag of the groups that this broker coordinates: committed offsets beside the ends of partitions. PURE.

A group lags by the records between its committed offset and the high watermark. Its lag in seconds is the age of the oldest
record that it has not committed, in the partition where that is highest (`end_history`).

A broker may coordinate a hundred thousand groups. So a page looks at `OFFSETS_MAX` offsets at most, and lists
`PAIRS_MAX` pairs of a group and a topic. All other groups are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.groups.state import OffsetKey, Offsets
from odradek.node.metrics.groups.end_history import EndHistory
from odradek.node.metrics.hosted_figures import SLICE, Slices

__all__ = ["OFFSETS_MAX", "PAIRS_MAX", "GroupLag", "Lag", "LagFigures"]

PAIRS_MAX = 500
"""The most pairs of a group and a topic with figures of their own."""
OFFSETS_MAX = 10_000
"""The most committed offsets of which a page computes the lag: 3 to 5 milliseconds of the event loop, in slices."""
SORTED_MAX = 1_000
"""Up to this number, groups are listed in the order of their names."""


@attrs.define
class Lag:
    """The lag of one group in one topic."""

    records: int = 0
    seconds: float = 0.0


@attrs.define
class LagFigures:
    """The lag of all groups that were looked at."""

    pairs: dict[tuple[str, str], Lag] = attrs.field(factory=dict)
    """The lag by group and topic."""
    groups_left_out: int = 0
    """Groups of which some pair is left out."""
    partitions_unknown: int = 0
    """Partitions with a committed offset whose end no leader has reported."""
    unanswered: int = 0
    """Requests to leaders, from the start of the process, that got no answer in time."""


class GroupLag:
    """The memory from page to page: ends of partitions, and the partitions whose leaders are to be asked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._histories: dict[OffsetKey, EndHistory] = {}
        self.reported: dict[OffsetKey, int] = {}
        """The ends of partitions without a replica here, as their leaders have reported them."""
        self.missing: dict[OffsetKey, None] = {}
        """The partitions without a replica here in which groups had committed offsets when the last page was made."""

        self.unanswered = 0
        """Requests to leaders that got no answer in time."""

    def count(self, now: float) -> Slices[LagFigures]:
        """Compute the lag at this moment (monotonic seconds), in slices."""
        found = LagFigures()
        histories: dict[OffsetKey, EndHistory] = {}
        missing: dict[OffsetKey, None] = {}
        unknown: dict[OffsetKey, None] = {}
        left, work = OFFSETS_MAX, 0
        for group, offsets in self._groups():
            if len(offsets) > left:
                found.groups_left_out += 1
                continue
            left -= len(offsets)
            work += len(offsets)
            is_left_out = False
            for key, committed in offsets.items():
                end = self._end(key, missing)
                if end is None:
                    if key in missing:
                        unknown[key] = None
                    continue
                pair = group, key[0]
                lag = found.pairs.get(pair)
                if lag is None:
                    if len(found.pairs) >= PAIRS_MAX:
                        is_left_out = True
                        continue
                    lag = found.pairs[pair] = Lag()
                history = histories.get(key)
                if history is None:
                    history = histories[key] = self._histories.get(key) or EndHistory()
                    history.note(now, end)
                lag.records += max(0, end - committed.offset)
                written = history.written_at(committed.offset)
                if written is not None and now - written > lag.seconds:
                    lag.seconds = now - written
            found.groups_left_out += is_left_out
            if work >= SLICE:
                work = 0
                yield
        self._histories, self.missing = histories, missing
        self.reported = {key: end for key, end in self.reported.items() if key in missing}
        found.partitions_unknown = len(unknown)
        found.unanswered = self.unanswered
        return found

    def _groups(self) -> Iterator[tuple[str, Offsets]]:
        """Yield the groups of all loaded shards, with their committed offsets."""
        states = [
            shard.state for _, shard in sorted(self._broker.groups.shards.items()) if shard.state is not None
        ]
        if sum(len(state.offsets) for state in states) > SORTED_MAX:
            for state in states:
                yield from state.offsets.items()
        else:
            yield from sorted(
                (group, offsets) for state in states for group, offsets in state.offsets.items()
            )

    def _end(self, key: OffsetKey, missing: dict[OffsetKey, None]) -> int | None:
        """Return the high watermark of a partition, as this broker knows it; None if it does not, or if the partition is
        deleted.
        """
        hosted = self._broker.hosted.partition(*key)
        if hosted is not None:
            return hosted.log.high_watermark
        if self._broker.image.partition(*key) is None:
            return None
        missing[key] = None
        return self.reported.get(key)
