"""The source of Spark's format `odradek`, as Spark calls it: schema, reader of a batch query, reader of a streaming
query. SHELL.

Spark makes a reader in one process, pickles it into a second process, and runs its tasks in a third. So at first a
reader has only options, and it opens connections at its first request. Each process has to import all modules again.
So a step imports a module only if it needs the module.
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
    """Return the columns. Raises `OptionError`, because Spark calls this in `load()`, and the user should see a wrong
    option there.
    """
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
    """Make the reader of a streaming query. If the options are wrong, return a reader that only raises `OptionError`."""
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
    """True if the setting `spark.sql.python.filterPushdown.enabled` is on. This is known only in the process
    in which Spark plans.

    If the setting is off, Spark refuses a reader that has `pushFilters`. Spark does not pass the setting to
    the reader, so it is derived from the kind of this process.
    """
    return runs_as(_PUSHDOWN_WORKER)


class OdradekReader(DataSourceReader):
    """A reader of a fixed range of offsets in each partition."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Plan one task for each partition, or more (`minPartitions`, `maxRecordsPerPartition`).

        Partitions with few records share a task, because a task costs more than their records.
        """
        from odradek.spark.reading.batch_plan import plan_batch
        from odradek.spark.reading.offset_ranges import BATCH_TASK_RECORDS, gathered

        with plain_errors():
            ranges = plan_batch(self.options, self.pushed)
        bounds = (self.options.partitions_min, self.options.records_per_partition_max)
        tasks = gathered(ranges, BATCH_TASK_RECORDS, *bounds)
        # An empty list would make Spark run one task with the partition None. So return one partition without
        # ranges instead.
        return [RangePartition(each) for each in tasks] or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        from odradek.spark.reading.fetching import read_ranges

        assert isinstance(partition, RangePartition)
        with plain_errors():
            yield from read_ranges(partition.ranges, self.options)


class FilteringReader(OdradekReader):
    """A reader for sessions that push filters down: it plans fewer partitions and shorter ranges."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters on topics, partitions, offsets and times. Return the filters that Spark must still apply."""
        self.pushed, left = push(filters)
        return left

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "pushed": self.pushed}
