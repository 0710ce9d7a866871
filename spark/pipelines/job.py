"""The parts that all jobs share: arguments, a Spark session, and access to the cluster.

A job is a module with `add_arguments(parser)` and `run(spark, arguments) -> exit status`; `main_of` turns it into a
command, which both `odradek spark NAME` and `spark-submit FILE` start.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from pyspark.sql import DataFrame, SparkSession

from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.connecting import add_bootstrap_option
from odradek.spark.pipelines.failure import Failed
from odradek.spark.source_options import SourceOptions
from odradek.spark.worker_process import worker_python
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Failed", "Topics", "add_cluster_arguments", "main_of", "spark_setting", "topics_of"]


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the cluster, the data source and its options."""
    add_bootstrap_option(parser)
    parser.add_argument(
        "--format",
        default="odradek",
        choices=("odradek", "kafka"),
        help="kafka is Spark's own connector (%(default)s)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the source and the sink, like kafka.compression.type=zstd; may be repeated",
    )


def main_of(
    name: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[SparkSession, argparse.Namespace], int],
    check: Callable[[argparse.Namespace], None] = lambda _: None,
) -> Callable[..., int]:
    """Make the command of a job. The command parses the arguments, starts Spark (or uses the program's existing
    session), and runs the job. `check` raises `Failed` if something is missing, before Spark starts.
    """

    def main(words: Sequence[str] | None = None) -> int:
        parser = argparse.ArgumentParser(
            prog=f"odradek spark {name}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--master",
            help="where Spark runs (default: the master that spark-submit configures, otherwise local[2])",
        )
        add_arguments(parser)
        arguments = parser.parse_args(words)
        try:
            check(arguments)
        except Failed as failure:
            return _report(name, failure)
        is_ours = SparkSession.getActiveSession() is None
        spark = _session(name, arguments.master)
        try:
            return run(spark, arguments)
        except Failed as failure:
            return _report(name, failure)
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
        finally:
            if is_ours:
                spark.stop()

    return main


def _report(name: str, failure: Failed) -> int:
    print(f"{name}: {failure}", file=sys.stderr)
    return 1


def _session(name: str, master: str | None) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", worker_python())
    builder = SparkSession.builder.appName(f"odradek {name}")
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        # The job was started by python instead of spark-submit, so nothing has configured a master.
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
        # Spark's default of 200 partitions is for clusters. A streaming aggregation has a state store for each
        # partition, and here two cores serve all of them.
        builder = builder.config("spark.sql.shuffle.partitions", "4")
        # By default the tasks of one query's batch run before those of another query.
        builder = builder.config("spark.scheduler.mode", "FAIR")
    spark = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return spark


# Topics

_ISOLATION = "kafka.isolation.level"
_LOGIN = ("kafka.bootstrap.servers", "kafka.security.", "kafka.sasl.", "kafka.ssl.")


@attrs.frozen
class Topics:
    """Reads and writes topics, with the options from the command line."""

    spark: SparkSession
    format: str
    options: Mapping[str, str] = attrs.field(repr=False)
    writing: Mapping[str, str] = attrs.field(factory=dict)
    """Options that only the sink gets."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses: HOST:PORT,..."""
        return self.options["kafka.bootstrap.servers"]

    @property
    def _reading(self) -> dict[str, str]:
        """The options for reading. By default jobs read only committed records, because aborted records do not belong
        in a table.
        """
        return {_ISOLATION: "read_committed", **self.options}

    def _client(self, topic: str) -> Client:
        """Make a client that logs in with the same options as the data source. Raises `OptionError`."""
        login = {key: value for key, value in self.options.items() if key.startswith(_LOGIN)}
        config = SourceOptions.parse(login | {"subscribe": topic}).consumer.client_config()
        return Client(self.bootstrap, config=config)

    def producer(self) -> Producer:
        """Make a producer that logs in with the same options as the data source. Raises `ValueError`."""
        login = {key: value for key, value in self.options.items() if key.startswith(_LOGIN)}
        return Producer({key.removeprefix("kafka."): value for key, value in login.items()})

    def read(self, topic: str, **options: str) -> DataFrame:
        """Make the DataFrame of a batch query on one topic."""
        reader = self.spark.read.format(self.format).options(**self._reading).option("subscribe", topic)
        return reader.options(**options).load()

    def read_stream(self, topic: str, **options: str) -> DataFrame:
        """Make the DataFrame of a streaming query on one topic."""
        reader = self.spark.readStream.format(self.format).options(**self._reading).option("subscribe", topic)
        return reader.options(**options).load()

    def check_id(self, topic: str, topic_id: str) -> None:
        """Raise `Failed` if the topic no longer has this id. The records that the job has read may then come from
        both the old and the new topic.
        """
        if self.bounds(topic)[0] != topic_id:
            raise Failed(f"the topic '{topic}' was deleted and created again while this job read it")

    def write(self, frame: DataFrame, topic: str) -> None:
        """Append a batch of rows to one topic. If the job runs again, it appends the rows again."""
        frame.write.format(self.format).options(**self.options).option("topic", topic).mode("append").save()

    def bounds(
        self, topic: str, since_ms: int | None = None, until_ms: int | None = None
    ) -> tuple[str, dict[int, tuple[int, int]]]:
        """Return the topic's id, and the first and the end offset of each partition. The records of an open
        transaction are beyond the end. With times, in ms since 1970, the first offset is that of the first record at
        `since_ms` or later. The end is that of the first record at `until_ms` or later.

        Raises `Failed` if the topic is missing, or no broker answers.
        """
        try:
            with self._client(topic) as client:
                found = client.metadata([topic]).topic(topic)
                keys = [TopicPartition(topic, index) for index in sorted(found.partitions)]
                begins = client.list_offsets(dict.fromkeys(keys, EARLIEST))
                is_committed = self._reading[_ISOLATION] == "read_committed"
                ends = client.list_offsets(dict.fromkeys(keys, LATEST), isolation_level=int(is_committed))
                at = [
                    client.list_offsets(dict.fromkeys(keys, each)) if each is not None else None
                    for each in (since_ms, until_ms)
                ]
        except Exception as error:
            raise Failed(f"the topic '{topic}' cannot be described at {self.bootstrap}: {error}") from error
        bounds = {}
        for key in keys:
            begin, end = begins[key].offset, ends[key].offset
            first, after = (
                default if asked is None else _within(asked[key].offset, begin, end)
                for asked, default in zip(at, (begin, end), strict=True)
            )
            bounds[key.partition] = (first, max(first, after))
        return found.topic_id.hex(), bounds


def _within(offset: int, begin: int, end: int) -> int:
    """Return an offset that was found by a time, between both bounds. -1 means that no record has the time or a later
    one.
    """
    return end if offset < 0 else min(max(offset, begin), end)


@contextmanager
def spark_setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Give a setting of the Spark session another value during a `with` block."""
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, str(before))


def topics_of(spark: SparkSession, arguments: argparse.Namespace) -> Topics:
    """Make the `Topics` for the cluster and the options that the arguments name. Raises `Failed` for an
    invalid option.
    """
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": arguments.bootstrap,
        # Without this option, Spark's readers would see aborted rows.
        "kafka.isolation.level": "read_committed",
    }
    for word in arguments.option:
        key, sign, value = word.partition("=")
        if not sign:
            raise Failed(f"--option {word} is not valid: expected KEY=VALUE")
        options[key] = value
    return Topics(spark, arguments.format, options)
