"""`odradek topic purge`: delete the records of a topic, all of them or the oldest ones (KIP-107)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.connecting import call_failure, changing, connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, counted, paint, print_json, print_table, say
from odradek.cli.parsing import add_command, add_connection_options, id_number, natural
from odradek.cli.times import TIME_HELP, moment

if TYPE_CHECKING:
    from odradek.cli.parsing import Groups
    from odradek.client.shells.blocking import Client
    from odradek.wire.topic_partition import TopicPartition

__all__ = ["register_purge"]


class _Cut(NamedTuple):
    """The records of a partition that a purge deletes: offsets from `start` up to `before`, which stays."""

    start: int
    before: int
    end: int

    @property
    def size(self) -> int:
        """The number of deleted offsets. Compaction and transactions leave some offsets without a record."""
        return max(0, self.before - self.start)


def register_purge(commands: Groups) -> None:
    """Add the command `purge` to the group `topic`."""
    purge = add_command(
        commands,
        "purge",
        _purge,
        "delete the records of a topic, all of them or the oldest ones; the topic stays",
    )
    purge.add_argument("topic", metavar="TOPIC", help="the topic whose records are deleted")
    purge.add_argument(
        "--partition",
        type=id_number,
        action="append",
        metavar="N",
        help="delete only records of this partition (repeat for more; default: all)",
    )
    purge.add_argument(
        "--before",
        type=_before,
        metavar="OFFSET|TIME",
        help="delete only records below this offset, or those before the first record since this time: "
        f"{TIME_HELP} (default: all records that the replicas in sync have)",
    )
    purge.add_argument(
        "--execute", action="store_true", help="delete the records (default: only show what would be deleted)"
    )
    add_connection_options(purge)


def _before(text: str) -> tuple[str, int]:
    """Parse the option --before. Return its kind (offset, time) and its number."""
    if text.isascii() and text.isdigit():
        return "offset", natural(text)
    return "time", moment(text)


def _purge(args: argparse.Namespace) -> int:
    with connected(args) as client:
        cuts = _cuts(args, client)
        starts: dict[TopicPartition, int] = {}
        if args.execute:
            with changing():
                wanted = {key: cut.before for key, cut in cuts.items() if cut.size}
                outcomes = client.admin.delete_records(wanted) if wanted else {}
            for key, found in outcomes.items():
                if found.error is not None:
                    failure = call_failure(found.error, changes=True)
                    raise CliError(f"{key}: {failure} (done before: {', '.join(map(str, starts)) or 'none'})")
                starts[key] = found.low_watermark
    if args.json:
        _print_document(args, cuts)
        return 0
    print_table(
        ("PARTITION", "START", "NEW START", "END", "DELETED"),
        [
            (key.partition, cut.start, max(cut.start, cut.before), cut.end, cut.size)
            for key, cut in cuts.items()
        ],
    )
    total = counted(sum(cut.size for cut in cuts.values()), "offset")
    if args.execute:
        say(f"topic {args.topic}: the records of {total} deleted")
    else:
        say(paint(YELLOW, f"nothing was changed: add --execute to delete the records of {total}"))
    return 0


def _cuts(args: argparse.Namespace, client: Client) -> dict[TopicPartition, _Cut]:
    """Find what the purge deletes in each partition. Raises `CliError`."""
    from odradek.wire.topic_partition import TopicPartition

    (topic,) = client.admin.describe_topics([args.topic])
    if topic.is_internal:
        raise CliError(
            f"{topic.name} is an internal topic: without its records the cluster loses committed offsets or transactions"
        )
    indexes = sorted(topic.partitions) if args.partition is None else sorted(set(args.partition))
    for index in indexes:
        client.core.cluster.partition(args.topic, index)
    keys = [TopicPartition(args.topic, index) for index in indexes]
    spans = {}
    for key, span in client.admin.offset_spans(keys).items():
        if isinstance(span, Exception):
            raise span
        spans[key] = span
    kind, number = args.before or ("end", 0)
    times: Mapping[TopicPartition, int] = {}
    if kind == "time":
        times = {key: found.offset for key, found in client.list_offsets(dict.fromkeys(keys, number)).items()}
    cuts = {}
    for key, span in spans.items():
        before = span.end
        if kind == "offset":
            before = number
        elif kind == "time" and times[key] >= 0:
            before = times[key]
        if before > span.end:
            raise CliError(
                f"{key} has no offset {before}: its offsets begin at {span.start} and end before {span.end}",
                USAGE,
            )
        cuts[key] = _Cut(span.start, before, span.end)
    return cuts


def _print_document(args: argparse.Namespace, cuts: Mapping[TopicPartition, _Cut]) -> None:
    print_json(
        {
            "topic": args.topic,
            "executed": args.execute,
            "partitions": [
                {
                    "partition": key.partition,
                    "start": cut.start,
                    "new_start": max(cut.start, cut.before),
                    "end": cut.end,
                    "deleted": cut.size,
                }
                for key, cut in cuts.items()
            ],
        }
    )
