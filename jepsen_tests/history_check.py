"""Checks histories of millions of operations with Spark: was any record lost, duplicated or reordered?

Reads the histories that `python -m jepsen_tests` keeps (JSON lines, one file for a run) and splits them by key. Then
the checkers of `jepsen_tests` check the parts in parallel. The exit status is 0 only if they find no anomaly.

    python -m jepsen_tests.history_check run/history.jsonl

The longest part determines the memory; the length of the whole history does not matter. A part has the operations of
one key (one partition) of one run. It must fit into a worker, at about 500 bytes for each operation. Cycles between
operations are not checked, because that needs all keys at the same time (`histories.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from jepsen_tests.checkers import Anomaly
from jepsen_tests.histories import EVERYWHERE, KINDS_OF_TROUBLE, judge, parts
from odradek.spark.pipelines.job import Failed, main_of
from odradek.spark.pipelines.progress import ProgressLine

__all__ = ["Verdict", "check_runs", "main"]

_EXAMPLES = 3
_PART = ("file", "key", "block", "number", "value", "acknowledged")
_Row = tuple[str, str, int, int, str, int]
_PLACE = "file string, block long, number long"
"""The columns that locate a line: sorted by them, the lines of a file are in their original order."""


@attrs.frozen
class Verdict:
    """The results for all runs."""

    operations: int
    keys: int
    """The number of keys of all runs."""
    acknowledged: int
    """The number of records whose send was acknowledged."""
    anomalies: list[tuple[str, Anomaly]]
    """(file of the run, anomaly) for each anomaly."""

    def by_trouble(self) -> dict[str, list[tuple[str, Anomaly]]]:
        """Sort the anomalies into the groups lost, doubled, reordered, and never written."""
        return {
            trouble: [each for each in self.anomalies if each[1].name in names]
            for trouble, names in KINDS_OF_TROUBLE.items()
        }


def check_runs(spark: SparkSession, paths: Sequence[str]) -> Verdict:
    """Check the runs in these files (or in all files of a directory). Raises an error for lines that are not
    operations.
    """
    lines = spark.read.text(list(paths)).select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("number"),
        "value",
    )
    whole = _everywhere(lines)
    split = lines.mapInArrow(_split, f"{_PLACE}, key string, value string, acknowledged long")
    found = (
        split.repartition("file", "key")
        .sortWithinPartitions("file", "key", "block", "number")
        .select(*_PART)
        .mapInArrow(
            _judge_with(whole),
            "file string, key string, name string, detail string, acknowledged long",
        )
        .collect()
    )
    return Verdict(
        operations=lines.count(),
        keys=sum(row["name"] is None for row in found),
        acknowledged=sum(row["acknowledged"] for row in found if row["name"] is None),
        anomalies=[
            (row["file"], Anomaly(row["name"], row["key"], row["detail"]))
            for row in found
            if row["name"] is not None
        ],
    )


def _everywhere(lines: DataFrame) -> dict[str, list[tuple[tuple[int, int], str]]]:
    """Return for each run the operations that belong to the part of every key, each with its place in the file of the
    run.
    """
    kinds = F.get_json_object("value", "$.kind")
    rows = lines.where(kinds.isin(*EVERYWHERE)).collect()
    found: dict[str, list[tuple[tuple[int, int], str]]] = {}
    for row in rows:
        found.setdefault(row["file"], []).append(((row["block"], row["number"]), row["value"]))
    return found


def _split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places: list[int] = []
        keys: list[str] = []
        values: list[str] = []
        acknowledged: list[int] = []
        for place, line in enumerate(batch.column("value").to_pylist()):
            for key, part in parts(line):
                places.append(place)
                keys.append(key)
                values.append(part)
                acknowledged.append(int(part is line and json.loads(line)["outcome"] == "ok"))
        taken = batch.select(["file", "block", "number"]).take(pa.array(places, pa.int64()))
        yield pa.RecordBatch.from_arrays(
            [
                *taken.columns,
                pa.array(keys, pa.string()),
                pa.array(values, pa.string()),
                pa.array(acknowledged, pa.int64()),
            ],
            names=["file", "block", "number", "key", "value", "acknowledged"],
        )


def _judge_with(
    whole: dict[str, list[tuple[tuple[int, int], str]]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that checks one part after the other; the lines of each part must be in order.

    Spark sorts the lines, on disk if they are many. Lines are streamed; only the operations of the present key are
    kept in memory.
    """

    def judge_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for (file, key), rows in groupby(_rows(batches), key=itemgetter(0, 1)):
            lines = _Lines(rows)
            anomalies = judge(key, (line for _, line in merge(lines, sorted(whole.get(file, [])))))
            names: list[str | None] = [None, *(each.name for each in anomalies)]
            yield pa.RecordBatch.from_pydict(
                {
                    "file": pa.array([file] * len(names), pa.string()),
                    "key": pa.array([key] * len(names), pa.string()),
                    "name": pa.array(names, pa.string()),
                    "detail": pa.array(["", *(each.detail for each in anomalies)], pa.string()),
                    "acknowledged": pa.array([lines.acknowledged] * len(names), pa.int64()),
                }
            )

    return judge_parts


@attrs.define
class _Lines:
    """The lines of one part with their places; it also counts acknowledged sends."""

    rows: Iterator[_Row]
    acknowledged: int = 0

    def __iter__(self) -> Iterator[tuple[tuple[int, int], str]]:
        for _, _, block, number, value, acknowledged in self.rows:
            self.acknowledged += acknowledged
            yield (block, number), value


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _PART), strict=True)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", help="files of histories, or directories of them; each file is one run"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    missing = [path for path in arguments.paths if "://" not in path and not Path(path).exists()]
    if missing:
        raise Failed(f"there is no {missing[0]}")
    line = ProgressLine("history-check")
    with line.tasks(spark, "judging"):
        verdict = check_runs(spark, arguments.paths)
    line.step(
        f"{verdict.operations:,} operations on {verdict.keys} keys, {verdict.acknowledged:,} acknowledged records"
    )
    for trouble, found in verdict.by_trouble().items():
        print(f"  {trouble:15}{len(found):>8,}")
        for file, anomaly in found[:_EXAMPLES]:
            print(f"      {anomaly.name}, {anomaly.key}: {anomaly.detail} ({file.rpartition('/')[2]})")
    print("nothing was lost, doubled or reordered" if not verdict.anomalies else "the history is not sound")
    return 1 if verdict.anomalies else 0


main = main_of("history-check", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
