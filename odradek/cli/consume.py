"""`odradek consume TOPIC`: print the records of a topic's partitions."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import connected
from odradek.cli.failure import CliError
from odradek.cli.output import bytes_field
from odradek.cli.parsing import Groups, add_command, add_connection_options, natural, positive

if TYPE_CHECKING:
    from odradek.client.blocking import Client
    from wire.record_batch import Record

__all__ = ["register"]

_POLL_SECONDS = 1.0


def register(groups: Groups) -> None:
    """Add the command."""
    parser = add_command(groups, "consume", _consume, "print the records of a topic")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--partition",
        type=natural,
        action="append",
        metavar="N",
        help="read only this partition (repeat for more; default: all)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-beginning",
        action="store_true",
        help="start at the first record (the default without --follow)",
    )
    start.add_argument("--offset", type=natural, metavar="N", help="start at this offset of each partition")
    start.add_argument(
        "--timestamp",
        type=_timestamp,
        metavar="TIME",
        help="start at the first record of this time or later: milliseconds since 1970, or ISO 8601",
    )
    parser.add_argument("--max-messages", type=positive, metavar="N", help="stop after so many records")
    parser.add_argument(
        "--follow", action="store_true", help="wait for new records (default: stop at the present end)"
    )
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        help=r"print each record's key and this text before its value (\t: a tab)",
    )
    add_connection_options(parser)


def _timestamp(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time (milliseconds since 1970, or like 2026-01-31T12:00:00+00:00)"
        ) from None


def _consume(args: argparse.Namespace) -> int:
    from odradek.client.offsets import LATEST

    with connected(args) as client:
        (topic,) = client.admin.describe_topics([args.topic])
        wanted = sorted(topic.partitions) if args.partition is None else sorted(set(args.partition))
        for index in wanted:
            client.core.cluster.partition(args.topic, index)
        keys = [(args.topic, index) for index in wanted]
        ends = {key: found.offset for key, found in client.list_offsets(dict.fromkeys(keys, LATEST)).items()}
        starts = _starts(args, client, ends)
        _read(args, client, starts, None if args.follow else ends)
    return 0


def _starts(
    args: argparse.Namespace, client: Client, ends: dict[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """The first offset to read of each partition."""
    from odradek.client.offsets import EARLIEST

    if args.timestamp is not None:
        found = client.list_offsets(dict.fromkeys(ends, args.timestamp))
        return {key: found[key].offset if found[key].offset >= 0 else end for key, end in ends.items()}
    if args.follow and not args.from_beginning and args.offset is None:
        return dict(ends)
    firsts = {key: found.offset for key, found in client.list_offsets(dict.fromkeys(ends, EARLIEST)).items()}
    if args.offset is None:
        return firsts
    for (_, index), first in firsts.items():
        end = ends[args.topic, index]
        if not first <= args.offset <= end:
            raise CliError(f"partition {index} has no offset {args.offset} (it holds {first} up to {end})")
    return dict.fromkeys(ends, args.offset)


def _read(
    args: argparse.Namespace,
    client: Client,
    starts: dict[tuple[str, int], int],
    ends: dict[tuple[str, int], int] | None,
) -> None:
    """Print records until the ends (None: for ever) or --max-messages."""
    from odradek.client.fetching import FetchConfig, Fetcher

    separator = None if args.key_separator is None else args.key_separator.replace("\\t", "\t").encode()
    fetcher = Fetcher(client.core, FetchConfig(unavailable_timeout=args.timeout))
    for (topic, index), offset in starts.items():
        if ends is None or offset < ends[topic, index]:
            fetcher.assign(topic, index, offset)
    left: int = args.max_messages if args.max_messages is not None else sys.maxsize
    out = sys.stdout.buffer
    while fetcher.positions and left:
        for fetched in client.run(fetcher.poll(timeout=_POLL_SECONDS)):
            key = (fetched.topic, fetched.partition)
            for record in fetched.records():
                if not left or (ends is not None and record.offset >= ends[key]):
                    break
                left -= 1
                out.write(
                    _json_line(args.topic, key[1], record) if args.json else _text_line(record, separator)
                )
            if ends is not None and fetched.next_offset >= ends[key]:
                fetcher.unassign(*key)
        out.flush()


def _text_line(record: Record, separator: bytes | None) -> bytes:
    value = record.value or b""
    if separator is None:
        return value + b"\n"
    return (record.key or b"") + separator + value + b"\n"


def _json_line(topic: str, partition: int, record: Record) -> bytes:
    document: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"key": name, **bytes_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
