"""`odradek produce TOPIC`: lines of standard input or of a file become records."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from odradek.cli.connecting import bootstrap_of, call_failure, connected, security_properties
from odradek.cli.failure import CliError
from odradek.cli.output import Progress, print_json
from odradek.cli.parsing import Groups, add_command, add_connection_options, key_value, natural
from odradek.cli.streams.record_format import ParsedRecord, record_of_json

if TYPE_CHECKING:
    from odradek.client.shells.producer import Producer, RecordFuture

__all__ = ["register"]

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS = ("all", "-1", "0", "1")
_READ_BYTES = 1 << 20
_LINE_BYTES_MAX = 100 << 20
_BUFFER_BYTES = 128 << 20
_BATCH_BYTES = 256 << 10
_LINGER_MS = 5


def register(groups: Groups) -> None:
    """Add the command."""
    parser = add_command(groups, "produce", _produce, "write each line of the input as a record")
    parser.add_argument("topic", metavar="TOPIC", help="the topic to write to")
    parser.add_argument("--file", metavar="PATH", help="read this file instead of standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=_separator,
        help=r"split each line at this text: the key is before it, the value after it (\t: a tab)",
    )
    form.add_argument(
        "--input",
        choices=("lines", "json"),
        default="lines",
        help="lines: each line is a value (the default); json: each line is a document as `consume --json` prints it, with key, "
        "value, headers, timestamp",
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
    parser.add_argument(
        "--compression",
        choices=_COMPRESSIONS,
        default="none",
        help="how batches are compressed (default: none)",
    )
    parser.add_argument(
        "--acks",
        choices=_ACKS,
        default="all",
        help="which replicas must have a record before it is acknowledged: all (or -1) in sync, 1 the leader, 0 none "
        "(default: all)",
    )
    add_connection_options(parser)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return text.replace("\\t", "\t").encode()


class _Written:
    """The records under way (line number, bytes, future), and the count of those acknowledged so far."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, int, RecordFuture]] = deque()
        self.progress = Progress("records written", always=True)
        self.records = 0
        self.bytes = 0
        self.by_partition: dict[int, int] = {}

    def take(self, *, wait: bool) -> None:
        """Count what has its outcome, in order. Raises `CliError` for the first line that failed."""
        pending = self.pending
        before = self.records
        while pending and (wait or pending[0][2].done()):
            line_number, size, future = pending.popleft()
            error = future.exception()
            if error is not None:
                raise CliError(f"line {line_number}: {call_failure(error)}") from error
            self.records += 1
            self.bytes += size
            partition = future.result().partition
            self.by_partition[partition] = self.by_partition.get(partition, 0) + 1
        self.progress.add(self.records - before)


def _produce(args: argparse.Namespace) -> int:
    written = _Written()
    try:
        if args.file is None:
            _send_all(args, sys.stdin.buffer, written)
        else:
            with open(args.file, "rb") as source:
                _send_all(args, source, written)
    except CliError as error:
        if written.records:
            raise CliError(f"{error} (after {written.records} records were acknowledged)") from error
        raise
    except OSError as error:
        if args.file is None:
            raise
        raise CliError(f"cannot read {args.file}: {error.strerror}") from error
    if args.json:
        by_partition = {str(index): count for index, count in sorted(written.by_partition.items())}
        print_json(
            {
                "topic": args.topic,
                "records": written.records,
                "bytes": written.bytes,
                "records_by_partition": by_partition,
            }
        )
    else:
        noun = "record" if written.records == 1 else "records"
        print(f"{written.records} {noun} written to {args.topic}")
    return 0


def _send_all(args: argparse.Namespace, source: BinaryIO, written: _Written) -> None:
    from odradek.client.core.requests import topics_with_metadata

    with connected(args) as client, written.progress:
        # Before anything is read: does a broker answer, and does the topic have what is asked for?
        deadline = client.core.now + args.timeout
        client.run(topics_with_metadata(client.core, [args.topic], deadline=deadline, auto_create=True))
        if args.partition is not None:
            client.core.cluster.partition(args.topic, args.partition)
        producer = _producer(args)
        try:
            _send_lines(args, producer, source, written)
            producer.flush()
            written.take(wait=True)
        except BaseException:
            producer.close(0)
            with suppress(CliError):
                written.take(wait=True)
            raise
        producer.close()


def _producer(args: argparse.Namespace) -> Producer:
    from odradek.client.shells.producer import Producer

    timeout_ms = int(args.timeout * 1000)
    return Producer(
        security_properties(args),
        bootstrap_servers=bootstrap_of(args),
        client_id="odradek-cli",
        acks=args.acks,
        compression_type=args.compression,
        linger_ms=min(_LINGER_MS, timeout_ms),
        batch_size=_BATCH_BYTES,
        buffer_memory=_BUFFER_BYTES,
        max_request_size=_BUFFER_BYTES,
        max_block_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms - min(_LINGER_MS, timeout_ms),
    )


def _send_lines(args: argparse.Namespace, producer: Producer, source: BinaryIO, written: _Written) -> None:
    headers = tuple((name, value.encode()) for name, value in args.header)
    line_number = 0
    for lines in _lines(source):
        now_ms = time.time_ns() // 1_000_000
        first = line_number + 1
        # All of them before the first is sent: a mistake in the input is told before anything is written.
        parse = record_of_json if args.input == "json" else partial(_record, args.key_separator)
        found = [parse(line, number) for number, line in enumerate(lines, first)]
        for line_number, (key, value, own_headers, timestamp) in enumerate(found, first):
            when = now_ms if timestamp is None else timestamp
            future = producer.send(args.topic, value, key, (*own_headers, *headers), args.partition, when)
            written.pending.append((line_number, len(lines[line_number - first]), future))
        written.take(wait=False)


def _record(separator: bytes | None, line: bytes, line_number: int) -> ParsedRecord:
    if separator is None:
        return None, line, (), None
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"line {line_number} has no key separator {separator.decode()!r}")
    return key, value, (), None


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
