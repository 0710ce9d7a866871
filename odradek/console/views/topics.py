"""The views of topics: the list, one topic with its map, its configuration, the groups that read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from odradek.client.admin import ConfigEntry, ConfigResource, ConfigSource, OffsetSpan, ResourceType
from odradek.client.core.known_cluster import NO_TOPIC_ID, Partition, Topic
from odradek.client.errors import ClientError, UnsupportedByBroker
from odradek.console.sessions.session import Session
from odradek.console.sessions.topic_facts import TopicFacts, topic_facts
from odradek.console.shapes.fields import TOPIC_NAME, about
from odradek.console.shapes.pages import PAGE, page_of
from odradek.console.shapes.view_errors import ViewError
from odradek.metadata_quorum.config.config_defs import topic_synonyms
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from odradek.wire.uuid_text import uuid_to_text

__all__ = [
    "ConfigRow",
    "TopicDescription",
    "TopicQuery",
    "TopicRow",
    "Topics",
    "TopicsQuery",
    "topic",
    "topic_configs",
    "topics",
]

ROWS_PER_PAGE = 100
PARTITIONS_PER_PAGE = 200
_CONFIG_SECONDS = 5.0
_ANSWER_SECONDS = 3.0
_SPANS = ("retention.ms", "segment.ms", "segment.jitter.ms")
"""Keys of topics that brokers have in several units. Their defaults are no synonyms in the answers of brokers."""
_SORTS = ("name", "partitions", "bytes", "records_per_second", "under_replicated", "replication_factor")
_STATES = ("", "offline", "under_replicated", "under_min_isr", "moving")


@attrs.frozen(kw_only=True)
class TopicsQuery:
    """Which topics to list."""

    search: str = attrs.field(
        default="", metadata=about("a part of the name; capitals do not matter", maximum=249)
    )
    state: str = attrs.field(
        default="", metadata=about("only topics with such partitions; empty for all", choices=_STATES)
    )
    internal: bool = attrs.field(default=True, metadata=about("0 leaves internal topics out"))
    sort: str = attrs.field(
        default="name",
        metadata=about(
            "the order; with a minus before it, the reverse",
            choices=(*_SORTS, *(f"-{each}" for each in _SORTS)),
        ),
    )
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class TopicRow:
    """A topic."""

    name: str = attrs.field(metadata=about("the name"))
    topic_id: str | None = attrs.field(metadata=about("the id; null if the cluster gives topics none"))
    partitions: int = attrs.field(metadata=about("the number of partitions"))
    replication_factor: int = attrs.field(metadata=about("the replicas of the partition with the most"))
    is_internal: bool = attrs.field(metadata=about("true for a topic of the brokers themselves"))
    under_replicated: int = attrs.field(metadata=about("partitions that lack replicas in sync"))
    offline: int = attrs.field(metadata=about("partitions without a leader"))
    moving: int = attrs.field(metadata=about("partitions that are moved"))
    bytes: int | None = attrs.field(
        metadata=about("bytes of the largest replica of each partition; null if the user may not see them")
    )
    records_per_second: float | None = attrs.field(metadata=about("records that come in; null if unknown"))
    cleanup_policy: str | None = attrs.field(metadata=about("delete, compact, or both"))


@attrs.frozen(kw_only=True)
class Topics:
    """A page of topics."""

    total: int = attrs.field(metadata=about("the number of topics that fit"))
    page: int = attrs.field(metadata=about("the page"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    rows: Sequence[TopicRow] = attrs.field(
        metadata=about(f"the topics of this page, at most {ROWS_PER_PAGE}")
    )


def topics(session: Session, query: TopicsQuery) -> Topics:
    """List topics, with their sizes and rates."""
    facts = topic_facts(session)
    wanted = query.search.lower()
    rows = [
        _row(facts, each)
        for name, each in facts.topics.items()
        if wanted in name.lower() and (query.internal or not each.is_internal)
    ]
    chosen = [row for row in rows if _has_state(row, query.state, facts.under_min_isr)]
    chosen.sort(key=lambda row: row.name)
    field = query.sort.removeprefix("-")
    if query.sort != "name":
        chosen.sort(key=_sort_key(field), reverse=query.sort.startswith("-"))
    page = page_of(chosen, query.page, ROWS_PER_PAGE)
    policies = _policies(session, [row.name for row in page.rows])
    return Topics(
        total=page.total,
        page=page.page,
        pages=page.pages,
        rows=[attrs.evolve(row, cleanup_policy=policies.get(row.name)) for row in page.rows],
    )


def _sort_key(field: str) -> Callable[[TopicRow], tuple[float, str]]:
    def key(row: TopicRow) -> tuple[float, str]:
        if field == "name":
            return 0.0, row.name
        value = getattr(row, field)
        return (-1.0 if value is None else float(value)), ""

    return key


def _has_state(row: TopicRow, state: str, below: frozenset[str]) -> bool:
    match state:
        case "offline":
            return row.offline > 0
        case "under_replicated":
            return row.under_replicated > 0
        case "under_min_isr":
            return row.name in below
        case "moving":
            return row.moving > 0
        case _:
            return True


def _row(facts: TopicFacts, each: Topic) -> TopicRow:
    partitions = each.partitions.values()
    return TopicRow(
        name=each.name,
        topic_id=_id_text(each),
        partitions=len(each.partitions),
        replication_factor=max((len(part.replicas) for part in partitions), default=0),
        is_internal=each.is_internal,
        under_replicated=sum(facts.is_under_replicated(each.name, part) for part in partitions),
        offline=sum(part.leader < 0 for part in partitions),
        moving=sum(TopicPartition(each.name, index) in facts.moving for index in each.partitions)
        if facts.moving
        else 0,
        bytes=facts.size_of_topic(each),
        records_per_second=facts.rates.get(each.name),
        cleanup_policy=None,
    )


def _id_text(each: Topic) -> str | None:
    return None if each.topic_id == NO_TOPIC_ID else uuid_to_text(each.topic_id)


def _policies(session: Session, names: Sequence[str]) -> dict[str, str | None]:
    """Read the clean-up policies of these topics. A topic whose configuration the user may not see is left out."""

    def ask() -> dict[str, str | None]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        try:
            found = session.client.describe_configs(resources, ["cleanup.policy"], timeout=3.0)
        except (KafkaError, ClientError):
            # The list is worth showing without the policies.
            return {}
        return {each.resource.name: entry.value for each in found for entry in each.entries}

    return session.cache.value(("policies", tuple(names)), _CONFIG_SECONDS, ask) if names else {}


@attrs.frozen(kw_only=True)
class TopicQuery:
    """A topic, and the page of its partitions."""

    name: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))
    page: int = attrs.field(default=1, metadata=PAGE)


@attrs.frozen(kw_only=True)
class ReplicaPlace:
    """A replica in a log directory."""

    broker: int = attrs.field(metadata=about("the broker"))
    directory: str = attrs.field(metadata=about("the path of the directory"))
    bytes: int = attrs.field(metadata=about("the bytes of its log"))
    lag: int = attrs.field(metadata=about("records up to the high watermark that it lacks"))
    is_future: bool = attrs.field(metadata=about("true for a copy that moves to this directory"))


@attrs.frozen(kw_only=True)
class PartitionRow:
    """A partition."""

    id: int = attrs.field(metadata=about("the number of the partition"))
    leader: int | None = attrs.field(metadata=about("the broker that leads; null if none does"))
    leader_epoch: int = attrs.field(metadata=about("the epoch of the leader"))
    replicas: Sequence[int] = attrs.field(
        metadata=about("the brokers with a replica, the preferred leader first")
    )
    isr: Sequence[int] = attrs.field(metadata=about("the replicas in sync, as the controllers list them"))
    elr: Sequence[int] = attrs.field(metadata=about("replicas that may lead although they are not in sync"))
    last_known_elr: Sequence[int] = attrs.field(metadata=about("the last leader, if nobody may lead"))
    offline_replicas: Sequence[int] = attrs.field(metadata=about("replicas that are offline"))
    adding: Sequence[int] = attrs.field(metadata=about("brokers to which the partition is moved"))
    removing: Sequence[int] = attrs.field(metadata=about("brokers that it leaves"))
    log_start_offset: int | None = attrs.field(metadata=about("the first offset"))
    log_end_offset: int | None = attrs.field(metadata=about("the offset behind the last record"))
    bytes: int | None = attrs.field(metadata=about("bytes of the largest replica"))
    by_broker: Sequence[ReplicaPlace] = attrs.field(metadata=about("the replicas in their directories"))
    error: str | None = attrs.field(metadata=about("why the offsets are unknown"))


@attrs.frozen(kw_only=True)
class Skew:
    """How unevenly a topic lies on the brokers: the most of one broker divided by the mean; 1 is even."""

    leaders: float | None = attrs.field(metadata=about("by the number of partitions that each broker leads"))
    bytes: float | None = attrs.field(metadata=about("by the bytes of the replicas of each broker"))
    away_from_preferred: int = attrs.field(
        metadata=about("partitions that another broker than the preferred leads")
    )


@attrs.frozen(kw_only=True)
class TopicDescription:
    """A topic with a page of its partitions."""

    name: str = attrs.field(metadata=about("the name"))
    topic_id: str | None = attrs.field(metadata=about("the id"))
    is_internal: bool = attrs.field(metadata=about("true for a topic of the brokers themselves"))
    replication_factor: int = attrs.field(metadata=about("the replicas of the partition with the most"))
    under_replicated: int = attrs.field(metadata=about("partitions that lack replicas in sync"))
    offline: int = attrs.field(metadata=about("partitions without a leader"))
    bytes: int | None = attrs.field(metadata=about("bytes of the largest replica of each partition"))
    records_per_second: float | None = attrs.field(metadata=about("records that come in; null if unknown"))
    total: int = attrs.field(metadata=about("the number of partitions"))
    page: int = attrs.field(metadata=about("the page of partitions"))
    pages: int = attrs.field(metadata=about("the number of pages"))
    partitions: Sequence[PartitionRow] = attrs.field(
        metadata=about(f"the partitions of this page, at most {PARTITIONS_PER_PAGE}")
    )
    skew: Skew = attrs.field(metadata=about("how unevenly the topic lies on the brokers"))


def topic(session: Session, query: TopicQuery) -> TopicDescription:
    """Describe a topic: its replicas by broker and disk, its offsets, its skew."""
    described = _described(session, query.name)
    facts = topic_facts(session)
    row = _row(facts, described)
    page = page_of(sorted(described.partitions), query.page, PARTITIONS_PER_PAGE)
    keys = [
        TopicPartition(query.name, index) for index in page.rows if described.partitions[index].leader >= 0
    ]
    spans = session.client.offset_spans(keys, timeout=5.0) if keys else {}
    return TopicDescription(
        name=query.name,
        topic_id=row.topic_id,
        is_internal=row.is_internal,
        replication_factor=row.replication_factor,
        under_replicated=row.under_replicated,
        offline=row.offline,
        bytes=row.bytes,
        records_per_second=row.records_per_second,
        total=page.total,
        page=page.page,
        pages=page.pages,
        partitions=[
            _partition_row(
                facts, query.name, described.partitions[index], spans.get(TopicPartition(query.name, index))
            )
            for index in page.rows
        ],
        skew=_skew(facts, described),
    )


def _described(session: Session, name: str) -> Topic:
    """Describe a topic with its ELR, which brokers before 3.7 do not know. Raises `KafkaError`."""
    try:
        return session.client.describe_topic_partitions([name])[0]
    except UnsupportedByBroker:
        return session.client.describe_topics([name])[0]


def _partition_row(
    facts: TopicFacts, name: str, each: Partition, span: OffsetSpan | KafkaError | ClientError | None
) -> PartitionRow:
    key = TopicPartition(name, each.index)
    move = facts.moving.get(key)
    known = span if isinstance(span, OffsetSpan) else None
    error = "the partition has no leader" if span is None else None if known is not None else str(span)
    return PartitionRow(
        id=each.index,
        leader=each.leader if each.leader >= 0 else None,
        leader_epoch=each.leader_epoch,
        replicas=each.replicas,
        isr=each.isr,
        elr=each.elr,
        last_known_elr=each.last_known_elr,
        offline_replicas=each.offline_replicas,
        adding=() if move is None else move.adding,
        removing=() if move is None else move.removing,
        log_start_offset=None if known is None else known.start,
        log_end_offset=None if known is None else known.end,
        bytes=facts.size_of(key),
        by_broker=[
            ReplicaPlace(
                broker=held.broker,
                directory=held.directory,
                bytes=held.replica.size,
                lag=held.replica.offset_lag,
                is_future=held.replica.is_future,
            )
            for held in (facts.replicas or {}).get(key, ())
        ],
        error=error,
    )


def _skew(facts: TopicFacts, described: Topic) -> Skew:
    leaders: dict[int, float] = {}
    sizes: dict[int, float] = {}
    away = 0
    for index, each in described.partitions.items():
        for node in each.replicas:
            leaders.setdefault(node, 0)
            sizes.setdefault(node, 0)
        if each.leader >= 0:
            leaders[each.leader] = leaders.get(each.leader, 0) + 1
            away += each.leader != each.replicas[0]
        for held in (facts.replicas or {}).get(TopicPartition(described.name, index), ()):
            sizes[held.broker] = sizes.get(held.broker, 0) + held.replica.size
    return Skew(
        leaders=_above_mean(leaders),
        bytes=None if facts.replicas is None else _above_mean(sizes),
        away_from_preferred=away,
    )


def _above_mean(loads: dict[int, float]) -> float | None:
    total = sum(loads.values())
    return None if not total else max(loads.values()) * len(loads) / total


@attrs.frozen(kw_only=True)
class ConfigsQuery:
    """A topic."""

    name: str = attrs.field(metadata=about("the name of a topic", pattern=TOPIC_NAME))


@attrs.frozen(kw_only=True)
class ConfigRow:
    """A key of a topic's configuration."""

    name: str = attrs.field(metadata=about("the key"))
    value: str | None = attrs.field(metadata=about("the value; null for a secret"))
    default: str | None = attrs.field(metadata=about("the value without what is set for this topic"))
    source: str = attrs.field(metadata=about("where the value is set"))
    is_default: bool = attrs.field(metadata=about("true if nothing is set for this topic"))
    is_secret: bool = attrs.field(metadata=about("true if the value is hidden"))
    is_read_only: bool = attrs.field(metadata=about("true if it cannot be changed"))
    type: str = attrs.field(metadata=about("the type of the value"))
    documentation: str | None = attrs.field(metadata=about("what the key means"))


def topic_configs(session: Session, query: ConfigsQuery) -> Sequence[ConfigRow]:
    """List the configuration of a topic, with the source of each value and what it would be without it."""
    resource = ConfigResource(ResourceType.TOPIC, query.name)
    (found,) = session.client.describe_configs([resource], include_synonyms=True, include_documentation=True)
    if found.error is not None:
        raise found.error
    if not found.entries:
        raise ViewError(404, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, f"there is no topic {query.name}")
    spans = {}
    if any(entry.name in _SPANS and entry.source is ConfigSource.TOPIC_CONFIG for entry in found.entries):
        spans = session.cache.value("spans of brokers", _CONFIG_SECONDS, lambda: _spans_of_brokers(session))
    return [_config_row(entry, spans.get(entry.name)) for entry in found.entries]


def _spans_of_brokers(session: Session) -> dict[str, str]:
    """Return the values of `_SPANS` in milliseconds, as a broker has them, as far as it shows them."""
    keys = [each.name for name in _SPANS for each in topic_synonyms(name)]
    try:
        node = str(session.client.describe_cluster(timeout=_ANSWER_SECONDS).brokers[0].node_id)
        resource = ConfigResource(ResourceType.BROKER, node)
        (found,) = session.client.describe_configs([resource], keys, timeout=_ANSWER_SECONDS)
    except (KafkaError, ClientError):
        return {}
    values = {entry.name: entry.value for entry in found.entries if entry.value}
    spans = {}
    for name in _SPANS:
        # The first key with a value counts.
        for each in reversed(topic_synonyms(name)):
            if each.name in values:
                spans[name] = str(int(values[each.name]) * each.milliseconds)
    return spans


def _config_row(entry: ConfigEntry, of_broker: str | None) -> ConfigRow:
    of_topic = entry.source is ConfigSource.TOPIC_CONFIG
    others = [each.value for each in entry.synonyms if each.source is not ConfigSource.TOPIC_CONFIG]
    return ConfigRow(
        name=entry.name,
        value=entry.value,
        default=others[0] if others else (of_broker if of_topic else entry.value),
        source=entry.source.name.lower(),
        is_default=not of_topic,
        is_secret=entry.sensitive,
        is_read_only=entry.read_only,
        type=entry.type.name.lower(),
        documentation=entry.documentation,
    )
