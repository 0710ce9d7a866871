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

from spark.reading.filters import Pushed, push
from spark.reading.range_partition import RangePartition
from spark.source_options import OptionError, Query, SourceOptions
from spark.worker_process import runs_as

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from spark.source_stream import OdradekStreamReader

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
    """The columns. Raises `OptionError`: Spark asks at `load()`, which is where a mistake should show."""
    return _columns(SourceOptions.parse(options))


def _columns(options: SourceOptions) -> StructType:
    return StructType([*_COLUMNS.fields, _HEADERS] if options.include_headers else list(_COLUMNS.fields))


def batch_reader(options: Mapping[str, str], columns: StructType) -> OdradekReader:
    """The reader of a batch query. Raises `OptionError`."""
    parsed = SourceOptions.parse(options, Query.BATCH)
    _check_columns(parsed, columns)
    if parsed.ignored:
        _LOGGER.warning("a batch query has no use for %s", " and ".join(parsed.ignored))
    return (FilteringReader if parsed.filter_pushdown and _session_pushes() else OdradekReader)(parsed)


def stream_reader(options: Mapping[str, str], columns: StructType) -> OdradekStreamReader:
    """The reader of a streaming query. Raises `OptionError`."""
    from spark.source_stream import OdradekStreamReader

    parsed = SourceOptions.parse(options, Query.STREAM)
    _check_columns(parsed, columns)
    return OdradekStreamReader(parsed)


def _check_columns(options: SourceOptions, columns: StructType) -> None:
    given = [(field.name, field.dataType.simpleString()) for field in columns.fields]
    if given != [(field.name, field.dataType.simpleString()) for field in _columns(options).fields]:
        raise OptionError(
            "the columns of the format odradek are fixed: leave out schema(...), and select what you need"
        )


def _session_pushes() -> bool:
    """True if `spark.sql.python.filterPushdown.enabled` is on: Spark then plans in a process made for it.

    A reader that has `pushFilters` is refused where it is off, and nobody tells a reader which it is.
    """
    return runs_as(_PUSHDOWN_WORKER)


class OdradekReader(DataSourceReader):
    """Reads a fixed range of each partition."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """The tasks: small ranges share one, and large ones are split as `minPartitions` and `maxRecordsPerPartition` say."""
        from spark.reading.batch_plan import plan_batch
        from spark.reading.offset_ranges import gathered

        # Of no partition at all Spark makes one with None in it.
        ranges = plan_batch(self.options, self.pushed)
        if self.options.records_per_partition_max is not None:
            return [RangePartition((each,)) for each in ranges] or [RangePartition(())]
        tasks = gathered(ranges, self.options.partitions_min)
        return [RangePartition(each) for each in tasks] or [RangePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        from spark.reading.fetching import read_ranges

        assert isinstance(partition, RangePartition)
        return read_ranges(partition.ranges, self.options)


class FilteringReader(OdradekReader):
    """The same where the session pushes filters: fewer partitions, shorter ranges."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what bounds topics, partitions, offsets and times; hand back what Spark has to look at again."""
        self.pushed, left = push(filters)
        return left

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "pushed": self.pushed}
