"""The views of the whole cluster: who looks, the troubles of the cluster, how much comes in."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

import odradek
from odradek.cli.health.judgement import Problem, problems_of
from odradek.client.errors import ClientError
from odradek.console.sessions.releases import release_of
from odradek.console.sessions.samples import Sample, growth_by_broker, records_by_partition
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import view_error_of
from odradek.console.views.brokers import releases
from odradek.console.views.history import recent_changes
from odradek.wire.errors import KafkaError

__all__ = ["Change", "Overview", "Trouble", "WhoAmI", "overview", "stranger", "who_am_i"]

CHANGES_MAX = 8
"""The number of changes that the overview has."""


@attrs.frozen(kw_only=True)
class WhoAmI:
    """Who looks, and at which cluster."""

    user: str | None = attrs.field(metadata=about("the user who has logged in"))
    mechanisms: Sequence[str] = attrs.field(
        metadata=about("the ways to log in; empty if there are no logins")
    )
    login_needed: bool = attrs.field(metadata=about("true if the user has to log in first"))
    certificate_user: str | None = attrs.field(
        metadata=about("before the login, the user who can log in by the certificate of this connection")
    )
    cluster_id: str | None = attrs.field(metadata=about("the id of the cluster; null before the login"))
    version: str = attrs.field(metadata=about("the version of the console"))
    is_kafka: bool | None = attrs.field(
        metadata=about("true if the cluster runs other brokers than Odradek's; null if it is not known")
    )


def who_am_i(session: Session, query: NoQuery) -> WhoAmI:
    """Say who looks, and at which cluster. Before the login, only the ways to log in are known."""
    described = session.client.describe_cluster()
    return WhoAmI(
        user=session.user,
        mechanisms=() if session.mechanism is None else (session.mechanism,),
        login_needed=False,
        certificate_user=None,
        cluster_id=described.cluster_id,
        version=odradek.__version__,
        is_kafka=session.cache.value("is_kafka", 60.0, lambda: _is_kafka(session)),
    )


def stranger(mechanisms: Sequence[str], certificate_user: str | None = None) -> WhoAmI:
    """Describe a visitor who has to log in first."""
    return WhoAmI(
        user=None,
        mechanisms=mechanisms,
        login_needed=True,
        certificate_user=certificate_user,
        cluster_id=None,
        version=odradek.__version__,
        is_kafka=None,
    )


def _is_kafka(session: Session) -> bool | None:
    """Find out whether other brokers than Odradek's run. Only Odradek's report the health of their disks. None without
    the right to see disks.
    """
    first = [each.node_id for each in session.client.describe_cluster().brokers[:1]]
    try:
        found = [
            directory
            for each in session.client.describe_log_dirs(first, include_cleaning=True, timeout=3.0)
            for directory in each.directories
            if directory.error is None
        ]
    except (KafkaError, ClientError):
        return None
    return any(each.health is None for each in found) if found else None


@attrs.frozen(kw_only=True)
class Trouble:
    """Something that is wrong in the cluster."""

    severity: str = attrs.field(metadata=about("how grave it is", choices=("critical", "warning")))
    kind: str = attrs.field(metadata=about("a stable name of this kind of trouble"))
    sentence: str = attrs.field(metadata=about("what is wrong"))
    what_to_do: str = attrs.field(metadata=about("what helps; empty if nothing needs to be done"))
    link: str | None = attrs.field(metadata=about("the page of the console that shows more"))
    broker: int | None = attrs.field(metadata=about("the broker that it is about"))
    path: str | None = attrs.field(metadata=about("the log directory that it is about"))
    partitions: Sequence[str] = attrs.field(metadata=about("the partitions that it is about, at most 20"))


@attrs.frozen(kw_only=True)
class Change:
    """Something that has happened in the cluster."""

    time_ms: int = attrs.field(metadata=about("milliseconds since 1970"))
    who: str | None = attrs.field(metadata=about("who has asked for it; null if it is not known"))
    sentence: str = attrs.field(metadata=about("what has happened"))


@attrs.frozen(kw_only=True)
class Overview:
    """The state of the cluster in a few figures."""

    judgement: str = attrs.field(metadata=about("the worst trouble", choices=("ok", "warning", "critical")))
    is_current: bool = attrs.field(
        metadata=about("false if no controller answers, so that all facts may be out of date")
    )
    troubles: Sequence[Trouble] = attrs.field(metadata=about("what is wrong, the gravest first"))
    brokers: int = attrs.field(metadata=about("the number of brokers"))
    brokers_alive: int = attrs.field(metadata=about("the number of brokers that answer"))
    controllers: int | None = attrs.field(metadata=about("the number of voters of the quorum"))
    active_controller: int | None = attrs.field(metadata=about("the voter that leads the quorum"))
    topics: int = attrs.field(metadata=about("the number of topics"))
    partitions: int = attrs.field(metadata=about("the number of partitions"))
    offline: int = attrs.field(metadata=about("the number of partitions without a leader"))
    under_replicated: int = attrs.field(metadata=about("the number of partitions that lack replicas in sync"))
    under_min_isr: int = attrs.field(metadata=about("the number of partitions below min.insync.replicas"))
    moving: int | None = attrs.field(metadata=about("the number of partitions that are moved"))
    records_per_second: float | None = attrs.field(metadata=about("records that come in; null if unknown"))
    bytes_per_second: float | None = attrs.field(
        metadata=about("the growth of the logs of all brokers that answer; null if unknown")
    )
    bytes: int | None = attrs.field(metadata=about("the bytes of all logs, with all replicas"))
    version: str | None = attrs.field(
        metadata=about(
            "the release of Apache Kafka whose formats of metadata the cluster uses; null if unknown"
        )
    )
    events: Sequence[Change] | None = attrs.field(
        metadata=about(f"the newest changes, at most {CHANGES_MAX}; null if they are not known")
    )
    events_unknown: str | None = attrs.field(metadata=about("why the newest changes are not known"))


_PARTITIONS_MAX = 20
CHANGES_SECONDS_MAX = 1.0
"""The time for which the first look waits for the newest changes."""
_LINKS = {
    "broker-down": "/brokers",
    "broker-silent": "/brokers",
    "cleaner-skips": "/brokers",
    "disk-demoted": "/brokers",
    "disk-full": "/brokers",
    "disk-hung": "/brokers",
    "disk-offline": "/brokers",
    "disk-warning": "/brokers",
    "hanging-transaction": "/transactions",
    "lagging-voter": "/brokers",
    "leaderless": "/topics?state=offline",
    "no-quorum": "/brokers",
    "not-seen": "/brokers",
    "silent-voter": "/brokers",
    "under-min-isr": "/topics?state=under_min_isr",
    "under-replicated": "/topics?state=under_replicated",
}


def overview(session: Session, query: NoQuery) -> Overview:
    """List the troubles of the cluster, each with a remedy, and the main figures."""
    before, now = session.samples.latest()
    picture, found = now.picture, now.picture.partitions
    problems = problems_of(picture)
    gone = {*picture.cluster.fenced, *picture.silent}
    quorum = picture.quorum
    changes, unknown = _changes(session)
    return Overview(
        judgement=_judgement(problems),
        is_current=picture.is_current,
        troubles=[_trouble(each) for each in problems],
        brokers=len(picture.cluster.brokers),
        brokers_alive=sum(each.node_id not in gone for each in picture.cluster.brokers),
        controllers=None if quorum is None else len(quorum.voters),
        active_controller=None if quorum is None or quorum.leader is None else quorum.leader_id,
        topics=len(picture.topics),
        partitions=found.total,
        offline=len(found.offline),
        under_replicated=len(found.under_replicated),
        under_min_isr=len(found.under_min_isr),
        moving=None if picture.moving is None else len(picture.moving),
        records_per_second=_records_per_second(before, now),
        bytes_per_second=_growth(before, now),
        bytes=_bytes(now),
        version=release_of(releases(session, now.picture)[1]),
        events=changes,
        events_unknown=unknown,
    )


def _changes(session: Session) -> tuple[Sequence[Change] | None, str | None]:
    """Return the newest changes, or None with the reason why they are not known."""
    try:
        rows = recent_changes(session, CHANGES_MAX, CHANGES_SECONDS_MAX)
    except Exception as error:
        found = view_error_of(error)
        if found is None:
            raise
        return None, found.sentence
    if rows is None:
        return None, "the metadata log is still being read"
    return [Change(time_ms=row.time_ms, who=row.who, sentence=row.what) for row in rows], None


def _judgement(problems: Sequence[Problem]) -> str:
    if not problems:
        return "ok"
    return "warning" if all(each.is_warning for each in problems) else "critical"


def _trouble(problem: Problem) -> Trouble:
    return Trouble(
        severity="warning" if problem.is_warning else "critical",
        kind=problem.kind,
        sentence=problem.text,
        what_to_do=problem.remedy,
        link=_LINKS.get(problem.kind),
        broker=problem.broker,
        path=problem.path,
        partitions=tuple(problem.partitions[:_PARTITIONS_MAX]),
    )


def _records_per_second(before: Sample | None, now: Sample) -> float | None:
    rates = records_by_partition(before, now)
    return sum(rates.values()) if rates else None


def _bytes(sample: Sample) -> int | None:
    if not sample.picture.log_dirs:
        return None
    return sum(directory.size for each in sample.picture.log_dirs for directory in each.directories)


def _growth(before: Sample | None, now: Sample) -> float | None:
    growth = growth_by_broker(before, now)
    return max(0.0, sum(growth.values())) if growth else None
