"""The command `odradek spark finish`, which shows how far a query's last batch is, and ends a batch whose plan cannot be
had again. SHELL.

A batch of delivery=exactly-once that has begun ends by itself when the query runs again with the plan that it had. This
command is for a plan that is gone: other code, other files, another number of tasks. The operator then chooses: the
committed rows are all that the batch has (`--keep`), or the next run writes the whole batch (`--again`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from odradek.client.errors import ClientError
from odradek.spark.delivery.batch_driver import completing_producer, forget_tasks, write_completion
from odradek.spark.delivery.completion import Completion
from odradek.spark.delivery.connecting import add_connection_options, properties_of
from odradek.spark.delivery.decisions import Decisions
from odradek.spark.delivery.markers import MarkerLog
from odradek.spark.delivery.pool import has_committed, open_tasks, prepared_slots
from odradek.spark.delivery.task_protocol import Marker, ProgressError
from odradek.spark.delivery.two_phase import sum_of
from odradek.wire.errors import KafkaError

__all__ = ["BegunBatch", "end_begun", "main", "read_begun"]

_NOTHING = sum_of(())


@attrs.frozen
class BegunBatch:
    """A query's progress: its last finished batch, and the markers of the batch that has begun, if there is one."""

    query: str
    finished: Completion | None
    batch: int | None
    """The batch that has begun; None if there is none."""
    markers: dict[int, Marker]
    open_tasks: tuple[int, ...] = ()
    """The tasks with open transactions. Nobody knows yet how these end."""
    is_unknown: bool = False
    """True if the decisions topic knows nothing of the query."""
    has_committed: bool = False
    """True if the coordinators know committed transactions of the query."""

    @property
    def rows(self) -> int:
        """The number of committed rows of the batch that has begun."""
        return sum(each.summary.rows for each in self.markers.values())


def read_begun(decisions: Decisions, query: str) -> BegunBatch:
    """Read the progress of a query. Raises `KafkaError`, `ClientError`, and `ValueError` if the query uses two-phase
    delivery and has not ended its batch.
    """
    log = decisions.progress(query) or MarkerLog(query)
    client, seconds = decisions.client, decisions.timeout
    prepared = client.run(prepared_slots(client.core, query, seconds))
    if prepared or (log.decision is not None and not log.decision.is_complete):
        raise ValueError(
            f"{query} has transactions of delivery=two-phase: end them by `odradek spark two-phase --end`, or start the "
            "query with delivery=two-phase"
        )
    batch = _begun(log)
    return BegunBatch(
        query,
        log.finished,
        batch,
        {task: each for task, each in sorted(log.markers.items()) if each.batch == batch},
        client.run(open_tasks(client.core, query, seconds)),
        is_unknown=log.is_empty,
        has_committed=client.run(has_committed(client.core, query, seconds)),
    )


def _begun(log: MarkerLog) -> int | None:
    newest = max((each.batch for each in log.markers.values()), default=-1)
    return newest if newest > (-1 if log.finished is None else log.finished.batch) else None


def end_begun(
    decisions: Decisions, properties: dict[str, str], begun: BegunBatch, batch: int, *, keep: bool
) -> None:
    """End batch `batch`: keep its committed rows, or let the next run write all of it. Raises `ValueError` if that
    batch has not begun or has open transactions, and if the query is unknown.

    The decisions topic is created if it does not exist.
    """
    if begun.is_unknown and not begun.has_committed:
        raise ValueError(
            f"the topic '{decisions.topic}' has no progress of {begun.query}, and the brokers know no committed "
            "transaction of it: check the query's id and --decisions-topic. If the id is right, the transactions have "
            "expired, so start the query with adoptCheckpoint=true"
        )
    if begun.open_tasks:
        raise ValueError(
            f"task {begun.open_tasks[0]} of {begun.query} has an open transaction: stop the query, and wait until the "
            "transaction has ended (`odradek txn list` shows it)"
        )
    if begun.batch != batch and not begun.is_unknown:
        what = "no batch" if begun.batch is None else f"batch {begun.batch}"
        raise ValueError(f"{what} of {begun.query} has begun, so batch {batch} cannot be ended")
    if begun.is_unknown:
        decisions.make()
    before = () if begun.finished is None else begun.finished.topics
    topics = tuple(sorted({each for marker in begun.markers.values() for each in marker.topics}))
    with completing_producer(properties, begun.query) as producer:
        if keep:
            summary = sum_of(each.summary for each in begun.markers.values())
            ended = Completion(batch, summary, len(begun.markers), topics or before, by_hand=True)
            write_completion(decisions, producer, begun.query, ended)
            return
        # The completion comes first: without markers and completion, the query would seem to have lost its progress.
        again = Completion(batch - 1, _NOTHING, 0, before, by_hand=True)
        write_completion(decisions, producer, begun.query, again)
    forget_tasks(decisions, properties, begun.query, begun.markers)


def _batch(text: str) -> int:
    """Parse the number of a batch. Raises `argparse.ArgumentTypeError`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a batch")
    return int(text)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command `finish`, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="odradek spark finish",
        description="Show the last batch of a query with delivery=exactly-once, and end a batch whose plan is gone.",
    )
    parser.add_argument("query", metavar="QUERY", help="the query's id, or txnAppId/TOPIC of a batch job")
    add_connection_options(parser)
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="the query's checkpoint: show the offsets of the batch, too"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--keep",
        metavar="BATCH",
        type=_batch,
        help="end this batch: its committed rows stay, its other rows are left out",
    )
    choice.add_argument(
        "--again",
        metavar="BATCH",
        type=_batch,
        help="let the next run write the whole batch: its committed rows are then there twice",
    )
    given = parser.parse_args(words)
    properties = properties_of(parser, given)
    try:
        with Decisions(properties, given.decisions_topic) as decisions:
            begun = read_begun(decisions, given.query)
            batch = given.again if given.keep is None else given.keep
            if batch is None:
                _print(begun, given.decisions_topic, given.checkpoint)
            else:
                end_begun(decisions, properties, begun, batch, keep=given.keep is not None)
                _print_outcome(begun, batch, keep=given.keep is not None)
    except (KafkaError, ClientError, ProgressError, RuntimeError, ValueError, OSError) as error:
        print(f"finish: {error}", file=sys.stderr)
        return 1
    return 0


def _print_outcome(begun: BegunBatch, batch: int, *, keep: bool) -> None:
    rows = f"{begun.rows} committed rows of {len(begun.markers)} tasks"
    if keep:
        print(f"batch {batch} of {begun.query} is finished: {rows} stay, and no run writes more of it")
    else:
        print(f"batch {batch} of {begun.query} has not begun: the next run writes all of it, beside {rows}")


def _print(begun: BegunBatch, topic: str, checkpoint: str | None) -> None:
    query, finished = begun.query, begun.finished
    if begun.is_unknown:
        print(f"the topic '{topic}' has no progress of {query}")
        if begun.has_committed:
            print(
                "The query has committed transactions. If it had another decisionsTopic before, use that one.\n"
                "If that topic is lost, find out by the query's checkpoint and the topic's rows how far it was:\n"
                "  --keep N   batch N and all before it are in the topic; the next run writes batch N + 1\n"
                "  --again N  batch N is not in the topic, or may be there twice; the next run writes it"
            )
        return
    if finished is not None:
        how = "by hand" if finished.by_hand else f"{finished.summary.rows} rows"
        print(f"batch {finished.batch} of {query} is finished ({how})")
    if begun.batch is None:
        print("no later batch has begun, so there is nothing to end")
        return
    about = [] if checkpoint is None else _about_checkpoint(Path(checkpoint), query, begun.batch)
    print(f"batch {begun.batch} of {query} has begun and is not finished:")
    print(f"{'TASK':>6} {'ROWS':>10}  STATE")
    for task, marker in begun.markers.items():
        print(f"{task:>6} {marker.summary.rows:>10}  committed")
    for task in begun.open_tasks:
        print(f"{task:>6} {'?':>10}  open: wait until it has ended")
    print("What other tasks the batch had is not known.")
    if not any(marker.run for marker in begun.markers.values()):
        print(
            "An older version of the sink has written these tasks, and it noted no end of a batch. So the batch may be "
            "whole: it is, if the query's checkpoint has the file "
            f"commits/{begun.batch}. Then the next batch needs nothing from you."
        )
    for line in about:
        print(line)
    print(
        f"Start the query with the plan and the number of tasks that it had: it writes the rest, and each row is there "
        f"once.\nIf that plan cannot be had again, stop the query and choose:\n"
        f"  --keep {begun.batch}   the {begun.rows} rows stay, and the rows of all other tasks are left out\n"
        f"  --again {begun.batch}  the next run writes the whole batch, so the {begun.rows} rows are there twice"
    )


def _about_checkpoint(folder: Path, query: str, batch: int) -> list[str]:
    """Return lines with what Spark's log of offsets says about a batch. Raises `ValueError` if it cannot be read, or if
    the checkpoint is that of another query.
    """
    file = folder / "offsets" / str(batch)
    try:
        identity = folder / "metadata"
        owner = json.loads(identity.read_text())["id"] if identity.exists() else query
        _, first, *sources = file.read_text().splitlines()
        settings = json.loads(first).get("conf", {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"the offsets of batch {batch} cannot be read from {file} ({error}): --checkpoint wants the query's "
            "checkpointLocation, as a directory that is mounted here"
        ) from None
    if owner != query:
        raise ValueError(f"the checkpoint {folder} is that of the query {owner}, not of {query}")
    partitions = settings.get("spark.sql.shuffle.partitions", "unknown")
    lines = [f"It began with spark.sql.shuffle.partitions={partitions}, and its sources end at:"]
    lines += [f"  {each}" for each in sources]
    if (folder / "commits" / str(batch)).exists():
        lines.append("Spark has finished this batch, and goes on with the next one.")
    return lines
