"""`odradek produce TOPIC`: write each line of standard input or of a file as a record."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from odradek.cli.connecting import bootstrap_of, call_failure, connected, keys_judged, security_properties
from odradek.cli.failure import CliError
from odradek.cli.output import print_json, say
from odradek.cli.parsing import Groups, add_command, add_connection_options, file_path, id_number, key_value
from odradek.cli.streams.ending import Ending
from odradek.cli.streams.line_input import line_source, lines
from odradek.cli.streams.record_format import ParsedRecord, record_of_json
from odradek.cli.streams.sent_lines import SentLines
from odradek.cli.streams.standard_streams import complain, give_up, output_failure

if TYPE_CHECKING:
    from odradek.client.shells.producer import Producer

__all__ = ["register"]

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS = ("all", "-1", "0", "1")
_BUFFER_BYTES = 128 << 20
_PENDING_BYTES_MAX = _BUFFER_BYTES // 2
"""The limit for the bytes of lines that are sent but not yet acknowledged. Below this limit, the producer
always has free memory, so no send blocks. The command can then react to a signal at once.
"""
_LAST_SECONDS = 2.0
"""The seconds that a command waits for the outcome of sent lines after a signal has requested its end."""
_BATCH_BYTES = 256 << 10
_LINGER_MS = 5


def register(groups: Groups) -> None:
    """Add the command `produce` to the parser of the command line."""
    parser = add_command(groups, "produce", _produce, "write each line of the input as a record")
    parser.add_argument("topic", metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--file", metavar="PATH", type=file_path, help="read this file instead of standard input"
    )
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
        "--partition", type=id_number, metavar="N", help="write to this partition (default: by key, else any)"
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
        help="which replicas must have a record before it is acknowledged: all or -1 (all in-sync replicas), 1 (the leader), 0 (none); default: all",
    )
    add_connection_options(parser)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("the key separator is empty")
    return text.replace("\\t", "\t").encode()


def _produce(args: argparse.Namespace) -> int:
    sent = SentLines()
    try:
        _send_all(args, sent)
    except CliError as error:
        if not sent.begun:
            raise
        raise CliError(f"{error}: {sent.report()}") from error
    except KeyboardInterrupt:
        if sent.begun:
            complain(f"interrupted: {sent.report()}")
        raise
    try:
        _report(args, sent)
        sys.stdout.flush()
    except OSError as error:
        give_up(sys.stdout)
        raise CliError(f"{output_failure(error)}: {sent.report()}") from error
    return 0


def _report(args: argparse.Namespace, sent: SentLines) -> None:
    if args.json:
        by_partition = {str(index): count for index, count in sorted(sent.by_partition.items())}
        print_json(
            {
                "topic": args.topic,
                "records": sent.written,
                "bytes": sent.bytes,
                "records_by_partition": by_partition,
            }
        )
    else:
        noun = "record" if sent.written == 1 else "records"
        say(f"{sent.written} {noun} written to {args.topic}")


def _send_all(args: argparse.Namespace, sent: SentLines) -> None:
    from odradek.client.core.requests import topics_with_metadata

    with line_source(args.file) as read, connected(args, "ProducerSettings") as client, sent.progress:
        # Check before any input is read that a broker answers, and that the topic has the requested
        # partition.
        deadline = client.core.now + args.timeout
        client.run(topics_with_metadata(client.core, [args.topic], deadline=deadline, auto_create=True))
        if args.partition is not None:
            client.core.cluster.partition(args.topic, args.partition)
        producer = _producer(args)
        with Ending() as ending:
            try:
                for some in lines(read, ending.waiting):
                    _send_lines(args, producer, some, sent)
                    sent.count_done()
                    while sent.pending_bytes > _PENDING_BYTES_MAX:
                        with ending.waiting():
                            sent.wait_oldest()
                        sent.count_done()
                    _check(sent)
                with ending.waiting():
                    producer.flush()
                sent.count_done()
                _check(sent)
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                _settle(producer, sent, _LAST_SECONDS if interrupted else args.timeout)
                if not interrupted:
                    # An earlier line may have failed before the line that stopped the command. If so, report
                    # the earlier failure.
                    _check(sent)
                raise
        producer.close()


def _check(sent: SentLines) -> None:
    """Raise `CliError` for the first line that failed."""
    if sent.first_failed is not None:
        number, error = sent.first_failed
        raise CliError(f"line {number}: {call_failure(error)}") from error


def _settle(producer: Producer, sent: SentLines, patience_seconds: float) -> None:
    """Wait at most `patience_seconds` until each sent line is acknowledged or failed, so that the command
    reports the right count.
    """
    from odradek.client.errors import ClientError

    with suppress(ClientError):  # the caller reports the records that still have no outcome
        producer.flush(patience_seconds)
    producer.close(0)
    sent.count_done(wait=True)


def _producer(args: argparse.Namespace) -> Producer:
    from odradek.client.shells.producer import Producer

    timeout_ms = int(args.timeout * 1000)
    own = {
        "bootstrap.servers": bootstrap_of(args),
        "client.id": "odradek-cli",
        "acks": args.acks,
        "compression.type": args.compression,
        "linger.ms": min(_LINGER_MS, timeout_ms),
        "batch.size": _BATCH_BYTES,
        "buffer.memory": _BUFFER_BYTES,
        "max.request.size": _BUFFER_BYTES,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms - min(_LINGER_MS, timeout_ms),
        "transactional.id": None,
    }
    with keys_judged():
        return Producer({**security_properties(args), **own})


def _send_lines(args: argparse.Namespace, producer: Producer, some: list[bytes], sent: SentLines) -> None:
    """Send these lines of the input as records. Raises `CliError` for an invalid line, after all lines before
    it were sent.
    """
    headers = tuple((name, value.encode()) for name, value in args.header)
    parse = record_of_json if args.input == "json" else partial(_record, args.key_separator)
    now_ms = time.time_ns() // 1_000_000
    for number, line in enumerate(some, sent.begun + 1):
        key, value, own_headers, timestamp = parse(line, number)
        when = now_ms if timestamp is None else timestamp
        sent.begun = number
        future = producer.send(args.topic, value, key, (*own_headers, *headers), args.partition, when)
        sent.add(number, len(line), future)


def _record(separator: bytes | None, line: bytes, line_number: int) -> ParsedRecord:
    if separator is None:
        return None, line, (), None
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"line {line_number} lacks the key separator {separator.decode()!r}")
    return key, value, (), None
