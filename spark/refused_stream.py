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
        """Refuse: a new query asks for this first."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit: Spark asks before there is an offset, which is too early to refuse."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error: a query that continues from its checkpoint calls this first."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Refuse: a query whose last batch is to be repeated asks for this first."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error, as before; no query comes so far."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self.error
        raise AssertionError("unreachable")
