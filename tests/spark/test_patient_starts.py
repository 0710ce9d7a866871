"""The start of a query is repeated after Spark's start timeout, in the tests' own process and in a job's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from tests.spark import streaming
from tests.spark.hosts import cluster_job

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SLOW = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
"""The failure of a query whose source's Python process took more than ten seconds to start, as Spark 4.2 words it."""


@attrs.frozen
class Begun:
    """A query that is initialized for some looks. Then it runs, or has failed."""

    failure: str | None
    messages: Iterator[str] = attrs.field(
        factory=lambda: iter(["Initializing StreamExecution", "Initializing sources"])
    )

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        return True

    @property
    def status(self) -> dict[str, str]:
        return {"message": next(self.messages, "Processing new data")}

    def exception(self) -> Exception | None:
        assert next(self.messages, None) is None, "asked before the source was created"
        return None if self.failure is None else RuntimeError(self.failure)


@pytest.mark.parametrize("started", [streaming.started, cluster_job.started], ids=["here", "in a job"])
@pytest.mark.parametrize(
    ("failures", "starts"),
    [([None], 1), ([SLOW, SLOW, None], 3), (["no such topic", None], 1), ([SLOW] * 20, 12)],
    ids=["runs", "twice too slow", "another failure", "always too slow"],
)
def test_a_slow_start_is_repeated(
    started: Callable[[Callable[[], StreamingQuery]], StreamingQuery], failures: list[str | None], starts: int
) -> None:
    """Only Spark's start timeout repeats the start, at most eleven times. The last query is returned."""
    begun: list[Begun] = []

    def begin() -> StreamingQuery:
        begun.append(Begun(failures[len(begun)]))
        return begun[-1]  # type: ignore[return-value]  # it has what is asked

    assert started(begin) is begun[-1]
    assert [each.failure for each in begun] == failures[:starts]
