"""The view of clients: those that push telemetry to brokers (KIP-714), and the members of groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from odradek.client.admin import BrokerClients, ClientDescription
from odradek.client.errors import ClientError
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.wire.errors import KafkaError

__all__ = ["ClientRow", "Clients", "ClientsQuery", "clients"]

ROWS_PER_PAGE = 200
GROUPS_MAX = 500
FIGURES_MAX = 60
_SECONDS = 2.0
_APART_SECONDS_MAX = 120.0
_OUT, _IN = "outgoing_bytes_total", "incoming_bytes_total"
_THROTTLED = "throttle_time_max_seconds"


@attrs.frozen(kw_only=True)
class ClientsQuery:
    """Which clients to list."""

    search: str = attrs.field(
        default="",
        metadata=about("a part of the client id, the user, the library or the address", maximum=1024),
    )
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class Figure:
    """A figure that a client has pushed."""

    role: str = attrs.field(metadata=about("producer, consumer or admin"))
    name: str = attrs.field(metadata=about("the name, with its unit; docs/metrics.md explains it"))
    value: float = attrs.field(metadata=about("the value"))


@attrs.frozen(kw_only=True)
class ClientRow:
    """The clients with one id and one user, at one broker or in one group."""

    client_id: str = attrs.field(metadata=about("the client id"))
    library: str | None = attrs.field(metadata=about("the library; null if it is not known"))
    version: str | None = attrs.field(metadata=about("the library's version"))
    user: str | None = attrs.field(metadata=about("the user; null if it is not known"))
    address: str = attrs.field(metadata=about("the address"))
    broker: int | None = attrs.field(metadata=about("the broker to which it pushes its figures"))
    groups: Sequence[str] = attrs.field(metadata=about("groups with a member of this client id"))
    connections: int | None = attrs.field(
        metadata=about("the number of running clients with this id and user")
    )
    bytes_in_per_second: float | None = attrs.field(
        metadata=about(
            "bytes that the client receives, by its own figures; null at first, or if it pushes none"
        )
    )
    bytes_out_per_second: float | None = attrs.field(metadata=about("bytes that the client sends"))
    throttled: bool | None = attrs.field(metadata=about("true if brokers made it wait by quotas"))
    throttled_ms: float | None = attrs.field(metadata=about("the longest such wait"))
    pushes: int | None = attrs.field(
        metadata=about("pushes of figures; null for a client that pushes nothing")
    )
    since_push_ms: int | None = attrs.field(metadata=about("the time since the last push"))
    push_interval_ms: int | None = attrs.field(metadata=about("the time between pushes"))
    figures: Sequence[Figure] = attrs.field(metadata=about("the figures of the last push"))


@attrs.frozen(kw_only=True)
class Clients:
    """A page of clients."""

    total: int = attrs.field(metadata=about("the number of clients that fit"))
    page: int = attrs.field(metadata=about("the page"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    rows: Sequence[ClientRow] = attrs.field(
        metadata=about(f"the clients of this page, at most {ROWS_PER_PAGE}")
    )
    errors: Sequence[str] = attrs.field(metadata=about("why something is missing"))


_Rates: TypeAlias = "tuple[float | None, float | None]"
"""(bytes in, bytes out) per second. None is what the client does not push: librdkafka counts no bytes."""


@attrs.frozen
class _Looked:
    at: float
    pushed: Sequence[tuple[int, ClientDescription]]
    members: Mapping[tuple[str, str], Sequence[str]]
    """The groups of each (client id, address)."""
    errors: Sequence[str]
    rates: Mapping[tuple[int, str, str], _Rates]
    """The rates of each (broker, principal, client id)."""


def clients(session: Session, query: ClientsQuery) -> Clients:
    """List the clients that brokers know: those that push figures, and the members of groups."""
    before = session.cache.last("clients")
    looked = session.cache.value(
        "clients", _SECONDS, lambda: _look(session, None if before is None else before[1])
    )
    wanted = query.search.lower()
    rows = [row for row in _rows(looked) if any(wanted in (text or "").lower() for text in _texts(row))]
    page = page_of(rows, query.page, ROWS_PER_PAGE)
    return Clients(total=page.total, page=page.page, pages=page.pages, rows=page.rows, errors=looked.errors)


def _texts(row: ClientRow) -> Sequence[str | None]:
    return row.client_id, row.user, row.library, row.address


def _look(session: Session, before: object) -> _Looked:
    errors: list[str] = []
    brokers: Sequence[BrokerClients] = ()
    try:
        brokers = session.client.describe_clients(timeout=3.0)
    except (KafkaError, ClientError) as error:
        errors.append(f"the brokers' lists of clients are missing: {error}")
    errors += [f"broker {each.broker}: {each.error}" for each in brokers if each.error is not None]
    members: dict[tuple[str, str], list[str]] = {}
    try:
        ids = [each.group_id for each in session.client.list_groups(timeout=3.0)][:GROUPS_MAX]
        for group in session.client.describe_groups(ids, timeout=3.0) if ids else ():
            for member in group.members:
                key = (member.client_id, member.client_host.removeprefix("/"))
                members.setdefault(key, []).append(group.group_id)
    except (KafkaError, ClientError) as error:
        errors.append(f"the members of groups are missing: {error}")
    pushed = [(each.broker, one) for each in brokers for one in each.clients]
    at = time.monotonic()
    rates = {}
    if isinstance(before, _Looked) and 0 < at - before.at < _APART_SECONDS_MAX:
        old = {_key(broker, one): one for broker, one in before.pushed}
        for broker, one in pushed:
            # Between two pushes, the last rate counts. Before the second push, there is none.
            rate = _rate(old.get(_key(broker, one)), one) or before.rates.get(_key(broker, one))
            if rate is not None and not _is_overdue(one):
                rates[_key(broker, one)] = rate
    return _Looked(at, pushed, {key: sorted(set(found)) for key, found in members.items()}, errors, rates)


def _key(broker: int, one: ClientDescription) -> tuple[int, str, str]:
    return broker, one.principal, one.client_id


def _growth(before: ClientDescription, now: ClientDescription, name: str) -> float | None:
    """Return the growth of a figure; None if the client does not push it."""
    if all(each.name != name for each in now.figures):
        return None
    newer, older = (sum(each.value for each in one.figures if each.name == name) for one in (now, before))
    return max(0.0, newer - older)


def _rate(before: ClientDescription | None, now: ClientDescription) -> _Rates | None:
    """Return bytes per second, in and out, between two pushes; None if there was no new push."""
    if before is None or now.pushes <= before.pushes or not now.push_interval_ms:
        return None
    seconds = (now.pushes - before.pushes) * now.push_interval_ms / 1000 / max(1, now.instances)
    bytes_in, bytes_out = (_growth(before, now, name) for name in (_IN, _OUT))
    return (
        None if bytes_in is None else bytes_in / seconds,
        None if bytes_out is None else bytes_out / seconds,
    )


def _is_overdue(one: ClientDescription) -> bool:
    """True if these clients have missed a push, so that their last figures say nothing about now."""
    return one.since_push_ms is None or one.since_push_ms > 2 * one.push_interval_ms


def _rows(looked: _Looked) -> list[ClientRow]:
    rows = []
    seen = set()
    for broker, one in looked.pushed:
        rate = looked.rates.get(_key(broker, one))
        waits = [each.value for each in one.figures if each.name == _THROTTLED]
        seen.add((one.client_id, one.address))
        rows.append(
            ClientRow(
                client_id=one.client_id,
                library=one.software_name,
                version=one.software_version,
                user=one.principal.partition(":")[2] or one.principal,
                address=one.address,
                broker=broker,
                groups=looked.members.get((one.client_id, one.address), ()),
                connections=one.instances,
                bytes_in_per_second=None if rate is None else rate[0],
                bytes_out_per_second=None if rate is None else rate[1],
                throttled=max(waits) > 0 if waits else None,
                throttled_ms=max(waits) * 1000 if waits else None,
                pushes=one.pushes,
                since_push_ms=one.since_push_ms,
                push_interval_ms=one.push_interval_ms,
                figures=[
                    Figure(role=each.role, name=each.name, value=each.value)
                    for each in one.figures[:FIGURES_MAX]
                ],
            )
        )
    rows += [_member_row(key, groups) for key, groups in looked.members.items() if key not in seen]
    return sorted(rows, key=lambda row: (row.client_id, row.address))


def _member_row(key: tuple[str, str], groups: Sequence[str]) -> ClientRow:
    return ClientRow(
        client_id=key[0],
        library=None,
        version=None,
        user=None,
        address=key[1],
        broker=None,
        groups=groups,
        connections=None,
        bytes_in_per_second=None,
        bytes_out_per_second=None,
        throttled=None,
        throttled_ms=None,
        pushes=None,
        since_push_ms=None,
        push_interval_ms=None,
        figures=(),
    )
