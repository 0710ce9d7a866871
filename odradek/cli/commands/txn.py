"""`odradek txn list|describe|describe-producers|abort`: transactions, as reported by coordinators and by the
leaders of partitions.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from odradek.cli.connecting import call_failure, changing, connected
from odradek.cli.coordinator_records import TRANSACTION_STATES
from odradek.cli.failure import USAGE, CliError
from odradek.cli.output import YELLOW, counted, paint, print_json, print_table, print_values, say, span_text
from odradek.cli.parsing import Groups, add_command, add_connection_options, id_number, natural
from odradek.cli.streams.standard_streams import complain
from odradek.cli.times import moment_text
from odradek.cli.txn_hanging import register_find_hanging

if TYPE_CHECKING:
    from odradek.client.admin import ActiveProducer, FencedProducer, TransactionDescription
    from odradek.client.shells.blocking import Client

__all__ = ["register"]

_LOOK_SECONDS_MAX = 3.0
_ANY_AGE = -(1 << 62)
"""The minimum age to request if transactions of any age are wanted. It is negative, because an age by the leader's
clock may be negative if this clock is ahead of ours.
"""


def register(groups: Groups) -> None:
    """Add the command group `txn` to the parser of the command line."""
    commands = groups.add_parser(
        "txn", help="list, describe, abort transactions, find those that hang"
    ).add_subparsers(metavar="COMMAND", required=True)
    _register_list(commands)

    describe = add_command(
        commands, "describe", _describe, "show the newest transaction of a transactional id"
    )
    describe.add_argument("ids", metavar="TRANSACTIONAL_ID", nargs="+", help="a transactional id to show")
    add_connection_options(describe)

    producers = add_command(
        commands, "describe-producers", _producers, "show the producers that a partition's leader remembers"
    )
    producers.add_argument("--topic", required=True, metavar="TOPIC", help="the partition's topic")
    producers.add_argument(
        "--partition", required=True, type=id_number, metavar="N", help="the number of the partition"
    )
    add_connection_options(producers)

    abort = add_command(
        commands,
        "abort",
        _abort,
        "end a transaction instead of its producer, by its id or on one partition",
    )
    abort.add_argument(
        "--transactional-id",
        metavar="ID",
        help="fence the producer of this id, which aborts its open or prepared transaction everywhere",
    )
    abort.add_argument("--topic", metavar="TOPIC", help="the topic of the only partition on which to abort")
    abort.add_argument("--partition", type=id_number, metavar="N", help="the number of that partition")
    abort.add_argument(
        "--start-offset",
        type=natural,
        metavar="OFFSET",
        help="the first offset of the transaction in that partition",
    )
    abort.add_argument(
        "--force",
        action="store_true",
        help=(
            "abort on that partition even if a coordinator knows this transaction, and may commit it on other "
            "partitions"
        ),
    )
    add_connection_options(abort)

    register_find_hanging(commands)


def _register_list(commands: Groups) -> None:
    listing = add_command(
        commands, "list", _list, "list the transactional ids of all coordinators", watch=True
    )
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        choices=TRANSACTION_STATES,
        metavar="STATE",
        help=f"list only transactions in this state: {', '.join(TRANSACTION_STATES)} (repeat for more)",
    )
    listing.add_argument(
        "--producer-id",
        action="append",
        default=[],
        type=natural,
        metavar="N",
        help="list only transactions of this producer id (repeat for more)",
    )
    listing.add_argument(
        "--running-longer-than-ms",
        type=natural,
        metavar="N",
        help="list only transactions that have been open for more than this number of milliseconds",
    )
    listing.add_argument(
        "--transactional-id-pattern",
        metavar="RE",
        help="list only ids that this regular expression (RE2) matches completely",
    )
    add_connection_options(listing)


def _list(args: argparse.Namespace) -> int:
    with connected(args) as client:
        found = client.admin.list_transactions(
            states=args.state,
            producer_ids=args.producer_id,
            running_longer_than_ms=args.running_longer_than_ms,
            transactional_id_pattern=args.transactional_id_pattern,
        )
    if args.json:
        print_json(
            {
                "transactions": [
                    {
                        "transactional_id": each.transactional_id,
                        "coordinator": each.coordinator,
                        "producer_id": each.producer_id,
                        "state": each.state,
                    }
                    for each in found
                ]
            }
        )
    else:
        print_table(
            ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER", "STATE"),
            [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found],
            whole=("TRANSACTIONAL ID",),
        )
    return 0


def _describe(args: argparse.Namespace) -> int:
    with connected(args) as client:
        described = client.admin.describe_transactions(args.ids)
    errors = [each.error for each in described if each.error is not None]
    found = [each for each in described if each.error is None]
    now_ms = time.time_ns() // 1_000_000
    if args.json and found:
        print_json({"transactions": [_document(each, now_ms) for each in found]})
    elif found:
        for number, each in enumerate(found):
            if number:
                say()
            _print_description(each, now_ms)
    if errors:
        sys.stdout.flush()
        for error in errors[:-1]:
            complain(f"{call_failure(error)}")
        raise call_failure(errors[-1])
    return 0


def _document(each: TransactionDescription, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": None if each.is_timeless else each.timeout_ms,
        "start_ms": each.start_ms,
        "age_ms": _age_ms(each, now_ms),
        "partitions": [{"topic": topic, "partition": index} for topic, index in each.partitions],
    }


def _age_ms(each: TransactionDescription, now_ms: int) -> int | None:
    """Return how long the transaction has been open; None if no transaction is open."""
    if each.start_ms is None or not _is_under_way(each):
        return None
    return max(0, now_ms - each.start_ms)


def _is_under_way(each: TransactionDescription) -> bool:
    return each.state in ("Ongoing", "PrepareCommit", "PrepareAbort")


def _print_description(each: TransactionDescription, now_ms: int) -> None:
    age_ms = _age_ms(each, now_ms)
    is_late = age_ms is not None and not each.is_timeless and age_ms > each.timeout_ms
    age = span_text(age_ms)
    print_values(
        [
            ("transactional id", each.transactional_id),
            ("state", each.state),
            ("coordinator", each.coordinator),
            ("producer id", each.producer_id),
            ("producer epoch", each.producer_epoch),
            (
                "timeout",
                "none: another system decides its end" if each.is_timeless else span_text(each.timeout_ms),
            ),
            ("began", None if each.start_ms is None else moment_text(each.start_ms)),
            ("age", paint(YELLOW, f"{age}, longer than its timeout") if is_late else age),
            ("partitions", len(each.partitions)),
        ]
    )
    if each.partitions:
        say()
        print_table(("TOPIC", "PARTITION"), each.partitions)


def _producers(args: argparse.Namespace) -> int:
    with connected(args) as client:
        (described,) = client.admin.describe_producers([(args.topic, args.partition)]).values()
    if described.error is not None:
        raise call_failure(described.error)
    found = sorted(described.producers, key=lambda each: each.producer_id)
    if args.json:
        print_json(
            {
                "topic": args.topic,
                "partition": args.partition,
                "producers": [
                    {
                        "producer_id": each.producer_id,
                        "producer_epoch": each.producer_epoch,
                        "last_sequence": each.last_sequence,
                        "last_timestamp": each.last_timestamp,
                        "coordinator_epoch": _known(each.coordinator_epoch),
                        "transaction_start_offset": _known(each.current_transaction_start_offset),
                    }
                    for each in found
                ],
            }
        )
        return 0
    print_table(
        ("PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST WRITE", "COORDINATOR EPOCH", "TRANSACTION SINCE OFFSET"),
        [_producer_row(each) for each in found],
    )
    return 0


def _producer_row(each: ActiveProducer) -> tuple[Any, ...]:
    return (
        each.producer_id,
        each.producer_epoch,
        _known(each.last_sequence),
        None if each.last_timestamp < 0 else moment_text(each.last_timestamp),
        _known(each.coordinator_epoch),
        _known(each.current_transaction_start_offset),
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _abort(args: argparse.Namespace) -> int:
    place = (args.topic, args.partition, args.start_offset)
    if args.transactional_id is not None and place == (None, None, None):
        with connected(args) as client, changing():
            return _fence(args, client)
    if args.transactional_id is None and None not in place:
        with connected(args) as client, changing():
            if not args.force:
                _check_abandoned(args, client)
            return _abort_on_partition(args, client)
    raise CliError(
        "name the transaction by --transactional-id, or by --topic, --partition and --start-offset "
        "together (`odradek txn find-hanging` shows transactions that hang)",
        USAGE,
    )


def _fence(args: argparse.Namespace, client: Client) -> int:
    from odradek.client.errors import RequestTimedOut
    from odradek.wire.errors import ErrorCode, KafkaError

    name = args.transactional_id
    try:
        fenced = client.admin.fence_producer(name)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        raise CliError(_unfinished_text(name)) from error
    except RequestTimedOut as error:
        # The coordinator waits before it answers CONCURRENT_TRANSACTIONS, so our timeout may come first. The
        # transaction's state shows whether this is the reason.
        (now,) = client.admin.describe_transactions([name], timeout=_LOOK_SECONDS_MAX)
        if now.state not in ("PrepareCommit", "PrepareAbort"):
            raise
        raise CliError(_unfinished_text(name)) from error
    if args.json:
        before = fenced.before
        print_json(
            {
                "transactional_id": name,
                "state_before": before.state,
                "outcome": _outcome(before),
                "producer_id": fenced.producer_id,
                "producer_epoch": fenced.producer_epoch,
                "partitions": [{"topic": topic, "partition": index} for topic, index in before.partitions],
            }
        )
    else:
        say(_fenced_text(fenced))
    return 0


def _unfinished_text(name: str) -> str:
    return (
        f"transactional id {name}: its transaction's outcome is decided and its producer fenced, but "
        "some partitions lack their marker (CONCURRENT_TRANSACTIONS). The coordinator goes on by "
        f"itself. `odradek txn describe {shlex.quote(name)}` names the partitions, `odradek partition "
        "list --offline` those without a leader, and `odradek txn find-hanging` those that refuse the "
        "marker"
    )


def _outcome(before: TransactionDescription) -> str | None:
    """Return how the transaction has ended, which follows from its state before the command. None if there
    was no transaction.
    """
    return {"Ongoing": "aborted", "PrepareAbort": "aborted", "PrepareCommit": "committed"}.get(before.state)


def _fenced_text(fenced: FencedProducer) -> str:
    before, outcome = fenced.before, _outcome(fenced.before)
    places = counted(len(before.partitions), "partition")
    if before.state == "Ongoing":
        kind = "prepared" if before.is_timeless else "open"
        happened = f"its {kind} transaction on {places} is aborted"
    elif outcome is not None:
        happened = f"its transaction on {places} is {outcome}: this was decided before the command"
    else:
        happened = f"it had no open transaction ({before.state})"
    return (
        f"transactional id {before.transactional_id}: {happened}; its producer is fenced "
        f"(producer id {fenced.producer_id}, epoch {fenced.producer_epoch} now)"
    )


def _check_abandoned(args: argparse.Namespace, client: Client) -> None:
    """Raise `CliError` if a coordinator still knows the transaction. The coordinator may commit the transaction on its
    other partitions, so it must not be aborted on this partition alone.
    """
    search = client.admin.find_hanging_transactions(
        now_ms=time.time_ns() // 1_000_000, older_than_ms=_ANY_AGE, topic=args.topic, partition=args.partition
    )
    for each in search.found:
        if (
            each.producer.current_transaction_start_offset != args.start_offset
            or each.prospect.value == "hanging"
            or each.transaction is None
        ):
            continue
        name, state = each.transaction.transactional_id, each.transaction.state
        if each.prospect.value == "ending":
            advice = (
                "wait for its markers (`odradek txn find-hanging` shows whether a partition refuses "
                "its marker)"
            )
        else:
            advice = (
                f"`odradek txn abort --transactional-id {shlex.quote(name)}` aborts it on all its partitions"
            )
        raise CliError(
            f"the transaction on {args.topic}-{args.partition} belongs to transactional id {name}, in "
            f"the state {state}: {advice}. With --force it is aborted on this partition alone, "
            "whatever happens on other partitions"
        )


def _abort_on_partition(args: argparse.Namespace, client: Client) -> int:
    from odradek.wire.errors import ErrorCode, KafkaError

    where = f"{args.topic}-{args.partition}"
    try:
        producer = client.admin.abort_transaction(args.topic, args.partition, args.start_offset)
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_TXN_STATE:
            raise CliError(
                f"{error.message}: `odradek txn describe-producers --topic {args.topic} --partition "
                f"{args.partition}` shows the open transactions"
            ) from error
        raise
    if args.json:
        print_json(
            {
                "topic": args.topic,
                "partition": args.partition,
                "start_offset": args.start_offset,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
            }
        )
    else:
        say(
            f"{where}: the transaction that began at offset {args.start_offset} is aborted (producer "
            f"id {producer.producer_id}, epoch {producer.producer_epoch})"
        )
    return 0
