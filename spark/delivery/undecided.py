"""The command `odradek spark two-phase`, which lists the open transactions of queries with delivery=two-phase, and
ends them. SHELL.

When a query is started again, it ends its own open transactions. This command is for queries that will never be
started again. Their transactions have no timeout, and committed readers wait for them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.errors import ClientError
from odradek.spark.delivery.connecting import add_connection_options, properties_of
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.pool import PREFIX, open_slots, query_of
from odradek.spark.delivery.task_protocol import ProgressError, RowSummary
from odradek.spark.delivery.two_phase import Decision, DriverProtocol
from odradek.spark.delivery.two_phase_driver import run_driver
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.admin import TransactionDescription

__all__ = ["LeftOpen", "end_query", "left_open", "main"]

_OPEN = "Ongoing"
_NOTHING = RowSummary(0, 0)


@attrs.frozen
class LeftOpen:
    """A query with open transactions: its last decision, the number of open transactions, and the start of the oldest
    (ms since 1970).
    """

    query: str
    decision: Decision | None
    transactions: int
    since_ms: int

    @property
    def is_half_done(self) -> bool:
        """True if the last decision is not complete, so that some open transactions must be committed."""
        return self.decision is not None and not self.decision.is_complete


def left_open(decisions: Decisions) -> list[LeftOpen]:
    """List all queries with open transactions, including queries that are running. Raises `KafkaError`,
    `ClientError`.
    """
    admin = decisions.client.admin
    listed = admin.list_transactions(states=[_OPEN], transactional_id_pattern=f"{PREFIX}.*")
    by_query: dict[str, list[TransactionDescription]] = {}
    for each in admin.describe_transactions([found.transactional_id for found in listed]) if listed else ():
        query = query_of(each.transactional_id)
        if query is not None and each.state == _OPEN:
            by_query.setdefault(query, []).append(each)
    found = []
    for query, open_now in sorted(by_query.items()):
        key, end = decisions.end_of(query)
        since_ms = min(each.start_ms or 0 for each in open_now)
        decision = decisions.read(query, key, end).decision
        found.append(LeftOpen(query, decision, len(open_now), since_ms))
    return found


def end_query(decisions: Decisions, properties: dict[str, str], query: str) -> bool:
    """Commit the decided transactions of a query that has ended, and abort its other transactions. Return False if no
    transaction was open. Raises the same errors as `run_driver`.
    """
    client = decisions.client
    key, end = decisions.end_of(query)
    decision = decisions.read(query, key, end).decision
    batch = 0 if decision is None else decision.batch
    reported = client.run(open_slots(client.core, query, decisions.timeout))
    open_decision = None if decision is None or decision.is_complete else decision
    if open_decision is None and not reported:
        return False
    if open_decision is not None:
        reported = tuple(each for each in reported if each not in open_decision.winners)
    run_driver(properties, decisions.topic, DriverProtocol(query, batch, reported, _NOTHING, aborts=True))
    return True


def main(words: Sequence[str] | None = None) -> int:
    """Run the command `two-phase`, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="odradek spark two-phase",
        description="Show the open transactions of queries with delivery=two-phase, or end those of one query.",
    )
    add_connection_options(parser)
    parser.add_argument(
        "--end",
        metavar="QUERY",
        help="commit the decided transactions of this query, and abort the others; only for a query that has stopped for good",
    )
    given = parser.parse_args(words)
    properties = properties_of(parser, given)
    try:
        with Decisions(properties, given.decisions_topic) as decisions:
            if given.end is not None:
                if not end_query(decisions, properties, given.end):
                    raise ValueError(
                        f"the query {given.end} has no open transaction: leave out --end to list the "
                        "queries with open transactions"
                    )
                print(f"{given.end}: its decided transactions are committed, all others are aborted")
            else:
                _print(left_open(decisions))
    except (KafkaError, ClientError, ProgressError, RuntimeError, ValueError) as error:
        print(f"two-phase: {error}", file=sys.stderr)
        return 1
    return 0


def _print(found: list[LeftOpen]) -> None:
    if not found:
        print("no query has an open transaction")
        return
    now_ms = time.time_ns() // 1_000_000
    print(f"{'QUERY':44} {'OPEN':>5} {'SINCE':>9}  LAST DECISION")
    for each in found:
        seconds = max(0, now_ms - each.since_ms) // 1000
        if each.decision is None:
            last = "none"
        else:
            last = f"batch {each.decision.batch}, {'not complete' if each.is_half_done else 'complete'}"
        print(f"{each.query:44} {each.transactions:>5} {f'{seconds} s':>9}  {last}")
    print(
        "A stream, or a batch job with txnAppId, ends these transactions when it is started again. For "
        "other queries, use --end QUERY."
    )
