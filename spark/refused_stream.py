"""The reader of a streaming query that cannot start: it raises the reason when Spark requests the first offset.

If `streamReader()` itself raised the error, the last line of Spark's message would show a variable of Spark's runner.
The reason would stand far above that line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from odradek.spark.plain_errors import plain_errors

__all__ = ["RefusedStream"]


class RefusedStream(DataSourceStreamReader):
    """A reader that raises the given error at Spark's first request."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error. Spark calls this first for a new query."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit without raising the error. Spark calls this before it requests the first offset, and
        the error is raised only then.
        """
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error. Spark calls this first for a query that continues from its checkpoint."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error. Spark calls this first for a query that repeats its last batch."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error. Spark never makes this call, because an earlier call has raised the error."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self.error
        raise AssertionError("unreachable")
