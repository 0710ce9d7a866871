"""Errors of a single sentence reach the user as one sentence, without the calls that led to them. SHELL.

Spark's Python processes hand an exception over as text, traceback and all. That is right for a bug. A refused option
would be a sentence at the end of 20 lines, and of 120 over Spark Connect. Such a process ends with the exception that
it hands over. So here, at the last moment, a setting makes it leave the traceback out.
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
    """Let errors with clear texts, and errors of the types `more`, pass without a traceback.

    The setting concerns Spark's own processes only, never the user's.
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
