"""The data source that Spark finds by its name: `spark.read.format("odradek")` needs neither import nor registration.

Spark imports every top-level module called `pyspark_*` whenever it looks for Python data sources, in processes of its
own. So this one imports only Spark's base class until a reader or a writer is asked for.

The code lies in the folder `spark` beside this one. It is imported from there by the name `pyspark_odradek`
(`pyspark_odradek.source` is `spark/source.py`). Users have modules called `spark` beside their jobs, and Python
finds those first. For the same reason modules of that folder import each other by relative names.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
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

_HOME = Path(__file__).resolve().parent.parent
_CODE = str(_HOME / "spark")
if _CODE not in __path__:
    __path__.append(_CODE)


def _code(module: str) -> Any:
    """A module of the folder `spark`. Raises ImportError that names a file of the user's that hides one of ours."""
    try:
        return import_module(f"{__name__}.{module}")
    except ImportError as error:
        for name in ("wire", "odradek"):
            found = getattr(sys.modules.get(name), "__file__", None)
            if found is not None and not Path(found).resolve().is_relative_to(_HOME / name):
                raise ImportError(f"{found} hides Odradek's package {name}: give it another name") from error
        raise


class DefaultSource(DataSource):
    """The format `odradek`: topics of Odradek or Apache Kafka as tables and streams; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "odradek"

    def schema(self) -> StructType:
        """The columns of Spark's own Kafka connector, headers if `includeHeaders` asks for them."""
        with _code("plain_errors").plain_errors():
            columns: StructType = _code("source").schema(self.options)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        with _code("plain_errors").plain_errors():
            reader: DataSourceReader = _code("source").batch_reader(self.options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query."""
        reader: DataSourceStreamReader = _code("source").stream_reader(self.options, schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query's rows."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceWriter = _code("sink").batch_writer(self.options, schema, overwrite)
        return writer

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """The writer of a streaming query's rows."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceStreamWriter = _code("sink").stream_writer(self.options, schema, overwrite)
        return writer
