"""The view of transactions: those that are open, prepared or hanging, and what they hold up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import attrs

from odradek.client.admin import HangingSearch, OldTransaction, TransactionDescription
from odradek.client.errors import ClientError
from odradek.console.sessions.session import Session
from odradek.console.shapes.fields import about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.console.views.groups import committed_offsets
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["TransactionRow", "Transactions", "TransactionsQuery", "transactions"]

ROWS_PER_PAGE = 200
DESCRIBED_MAX = 1000
"""The most transactional ids that are described for one view."""
PARTITIONS_MAX = 100
_LIVE = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_SECONDS = 3.0
_ANY_AGE = -(1 << 62)
"""The least age of an open transaction: any. An age by a leader's clock may be negative."""


@attrs.frozen(kw_only=True)
class TransactionsQuery:
    """Which transactions to list."""

    search: str = attrs.field(default="", metadata=about("a part of the transactional id", maximum=1024))
    all_: bool = attrs.field(default=False, metadata=about("1 lists ids without an open transaction, too"))
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class HeldUp:
    """A partition whose `read_committed` readers wait for a transaction."""

    topic: str = attrs.field(metadata=about("the topic"))
    partition: int = attrs.field(metadata=about("the partition"))
    last_stable_offset: int = attrs.field(metadata=about("the offset at which readers wait"))
    records_behind: int | None = attrs.field(metadata=about("offsets from there to the high watermark"))
    groups: Sequence[str] = attrs.field(metadata=about("groups that have read up to exactly this offset"))


@attrs.frozen(kw_only=True)
class PartitionName:
    """A partition."""

    topic: str = attrs.field(metadata=about("the topic"))
    partition: int = attrs.field(metadata=about("the partition"))


@attrs.frozen(kw_only=True)
class TransactionRow:
    """A transaction."""

    transactional_id: str | None = attrs.field(
        metadata=about("the id; null if no coordinator knows the producer")
    )
    producer_id: int = attrs.field(metadata=about("the producer's id"))
    producer_epoch: int = attrs.field(metadata=about("the producer's epoch"))
    state: str = attrs.field(metadata=about("the state, as Kafka names it; empty if no coordinator knows it"))
    prospect: str = attrs.field(
        metadata=about(
            "how it will end: open: by its producer or its timeout; prepared: by its producer or an operator only; "
            "ending: its markers are under way; hanging: never by itself; none: no transaction is open",
            choices=("open", "prepared", "ending", "hanging", "none"),
        )
    )
    coordinator: int | None = attrs.field(metadata=about("the broker that coordinates it"))
    start_ms: int | None = attrs.field(metadata=about("its begin, in milliseconds since 1970"))
    age_ms: int | None = attrs.field(metadata=about("the time since its begin, or since its last write"))
    timeout_ms: int | None = attrs.field(metadata=about("its timeout; null without one"))
    partition_count: int = attrs.field(metadata=about("the number of its partitions"))
    partitions: Sequence[PartitionName] = attrs.field(
        metadata=about(f"its partitions, at most {PARTITIONS_MAX}")
    )
    holds_up: Sequence[HeldUp] = attrs.field(metadata=about("partitions whose readers wait for it"))
    refused_by: Sequence[str] = attrs.field(
        metadata=about("partitions that refuse its marker, so that it cannot end")
    )
    is_hanging: bool = attrs.field(metadata=about("true if it will not end by itself"))
    is_late: bool = attrs.field(metadata=about("true if it is older than its timeout"))


@attrs.frozen(kw_only=True)
class Transactions:
    """A page of transactions."""

    total: int = attrs.field(metadata=about("the number of transactions that fit"))
    page: int = attrs.field(metadata=about("the page"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    ids: int = attrs.field(
        metadata=about("the number of transactional ids in the cluster that the user may see")
    )
    rows: Sequence[TransactionRow] = attrs.field(
        metadata=about(f"the transactions of this page, at most {ROWS_PER_PAGE}, the oldest first")
    )
    errors: Sequence[str] = attrs.field(metadata=about("why something is missing"))


@attrs.frozen
class _Looked:
    """What coordinators and leaders say at one moment."""

    now_ms: int
    ids: int
    described: Sequence[TransactionDescription]
    idle: Sequence[tuple[str, int, str, int]]
    """(id, producer id, state, coordinator) of each id without an open transaction."""
    search: HangingSearch | None
    waiting: Mapping[TopicPartition, Sequence[tuple[str, int]]]
    """(group, committed offset) of groups by partition, for partitions that are held up."""
    errors: Sequence[str]


def transactions(session: Session, query: TransactionsQuery) -> Transactions:
    """List open, prepared and hanging transactions, with the groups that wait for them."""
    looked = session.cache.value("transactions", _SECONDS, lambda: _look(session))
    rows = _rows(looked)
    if query.all_:
        rows += [_idle_row(*each) for each in looked.idle]
    wanted = query.search.lower()
    chosen = [row for row in rows if wanted in (row.transactional_id or "").lower()]
    chosen.sort(key=lambda row: (not row.is_hanging, -(row.age_ms or -1), row.transactional_id or ""))
    page = page_of(chosen, query.page, ROWS_PER_PAGE)
    return Transactions(
        total=page.total,
        page=page.page,
        pages=page.pages,
        ids=looked.ids,
        rows=page.rows,
        errors=looked.errors,
    )


def _look(session: Session) -> _Looked:
    now_ms = time.time_ns() // 1_000_000
    listed = session.client.list_transactions(timeout=5.0)
    live = [each.transactional_id for each in listed if each.state in _LIVE]
    described = session.client.describe_transactions(live[:DESCRIBED_MAX], timeout=5.0) if live else []
    errors = [f"{each.transactional_id}: {each.error}" for each in described if each.error is not None][:5]
    if len(live) > DESCRIBED_MAX:
        errors.append(f"only {DESCRIBED_MAX} of {len(live)} open transactions are shown")
    search: HangingSearch | None = None
    try:
        search = session.client.find_hanging_transactions(now_ms=now_ms, older_than_ms=_ANY_AGE, timeout=8.0)
    except (KafkaError, ClientError) as error:
        errors.append(f"the leaders of partitions were not asked: {error}")
    held = [TopicPartition(each.topic, each.partition) for each in _found(search) if each.holds]
    if search is not None and search.errors:
        errors.append(f"{len(search.errors)} partitions gave no answer, such as {next(iter(search.errors))}")
    idle = [
        (each.transactional_id, each.producer_id, each.state, each.coordinator)
        for each in listed
        if each.state not in _LIVE
    ]
    known = [each for each in described if each.error is None]
    return _Looked(now_ms, len(listed), known, idle, search, _waiting(session, held), errors)


def _found(search: HangingSearch | None) -> Sequence[OldTransaction]:
    return () if search is None else search.found


def _waiting(session: Session, held: Sequence[TopicPartition]) -> dict[TopicPartition, list[tuple[str, int]]]:
    """Find the groups with a committed offset in partitions that are held up."""
    if not held:
        return {}
    found: dict[TopicPartition, list[tuple[str, int]]] = {key: [] for key in held}
    try:
        ids = [each.group_id for each in session.client.list_groups(timeout=_SECONDS)]
        offsets, _ = committed_offsets(session, ids)
    except (KafkaError, ClientError):
        # Transactions are worth showing without the groups that wait.
        return found
    for group_id, of_group in offsets.items():
        for key in held:
            if key in of_group:
                found[key].append((group_id, of_group[key]))
    return found


def _rows(looked: _Looked) -> list[TransactionRow]:
    by_producer: dict[int, list[OldTransaction]] = {}
    for each in _found(looked.search):
        by_producer.setdefault(each.producer.producer_id, []).append(each)
    refused: dict[int, list[str]] = {}
    for marker in () if looked.search is None else looked.search.refused:
        refused.setdefault(marker.transaction.producer_id, []).append(f"{marker.topic}-{marker.partition}")
    rows = []
    for described in looked.described:
        places = by_producer.pop(described.producer_id, [])
        rows.append(_row(looked, described, places, refused.get(described.producer_id, ())))
    for places in by_producer.values():
        # No coordinator has these open: they hang, or have ended since the coordinators were asked.
        rows.append(_row(looked, places[0].transaction, places, ()))
    return rows


def _row(
    looked: _Looked,
    described: TransactionDescription | None,
    places: Sequence[OldTransaction],
    refused_by: Sequence[str],
) -> TransactionRow:
    prospects = {each.prospect.value for each in places}
    producer = places[0].producer if places else None
    if "hanging" in prospects:
        prospect = "hanging"
    elif described is not None and described.state != "Ongoing":
        prospect = "ending"
    else:
        prospect = "prepared" if described is not None and described.is_timeless else "open"
    start_ms = None if described is None else described.start_ms
    written_ms = min((each.producer.last_timestamp for each in places), default=None)
    began_ms = start_ms if start_ms is not None else written_ms
    age_ms = None if began_ms is None else max(0, looked.now_ms - began_ms)
    timeout_ms = None if described is None or described.is_timeless else described.timeout_ms
    names = described.partitions if described is not None else ()
    names = names or tuple(TopicPartition(each.topic, each.partition) for each in places)
    return TransactionRow(
        transactional_id=None if described is None else described.transactional_id,
        producer_id=described.producer_id
        if described is not None
        else producer.producer_id
        if producer
        else -1,
        producer_epoch=described.producer_epoch
        if described is not None
        else producer.producer_epoch
        if producer
        else -1,
        state="" if described is None else described.state,
        prospect=prospect,
        coordinator=None if described is None or described.coordinator < 0 else described.coordinator,
        start_ms=start_ms,
        age_ms=age_ms,
        timeout_ms=timeout_ms,
        partition_count=len(names),
        partitions=[PartitionName(topic=topic, partition=index) for topic, index in names[:PARTITIONS_MAX]],
        holds_up=[_held_up(looked, each) for each in places if each.holds][:PARTITIONS_MAX],
        refused_by=refused_by[:PARTITIONS_MAX],
        is_hanging=prospect == "hanging" or bool(refused_by),
        is_late=age_ms is not None and timeout_ms is not None and prospect == "open" and age_ms > timeout_ms,
    )


def _held_up(looked: _Looked, each: OldTransaction) -> HeldUp:
    stable = each.producer.current_transaction_start_offset
    waiting = looked.waiting.get(TopicPartition(each.topic, each.partition), ())
    return HeldUp(
        topic=each.topic,
        partition=each.partition,
        last_stable_offset=stable,
        records_behind=each.held_back,
        groups=[group_id for group_id, offset in waiting if offset == stable][:PARTITIONS_MAX],
    )


def _idle_row(transactional_id: str, producer_id: int, state: str, coordinator: int) -> TransactionRow:
    return TransactionRow(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=-1,
        state=state,
        prospect="none",
        coordinator=coordinator,
        start_ms=None,
        age_ms=None,
        timeout_ms=None,
        partition_count=0,
        partitions=(),
        holds_up=(),
        refused_by=(),
        is_hanging=False,
        is_late=False,
    )
