"""Errors with a clear sentence, which the user gets without a traceback. SHELL.

Spark's Python processes pass an exception on as text with its traceback. That is right for a bug. But the sentence
about a refused option would come after 20 lines of traceback, and after 120 lines with Spark Connect. A setting of
Spark makes the process leave out the traceback. The process ends with the exception anyway, so this module changes
the setting just before the exception leaves.
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
    """Hide the traceback of errors that leave this `with` block. This applies to errors with clear texts,
    and to the types `more`. It works only in Spark's own processes, never in the user's.
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
