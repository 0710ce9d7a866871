"""The object that Spark passes from the driver to a task: the ranges to read."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from odradek.spark.reading.offset_ranges import OffsetRange

__all__ = ["RangePartition"]


class RangePartition(InputPartition):
    """The part of a query that one task reads: ranges of offsets."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges
