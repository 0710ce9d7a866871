"""The views of groups: the list, one group with its members and its lag, the groups that read a topic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from odradek.cli.streams.lag_trend import trend_of
from odradek.client.admin import GroupDescription, GroupListing, GroupMember, OffsetSpan, PartitionLag
from odradek.client.errors import ClientError
from odradek.console.sessions.lag_history import Measured
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import TOPIC_NAME, about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "GroupDetail",
    "GroupQuery",
    "GroupRow",
    "Groups",
    "GroupsQuery",
    "TopicGroupsQuery",
    "TopicReader",
    "committed_offsets",
    "group",
    "groups",
    "topic_groups",
]

ROWS_PER_PAGE = 100
OFFSETS_PER_PAGE = 500
MEMBERS_MAX = 200
GROUPS_ASKED_MAX = 1000
"""The most groups whose committed offsets are asked for one view."""
LAGGING_MAX = 500
"""The most partitions in a list whose lag in time is looked up: each needs a fetch."""
_OFFSETS_SECONDS = 3.0
VIEW_SECONDS_MAX = 8.0
"""The time for all questions of a view. Times of lags that it does not leave time for are unknown."""
_UNKNOWN = about(
    "partitions whose lag is not known: no offset is committed, or a broker or the group has not answered for them"
)
_ID_MAX = 32_767
_Offsets: TypeAlias = "Mapping[TopicPartition, int | None]"
"""The committed offsets of a group; None: the coordinator has not reported it."""


@attrs.frozen(kw_only=True)
class GroupsQuery:
    """Which groups to list."""

    search: str = attrs.field(
        default="", metadata=about("a part of the id; capitals do not matter", maximum=1024)
    )
    state: str = attrs.field(default="", metadata=about("only groups in this state, as Kafka names it"))
    type_: str = attrs.field(
        default="",
        metadata=about("only groups of this type", choices=("", "classic", "consumer", "share", "streams")),
    )
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class GroupRow:
    """A group."""

    id: str = attrs.field(metadata=about("the id"))
    type_: str = attrs.field(metadata=about("classic, consumer (KIP-848), share or streams"))
    state: str = attrs.field(metadata=about("the state, as Kafka names it"))
    protocol: str = attrs.field(metadata=about("the protocol type, such as consumer or connect"))
    coordinator: int = attrs.field(metadata=about("the broker that coordinates it"))
    members: int | None = attrs.field(metadata=about("the number of members"))
    topics: int | None = attrs.field(metadata=about("the number of topics with committed offsets"))
    lag: int | None = attrs.field(
        metadata=about("records that the group has not read; null if a partition's lag is not known")
    )
    unknown_partitions: int = attrs.field(metadata=_UNKNOWN)
    behind_ms: int | None = attrs.field(
        metadata=about(
            "the age of the oldest record that it has not read; null if it is not known for each partition"
        )
    )
    error: str | None = attrs.field(metadata=about("why the lag is not known"))


@attrs.frozen(kw_only=True)
class Groups:
    """A page of groups."""

    total: int = attrs.field(metadata=about("the number of groups that fit"))
    page: int = attrs.field(metadata=about("the page"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    rows: Sequence[GroupRow] = attrs.field(
        metadata=about(f"the groups of this page, at most {ROWS_PER_PAGE}")
    )


def groups(session: Session, query: GroupsQuery) -> Groups:
    """List groups of all kinds, with their lag in records and in time."""
    wanted = query.search.lower()
    listed = [
        each
        for each in _listed(session)
        if wanted in each.group_id.lower()
        and query.state in ("", each.state)
        and query.type_ in ("", each.group_type)
    ]
    page = page_of(listed, query.page, ROWS_PER_PAGE)
    ids = tuple(each.group_id for each in page.rows)
    details = session.cache.value(("groups", ids), _OFFSETS_SECONDS, lambda: _details(session, page.rows))
    return Groups(total=page.total, page=page.page, pages=page.pages, rows=details)


def _listed(session: Session) -> Sequence[GroupListing]:
    return session.cache.value("group listing", 1.0, session.client.list_groups)


def _details(session: Session, listed: Sequence[GroupListing]) -> list[GroupRow]:
    if not listed:
        return []
    deadline = time.monotonic() + VIEW_SECONDS_MAX
    ids = [each.group_id for each in listed]
    described = {each.group_id: each for each in session.client.describe_groups(ids, timeout=_left(deadline))}
    offsets, errors = _committed(session, ids, deadline)
    lags = _lags(session, _with_assigned(offsets, described), deadline)
    return [_row(each, described.get(each.group_id), offsets, lags, errors) for each in listed]


def _row(
    each: GroupListing,
    described: GroupDescription | None,
    offsets: Mapping[str, _Offsets],
    lags: Mapping[str, Sequence[PartitionLag]],
    errors: Mapping[str, str],
) -> GroupRow:
    of_group = lags.get(each.group_id)
    committed = offsets.get(each.group_id)
    whole = _summed(of_group or ())
    return GroupRow(
        id=each.group_id,
        type_=each.group_type,
        state=each.state,
        protocol=each.protocol_type,
        coordinator=each.coordinator,
        members=None if described is None or described.error is not None else len(described.members),
        topics=None if committed is None else len({key.topic for key in committed}),
        lag=None if of_group is None else whole.lag,
        unknown_partitions=whole.unknown_partitions,
        behind_ms=whole.behind_ms,
        error=errors.get(each.group_id),
    )


def _with_assigned(
    offsets: Mapping[str, _Offsets], described: Mapping[str, GroupDescription]
) -> Mapping[str, _Offsets]:
    """Add the partitions that members read without a committed offset: their lag counts as unknown, as on the group's
    own page.
    """
    found = {group_id: dict(of_group) for group_id, of_group in offsets.items()}
    for group_id, of_group in found.items():
        group = described.get(group_id)
        for member in () if group is None else group.members:
            for key in member.partitions:
                of_group.setdefault(key, None)
    return found


class _WholeLag(NamedTuple):
    """The lag of a group in several partitions."""

    lag: int | None
    unknown_partitions: int
    behind_ms: int | None


def _summed(lags: Sequence[PartitionLag]) -> _WholeLag:
    """Add lags up. The sum is None if one is unknown; so is the time if a partition that lags has none."""
    unknown = sum(_is_unknown(each) for each in lags)
    is_timed = not unknown and all(each.behind_ms is not None for each in lags if each.lag)
    behind = [each.behind_ms for each in lags if each.behind_ms is not None]
    return _WholeLag(
        None if unknown else sum(each.lag or 0 for each in lags),
        unknown,
        max(behind, default=None) if is_timed else None,
    )


def _is_unknown(each: PartitionLag) -> bool:
    """True if the partition may have unread records that nobody has counted. An empty one has none."""
    return each.lag is None and (each.span is None or each.span.start < each.span.end)


def _left(deadline: float) -> float:
    """Return the seconds until then, but enough for an answer that is there already."""
    return max(0.1, deadline - time.monotonic())


def committed_offsets(
    session: Session, ids: Sequence[str]
) -> tuple[dict[str, dict[TopicPartition, int]], dict[str, str]]:
    """Return the committed offsets of groups, and the reasons for those without an answer."""
    found, errors = _committed(session, ids, time.monotonic() + VIEW_SECONDS_MAX)
    return {
        group_id: {key: offset for key, offset in of_group.items() if offset is not None}
        for group_id, of_group in found.items()
    }, errors


def _committed(
    session: Session, ids: Sequence[str], deadline: float
) -> tuple[dict[str, _Offsets], dict[str, str]]:
    asked: dict[str, None] = dict.fromkeys(ids[:GROUPS_ASKED_MAX])
    found: dict[str, _Offsets] = {}
    errors: dict[str, str] = {}
    for each in session.client.list_group_offsets(asked, timeout=_left(deadline)) if asked else ():
        if each.error is not None:
            errors[each.group_id] = str(each.error)
            continue
        found[each.group_id] = {
            key: place.offset if place.error is None else None for key, place in each.offsets.items()
        }
    return found, errors


def _lags(
    session: Session, offsets: Mapping[str, _Offsets], deadline: float
) -> dict[str, list[PartitionLag]]:
    """Compute the lag of several groups. The times of at most `LAGGING_MAX` partitions are looked up."""
    keys = sorted({key for of_group in offsets.values() for key in of_group})
    spans = session.client.offset_spans(keys, timeout=_left(deadline)) if keys else {}
    found: dict[str, list[PartitionLag]] = {}
    left = LAGGING_MAX
    now_ms = time.time_ns() // 1_000_000
    for group_id, of_group in offsets.items():
        lagging: dict[tuple[str, int], int | None] = {}
        lags = []
        for key, offset in of_group.items():
            span = spans.get(key)
            known = span if isinstance(span, OffsetSpan) else None
            is_read = known is not None and offset is not None and offset >= known.end
            lags.append(PartitionLag(*key, offset, known, 0 if is_read else None))
            if known is not None and offset is not None and not is_read and left > 0:
                left -= 1
                lagging[key] = offset
        times = {each.key: each for each in _lag_of(session, lagging, now_ms, deadline)}
        found[group_id] = [times.get(each.key, each) for each in lags]
    return found


def _lag_of(
    session: Session, committed: Mapping[tuple[str, int], int | None], now_ms: int, deadline: float
) -> Sequence[PartitionLag]:
    """Describe the lag with its time. Without an answer, nothing is returned: the lag in records is known."""
    left = deadline - time.monotonic()
    if not committed or left <= 0:
        return ()
    try:
        return session.client.describe_lag(committed, now_ms=now_ms, timeout=left)
    except (KafkaError, ClientError):
        return ()


@attrs.frozen(kw_only=True)
class GroupQuery:
    """A group, and the page of its offsets."""

    id: str = attrs.field(metadata=about("the id of the group", maximum=_ID_MAX))
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class AssignedTopic:
    """Partitions of one topic that a member has."""

    topic: str = attrs.field(metadata=about("the topic"))
    partitions: Sequence[int] = attrs.field(metadata=about("the partitions"))


@attrs.frozen(kw_only=True)
class MemberRow:
    """A member of a group."""

    member_id: str = attrs.field(metadata=about("the member's id"))
    instance_id: str | None = attrs.field(metadata=about("group.instance.id, if the member has one"))
    client_id: str = attrs.field(metadata=about("the client's id"))
    host: str = attrs.field(metadata=about("the client's address"))
    rack: str | None = attrs.field(metadata=about("the client's rack"))
    protocol: str = attrs.field(metadata=about("classic or consumer in a group of KIP-848, else empty"))
    epoch: int | None = attrs.field(metadata=about("the member's epoch in a group of KIP-848"))
    assignment: Sequence[AssignedTopic] = attrs.field(metadata=about("what it reads"))
    target: Sequence[AssignedTopic] = attrs.field(metadata=about("what it shall read (KIP-848)"))
    is_moving: bool = attrs.field(metadata=about("true if it does not have its target yet"))
    topics: Sequence[str] = attrs.field(metadata=about("the topics that it subscribes to (KIP-848)"))
    pattern: str | None = attrs.field(metadata=about("the pattern of topics that it subscribes to"))


@attrs.frozen(kw_only=True)
class OffsetRow:
    """The progress of a group in a partition."""

    topic: str = attrs.field(metadata=about("the topic"))
    partition: int = attrs.field(metadata=about("the partition"))
    committed: int | None = attrs.field(metadata=about("the next offset to read; null without a commit"))
    log_start_offset: int | None = attrs.field(metadata=about("the first offset of the partition"))
    log_end_offset: int | None = attrs.field(metadata=about("the offset behind the last record"))
    lag: int | None = attrs.field(metadata=about("records that were not read"))
    behind_ms: int | None = attrs.field(metadata=about("the age of the first of them; 0 if there is none"))
    trend_per_second: float | None = attrs.field(
        metadata=about("the growth of the lag per second, below 0 if it falls; null at first")
    )
    zero_in_ms: int | None = attrs.field(
        metadata=about("the time until the lag is zero at this pace; null if that does not happen")
    )
    member_id: str | None = attrs.field(metadata=about("the member that reads it"))
    error: str | None = attrs.field(metadata=about("why the offsets are unknown"))


@attrs.frozen(kw_only=True)
class GroupTrend:
    """The change of a group's lag between two looks."""

    measured_ms: int = attrs.field(metadata=about("the time between the looks"))
    read_per_second: float = attrs.field(metadata=about("records that the group has read"))
    written_per_second: float = attrs.field(metadata=about("records that were written"))
    zero_in_ms: int | None = attrs.field(metadata=about("the time until the lag is zero at this pace"))


@attrs.frozen(kw_only=True)
class GroupDetail:
    """A group with its members, and a page of its offsets."""

    id: str = attrs.field(metadata=about("the id"))
    type_: str = attrs.field(metadata=about("classic or consumer (KIP-848)"))
    state: str = attrs.field(metadata=about("the state, as Kafka names it"))
    protocol: str = attrs.field(metadata=about("the assignor"))
    coordinator: int = attrs.field(metadata=about("the broker that coordinates it"))
    epoch: int | None = attrs.field(metadata=about("the group's epoch (KIP-848)"))
    assignment_epoch: int | None = attrs.field(metadata=about("the epoch of the target assignment (KIP-848)"))
    member_count: int = attrs.field(metadata=about("the number of members"))
    members: Sequence[MemberRow] = attrs.field(metadata=about(f"the members, at most {MEMBERS_MAX}"))
    lag: int | None = attrs.field(
        metadata=about("records that were not read, in all partitions; null if one of them is not known")
    )
    unknown_partitions: int = attrs.field(metadata=_UNKNOWN)
    behind_ms: int | None = attrs.field(
        metadata=about("the age of the oldest of them; null if it is not known for each partition")
    )
    trend: GroupTrend | None = attrs.field(metadata=about("the change since an earlier look; null at first"))
    total: int = attrs.field(metadata=about("the number of partitions"))
    page: int = attrs.field(metadata=about("the page of offsets"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    offsets: Sequence[OffsetRow] = attrs.field(
        metadata=about(f"the offsets of this page, at most {OFFSETS_PER_PAGE}")
    )


def group(session: Session, query: GroupQuery) -> GroupDetail:
    """Describe a group: its members, its lag, and when the lag will be zero."""
    deadline = time.monotonic() + VIEW_SECONDS_MAX
    (described,) = session.client.describe_groups([query.id], timeout=_left(deadline))
    if described.error is not None:
        raise described.error
    before, now = session.lags.measure(
        query.id, lambda: session.client.describe_group_lag(query.id, timeout=_left(deadline))
    )
    page = page_of(now.lags, query.page, OFFSETS_PER_PAGE)
    owners = {key: member.member_id for member in described.members for key in member.partitions}
    older = {} if before is None else {each.key: each for each in before.lags}
    seconds = 0.0 if before is None else now.at - before.at
    is_new = described.group_type == "consumer"
    whole = _summed(now.lags)
    return GroupDetail(
        id=described.group_id,
        type_=described.group_type,
        state=described.state,
        protocol=described.protocol,
        coordinator=described.coordinator,
        epoch=described.group_epoch if is_new else None,
        assignment_epoch=described.assignment_epoch if is_new else None,
        member_count=len(described.members),
        members=[_member_row(each, is_new) for each in described.members[:MEMBERS_MAX]],
        lag=whole.lag,
        unknown_partitions=whole.unknown_partitions,
        behind_ms=whole.behind_ms,
        trend=_trend(before, now),
        total=page.total,
        page=page.page,
        pages=page.pages,
        offsets=[_offset_row(each, older.get(each.key), seconds, owners.get(each.key)) for each in page.rows],
    )


def _member_row(member: GroupMember, is_new: bool) -> MemberRow:
    return MemberRow(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host.removeprefix("/"),
        rack=member.rack,
        protocol=member.protocol,
        epoch=member.member_epoch if is_new else None,
        assignment=_by_topic(member.partitions),
        target=_by_topic(member.target),
        is_moving=is_new and member.partitions != member.target,
        topics=member.subscribed_topics,
        pattern=member.subscribed_pattern,
    )


def _by_topic(partitions: Sequence[TopicPartition]) -> list[AssignedTopic]:
    found: dict[str, list[int]] = {}
    for name, index in partitions:
        found.setdefault(name, []).append(index)
    return [AssignedTopic(topic=name, partitions=sorted(indexes)) for name, indexes in sorted(found.items())]


def _trend(before: Measured | None, now: Measured) -> GroupTrend | None:
    if before is None:
        return None
    trend = trend_of(before.lags, now.lags, max(1, round((now.at - before.at) * 1000)))
    if trend is None:
        return None
    return GroupTrend(
        measured_ms=trend.milliseconds,
        read_per_second=trend.per_second(trend.read),
        written_per_second=trend.per_second(trend.written),
        # A partition whose lag is unknown has no such time.
        zero_in_ms=None if _summed(now.lags).lag is None else trend.zero_in_ms,
    )


def _offset_row(
    each: PartitionLag, older: PartitionLag | None, seconds: float, member_id: str | None
) -> OffsetRow:
    lag = each.lag
    trend = None
    if lag is not None and older is not None and older.lag is not None and seconds > 0:
        trend = (lag - older.lag) / seconds
    zero_in_ms = None
    if lag == 0:
        zero_in_ms = 0
    elif lag is not None and trend is not None and trend < 0:
        zero_in_ms = round(lag / -trend * 1000)
    return OffsetRow(
        topic=each.topic,
        partition=each.partition,
        committed=each.committed,
        log_start_offset=None if each.span is None else each.span.start,
        log_end_offset=None if each.span is None else each.span.end,
        lag=lag,
        behind_ms=each.behind_ms,
        trend_per_second=trend,
        zero_in_ms=zero_in_ms,
        member_id=member_id,
        error=None if each.error is None else str(each.error),
    )


@attrs.frozen(kw_only=True)
class TopicGroupsQuery:
    """A topic."""

    name: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))


@attrs.frozen(kw_only=True)
class TopicReader:
    """A group that reads a topic."""

    id: str = attrs.field(metadata=about("the group"))
    type_: str = attrs.field(metadata=about("classic, consumer, share or streams"))
    state: str = attrs.field(metadata=about("the state, as Kafka names it"))
    partitions: int = attrs.field(metadata=about("partitions of the topic with a committed offset"))
    lag: int | None = attrs.field(
        metadata=about("records of the topic that the group has not read; null if that is not known")
    )
    unknown_partitions: int = attrs.field(metadata=_UNKNOWN)
    behind_ms: int | None = attrs.field(metadata=about("the age of the oldest of them; null if not known"))


def topic_groups(session: Session, query: TopicGroupsQuery) -> Sequence[TopicReader]:
    """List the groups that have committed offsets of a topic. At most a thousand groups are asked."""
    listed = {each.group_id: each for each in _listed(session)}
    deadline = time.monotonic() + VIEW_SECONDS_MAX
    offsets = session.cache.value(
        "all committed offsets", _OFFSETS_SECONDS, lambda: _committed(session, list(listed), deadline)[0]
    )
    of_topic = {
        group_id: {key: offset for key, offset in of_group.items() if key.topic == query.name}
        for group_id, of_group in offsets.items()
        if group_id in listed
    }
    of_topic = {group_id: each for group_id, each in of_topic.items() if each}
    lags = _lags(session, of_topic, deadline)
    return [
        _topic_reader(listed[group_id], _summed(lags[group_id]), len(each))
        for group_id, each in of_topic.items()
    ]


def _topic_reader(listed: GroupListing, whole: _WholeLag, partitions: int) -> TopicReader:
    return TopicReader(
        id=listed.group_id,
        type_=listed.group_type,
        state=listed.state,
        partitions=partitions,
        lag=whole.lag,
        unknown_partitions=whole.unknown_partitions,
        behind_ms=whole.behind_ms,
    )
