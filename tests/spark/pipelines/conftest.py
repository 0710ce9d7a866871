"""Queries of these tests start patiently, because the jobs start them without a repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.streaming import started

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@pytest.fixture(autouse=True)
def patient_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat the start of a query whose source's Python process took too long for Spark."""
    readwriter = pytest.importorskip("pyspark.sql.streaming.readwriter", reason="Spark is not installed")
    start = readwriter.DataStreamWriter.start

    def start_patiently(writer: DataStreamWriter) -> StreamingQuery:
        return started(lambda: start(writer))

    monkeypatch.setattr(readwriter.DataStreamWriter, "start", start_patiently)
