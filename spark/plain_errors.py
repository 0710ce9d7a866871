"""Shows errors that have a clear sentence to the user without their traceback. SHELL.

Spark's Python processes pass an exception on as text with its traceback. That is right for a bug. But the sentence
about a refused option would come after 20 lines of traceback, and after 120 with Spark Connect. Such a process ends
with the exception. So just before that, a setting is changed that makes it leave out the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["plain_errors"]

_HIDE = "SPARK_HIDE_TRACEBACK"
"""The variable that Spark sets in its Python processes for `spark.sql.execution.pyspark.udf.hideTraceback.enabled`.
"""


@contextmanager
def plain_errors(*more: type[Exception]) -> Iterator[None]:
    """Make errors with clear texts, and errors of the types `more`, leave this `with` block without a traceback.

    This works only in Spark's own processes, never in the user's.
    """
    try:
        yield
    except Exception as error:
        name = getattr(sys.modules["__main__"].__spec__, "name", None) or ""
        if name.startswith("pyspark.") and isinstance(error, (*_plain(), *more)):
            os.environ[_HIDE] = "1"
        raise


def _plain() -> tuple[type[Exception], ...]:
    from odradek.client.errors import ClientError
    from odradek.spark.reading.read_errors import ReadError
    from odradek.spark.source_options import OptionError
    from odradek.wire.errors import KafkaError

    return (OptionError, ReadError, ClientError, KafkaError)
