"""The data source that Spark finds by its name. So `spark.read.format("odradek")` needs neither an import nor
a registration. SHELL.

Whenever Spark looks for Python data sources, separate processes import every top-level module whose name
begins with `pyspark_`. So this module at first imports only Spark's base class. It imports other modules when
a reader or a writer is needed. The code is in `odradek.spark`.

Spark pickles this module's class, and the readers and writers that it makes, for other processes. An executor whose
Python lacks this package could only raise `ModuleNotFoundError`, below a long traceback. So everything here is
pickled by value, also the function that unpickles a reader or a writer. That function raises one clear sentence.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Spark's copy has no types

_T = TypeVar("_T")
_PYSPARK_MIN = (4, 2)


def _code(module: str) -> Any:
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _PYSPARK_MIN:
        raise _without_traceback(
            ImportError(f"the format odradek needs PySpark 4.2 or newer, and this is {pyspark.__version__}")
        )
    try:
        return import_module(f"odradek.spark.{module}")
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _missing(error: ModuleNotFoundError) -> ImportError:
    """Return the error for a Python that lacks the package, or a part of it."""
    lacks = f"the Python {sys.executable} on the host {os.uname().nodename} lacks the module '{error.name}'"
    if str(error.name).startswith("odradek.spark."):
        advice = ": install the driver's version of the package odradek there"
    else:
        advice = (
            ", which the format odradek needs on the driver and on every executor: install the packages odradek and "
            "pyarrow there, or send an environment that has them with --archives, and name its Python by "
            "PYSPARK_PYTHON (docs/spark-cluster.md)"
        )
    return _without_traceback(ImportError(lacks + advice))


def _without_traceback(error: ImportError) -> ImportError:
    """Return an error that is about to end a process of Spark's. Let Spark print no traceback (spark/plain_errors.py)."""
    if (getattr(sys.modules["__main__"].__spec__, "name", None) or "").startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error


def _for_executors(made: _T) -> _T:
    """Return a reader or a writer, and let its class be pickled with the function that unpickles it."""
    copyreg.pickle(type(made), _reduce)
    return made


def _reduce(made: _T) -> tuple[Callable[[bytes], _T], tuple[bytes]]:
    return _unpickle, (pickle.dumps((type(made), made.__getstate__())),)


def _unpickle(pickled: bytes) -> Any:
    """Make a reader or a writer again. Raises `ImportError`, with one sentence, if this Python lacks the package."""
    try:
        kind, state = pickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    made = kind.__new__(kind)
    vars(made).update(state)
    return made


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
        return _for_executors(reader)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        reader: DataSourceStreamReader = _code("source").stream_reader(self.options, schema)
        return _for_executors(reader)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceWriter = _code("sink").batch_writer(self.options, schema, overwrite)
        return _for_executors(writer)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        with _code("plain_errors").plain_errors(ValueError):
            writer: DataSourceStreamWriter = _code("sink").stream_writer(self.options, schema, overwrite)
        return _for_executors(writer)
