"""`odradek produce TOPIC`: lines of standard input or of a file become records."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from odradek.cli.connecting import connected, kafka_failure
from odradek.cli.failure import CliError
from odradek.cli.output import print_json
from odradek.cli.parsing import Groups, add_command, add_connection_options, key_value, natural

if TYPE_CHECKING:
    from odradek.client.blocking import Client
    from odradek.client.producing import Producing

__all__ = ["register"]

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_READ_BYTES = 1 << 20
_LINE_BYTES_MAX = 100 << 20


def register(groups: Groups) -> None:
    """Add the command."""
    parser = add_command(groups, "produce", _produce, "write each line of the input as a record")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--file", metavar="PATH", help="read this file instead of standard input")
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=_separator,
        help=r"the key stands before this text (\t: a tab)",
    )
    parser.add_argument(
        "--partition", type=natural, metavar="N", help="write to this partition (default: by key, else any)"
    )
    parser.add_argument(
        "--header",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="give each record this header (repeat for more)",
    )
    parser.add_argument("--compression", choices=_COMPRESSIONS, default="none")
    parser.add_argument(
        "--acks",
        choices=tuple(_ACKS),
        default="all",
        help="who must have a record before it counts (default: all)",
    )
    add_connection_options(parser)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return text.replace("\\t", "\t").encode()


class _Progress:
    """What was acknowledged so far."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.by_partition: dict[int, int] = {}


def _produce(args: argparse.Namespace) -> int:
    progress = _Progress()
    try:
        with connected(args) as client:
            producing = _producing(args, client)
            if args.file is None:
                _send_all(args, client, producing, sys.stdin.buffer, progress)
            else:
                with open(args.file, "rb") as source:
                    _send_all(args, client, producing, source, progress)
    except CliError as error:
        if progress.records:
            raise CliError(f"{error} (after {progress.records} records were acknowledged)") from error
        raise
    except OSError as error:
        if args.file is None:
            raise
        raise CliError(f"cannot read {args.file}: {error.strerror}") from error
    if args.json:
        by_partition = {str(index): count for index, count in sorted(progress.by_partition.items())}
        print_json(
            {
                "topic": args.topic,
                "records": progress.records,
                "bytes": progress.bytes,
                "records_by_partition": by_partition,
            }
        )
    else:
        noun = "record" if progress.records == 1 else "records"
        print(f"{progress.records} {noun} written to {args.topic}")
    return 0


def _producing(args: argparse.Namespace, client: Client) -> Producing:
    from odradek.client.producing import ProduceConfig, Producing

    config = ProduceConfig(acks=_ACKS[args.acks], compression_type=_COMPRESSIONS.index(args.compression))
    return Producing(client.core, config)


def _send_all(
    args: argparse.Namespace, client: Client, producing: Producing, source: BinaryIO, progress: _Progress
) -> None:
    from odradek.client.producing import RecordToSend
    from wire.errors import KafkaError

    headers = tuple((name, value.encode()) for name, value in args.header)
    line_number = 0
    for lines in _lines(source):
        now_ms = time.time_ns() // 1_000_000
        records = []
        for line in lines:
            line_number += 1
            key, value = _key_and_value(line, args.key_separator, line_number)
            records.append(RecordToSend(args.topic, value, key, headers, args.partition, now_ms))
        for delivery in client.run(producing.produce(records, timeout=args.timeout)):
            if delivery.error is not None:
                first = line_number - len(lines) + 1 + delivery.indexes[0]
                if isinstance(delivery.error, KafkaError):
                    raise CliError(f"line {first}: {kafka_failure(delivery.error)}") from delivery.error
                raise delivery.error
            count = len(delivery.indexes)
            progress.records += count
            progress.bytes += sum(len(lines[index]) for index in delivery.indexes)
            progress.by_partition[delivery.partition] = (
                progress.by_partition.get(delivery.partition, 0) + count
            )


def _key_and_value(line: bytes, separator: bytes | None, line_number: int) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"line {line_number} has no key separator {separator.decode()!r}")
    return key, value


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, as many as one read gives: at a terminal each line at once, from a file a mebibyte's worth."""
    rest = bytearray()
    read = getattr(source, "read1", source.read)
    while data := read(_READ_BYTES):
        rest += data
        end = rest.rfind(b"\n") + 1
        if end:
            lines = bytes(rest[: end - 1]).split(b"\n")
            del rest[:end]
            yield lines
        elif len(rest) > _LINE_BYTES_MAX:
            raise CliError(f"a line is longer than {_LINE_BYTES_MAX} bytes")
    if rest:
        yield [bytes(rest)]
