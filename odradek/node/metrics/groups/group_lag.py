"""The lag of the groups that this broker coordinates: committed offsets beside the ends of partitions. PURE.

A group lags by the records between its committed offset and the high watermark. Its lag in seconds is the age of the oldest
record that it has not committed, in the partition where that is highest (`end_history`).

A broker may coordinate a hundred thousand groups. So a page looks at `OFFSETS_MAX` offsets at most, and lists
`PAIRS_MAX` pairs of a group and a topic. All other groups are counted. The highest lag is that of all offsets which
were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.groups.state import GroupsState, OffsetKey, Offsets
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
    """The lag by group and topic, of the groups that are listed."""
    records_max: int = 0
    """The highest lag of a group in one topic, in records, listed or not."""
    seconds_max: float = 0.0
    """The highest lag of a group in one topic, in seconds, listed or not."""
    groups_left_out: int = 0
    """Groups of which some pair is left out."""
    partitions_unknown: int = 0
    """Partitions with a committed offset whose end no leader has reported."""
    unanswered: int = 0
    """Requests to leaders, from the start of the process, that got no answer in time."""

    def add_group(self, group: str, lags: Mapping[str, Lag]) -> bool:
        """Add the lag of a group by topic. Returns False if there is no room to list all of it."""
        is_whole = True
        for topic, lag in lags.items():
            self.records_max = max(self.records_max, lag.records)
            self.seconds_max = max(self.seconds_max, lag.seconds)
            if (group, topic) in self.pairs or len(self.pairs) < PAIRS_MAX:
                self.pairs[group, topic] = lag
            else:
                is_whole = False
        return is_whole


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
        walk = _Walk(LagFigures(), self._histories, now)
        states = [
            shard.state for _, shard in sorted(self._broker.groups.shards.items()) if shard.state is not None
        ]
        left, work, listed = OFFSETS_MAX, 0, 0
        for group, offsets in _groups(states):
            if left <= 0:
                break
            if len(offsets) > left:
                continue
            left -= len(offsets)
            lags: dict[str, Lag] = {}
            for key, committed in offsets.items():
                work += 1
                if work >= SLICE:
                    work = 0
                    yield
                end = self._end(key, walk)
                if end is not None:
                    walk.add(lags, key, committed.offset, end)
            listed += walk.found.add_group(group, lags)
        found = walk.found
        found.groups_left_out = sum(len(state.offsets) for state in states) - listed
        found.partitions_unknown = len(walk.unknown)
        found.unanswered = self.unanswered
        self._histories, self.missing = walk.histories, walk.missing
        self.reported = {key: end for key, end in self.reported.items() if key in walk.missing}
        return found

    def _end(self, key: OffsetKey, walk: _Walk) -> int | None:
        """Return the high watermark of a partition, as this broker knows it; None if it does not, or if the partition is
        deleted.
        """
        hosted = self._broker.hosted.partition(*key)
        if hosted is not None:
            return hosted.log.high_watermark
        if self._broker.image.partition(*key) is None:
            return None
        walk.missing[key] = None
        end = self.reported.get(key)
        if end is None:
            walk.unknown[key] = None
        return end


@attrs.define
class _Walk:
    """The state of one count."""

    found: LagFigures
    before: dict[OffsetKey, EndHistory]
    """The histories as the page before has left them."""
    now: float
    histories: dict[OffsetKey, EndHistory] = attrs.field(factory=dict)
    missing: dict[OffsetKey, None] = attrs.field(factory=dict)
    unknown: dict[OffsetKey, None] = attrs.field(factory=dict)

    def add(self, lags: dict[str, Lag], key: OffsetKey, committed: int, end: int) -> None:
        """Add the lag of one partition to the lags of its group by topic."""
        lag = lags.get(key[0])
        if lag is None:
            lag = lags[key[0]] = Lag()
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = self.before.get(key) or EndHistory()
            history.note(self.now, end)
        lag.records += max(0, end - committed)
        written = history.written_at(committed)
        if written is not None and self.now - written > lag.seconds:
            lag.seconds = self.now - written


def _groups(states: Sequence[GroupsState]) -> Iterator[tuple[str, Offsets]]:
    """Yield the groups of these shards, with their committed offsets."""
    if sum(len(state.offsets) for state in states) > SORTED_MAX:
        for state in states:
            yield from state.offsets.items()
    else:
        # A group has offsets in two shards if its offsets topic has got more partitions.
        both = ((group, offsets) for state in states for group, offsets in state.offsets.items())
        yield from sorted(both, key=itemgetter(0))
