"""`odradek txn find-hanging`: open transactions that block `read_committed` consumers, and the commands that
end them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, connected
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import RED, YELLOW, counted, paint, plain, print_json, print_table, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number, whole_number
from odradek.cli.streams.standard_streams import complain
from odradek.cli.times import moment_text

if TYPE_CHECKING:
    from odradek.client.admin import HangingSearch, OldTransaction, RefusedMarker

__all__ = ["register_find_hanging"]

_MINUTES = 15
"""Kafka's default of `transaction.max.timeout.ms`, in minutes. By default, no transaction can have a longer
timeout.
"""


def _minutes(text: str) -> int:
    """Parse a number of minutes, whose milliseconds must fit into a request."""
    return whole_number(text, 0, ((1 << 63) - 1) // 60_000)


def register_find_hanging(commands: Groups) -> None:
    """Add the command to the group `txn`."""
    find = add_command(
        commands,
        "find-hanging",
        _find,
        "find transactions that block read_committed consumers, and show how to end them",
    )
    find.add_argument(
        "--topic", metavar="TOPIC", help="search only the partitions of this topic (default: all topics)"
    )
    find.add_argument(
        "--partition", type=id_number, metavar="N", help="search only this partition of the topic"
    )
    find.add_argument(
        "--broker-id", type=id_number, metavar="ID", help="search only partitions that this broker leads"
    )
    find.add_argument(
        "--max-transaction-timeout",
        type=_minutes,
        default=_MINUTES,
        metavar="MINUTES",
        help=f"find only transactions without a write for longer than this (default: {_MINUTES})",
    )
    add_connection_options(find)


def _find(args: argparse.Namespace) -> int:
    if args.partition is not None and args.topic is None:
        raise CliError("--partition needs --topic", USAGE)
    if args.topic is not None and args.broker_id is not None:
        raise CliError("--topic and --broker-id cannot be combined", USAGE)
    now_ms = time.time_ns() // 1_000_000
    with connected(args) as client:
        brokers = {broker.node_id for broker in client.admin.describe_cluster().brokers}
        if args.broker_id is not None and args.broker_id not in brokers:
            known = ", ".join(map(str, sorted(brokers)))
            raise CliError(f"there is no broker {args.broker_id} (brokers: {known})")
        search = client.admin.find_hanging_transactions(
            now_ms=now_ms,
            older_than_ms=args.max_transaction_timeout * 60_000,
            topic=args.topic,
            partition=args.partition,
            broker=args.broker_id,
        )
    if args.json:
        print_json(
            {
                "transactions": [_document(each, now_ms) for each in search.found],
                "refused_markers": [_refusal_document(each) for each in search.refused],
            }
        )
    elif search.found or search.refused:
        _print_found(search, now_ms)
    else:
        minutes = args.max_transaction_timeout
        span = span_text(minutes * 60_000) if minutes else "0 minutes"
        say(
            f"no transaction has been open for longer than {span} without a write "
            f"({counted(search.partition_count, 'partition')} looked at)"
        )
    if search.errors:
        sys.stdout.flush()
        for error in list(search.errors.values())[1:]:
            complain(f"{error}")
        raise call_failure(next(iter(search.errors.values())))
    return 0


def _print_found(search: HangingSearch, now_ms: int) -> None:
    if search.found:
        _print_table(search.found)
        say()
    refused = {(each.topic, each.partition, each.producer.producer_id) for each in search.refused}
    for each in search.found:
        if (each.topic, each.partition, each.producer.producer_id) in refused:
            continue
        text = plain(_sentence(each, now_ms))
        say(paint(RED if each.prospect.value == "hanging" else YELLOW, text))
    for marker in search.refused:
        say(paint(RED, plain(_refusal_text(marker))))


def _print_table(found: tuple[OldTransaction, ...]) -> None:
    print_table(
        (
            "TOPIC",
            "PARTITION",
            "SINCE OFFSET",
            "LAST WRITE",
            "HOLDS BACK",
            "PRODUCER",
            "EPOCH",
            "STATE",
            "ID",
        ),
        [
            (
                each.topic,
                each.partition,
                each.producer.current_transaction_start_offset,
                moment_text(each.producer.last_timestamp),
                each.held_back if each.holds else None,
                each.producer.producer_id,
                each.producer.producer_epoch,
                each.prospect.value,
                None if each.transaction is None else each.transaction.transactional_id,
            )
            for each in found
        ],
        less=("EPOCH", "LAST WRITE"),
    )


def _refusal_text(marker: RefusedMarker) -> str:
    """Describe the transaction marker that a partition refuses: which one, why, and what to do."""
    transaction, known = marker.transaction, marker.producer
    if marker.is_newer_producer:
        why = (
            f"the partition knows producer epoch {known.producer_epoch}, above the marker's "
            f"{transaction.producer_epoch}"
        )
    else:
        why = (
            f"the partition has a marker of coordinator epoch {known.coordinator_epoch}, above "
            f"{marker.coordinator_epoch}"
        )
    text = (
        f"{marker.topic}-{marker.partition} refuses the marker of transactional id "
        f"{transaction.transactional_id}, which stays in {transaction.state}: {why}. Give its producer "
        "another transactional id"
    )
    if known.current_transaction_start_offset < 0:
        return text
    return (
        f"{text}. To release read_committed consumers, abort the transaction in this partition, although it may be committed elsewhere: "
        f"{_partition_abort(marker.topic, marker.partition, known.current_transaction_start_offset)} "
        "--force"
    )


def _partition_abort(topic: str, partition: int, start: int) -> str:
    return f"odradek txn abort --topic {shlex.quote(topic)} --partition {partition} --start-offset {start}"


def _refusal_document(marker: RefusedMarker) -> dict[str, Any]:
    transaction, known = marker.transaction, marker.producer
    return {
        "topic": marker.topic,
        "partition": marker.partition,
        "transactional_id": transaction.transactional_id,
        "transaction_state": transaction.state,
        "producer_id": transaction.producer_id,
        "error": "INVALID_PRODUCER_EPOCH" if marker.is_newer_producer else "TRANSACTION_COORDINATOR_FENCED",
        "marker_epoch": transaction.producer_epoch,
        "partition_epoch": known.producer_epoch,
        "marker_coordinator_epoch": None if marker.coordinator_epoch < 0 else marker.coordinator_epoch,
        "partition_coordinator_epoch": None if known.coordinator_epoch < 0 else known.coordinator_epoch,
    }


def _sentence(each: OldTransaction, now_ms: int) -> str:
    """Describe a transaction that blocks consumers, how it will end, and the command that ends it now."""
    start = each.producer.current_transaction_start_offset
    where = f"{each.topic}-{each.partition}"
    idle = span_text(max(0, now_ms - each.producer.last_timestamp))
    # Only the first open transaction of a partition stops readers, so the text about a later one differs.
    held = (
        f"read_committed consumers wait at offset {start}"
        if each.holds
        else f"a transaction is open that began at offset {start}"
    )
    return f"{where}: {held}, last write {idle} ago. {_remedy(each, now_ms)}"


def _remedy(each: OldTransaction, now_ms: int) -> str:
    command, transaction = _command(each), each.transaction
    if transaction is None:
        return (
            f"No coordinator knows producer {each.producer.producer_id}, so nobody will end this "
            f"transaction. Run: {command}"
        )
    name = transaction.transactional_id
    match each.prospect.value:
        case "hanging":
            return (
                f"Transactional id {name} has no open transaction there, so nobody will end this "
                f"transaction. Run: {command}"
            )
        case "ending":
            return (
                f"Transactional id {name} is in {transaction.state}: its coordinator is sending the "
                "markers, so wait"
            )
        case "prepared":
            return (
                f"Transactional id {name} has prepared the transaction, which has no timeout. Let its "
                f"transaction manager commit or abort it. To abort it regardless of the transaction manager: {command}"
            )
        case _:
            left_ms = (transaction.start_ms or now_ms) + transaction.timeout_ms - now_ms
            end = f"in {span_text(left_ms)}" if left_ms > 0 else "now"
            return (
                f"Transactional id {name} has the transaction open; its coordinator aborts the "
                f"transaction {end}. To abort it at once: {command}"
            )


def _command(each: OldTransaction) -> str | None:
    """Return the command that ends the transaction; None if the transaction ends without a command."""
    if each.prospect.value == "ending":
        return None
    if each.prospect.value == "hanging" or each.transaction is None:
        start = each.producer.current_transaction_start_offset
        return _partition_abort(each.topic, each.partition, start)
    return f"odradek txn abort --transactional-id {shlex.quote(each.transaction.transactional_id)}"


def _document(each: OldTransaction, now_ms: int) -> dict[str, Any]:
    transaction = each.transaction
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.producer.current_transaction_start_offset,
        "holds_last_stable_offset": each.holds,
        "held_back": each.held_back,
        "last_write_ms": each.producer.last_timestamp,
        "idle_ms": max(0, now_ms - each.producer.last_timestamp),
        "producer_id": each.producer.producer_id,
        "producer_epoch": each.producer.producer_epoch,
        "coordinator_epoch": None if each.producer.coordinator_epoch < 0 else each.producer.coordinator_epoch,
        "prospect": each.prospect.value,
        "transactional_id": None if transaction is None else transaction.transactional_id,
        "transaction_state": None if transaction is None else transaction.state,
        "command": _command(each),
    }
