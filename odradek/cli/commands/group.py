"""`odradek group list|describe|reset|delete`: consumer groups, their members, lag and committed offsets."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, changing, connected, failure_of_some
from odradek.cli.failure import CliError
from odradek.cli.output import YELLOW, paint, print_json, print_table, print_values, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number, natural, whole_number
from odradek.cli.streams.lag_trend import LagTrend, trend_of, trend_text
from odradek.cli.times import TIME_HELP, moment, span

if TYPE_CHECKING:
    from odradek.client.admin import GroupDescription, GroupMember, OffsetReset, PartitionLag, ResetTarget
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["lag_text", "register"]

_STATES = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)


def register(groups: Groups) -> None:
    """Add the command group `group` to the parser of the command line."""
    commands = groups.add_parser(
        "group", help="list, describe, reset, delete consumer groups"
    ).add_subparsers(metavar="COMMAND", required=True)
    listing = add_command(commands, "list", _list, "list the groups", watch=True)
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help=f"list only groups in this state: {', '.join(_STATES)} (repeat for more)",
    )
    listing.add_argument(
        "--type",
        action="append",
        default=[],
        choices=("classic", "consumer"),
        help="list only groups of this type; the type consumer uses the protocol of KIP-848 (repeat for more)",
    )
    add_connection_options(listing)

    describe = add_command(
        commands, "describe", _describe, "show a group's members and how far it has read", watch=True
    )
    describe.add_argument("groups", metavar="GROUP", nargs="+", help="a group to show")
    describe.add_argument(
        "--trend",
        type=_trend_span,
        metavar="SPAN",
        help="measure the lag twice, this span apart (10s, 1m), and show its trend, and when it will be zero",
    )
    add_connection_options(describe)

    reset = add_command(commands, "reset", _reset, "move the committed offsets of a group without members")
    reset.add_argument("group", metavar="GROUP", help="the group, which must have no members")
    reset.add_argument(
        "--topic",
        action="append",
        type=_topic,
        metavar="TOPIC[:N,N]",
        help=(
            "reset only this topic, or some of its partitions (repeat for more; default: all partitions with a "
            "committed offset)"
        ),
    )
    _add_destinations(reset.add_mutually_exclusive_group(required=True))
    reset.add_argument(
        "--execute", action="store_true", help="reset the offsets (default: only show what would be reset)"
    )
    add_connection_options(reset)

    delete = add_command(commands, "delete", _delete, "delete groups without members, with their offsets")
    delete.add_argument("groups", metavar="GROUP", nargs="+", help="a group to delete")
    add_connection_options(delete)


def _add_destinations(where: argparse._MutuallyExclusiveGroup) -> None:
    """Add the options that choose the new offsets of a reset; exactly one of them must be given."""
    where.add_argument(
        "--to-earliest", action="store_true", help="move to the first record of each partition"
    )
    where.add_argument(
        "--to-latest", action="store_true", help="move to the end, so that only new records are read"
    )
    where.add_argument("--to-offset", type=natural, metavar="N", help="move to this offset")
    where.add_argument(
        "--to-time",
        type=moment,
        metavar="TIME",
        help=f"move to the first record since this time: {TIME_HELP}",
    )
    where.add_argument(
        "--by",
        type=span,
        metavar="SPAN",
        help="move back to the first record within this span before now: 15m, 2h, 7d",
    )
    where.add_argument(
        "--shift", type=_shift, metavar="N", help="move by this many records forwards, or (-N) backwards"
    )


def _trend_span(text: str) -> int:
    """Parse the time between two measurements of the lag, into milliseconds."""
    found = span(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too short to see a trend")
    return found


def _shift(text: str) -> int:
    """Parse the number of records by which an offset is shifted: above 0 forwards, below 0 backwards."""
    return whole_number(text, -(1 << 63) + 1, (1 << 63) - 1)


def _topic(text: str) -> tuple[str, tuple[int, ...] | None]:
    name, colon, indexes = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not name a topic")
    return name, tuple(id_number(each) for each in indexes.split(",")) if colon else None


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        found = client.admin.list_groups(states=args.state, types=args.type)
    if args.json:
        documents = [
            {
                "group": group.group_id,
                "state": group.state,
                "type": group.group_type,
                "protocol_type": group.protocol_type,
                "coordinator": group.coordinator,
            }
            for group in found
        ]
        print_json({"groups": documents})
    else:
        print_table(
            ("GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"),
            [(g.group_id, g.state, g.group_type, g.protocol_type, g.coordinator) for g in found],
        )
    return 0


def _describe(args: argparse.Namespace) -> int:
    with connected(args) as client:
        described = _look(client, args.groups)
        trends: list[LagTrend | None] = []
        if args.trend is not None:
            first_at, first = time.monotonic(), described
            time.sleep(args.trend / 1000)
            described = _look(client, args.groups)
            milliseconds = max(1, round((time.monotonic() - first_at) * 1000))
            trends = [
                trend_of(before, after, milliseconds)
                for (_, before), (_, after) in zip(first, described, strict=True)
            ]
    if args.json:
        documents = [_document(group, lags) for group, lags in described]
        for document, trend in zip(documents, trends, strict=False):
            document["trend"] = None if trend is None else trend.document()
        print_json({"groups": documents})
        return 0
    for number, (group, lags) in enumerate(described):
        if number:
            say()
        _print_description(group, lags, [trend_text(trends[number])] if trends else [])
    return 0


def _look(client: Client, groups: Sequence[str]) -> list[tuple[GroupDescription, list[PartitionLag]]]:
    """Fetch the description of each group, together with the lag of its partitions."""
    found = []
    for group in client.admin.describe_groups(groups):
        if group.error is not None:
            raise call_failure(group.error)
        lags = client.admin.describe_group_lag(group.group_id, now_ms=time.time_ns() // 1_000_000)
        found.append((group, lags))
    return found


def lag_text(lags: Sequence[PartitionLag]) -> tuple[str, bool]:
    """Write the lag of all partitions together, with its unknown parts. Return (text, whether it deserves a look)."""
    from odradek.wire.errors import KafkaError

    lag = sum(each.lag or 0 for each in lags)
    behind = max((each.behind_ms for each in lags if each.behind_ms is not None), default=None)
    text = _count(lag, "record")
    if lag and behind:
        text += f", {span_text(behind)} behind"
    # An empty partition has nothing to read, so it needs no offset.
    uncommitted = sum(
        each.committed is None and (each.span is None or each.span.start < each.span.end) for each in lags
    )
    if uncommitted:
        text += f"; no offset is committed for {_count(uncommitted, 'partition')}"
    errors = [each.error for each in lags if each.error is not None]
    if errors:
        reason = errors[0].code.name if isinstance(errors[0], KafkaError) else str(errors[0])
        text += f"; the end of {_count(len(errors), 'partition')} is unknown ({reason})"
    return text, bool(lag or uncommitted or errors)


def _print_description(group: GroupDescription, lags: list[PartitionLag], trend: list[str]) -> None:
    total, deserves_look = lag_text(lags)
    print_values(
        [
            ("group", group.group_id),
            ("state", group.state),
            ("type", group.group_type),
            ("protocol", ", ".join(part for part in (group.protocol_type, group.protocol) if part)),
            *_epochs(group),
            ("coordinator", group.coordinator),
            ("members", len(group.members)),
            ("lag", paint(YELLOW, total) if deserves_look else total),
            *(("trend", text) for text in trend),
        ]
    )
    owners = _owners(group)
    if lags:
        say()
        print_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "MEMBER"),
            [
                (
                    each.topic,
                    each.partition,
                    each.committed,
                    None if each.span is None else each.span.end,
                    each.lag,
                    span_text(each.behind_ms),
                    owners.get(each.key),
                )
                for each in lags
            ],
        )
    if group.members:
        say()
        _print_members(group)


def _epochs(group: GroupDescription) -> list[tuple[str, object]]:
    """Return the line about the group's epochs as a list of one (name, text) pair. For a classic group,
    return an empty list.
    """
    if group.group_type != "consumer":
        return []
    epochs = f"group {group.group_epoch}, assignment {group.assignment_epoch}"
    moving = sum(member.partitions != member.target for member in group.members)
    if moving:
        epochs = paint(YELLOW, f"{epochs}; {_count(moving, 'member')} still moving to the target assignment")
    return [("epochs", epochs)]


def _print_members(group: GroupDescription) -> None:
    """Print the group's members as a table. In the new protocol it includes epochs and target assignments."""
    has_epochs = group.group_type == "consumer"
    header = ("MEMBER", "CLIENT", "HOST", "INSTANCE")
    rows = [
        (
            number,
            member.client_id,
            member.client_host.removeprefix("/"),
            member.group_instance_id,
            *((member.protocol, member.member_epoch) if has_epochs else ()),
            _partitions_text(member.partitions),
            *((_partitions_text(member.target),) if has_epochs else ()),
        )
        for number, member in enumerate(group.members, 1)
    ]
    more = ("PROTOCOL", "EPOCH", "PARTITIONS", "TARGET") if has_epochs else ("PARTITIONS",)
    print_table((*header, *more), rows)


def _document(group: GroupDescription, lags: list[PartitionLag]) -> dict[str, Any]:
    owners = _owners(group)
    has_epochs = group.group_type == "consumer"
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "type": group.group_type,
        **({"epoch": group.group_epoch, "assignment_epoch": group.assignment_epoch} if has_epochs else {}),
        "coordinator": group.coordinator,
        "lag": sum(each.lag or 0 for each in lags),
        "behind_ms": max((each.behind_ms for each in lags if each.behind_ms is not None), default=None),
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": each.committed,
                "start": None if each.span is None else each.span.start,
                "end": None if each.span is None else each.span.end,
                "lag": each.lag,
                "behind_ms": each.behind_ms,
                "error": None if each.error is None else str(each.error),
                "member_id": _member_id(group, owners.get(each.key)),
            }
            for each in lags
        ],
        "members": [_member_document(member, has_epochs) for member in group.members],
    }


def _member_document(member: GroupMember, has_epochs: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": _listed(member.partitions),
    }
    if has_epochs:
        document |= {
            "epoch": member.member_epoch,
            "protocol": member.protocol,
            "target": _listed(member.target),
            "topics": list(member.subscribed_topics),
            "pattern": member.subscribed_pattern,
            "rack": member.rack,
        }
    return document


def _listed(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]


def _owners(group: GroupDescription) -> dict[TopicPartition, int]:
    """Map each partition to its member, given as the number of the member in the printed table."""
    return {key: number for number, member in enumerate(group.members, 1) for key in member.partitions}


def _member_id(group: GroupDescription, number: int | None) -> str | None:
    return None if number is None else group.members[number - 1].member_id


def _partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions by topic, with ranges: `words:0-2,5 other:1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return " ".join(f"{topic}:{_runs(indexes)}" for topic, indexes in by_topic.items())


def _runs(indexes: list[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _reset(args: argparse.Namespace) -> int:
    from odradek.wire.errors import ErrorCode, KafkaError

    with connected(args) as client:
        (group,) = client.admin.describe_groups([args.group])
        if group.error is not None and not (
            isinstance(group.error, KafkaError) and group.error.code is ErrorCode.GROUP_ID_NOT_FOUND
        ):
            raise call_failure(group.error)
        if args.execute and group.members:
            raise CliError(
                f"group {args.group} has {_count(len(group.members), 'member')}: stop the group's "
                f"consumers first (`odradek group describe {args.group}` shows them)"
            )
        committed = _committed(args, client)
        plan = client.admin.plan_offset_reset(committed, _target(args))
        if args.execute:
            moved = {each.key: each.new for each in plan}
            with changing():
                outcomes = client.admin.alter_group_offsets(args.group, moved)
            for error in outcomes.values():
                if error is not None:
                    raise call_failure(error, changes=True)
    if args.json:
        print_json({"group": args.group, "executed": args.execute, "partitions": list(map(_move, plan))})
        return 0
    print_table(
        ("TOPIC", "PARTITION", "FROM", "TO", "CHANGE"),
        [(each.topic, each.partition, each.old, each.new, _change(each)) for each in plan],
    )
    if args.execute:
        say(f"group {args.group}: {_count(len(plan), 'offset')} reset")
    else:
        say(paint(YELLOW, "nothing was changed: add --execute to do it"))
        if group.members:
            say(
                f"group {args.group} has {_count(len(group.members), 'member')}: stop the group's "
                "consumers before you add --execute"
            )
    return 0


def _committed(args: argparse.Namespace, client: Client) -> dict[TopicPartition, int | None]:
    """Find the partitions that the arguments select, with the offsets that the group committed for them."""

    from odradek.wire.topic_partition import TopicPartition

    (found,) = client.admin.list_group_offsets({args.group: None})
    if found.error is not None:
        raise call_failure(found.error)
    committed: dict[TopicPartition, int | None] = {key: each.offset for key, each in found.offsets.items()}
    if args.topic is None:
        if not committed:
            raise CliError(f"group {args.group} has no committed offsets: name the topics with --topic")
        return committed
    topics = {topic.name: topic for topic in client.admin.describe_topics(list(dict(args.topic)))}
    wanted: dict[TopicPartition, int | None] = {}
    for name, indexes in args.topic:
        for index in topics[name].partitions if indexes is None else indexes:
            client.core.cluster.partition(name, index)
            key = TopicPartition(name, index)
            wanted[key] = committed.get(key)
    return wanted


def _target(args: argparse.Namespace) -> ResetTarget:
    from odradek.client.admin import ResetTarget, ResetTo

    if args.to_earliest:
        return ResetTarget(ResetTo.EARLIEST)
    if args.to_latest:
        return ResetTarget(ResetTo.LATEST)
    if args.to_offset is not None:
        return ResetTarget(ResetTo.OFFSET, args.to_offset)
    if args.to_time is not None:
        return ResetTarget(ResetTo.TIME, args.to_time)
    if args.by is not None:
        return ResetTarget(ResetTo.TIME, time.time_ns() // 1_000_000 - args.by)
    return ResetTarget(ResetTo.SHIFT, args.shift)


def _move(each: OffsetReset) -> dict[str, Any]:
    return {"topic": each.topic, "partition": each.partition, "from": each.old, "to": each.new}


def _change(each: OffsetReset) -> str | None:
    return None if each.old is None else f"{each.new - each.old:+d}"


def _delete(args: argparse.Namespace) -> int:
    with connected(args) as client:
        with changing():
            outcomes = client.admin.delete_groups(args.groups)
        deleted = [group for group, error in outcomes if error is None]
        if args.json:
            print_json({"deleted": deleted})
        else:
            for group in deleted:
                say(f"group {group} deleted")
        failed = [(group, error) for group, error in outcomes if error is not None]
        if failed:
            raise failure_of_some(failed)
    return 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
