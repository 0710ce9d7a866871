"""The view of the history: what has changed in the cluster, when, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from odradek.client.admin import ConfigResource, ResourceType
from odradek.client.errors import ClientError
from odradek.console.sessions.history import Told
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import TOPIC_NAME, about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.console.shapes.view_errors import ViewError
from odradek.operations.cluster_events import Event
from odradek.security.acls.acl_requests import AclFilter
from odradek.wire.errors import ErrorCode, KafkaError

__all__ = ["HistoryPage", "HistoryQuery", "HistoryRow", "history", "recent_changes"]

ROWS_PER_PAGE = 200
SUBJECTS_MAX = 20
_SECONDS = 1.0
_RECENT_EVENTS_MAX = 2_000
"""The most events among which the newest changes are looked for. One change may have many."""


@attrs.frozen(kw_only=True)
class HistoryQuery:
    """Which changes to list."""

    topic: str | None = attrs.field(
        default=None,
        metadata=about("the name of a topic, whose changes alone are listed", pattern=TOPIC_NAME),
    )
    broker: int | None = attrs.field(default=None, metadata=about("only changes of this broker", minimum=0))
    kind: str | None = attrs.field(
        default=None,
        metadata=about(
            "only changes of this kind: topic, leader, isr, move, config, acl, user, broker, ...", maximum=32
        ),
    )
    search: str = attrs.field(default="", metadata=about("a part of the sentence", maximum=1024))
    since_ms: int | None = attrs.field(
        default=None, metadata=about("only changes from this time on, in milliseconds since 1970", minimum=0)
    )
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class HistoryRow:
    """A change, or several equal ones of one moment."""

    time_ms: int = attrs.field(metadata=about("milliseconds since 1970"))
    offset: int = attrs.field(metadata=about("the place in the metadata log"))
    kind: str = attrs.field(metadata=about("what it is about: topic, leader, isr, move, config, acl, ..."))
    who: str | None = attrs.field(
        metadata=about(
            "the principal that asked for it, by an audit log, or controller N for what the controllers decided "
            "themselves; null if it is not known"
        )
    )
    controller: int | None = attrs.field(metadata=about("the controller that wrote it"))
    what: str = attrs.field(metadata=about("the change in a sentence"))
    subjects: Sequence[str] = attrs.field(metadata=about(f"what has changed, at most {SUBJECTS_MAX} names"))
    subject_count: int = attrs.field(metadata=about("the number of things that have changed"))
    before: str | None = attrs.field(metadata=about("the value before, of a single change"))
    after: str | None = attrs.field(metadata=about("the value after"))


@attrs.frozen(kw_only=True)
class HistoryPage:
    """A page of the history, the newest change first."""

    total: int = attrs.field(metadata=about("the number of changes that fit"))
    page: int = attrs.field(metadata=about("the page"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    begins_at: int = attrs.field(
        metadata=about("earlier places of the metadata log are known only in their results")
    )
    kinds: Sequence[str] = attrs.field(metadata=about("the kinds of changes that occur"))
    who_unknown: Sequence[str] = attrs.field(
        metadata=about("why `who` is null in rows of this page: sentences; empty if it never is")
    )
    rows: Sequence[HistoryRow] = attrs.field(
        metadata=about(f"the changes of this page, at most {ROWS_PER_PAGE}")
    )


def history(session: Session, query: HistoryQuery) -> HistoryPage:
    """List the changes of the cluster, from the metadata log. It needs DESCRIBE and DESCRIBE_CONFIGS on the cluster."""
    told = _told(session)
    page = page_of(
        _groups(session, [event for event in told.events if _fits(event, query)]), query.page, ROWS_PER_PAGE
    )
    return HistoryPage(
        total=page.total,
        page=page.page,
        pages=page.pages,
        begins_at=told.begins_at,
        kinds=sorted({event.kind for event in told.events}),
        who_unknown=_who_unknown(session, [event for events in page.rows for event in events], told),
        rows=[_row(session, events, told.controllers) for events in page.rows],
    )


def recent_changes(session: Session, count: int, wait_seconds: float) -> Sequence[HistoryRow] | None:
    """Return the newest changes as of some seconds ago; None if they are not read after `wait_seconds`.

    Raises `ViewError`, `KafkaError` and `ClientError` as the history does.
    """
    told = session.history.recent.get(lambda: _told(session), wait_seconds)
    if told is None:
        return None
    newest = _groups(session, told.events[-_RECENT_EVENTS_MAX:])[:count]
    return [_row(session, events, told.controllers) for events in newest]


def _told(session: Session) -> Told:
    """Return the events, if the user may see them."""
    session.cache.value("may see the history", 10.0, lambda: _refuse_strangers(session))
    return session.cache.value("history", _SECONDS, lambda: _read(session))


def _groups(session: Session, events: Sequence[Event]) -> Sequence[Sequence[Event]]:
    """Return events in groups of equal ones of one moment, the newest first."""
    groups: dict[tuple[int, str, str, str | None], list[Event]] = {}
    for event in events:
        key = (event.time_ms, event.kind, event.text, _principal(session, event))
        groups.setdefault(key, []).append(event)
    return list(reversed(groups.values()))


def _principal(session: Session, event: Event) -> str | None:
    """Return who has asked for a change, by an audit log; None if none says so."""
    author = session.authors.author(event)
    if author is None:
        return None
    return f"controller {author.principal[5:]}" if author.principal.startswith("node ") else author.principal


def _who_unknown(session: Session, events: Sequence[Event], told: Told) -> Sequence[str]:
    """Return sentences that say why it is not known who has asked for some of these changes."""
    gaps = session.authors.gaps(events, told.controllers)
    if not gaps:
        return ()
    if session.authors.knows_files:
        return [f"it is not known who has asked for {gap}" for gap in gaps]
    return (
        "the metadata log does not name who has asked for a change, and the console knows no audit log of a controller "
        "(odradek.audit.enabled=true makes a controller write one)",
    )


def _read(session: Session) -> Told:
    try:
        session.authors.read_on()
        return session.history.read()
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_REQUEST:
            raise
        # Apache Kafka's controllers answer other replicas alone.
        raise ViewError(
            501, "UNSUPPORTED_VERSION", "the controllers of this cluster show their metadata log to no client"
        ) from error
    except ClientError as error:
        raise ViewError(
            502,
            "CONTROLLER_UNAVAILABLE",
            f"the metadata log cannot be read from the active controller: {error}. Its listener may need other credentials",
        ) from error


def _refuse_strangers(session: Session) -> None:
    """Raise `KafkaError` if the user may not describe the cluster, its rules and its configuration. The controllers'
    listener may know another principal, or none, and the log has everything.
    """
    session.client.list_partition_reassignments(timeout=5.0)
    try:
        session.client.describe_acls(AclFilter(1, None, 1, None, None, 1, 1))
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
    # The values of keys and quotas stand in the log, too. They need DESCRIBE_CONFIGS.
    (defaults,) = session.client.describe_configs([ConfigResource(ResourceType.BROKER, "")], timeout=5.0)
    if defaults.error is not None:
        raise defaults.error


def _fits(event: Event, query: HistoryQuery) -> bool:
    if query.since_ms is not None and event.time_ms < query.since_ms:
        return False
    if query.kind is not None and event.kind != query.kind:
        return False
    if query.broker is not None and event.subject != f"broker {query.broker}":
        return False
    if query.topic is not None and event.subject != f"topic {query.topic}":
        name, dash, index = event.subject.rpartition("-")
        if not (dash and index.isdecimal() and name == query.topic):
            return False
    return query.search.lower() in str(event).lower() if query.search else True


def _row(session: Session, events: Sequence[Event], controllers: Mapping[int, int]) -> HistoryRow:
    first = events[0]
    names = list(dict.fromkeys(event.subject for event in events))
    controller = controllers.get(first.epoch)
    who = _principal(session, first)
    if who is None and first.by_quorum and controller is not None:
        who = f"controller {controller}"
    if len(names) == 1:
        what = str(first)
    else:
        more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
        what = f"{', '.join(names[:4])}{more}: each {first.text}"
    return HistoryRow(
        time_ms=first.time_ms,
        offset=first.offset,
        kind=first.kind,
        who=who,
        controller=controller,
        what=what,
        subjects=names[:SUBJECTS_MAX],
        subject_count=len(names),
        before=first.before if len(events) == 1 else None,
        after=first.after if len(events) == 1 else None,
    )
