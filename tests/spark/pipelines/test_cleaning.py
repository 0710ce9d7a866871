"""The job `clean` on spoilt flights, in one Spark against our node."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from odradek.spark.pipelines import cleaning, spoilt
from odradek.spark.pipelines.cleaning import LATE, Cleaning, Rules
from odradek.spark.pipelines.flight_table import flight_table
from odradek.spark.pipelines.flights import JSON_COLUMNS
from odradek.spark.pipelines.job import Failed
from odradek.spark.pipelines.job import Topics as Cluster
from odradek.spark.pipelines.progress import ProgressLine
from odradek.spark.pipelines.spoilt import Spoilt, spoil, spoilt_frame
from odradek.spark.pipelines.streams import run_query
from tests.node_process import RunningNode
from tests.spark.pipelines.killed_job import kill_job
from tests.spark.streaming import kill_workers, wait_for
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
RULES = Rules(JSON_COLUMNS, ("carrier", "flight", "origin", "time_hour"), "time_hour", ("distance > 0",))
REASONS = {
    spoilt.CUT: "is no JSON, or has a value of another type",
    spoilt.TEXT: "is no JSON, or has a value of another type",
    spoilt.NO_ORIGIN: "lacks origin",
    spoilt.NEGATIVE: "breaks the rule: distance > 0",
    spoilt.LATE: LATE,
}
MEND = """replace(replace(value, ' min"', ''), '"dep_delay": "', '"dep_delay": ')"""


@pytest.fixture(scope="module")
def records() -> list[Spoilt]:
    """The first flights of January, with some spoilt."""
    return spoil(flight_table().sort_values("time_hour", kind="stable").head(FLIGHTS))


@pytest.fixture
def job(
    spark: SparkSession, node: RunningNode, records: list[Spoilt], fresh_topic: Callable[[str], str]
) -> Cleaning:
    """The job on a topic with these records."""
    topics = Topics(node.bootstrap)
    source, target, dead = (topics.create(fresh_topic(name)) for name in ("spoilt", "clean", "dead"))
    cluster = Cluster(spark, "odradek", {"kafka.bootstrap.servers": node.bootstrap})
    # Without transactions there are no markers, which would take offsets. So offsets equal places in the list.
    plain = attrs.evolve(cluster, options={**cluster.options, "delivery": "at-least-once"})
    plain.write(spoilt_frame(spark, records), source)
    return Cleaning(cluster, source, target, dead, RULES, "3 hours")


def rows_of(topic: str, job: Cleaning) -> list[dict[str, object]]:
    """Return the JSON values of a topic."""
    return [
        json.loads(row["value"])
        for row in job.topics.read(topic).selectExpr("cast(value as string) as value").collect()
    ]


def flights_of(records: list[Spoilt], *kinds: str) -> list[dict[str, object]]:
    """Return the flights of records of these kinds, each once."""
    return [json.loads(flight) for flight in {each.flight: None for each in records if each.kind in kinds}]


def differing(some: list[dict[str, object]], others: list[dict[str, object]]) -> tuple[list[str], list[str]]:
    """Return the rows that only one of two lists has, or has more often."""
    counts = Counter(map(json.dumps, some)), Counter(map(json.dumps, others))
    return list((counts[0] - counts[1]).elements()), list((counts[1] - counts[0]).elements())


NOTHING: tuple[list[str], list[str]] = ([], [])


def letters_of(job: Cleaning) -> dict[int, tuple[str, str | None]]:
    """Return reason and value of the dead letters by the offset of their records."""
    letters = job.topics.read(job.dead, includeHeaders="true").collect()
    found = {}
    for letter in letters:
        headers = {header["key"]: header["value"].decode() for header in letter["headers"]}
        assert headers["dead.topic"] == job.source
        assert headers["dead.partition"] == "0"
        value = letter["value"]
        found[int(headers["dead.offset"])] = (headers["dead.reason"], value and value.decode())
    assert len(found) == len(letters)
    return found


def expected_letters(records: list[Spoilt]) -> dict[int, tuple[str, str]]:
    """Return the dead letters that these records should give."""
    return {
        offset: (REASONS[record.kind], record.value)
        for offset, record in enumerate(records)
        if record.kind in REASONS
    }


def test_each_row_is_good_or_a_dead_letter(
    spark: SparkSession, job: Cleaning, records: list[Spoilt], checkpoint: str, tmp_path: Path
) -> None:
    """Good rows are copied once, though workers are killed on the way. Bad and late rows are dead letters with place and
    reason. A replay with a mend copies the mended and the late rows, each once."""
    out = io.StringIO()
    line = ProgressLine("test", out)
    _, bounds = job.topics.bounds(job.source)
    query = job.start(checkpoint, 700)
    wait_for(lambda: (Path(checkpoint) / "offsets" / "1").exists(), query)
    wait_for(lambda: kill_workers(spark) > 0, query)
    run_query(line, query)
    assert "too late" in out.getvalue()
    assert differing(rows_of(job.target, job), flights_of(records, spoilt.SOUND, spoilt.TWICE)) == NOTHING
    kinds = Counter(record.kind for record in records)
    assert job.audit(bounds) == kinds[spoilt.LATE] == 3
    assert job.audit(bounds) == 0
    assert letters_of(job) == expected_letters(records)
    assert sum(job.reasons().values()) == len(expected_letters(records))
    replayed = str(tmp_path / "replay")
    assert run_query(line, job.replay(replayed, 100, MEND)) == len(expected_letters(records))
    mended = flights_of(records, spoilt.SOUND, spoilt.TWICE, spoilt.LATE, spoilt.TEXT)
    assert differing(rows_of(job.target, job), mended) == NOTHING
    assert run_query(line, job.replay(str(tmp_path / "again"), 1000, MEND)) == len(expected_letters(records))
    assert differing(rows_of(job.target, job), mended) == NOTHING


def test_a_mend_that_is_no_expression(job: Cleaning, checkpoint: str) -> None:
    """A wrong mend is one sentence, before any letter is read."""
    with pytest.raises(Failed, match="--mend is no SQL expression of value: "):
        job.replay(checkpoint, 100, "no_such_function(value)")


def test_a_job_that_is_killed_in_the_middle(
    job: Cleaning,
    records: list[Spoilt],
    checkpoint: str,
    node: RunningNode,
    tmp_path: Path,
    whole_matrix: bool,
) -> None:
    """A job whose processes are killed in the second batch, and started again, copies each good row once."""
    if not whole_matrix:
        pytest.skip("starts another Spark, so it runs only in make test-spark")
    names = ["--topic", job.source, "--to", job.target, "--dead", job.dead, "--expect", "distance > 0"]
    words = ["--bootstrap", node.bootstrap, *names, "--watermark", "3 hours", "--checkpoint", checkpoint]
    words += ["--records-per-batch", "700"]
    kill_job(["clean", *words], Path(checkpoint), 1, tmp_path)
    assert cleaning.main(words) == 0
    assert differing(rows_of(job.target, job), flights_of(records, spoilt.SOUND, spoilt.TWICE)) == NOTHING
    assert letters_of(job) == expected_letters(records)
