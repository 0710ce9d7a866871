"""The source of Spark's format `odradek`, as Spark calls it: schema, reader of a batch query, reader of a streaming query.

SHELL.

Spark makes a reader in one process, pickles it into another and runs its tasks in a third. So a reader has options
when it is made, and opens connections when it first asks for something. Each of these processes is new, and imports
anew: what a step does not need is imported by the step that does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.spark.plain_errors import plain_errors
from odradek.spark.reading.filters import Pushed, push
from odradek.spark.reading.range_partition import RangePartition
from odradek.spark.source_options import OptionError, Query, SourceOptions
from odradek.spark.worker_process import runs_as

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, Filter

__all__ = ["batch_reader", "schema", "stream_reader"]

_LOGGER = logging.getLogger("odradek.spark")
_COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def schema(options: Mapping[str, str]) -> StructType:
    """Return the columns. Raises `OptionError`, because Spark calls this at `load()`, where a mistake should show."""
    return _columns(SourceOptions.parse(options))


def _columns(options: SourceOptions) -> StructType:
    return StructType([*_COLUMNS.fields, _HEADERS] if options.include_headers else list(_COLUMNS.fields))


def batch_reader(options: Mapping[str, str], columns: StructType) -> OdradekReader:
    """Make the reader of a batch query. Raises `OptionError`."""
    parsed = SourceOptions.parse(options, Query.BATCH)
    _check_columns(parsed, columns)
    if parsed.ignored:
        _LOGGER.warning("a batch query ignores %s", " and ".join(parsed.ignored))
    return (FilteringReader if parsed.filter_pushdown and _session_pushes() else OdradekReader)(parsed)


def stream_reader(options: Mapping[str, str], columns: StructType) -> DataSourceStreamReader:
    """Make the reader of a streaming query; where the options are wrong, a reader that only raises `OptionError`."""
    try:
        parsed = SourceOptions.parse(options, Query.STREAM)
        _check_columns(parsed, columns)
    except OptionError as error:
        from odradek.spark.refused_stream import RefusedStream

        return RefusedStream(error)
    from odradek.spark.source_stream import OdradekStreamReader

    return OdradekStreamReader(parsed)


def _check_columns(options: SourceOptions, columns: StructType) -> None:
    given = [(field.name, field.dataType.simpleString()) for field in columns.fields]
    if given != [(field.name, field.dataType.simpleString()) for field in _columns(options).fields]:
        raise OptionError(
            "the columns of the format odradek are fixed: leave out schema(...), and select the "
            "columns that you need"
        )


def _session_pushes() -> bool:
    """True if `spark.sql.python.filterPushdown.enabled` is on: Spark then plans in a process made for it.

    Spark refuses a reader with `pushFilters` if the setting is off, and a reader does not learn the setting.
    """
    return runs_as(_PUSHDOWN_WORKER)


class OdradekReader(DataSourceReader):
    """Reads a fixed range of each partition."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Plan one task for each topic's partition, or more: see `minPartitions` and `maxRecordsPerPartition`.

        Partitions with few records share a task, as in a stream: a task costs more than their records.
        """
        from odradek.spark.reading.batch_plan import plan_batch
        from odradek.spark.reading.offset_ranges import BATCH_TASK_RECORDS, gathered

        with plain_errors():
            ranges = plan_batch(self.options, self.pushed)
        bounds = (self.options.partitions_min, self.options.records_per_partition_max)
        tasks = gathered(ranges, BATCH_TASK_RECORDS, *bounds)
        # For an empty list Spark would make a partition that is None.
        return [RangePartition(each) for each in tasks] or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        from odradek.spark.reading.fetching import read_ranges

        assert isinstance(partition, RangePartition)
        with plain_errors():
            yield from read_ranges(partition.ranges, self.options)


class FilteringReader(OdradekReader):
    """The reader for sessions that push filters: it plans fewer partitions and shorter ranges."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply filters that bound topics, partitions, offsets and times; hand the rest back to Spark."""
        self.pushed, left = push(filters)
        return left

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "pushed": self.pushed}
