"""Subscriptions by regular expression: the search for the topics that a pattern matches, and the times of the
next searches. PURE.

Patterns are in RE2's syntax, and match a whole topic name (KIP-848). The log has the topics that the last
search found for each pattern. A worker searches for these topics (`find_topics`), with the rights of the member
whose heartbeat triggered the search. Only topics that this member may DESCRIBE match.

One search covers all patterns of a group. It is due when a pattern is new, when topics were created, or when
`group.consumer.regex.refresh.interval.ms` has passed. A group has one search at a time, and at least ten
seconds pass between two searches.
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
"""A function that returns True if a client may DESCRIBE the topic of this name."""


class PatternStatus(Enum):
    """The ways in which a heartbeat may change a member's pattern."""

    UNCHANGED = 0
    CHANGED = 1
    RESOLVED = 2
    """The pattern has changed, and the log already has its topics. So the group's epoch must rise."""


@attrs.frozen
class FindTopics:
    """Work for a worker: search for the topics that the patterns of one group match."""

    group_id: str
    patterns: tuple[str, ...]
    image: MetadataImage
    may_see: MaySee | None
    """A function that returns True for topics that the member may DESCRIBE. None means that all topics are
    visible.
    """
    started_ms: int
    """The wall-clock time at which the search was requested, in milliseconds since 1970."""

    def requests(self) -> Sequence[TopicsFound]:
        """Search for the topics, and return the result as one request to the coordinator."""
        return [find_topics(self)]


@attrs.frozen
class TopicsFound:
    """A worker's result, which asks the coordinator to write the found topics to the log. The request has
    no answer.
    """

    group_id: str
    found: Mapping[str, Resolved]
    """The topics of each pattern; empty if the search failed."""


def find_topics(work: FindTopics) -> TopicsFound:
    """Search for the topics that match each pattern. The time grows with the number of patterns times the
    number of topics, so this runs in a worker thread.
    """
    matched: dict[str, list[str]] = {pattern: [] for pattern in work.patterns}
    visible: dict[str, bool] = {}
    for pattern, names in matched.items():
        try:
            expression = compile_pattern(pattern)
        except re2.error:
            # If another program wrote the log, it may contain an invalid pattern. Such a pattern matches no
            # topic.
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
    """The searches for the topics of patterns, for all groups of one coordinator.

    The set of running searches is soft state.
    """

    def __init__(self, refresh_interval_ms: int) -> None:
        self._refresh_interval_ms = refresh_interval_ms
        self._running: set[str] = set()
        self._wanted: list[FindTopics] = []
        self._newest_topics = -1
        """The offset of the newest metadata image that had new topics."""

    def topics_created(self, offset: int) -> None:
        """Record that the metadata at this offset has new topics, so that the topics of patterns are searched
        again.
        """
        self._newest_topics = offset

    def take_wanted(self) -> Sequence[FindTopics]:
        """Return the searches that were requested since the last call.

        Each search must end with a `TopicsFound`.
        """
        wanted, self._wanted = self._wanted, []
        return wanted

    def ended(self, group_id: str) -> None:
        """Record that the search for this group has ended."""
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
        """Compare a member's new pattern with its earlier pattern. If a search is due, request a search for the
        topics of all patterns of the group. `change` must already contain the member's new profile. `before`
        and `after` are patterns; an empty string means no pattern.
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
        """Return how the member's pattern has changed, and True if the pattern is new to the group."""
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
    """Check a pattern if no other member of the group has it.

    The member's new profile is already in `group`. `check` raises the error that a worker has found. If
    `check` is None, the pattern is compiled here.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR
    """
    if pattern and group.pattern_counts[pattern] == 1:
        (check or check_pattern)(pattern)


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that is too long for a record, or that RE2 cannot compile within a few milliseconds.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR
    """
    if utf8_size(pattern) > STRING_BYTES_MAX:
        # Refuse a longer pattern, because it does not fit into a record's key.
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
