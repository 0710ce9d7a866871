"""The checkpoint of a streaming query as files: which batch is finished, and which offsets it ends at. SHELL.

Spark writes `offsets/N` when batch N begins and `commits/N` when it has ended. A line of `offsets/N` is the position of one
source: `{"flights": {"0": 23, "1": 5}}`. Names that begin with `@` are further facts of the format odradek.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from odradek.spark.pipelines.failure import Failed

__all__ = ["finished_batch", "finished_offsets", "lag_records"]

Offsets = dict[str, dict[int, int]]
"""The offset of each partition, by topic."""


def finished_batch(checkpoint: Path) -> int:
    """Return the number of the last finished batch; -1 if there is none."""
    names = (path.name for path in (checkpoint / "commits").glob("[0-9]*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def finished_offsets(checkpoint: Path) -> Offsets:
    """Return the offsets after the last finished batch; an empty dictionary before that. Raises `Failed` if the files
    cannot be read.
    """
    batch = finished_batch(checkpoint)
    if batch < 0:
        return {}
    found: Offsets = {}
    try:
        _, _, *sources = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        for source in sources:
            for topic, offsets in json.loads(source).items():
                if not topic.startswith("@"):
                    found[topic] = {int(index): int(offset) for index, offset in offsets.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise Failed(f"the offsets of batch {batch} cannot be read from {checkpoint}: {error}") from None
    return found


def lag_records(bounds: Mapping[int, tuple[int, int]], done: Mapping[int, int]) -> int:
    """Count the offsets of a topic after those that a query has finished. `bounds` has the begin and end of each
    partition.
    """
    return sum(max(0, end - max(begin, done.get(index, begin))) for index, (begin, end) in bounds.items())
