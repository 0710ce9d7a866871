"""The views of brokers, their disks, and the quorum of controllers."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.cli.health.picture import Picture, is_silent_voter
from odradek.client.admin import LogDirDescription, QuorumDescription, QuorumReplica
from odradek.console.sessions.releases import Releases, ask_releases, release_of
from odradek.console.sessions.samples import growth_by_broker
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.queries import NoQuery
from odradek.console.shapes.view_errors import ViewError
from odradek.wire.uuid_text import uuid_to_text

__all__ = ["BrokerRow", "Disk", "Quorum", "Replica", "brokers", "quorum", "releases"]

_RELEASE_SECONDS = 60.0
_RELEASE_ASK_SECONDS_MAX = 3.0


@attrs.frozen(kw_only=True)
class Disk:
    """A log directory of a broker, with the disk that it lies on."""

    directory: str = attrs.field(metadata=about("the path"))
    state: str = attrs.field(
        metadata=about("its state", choices=("online", "offline", "hung", "full", "demoted", "released"))
    )
    is_cordoned: bool = attrs.field(metadata=about("true if it gets no new replicas"))
    total_bytes: int | None = attrs.field(metadata=about("the size of the disk"))
    usable_bytes: int | None = attrs.field(metadata=about("the free bytes of the disk"))
    used_bytes: int | None = attrs.field(metadata=about("the bytes of all logs in the directory"))
    reserve_bytes: int | None = attrs.field(metadata=about("the bytes that records must leave free"))
    replicas: int = attrs.field(metadata=about("the number of replicas in the directory"))
    fill_bytes_per_second: int | None = attrs.field(metadata=about("the growth over the last hour"))
    hours_left: float | None = attrs.field(
        metadata=about(
            "the hours until the disk is full at the rate of the last hour; null if it does not fill"
        )
    )
    sync_ms: float | None = attrs.field(metadata=about("the time that a sync takes now"))
    usual_sync_ms: float | None = attrs.field(metadata=about("the time that a sync usually takes"))
    is_slow: bool = attrs.field(metadata=about("true if syncs take ten times as long as usual"))
    is_hung: bool = attrs.field(metadata=about("true if the disk does not answer"))
    is_full: bool = attrs.field(metadata=about("true if only the reserve is free"))
    errors: int | None = attrs.field(metadata=about("the operations that failed since the broker's start"))
    rot: int | None = attrs.field(metadata=about("the logs in which the scrub has found damaged bytes"))
    scrub_percent: int | None = attrs.field(metadata=about("how much the scrub has read of this round"))
    scrub_ended_ms: int | None = attrs.field(metadata=about("the end of the last round of the scrub"))
    error: str | None = attrs.field(metadata=about("why the directory is offline"))


@attrs.frozen(kw_only=True)
class BrokerRow:
    """A broker with its load and its disks."""

    id: int = attrs.field(metadata=about("the id"))
    host: str = attrs.field(metadata=about("the host for clients"))
    port: int = attrs.field(metadata=about("the port for clients"))
    rack: str | None = attrs.field(metadata=about("the rack"))
    state: str = attrs.field(
        metadata=about(
            "silent: the controllers list it as online, and it gives no answer",
            choices=("online", "silent", "down"),
        )
    )
    reason: str | None = attrs.field(metadata=about("why it counts as silent"))
    version: str | None = attrs.field(
        metadata=about(
            "the release of Apache Kafka up to which it knows the formats of metadata; null if it does not say. (No "
            "request gives the version of a broker's program)"
        )
    )
    roles: Sequence[str] = attrs.field(
        metadata=about("broker, and controller if a replica of the quorum has its id")
    )
    is_active_controller: bool = attrs.field(metadata=about("true if it leads the quorum"))
    led: int = attrs.field(metadata=about("the partitions that it leads"))
    replicas: int = attrs.field(metadata=about("the replicas that it should have"))
    offline_replicas: int = attrs.field(metadata=about("the replicas that are offline"))
    bytes: int | None = attrs.field(metadata=about("the bytes of all its logs"))
    bytes_per_second: float | None = attrs.field(metadata=about("the growth of its logs; null at first"))
    disks: Sequence[Disk] = attrs.field(metadata=about("its log directories"))


@attrs.frozen(kw_only=True)
class Replica:
    """A node's copy of the metadata log."""

    id: int = attrs.field(metadata=about("the node's id"))
    directory_id: str | None = attrs.field(metadata=about("the id of the directory with the log"))
    state: str = attrs.field(
        metadata=about("its part in the quorum", choices=("leader", "follower", "observer"))
    )
    log_end_offset: int | None = attrs.field(metadata=about("the end of its copy"))
    lag: int | None = attrs.field(metadata=about("the records that it lacks"))
    last_fetch_ms: int | None = attrs.field(metadata=about("its last fetch, by the leader's clock"))
    last_caught_up_ms: int | None = attrs.field(metadata=about("when it last had everything"))
    is_silent: bool = attrs.field(metadata=about("true if a voter has not fetched for five seconds"))
    endpoints: Sequence[str] = attrs.field(metadata=about("LISTENER://HOST:PORT of a voter"))


@attrs.frozen(kw_only=True)
class Quorum:
    """The quorum of controllers, as its leader sees it."""

    leader_id: int | None = attrs.field(metadata=about("the voter that leads"))
    leader_epoch: int = attrs.field(metadata=about("the epoch of the leader"))
    high_watermark: int = attrs.field(metadata=about("the records below this offset are committed"))
    may_lose: int = attrs.field(
        metadata=about("how many more voters may stop before the quorum has no leader")
    )
    voters: Sequence[Replica] = attrs.field(metadata=about("the nodes that vote"))
    observers: Sequence[Replica] = attrs.field(metadata=about("the nodes that only copy the log"))


def brokers(session: Session, query: NoQuery) -> Sequence[BrokerRow]:
    """List the brokers with their load and the state of their disks."""
    before, now = session.samples.latest()
    picture = now.picture
    growth = growth_by_broker(before, now)
    new = _bytes_by_broker(picture)
    disks = _disks(picture)
    controllers = _quorum_ids(picture.quorum)
    levels = releases(session, picture)[0]
    rows = []
    for each in picture.cluster.brokers:
        node = each.node_id
        rows.append(
            BrokerRow(
                id=node,
                host=each.host,
                port=each.port,
                rack=each.rack,
                state="down"
                if node in picture.cluster.fenced
                else "silent"
                if node in picture.silent
                else "online",
                reason=picture.silent.get(node),
                version=release_of(levels.get(node)),
                roles=("broker", "controller") if node in controllers else ("broker",),
                is_active_controller=picture.quorum is not None and picture.quorum.leader_id == node,
                led=picture.partitions.leaders.get(node, 0),
                replicas=picture.partitions.replicas.get(node, 0),
                offline_replicas=len(picture.partitions.away.get(node, ())),
                bytes=new.get(node),
                bytes_per_second=growth.get(node),
                disks=disks.get(node, ()),
            )
        )
    return rows


def releases(session: Session, picture: Picture) -> Releases:
    """Return the levels of `metadata.version`, as of a minute ago at most."""
    gone = {*picture.cluster.fenced, *picture.silent}
    alive = tuple(each.node_id for each in picture.cluster.brokers if each.node_id not in gone)
    return session.cache.value(("releases", alive), _RELEASE_SECONDS, lambda: _ask_releases(session, alive))


def _ask_releases(session: Session, brokers: Sequence[int]) -> Releases:
    with session.open_client() as client:
        return client.run(ask_releases(client.core, brokers, timeout=_RELEASE_ASK_SECONDS_MAX))


def _bytes_by_broker(picture: Picture) -> dict[int, int]:
    return {
        each.broker: sum(directory.size for directory in each.directories)
        for each in picture.log_dirs
        if each.error is None
    }


def _quorum_ids(found: QuorumDescription | None) -> set[int]:
    """Return the ids of the voters. An observer may be a broker alone, so it is none of them."""
    return set() if found is None else {each.node_id for each in found.voters}


def _disks(picture: Picture) -> dict[int, list[Disk]]:
    found = {}
    for described in picture.log_dirs:
        troubled = {each.path: each.trouble.value for each in picture.troubles.get(described.broker, ())}
        found[described.broker] = [_disk(each, troubled.get(each.path)) for each in described.directories]
    return found


def _disk(each: LogDirDescription, trouble: str | None) -> Disk:
    health = each.health
    state = trouble or "online"
    if health is not None and health.is_released:
        state = "released"
    elif each.error is not None:
        state = "offline"
    seconds = None if health is None else health.seconds_left
    return Disk(
        directory=each.path,
        state=state,
        is_cordoned=each.is_cordoned,
        total_bytes=_known(each.total_bytes),
        usable_bytes=_known(each.usable_bytes),
        used_bytes=each.size if each.error is None else None,
        reserve_bytes=None if health is None else health.reserve_bytes,
        replicas=len(each.replicas),
        fill_bytes_per_second=None if health is None else health.fill_bytes_per_second,
        hours_left=None if seconds is None else seconds / 3600,
        sync_ms=None if health is None else health.sync_us / 1000,
        usual_sync_ms=None if health is None else health.usual_sync_us / 1000,
        is_slow=health is not None and health.is_slow,
        is_hung=trouble == "hung" or (health is not None and health.is_stalled),
        is_full=trouble == "full" or (health is not None and health.is_short),
        errors=None if health is None else health.errors,
        rot=None if health is None else health.scrub_rotten,
        scrub_percent=None if health is None else health.scrub_percent,
        scrub_ended_ms=None if health is None else health.scrub_ended_ms,
        error=None if each.error is None else str(each.error),
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def quorum(session: Session, query: NoQuery) -> Quorum:
    """Describe the quorum of controllers."""
    found = session.samples.latest()[1].picture.quorum
    if found is None:
        # Ask again alone: its refusal says more than a missing answer.
        found = session.client.describe_quorum(timeout=3.0)
    if not found.voters:
        raise ViewError(503, "NO_QUORUM", "the quorum does not describe itself just now")
    silent = sum(is_silent_voter(found, each) for each in found.voters)
    return Quorum(
        leader_id=_known(found.leader_id),
        leader_epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        may_lose=max(0, len(found.voters) - silent - (len(found.voters) // 2 + 1)),
        voters=[_replica(found, each, is_voter=True) for each in found.voters],
        observers=[_replica(found, each, is_voter=False) for each in found.observers],
    )


def _replica(found: QuorumDescription, each: QuorumReplica, *, is_voter: bool) -> Replica:
    state = "observer"
    if is_voter:
        state = "leader" if each.node_id == found.leader_id else "follower"
    return Replica(
        id=each.node_id,
        directory_id=uuid_to_text(each.directory_id) if any(each.directory_id) else None,
        state=state,
        log_end_offset=_known(each.log_end_offset),
        lag=found.lag(each),
        last_fetch_ms=_known(each.last_fetch_ms),
        last_caught_up_ms=_known(each.last_caught_up_ms),
        is_silent=is_voter and is_silent_voter(found, each),
        endpoints=[
            f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"
            for name, host, port in each.endpoints
        ],
    )
