"""Subscriptions by regular expression: which topics a pattern matches, and when that is found out anew. PURE.

Patterns are those of RE2, and match a whole name (KIP-848). The log has the topics of each pattern, as they were found last. A
worker finds them (`find_topics`), by the rights of the member whose heartbeat asked for it. Only topics that this member may
DESCRIBE match.

All patterns of a group are resolved together, when one of them is new, when topics were created, or when
`group.consumer.regex.refresh.interval.ms` has passed. Ten seconds lie between two resolutions, and one runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import attrs
import re2

from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, Resolved
from odradek.data_plane.groups.consumers.consumer_records import pattern_tombstone
from odradek.data_plane.groups.consumers.group_change import GroupChange
from odradek.data_plane.groups.record_sizes import STRING_BYTES_MAX, utf8_size
from odradek.env.pausing import pause
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached
from odradek.serving.patterns import compile_pattern, forget_compiled
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = [
    "FindTopics",
    "MaySee",
    "PatternStatus",
    "Patterns",
    "TopicsFound",
    "check_new_pattern",
    "check_pattern",
    "find_topics",
]

REFRESH_INTERVAL_MS_MIN = 10_000
NAMES_PER_PAUSE = 1_000

MaySee: TypeAlias = Callable[[str], bool]
"""True for a topic that a client may DESCRIBE."""


class PatternStatus(Enum):
    """The change of a member's pattern."""

    UNCHANGED = 0
    CHANGED = 1
    RESOLVED = 2
    """It is another than before, and its topics are known: the group's epoch must rise."""


@attrs.frozen
class FindTopics:
    """Work for a worker: find the topics of all patterns of a group."""

    group_id: str
    patterns: tuple[str, ...]
    image: MetadataImage
    may_see: MaySee | None
    """None: everybody may see all topics."""
    started_ms: int
    """Wall-clock time at which it was asked for."""

    def requests(self) -> Sequence[TopicsFound]:
        """Find the topics, and return them as a request to the coordinator."""
        return [find_topics(self)]


@attrs.frozen
class TopicsFound:
    """The request of a coordinator to take over what a worker has found. It has no answer."""

    group_id: str
    found: Mapping[str, Resolved]
    """The topics of each pattern; empty if the work has failed."""


def find_topics(work: FindTopics) -> TopicsFound:
    """Find the topics of each pattern. It takes time in proportion to patterns and topics, and belongs into a worker."""
    matched: dict[str, list[str]] = {pattern: [] for pattern in work.patterns}
    visible: dict[str, bool] = {}
    for pattern, names in matched.items():
        try:
            expression = compile_pattern(pattern)
        except re2.error:
            # Another program's log may hold any text. It matches nothing.
            reached("consumer_groups.unreadable_pattern_skipped")
            continue
        for number, name in enumerate(work.image.topics):
            if number % NAMES_PER_PAUSE == 0:
                pause()
            if expression.fullmatch(name) is not None:
                if name not in visible:
                    visible[name] = work.may_see is None or work.may_see(name)
                if visible[name]:
                    names.append(name)
        forget_compiled()
    offset = work.image.offset
    return TopicsFound(
        work.group_id,
        {pattern: Resolved(frozenset(names), offset, work.started_ms) for pattern, names in matched.items()},
    )


class Patterns:
    """The patterns of all groups of one coordinator. Which resolutions run is soft state."""

    def __init__(self, refresh_interval_ms: int) -> None:
        self._refresh_interval_ms = refresh_interval_ms
        self._running: set[str] = set()
        self._wanted: list[FindTopics] = []
        self._newest_topics = -1
        """The offset of the newest metadata with new topics."""

    def topics_created(self, offset: int) -> None:
        """Note that the metadata at this offset has topics that were not there before."""
        self._newest_topics = offset

    def take_wanted(self) -> Sequence[FindTopics]:
        """Take the work that decisions have asked for. Each piece ends with `TopicsFound`."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def ended(self, group_id: str) -> None:
        """Note that a resolution has ended."""
        self._running.discard(group_id)

    def update(
        self,
        change: GroupChange,
        before: str,
        after: str,
        image: MetadataImage,
        may_see: MaySee | None,
        wall_ms: int,
    ) -> PatternStatus:
        """Compare a member's pattern with its earlier one, when its profile is in the group already. Ask for a
        resolution where one is due.
        """
        status, is_new = PatternStatus.UNCHANGED, False
        if before != after:
            status, is_new = self._changed(change, before, after)
        group = change.group
        if group.pattern_counts and self._is_due(group, is_new, wall_ms):
            self._running.add(group.group_id)
            patterns = tuple(sorted(group.pattern_counts))
            self._wanted.append(FindTopics(group.group_id, patterns, image, may_see, wall_ms))
        return status

    def _changed(self, change: GroupChange, before: str, after: str) -> tuple[PatternStatus, bool]:
        """Return the change of the pattern, and True if the group has not had it so far."""
        group = change.group
        is_new = bool(after) and group.pattern_counts[after] == 1
        if before and before not in group.pattern_counts and before in group.resolved:
            change.add([pattern_tombstone(group.group_id, before)])
        if after in group.resolved or not after:
            return PatternStatus.RESOLVED, is_new
        return PatternStatus.CHANGED, is_new

    def _is_due(self, group: ConsumerGroup, is_new: bool, wall_ms: int) -> bool:
        if group.group_id in self._running:
            return False
        last = next(iter(group.resolved.values()), None)
        if last is None:
            return True
        if wall_ms <= last.timestamp_ms + REFRESH_INTERVAL_MS_MIN:
            return False
        return (
            is_new
            or len(group.pattern_counts) != len(group.resolved)
            or last.version < self._newest_topics
            or wall_ms > last.timestamp_ms + self._refresh_interval_ms
        )


def check_new_pattern(group: ConsumerGroup, pattern: str, check: Callable[[str], None] | None) -> None:
    """Refuse a pattern that nobody but its member has in the group, when its profile is there already.

    `check` raises the error of a worker that has read the pattern; None: it is read here.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR
    """
    if pattern and group.pattern_counts[pattern] == 1:
        (check or check_pattern)(pattern)


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that is too long for a record, or that RE2 cannot read in some milliseconds.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR
    """
    if utf8_size(pattern) > STRING_BYTES_MAX:
        # It fits no record's key.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        compile_pattern(pattern)
    except re2.error as error:
        reached("consumer_groups.invalid_pattern_refused")
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {_text(error)}.",
        ) from error
    finally:
        forget_compiled()


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else ""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
