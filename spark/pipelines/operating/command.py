"""The job that runs two queries on flights in one application, restarts them, and raises an alert when one lags or fails.

The first query copies late flights to a topic, the second one counts the flights of each hour into another. Each has a
checkpoint of its own, and both write exactly once. If one fails, it starts again on its checkpoint, later each time, while
the other goes on. Alerts are records of a compacted topic, whose keys are the names of queries. A tombstone clears one.

    odradek spark operate --topic flights --late late --hours hours --alerts operating --checkpoints operating.checkpoints

By default the job reads all present records and ends. Its exit status is 1 if a query stays down. With `--every 10` it runs
until it is stopped. `--rule` and `--by` stand for the code of the queries: change one, and the job shows what new code on
an old checkpoint does. `--start-from` lets a new query without state start where a copy of its checkpoint ends.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from odradek.client.errors import ClientError
from odradek.spark.pipelines.flights import create_topic
from odradek.spark.pipelines.job import Failed, Topics, add_cluster_arguments, main_of, topics_of
from odradek.spark.pipelines.operating.policy import LagLimits, RestartLimits
from odradek.spark.pipelines.operating.queries import RULE, WATERMARK, Code, Operated
from odradek.spark.pipelines.operating.supervisor import Alerts, Supervisor
from odradek.spark.pipelines.progress import ProgressLine
from odradek.wire.errors import KafkaError

__all__ = ["alerts_to", "main"]

_SEND_SECONDS = 30.0


def alerts_to(topics: Topics, topic: str) -> Alerts:
    """Make the function that writes alerts to a compacted topic, which is created if it does not exist. Raises `Failed`,
    and so does the function.
    """
    create_topic(topics, topic, 1, {"cleanup.policy": "compact"})

    def send(name: str, alert: str | None) -> None:
        try:
            with topics.producer() as producer:
                value = None if alert is None else alert.encode()
                producer.send(topic, value, name.encode()).result(_SEND_SECONDS)
        except (ClientError, KafkaError, ValueError) as error:
            raise Failed(f"the alert of {name} cannot be written to the topic '{topic}': {error}") from error

    return send


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument(
        "--topic", default="flights", help="the topic of flights, as `odradek spark flights` writes it"
    )
    parser.add_argument("--late", default="late", help="the topic of late flights (%(default)s)")
    parser.add_argument("--hours", default="hours", help="the topic of the hours (%(default)s)")
    parser.add_argument("--alerts", default="operating", help="the compacted topic of alerts (%(default)s)")
    parser.add_argument("--rule", default=RULE, help="when a flight is late, in SQL (%(default)s)")
    parser.add_argument(
        "--by", default="origin", metavar="COLUMN,...", help="how the hours are divided (%(default)s)"
    )
    parser.add_argument("--watermark", default=WATERMARK, help="(%(default)s)")
    parser.add_argument("--checkpoints", required=True, help="the folder of all checkpoints")
    parser.add_argument(
        "--start-from",
        metavar="FOLDER",
        help="a copy of --checkpoints: a new query without state starts there",
    )
    parser.add_argument("--records-per-batch", type=int, default=50_000, help="(%(default)s)")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="run until it is stopped, with a batch every SECONDS"
    )
    parser.add_argument(
        "--lag-records", type=int, default=100_000, help="a lag above this is an alert (%(default)s)"
    )
    parser.add_argument(
        "--lag-seconds", type=float, default=60, help="after it has lasted so long (%(default)s)"
    )
    parser.add_argument(
        "--failures", type=int, default=5, help="a query stays down after so many failures (%(default)s)"
    )


def _run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    start_from = None if arguments.start_from is None else Path(arguments.start_from).resolve()
    if start_from is not None and not start_from.is_dir():
        raise Failed(f"--start-from {start_from} is no folder")
    topics = topics_of(spark, arguments)
    operated = Operated(
        topics,
        arguments.topic,
        arguments.late,
        arguments.hours,
        Path(arguments.checkpoints).resolve(),
        Code(arguments.rule, arguments.by.split(","), arguments.watermark),
        start_from,
        arguments.records_per_batch,
        arguments.every,
    )
    line = ProgressLine("operate")
    is_well = Supervisor(
        operated.queries(),
        alerts_to(topics, arguments.alerts),
        line,
        LagLimits(arguments.lag_records, arguments.lag_seconds),
        RestartLimits(failures_max=arguments.failures),
    ).run()
    line.step("all queries have ended" if is_well else "a query is down, and the others have ended")
    return 0 if is_well else 1


main = main_of("operate", __doc__ or "", _add_arguments, _run)

if __name__ == "__main__":
    sys.exit(main())
