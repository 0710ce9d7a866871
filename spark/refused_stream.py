"""The reader of a streaming query that cannot begin: it says why when Spark asks for the first offset.

If `streamReader()` raised the error itself, its last line would name a variable of Spark's runner, and the reason
would stand far above.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from odradek.spark.plain_errors import plain_errors

__all__ = ["RefusedStream"]


class RefusedStream(DataSourceStreamReader):
    """Raises the same error at the first request of Spark."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error: a new query calls this first."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit. Spark calls this before the first offset, when an error would be too early."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error: a query that continues from its checkpoint calls this first."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error: a query that repeats its last batch calls this first."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error. No query comes to this call."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self.error
        raise AssertionError("unreachable")
