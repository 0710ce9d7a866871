"""The data source that Spark finds by its name. So `spark.read.format("odradek")` needs neither an import nor
a registration.

Whenever Spark looks for Python data sources, separate processes import every top-level module whose name
begins with `pyspark_`. So this module at first imports only Spark's base class. It imports other modules when
a reader or a writer is needed. The code is in `odradek.spark`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


def _code(module: str) -> Any:
    return import_module(f"odradek.spark.{module}")


class DefaultSource(DataSource):
    """The Spark data source `odradek`: topics of Odradek or Apache Kafka as tables and streams. docs/spark.md
    describes it.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source."""
        return "odradek"

    def schema(self) -> StructType:
        """Return the columns. They are the columns of Spark's own Kafka connector; with `includeHeaders` there is
        also the column `headers`.
        """
        with _code("plain_errors").plain_errors():
            columns: StructType = _code("source").schema(self.options)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        with _code("plain_errors").plain_errors():
            reader: DataSourceReader = _code("source").batch_reader(self.options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        reader: DataSourceStreamReader = _code("source").stream_reader(self.options, schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceWriter = _code("sink").batch_writer(self.options, schema, overwrite)
        return writer

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceStreamWriter = _code("sink").stream_writer(self.options, schema, overwrite)
        return writer
