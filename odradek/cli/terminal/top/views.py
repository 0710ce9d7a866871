"""The tables of `odradek top`, made from two samples: brokers, disks, topics, groups, clients. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.health.judgement import Problem, problems_of
from odradek.cli.output import bytes_text, span_text

if TYPE_CHECKING:
    from odradek.cli.terminal.top.sampling import Sample
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["VIEWS", "Cell", "Column", "Table", "cell_text", "ordered", "problems", "table_of", "total_rate"]

Cell = str | int | float | None


class Column(NamedTuple):
    """A column: its heading, and how its cells are shown (`text`, `count`, `rate`, `bytes`, `bytes/s`, `percent`, `ms`)."""

    name: str
    kind: str = "text"


class Table(NamedTuple):
    """One view: columns, rows of raw values, and the column that sorts it at first, the largest values first."""

    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    order: int = 0


def cell_text(kind: str, value: Cell) -> str:
    """Format a cell for people. An unknown value is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str):
        return value
    match kind:
        case "bytes":
            return bytes_text(int(value)) or "-"
        case "bytes/s":
            sign = "-" if value < 0 else ""
            return f"{sign}{bytes_text(abs(int(value)))}/s"
        case "rate":
            return f"{value:,.1f}/s" if abs(value) < 100 else f"{value:,.0f}/s"
        case "percent":
            return f"{value:.0f}%"
        case "ms":
            return span_text(int(value)) or "-"
        case _:
            return f"{value:,}" if kind == "count" else str(value)


def ordered(table: Table, column: int, *, descending: bool, pattern: str = "") -> list[tuple[Cell, ...]]:
    """Sort the rows by a column, unknown values last, and keep those in which some text has the pattern."""
    small = pattern.lower()
    kept = [
        row
        for row in table.rows
        if not small or any(isinstance(cell, str) and small in cell.lower() for cell in row)
    ]

    def rank(row: tuple[Cell, ...]) -> tuple[float, str]:
        value = row[column]
        return (0.0, value.lower()) if isinstance(value, str) else (float(value or 0), "")

    known = [row for row in kept if row[column] is not None]
    return sorted(known, key=rank, reverse=descending) + [row for row in kept if row[column] is None]


def problems(sample: Sample) -> list[Problem]:
    """Judge the cluster as `odradek cluster health` does."""
    return problems_of(sample.picture)


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """Compute the change per second; None without two values."""
    return None if before is None or now is None or seconds <= 0 else (now - before) / seconds


def _written(before: Sample | None, now: Sample) -> dict[str, float]:
    """Compute the records per second that each topic gets, from the ends of its partitions. A topic is left out if no
    partition has an end in both samples.
    """
    found: dict[str, float] = {}
    if before is None or now.at <= before.at:
        return found
    for key, end in now.ends.items():
        if key in before.ends:
            # A topic that was deleted and made anew begins at 0 again.
            gain = max(0, end - before.ends[key]) / (now.at - before.at)
            found[key.topic] = found.get(key.topic, 0.0) + gain
    return found


def total_rate(before: Sample | None, now: Sample) -> float | None:
    """Compute the records per second that all topics together get; None if no topic's rate is known."""
    written = _written(before, now)
    if before is None or (now.picture.topics and not written):
        return None
    return sum(written.values())


def _sizes(sample: Sample) -> tuple[dict[int, int], dict[str, int]]:
    """Add up the bytes of logs by broker and by topic, with all replicas."""
    by_broker: dict[int, int] = {}
    by_topic: dict[str, int] = {}
    for described in sample.picture.log_dirs:
        if described.error is None:
            by_broker[described.broker] = 0
    for (broker, topic, _), size in _replica_sizes(sample).items():
        by_broker[broker] = by_broker.get(broker, 0) + size
        by_topic[topic] = by_topic.get(topic, 0) + size
    return by_broker, by_topic


def _replica_sizes(sample: Sample | None) -> dict[tuple[int, str, int], int]:
    """List the bytes of logs by broker, topic and partition. A replica on its way to another directory counts there, too."""
    found: dict[tuple[int, str, int], int] = {}
    for described in () if sample is None else sample.picture.log_dirs:
        for directory in described.directories:
            for replica in directory.replicas:
                key = described.broker, replica.topic, replica.partition
                found[key] = found.get(key, 0) + replica.size
    return found


def _growth(before: Sample | None, now: Sample) -> tuple[dict[int, float], dict[str, float]]:
    """Compute the growth of logs in bytes per second, by broker and by topic. Only replicas in both samples count, because
    a broker may have given no answer for one of them.
    """
    by_broker: dict[int, float] = {}
    by_topic: dict[str, float] = {}
    old, passed = _replica_sizes(before), _seconds(before, now)
    for key, size in _replica_sizes(now).items():
        if key in old and passed > 0:
            broker, topic, _ = key
            gain = (size - old[key]) / passed
            by_broker[broker] = by_broker.get(broker, 0.0) + gain
            by_topic[topic] = by_topic.get(topic, 0.0) + gain
    return by_broker, by_topic


def _seconds(before: Sample | None, now: Sample) -> float:
    return 0.0 if before is None else now.at - before.at


def _brokers(before: Sample | None, now: Sample) -> Table:
    picture = now.picture
    sizes, growth = _sizes(now)[0], _growth(before, now)[0]
    rows: list[tuple[Cell, ...]] = []
    for broker in picture.cluster.brokers:
        node = broker.node_id
        state = "DOWN" if node in picture.cluster.fenced else "SILENT" if node in picture.silent else "online"
        rows.append(
            (
                node,
                state,
                picture.partitions.leaders.get(node, 0),
                picture.partitions.replicas.get(node, 0),
                sizes.get(node),
                growth.get(node),
                broker.rack,
                f"{broker.host}:{broker.port}",
            )
        )
    columns = (
        Column("BROKER", "id"),
        Column("STATE"),
        Column("LEADERS", "count"),
        Column("REPLICAS", "count"),
        Column("LOGS", "bytes"),
        Column("GROWTH", "bytes/s"),
        Column("RACK"),
        Column("ADDRESS"),
    )
    return Table(columns, rows)


def _disks(_: Sample | None, now: Sample) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for described in now.picture.log_dirs:
        troubles = {each.path: each.trouble.value for each in now.picture.troubles.get(described.broker, ())}
        for each in described.directories:
            known = each.total_bytes > 0 and each.usable_bytes >= 0
            rows.append(
                (
                    described.broker,
                    "OFFLINE"
                    if each.error is not None
                    else troubles.get(each.path, "online").upper()
                    if each.path in troubles
                    else "online",
                    len(each.replicas),
                    each.size,
                    each.usable_bytes if known else None,
                    100 * (1 - each.usable_bytes / each.total_bytes) if known else None,
                    None if each.health is None else each.health.fill_bytes_per_second,
                    None if each.health is None else each.health.sync_us / 1000,
                    each.path,
                )
            )
    columns = (
        Column("BROKER", "id"),
        Column("STATE"),
        Column("REPLICAS", "count"),
        Column("LOGS", "bytes"),
        Column("FREE", "bytes"),
        Column("USED", "percent"),
        Column("FILLS", "bytes/s"),
        Column("SYNC", "ms"),
        Column("DIRECTORY"),
    )
    return Table(columns, rows, 5)


def _topics(before: Sample | None, now: Sample) -> Table:
    written = _written(before, now)
    sizes, growth = _sizes(now)[1], _growth(before, now)[1]
    found = now.picture.partitions
    bad: dict[str, int] = {}
    for name in {*found.offline, *found.under_min_isr, *found.behind} - {*found.arriving}:
        topic = name.rpartition("-")[0]
        bad[topic] = bad.get(topic, 0) + 1
    rows: list[tuple[Cell, ...]] = [
        (
            topic.name,
            len(topic.partitions),
            max((len(each.replicas) for each in topic.partitions.values()), default=0),
            written.get(topic.name),
            sizes.get(topic.name),
            growth.get(topic.name),
            bad.get(topic.name, 0),
        )
        for topic in now.picture.topics
    ]
    columns = (
        Column("TOPIC"),
        Column("PARTITIONS", "count"),
        Column("REPLICAS", "count"),
        Column("RECORDS", "rate"),
        Column("LOGS", "bytes"),
        Column("GROWTH", "bytes/s"),
        Column("TROUBLED", "count"),
    )
    return Table(columns, rows, 3)


def _lag(sample: Sample, committed: Mapping[TopicPartition, int]) -> int | None:
    lags = [max(0, sample.ends[key] - offset) for key, offset in committed.items() if key in sample.ends]
    return sum(lags) if lags else None


def _groups(before: Sample | None, now: Sample) -> Table:
    rows: list[tuple[Cell, ...]] = []
    passed = _seconds(before, now)
    for group in now.groups:
        offsets = now.committed.get(group.group_id, {})
        earlier = {} if before is None else before.committed.get(group.group_id, {})
        read = [offset - earlier[key] for key, offset in offsets.items() if key in earlier]
        lag = _lag(now, offsets)
        both = [key for key in offsets if key in earlier and before is not None and key in before.ends]
        lag_before = None if before is None else _lag(before, {key: earlier[key] for key in both})
        lag_now = _lag(now, {key: offsets[key] for key in both})
        rows.append(
            (
                group.group_id,
                group.state,
                lag,
                _rate(lag_before, lag_now, passed),
                _rate(0, sum(read), passed) if read else None,
                group.group_type,
                group.coordinator,
            )
        )
    columns = (
        Column("GROUP"),
        Column("STATE"),
        Column("LAG", "count"),
        Column("LAG GROWS", "rate"),
        Column("READS", "rate"),
        Column("TYPE"),
        Column("COORDINATOR", "id"),
    )
    return Table(columns, rows, 2)


def _clients(_: Sample | None, now: Sample) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            each.client_id,
            each.principal.partition(":")[2],
            f"{each.software_name} {each.software_version}",
            each.instances,
            described.broker,
            each.since_push_ms,
            each.address,
        )
        for described in now.clients
        for each in described.clients
    ]
    columns = (
        Column("CLIENT"),
        Column("USER"),
        Column("LIBRARY"),
        Column("RUNNING", "count"),
        Column("BROKER", "id"),
        Column("LAST PUSH", "ms"),
        Column("ADDRESS"),
    )
    return Table(columns, rows, 3)


VIEWS: Sequence[str] = ("brokers", "disks", "topics", "groups", "clients")
"""The names of the views, in the order of their keys."""
_MAKERS: Mapping[str, Callable[[Sample | None, Sample], Table]] = {
    "brokers": _brokers,
    "disks": _disks,
    "topics": _topics,
    "groups": _groups,
    "clients": _clients,
}


def table_of(view: str, before: Sample | None, now: Sample) -> Table:
    """Make the table of a view from the last two samples."""
    return _MAKERS[view](before, now)
