"""The data source that Spark finds by its name: `spark.read.format("odradek")` needs neither import nor registration.

Spark imports every top-level module called `pyspark_*` whenever it looks for Python data sources, in processes of its
own. So this one imports only Spark's base class until a reader or a writer is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class DefaultSource(DataSource):
    """The format `odradek`: topics of Odradek or Apache Kafka as tables and streams; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "odradek"

    def schema(self) -> StructType:
        """The columns of Spark's own Kafka connector, headers if `includeHeaders` asks for them."""
        from spark.plain_errors import plain_errors
        from spark.source import schema

        with plain_errors():
            return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from spark.plain_errors import plain_errors
        from spark.source import batch_reader

        with plain_errors():
            return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query."""
        from spark.source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query's rows."""
        from spark.plain_errors import plain_errors
        from spark.sink import batch_writer

        with plain_errors(ValueError):
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """The writer of a streaming query's rows."""
        from spark.plain_errors import plain_errors
        from spark.sink import stream_writer

        with plain_errors(ValueError):
            return stream_writer(self.options, schema, overwrite)
