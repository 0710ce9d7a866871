"""Run one attempt at an exactly-once task in a process that kills itself at a step. For `test_exactly_once_task`.

    python -m tests.spark.delivery.dying_attempt BOOTSTRAP TOPIC QUERY BATCH ROWS POINT

POINT is a method of `TaskProtocol` with the prefix `before-` or `after-`, or it is `nowhere`. An attempt that is not
killed prints `done`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from odradek.spark.delivery.task_protocol import TaskProtocol
from odradek.spark.writing.sink_plan import Delivery, SinkPlan
from odradek.spark.writing.transactional_task import write_once

__all__ = ["plan_of", "rows_of"]


def plan_of(bootstrap: str, topic: str) -> SinkPlan:
    """Make a plan of rows with one column."""
    return SinkPlan(
        {"value": 0}, topic, {"bootstrap.servers": bootstrap}, None, delivery=Delivery.EXACTLY_ONCE
    )


def rows_of(count: int) -> pa.RecordBatch:
    """Return the first `count` numbers as rows."""
    return pa.record_batch({"value": pa.array([b"%d" % number for number in range(count)], pa.binary())})


def _dies(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    def dying(*args: Any, **named: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        function(*args, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return dying


def main(bootstrap: str, topic: str, query: str, batch: str, rows: str, point: str) -> None:
    """Write the task, or die at the point."""
    if point != "nowhere":
        when, _, name = point.partition("-")
        setattr(TaskProtocol, name, _dies(getattr(TaskProtocol, name), when))
    protocol = TaskProtocol(query, 0, int(batch))
    write_once(plan_of(bootstrap, topic), protocol, iter([rows_of(int(rows))]))
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
