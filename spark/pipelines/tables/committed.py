"""What a table format with commits offers to the job `offline-load`: each commit has the data and the offsets of a load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

__all__ = ["CommittedTable", "Compaction", "Places"]

Places = Mapping[int, tuple[int, int]]
"""The range of each partition: the first offset, and the offset after the last record."""


@attrs.frozen
class Compaction:
    """The number of small files that were merged, and of files that they became."""

    merged: int
    made: int


class CommittedTable(Protocol):
    """A Delta or Iceberg table in a directory."""

    def ends(self, topic: str, topic_id: str, partitions: Sequence[int]) -> dict[int, int] | None:
        """Return the next offset of each partition according to the table; None if there is no table yet.

        Raises `Failed` if the table has data of another topic.
        """

    def staging(self, load: int) -> Path:
        """Return the directory for the data files of a load. It does not exist yet."""

    def append(
        self, staged: Path, partition_by: Sequence[str], topic_id: str, ends: Mapping[int, int]
    ) -> None:
        """Commit the rows of the Parquet files in `staged`. `ends` are the next offsets after these rows.

        Raises `Failed` if another job has committed since the last call of `ends` or `append`.
        """

    def replace(self, staged: Path, places: Places) -> None:
        """Replace the rows of these offsets by the rows of the Parquet files in `staged`, in one commit. New columns
        are added to the table. Raises `Failed` as `append` does.
        """

    def compact(self, file_bytes: int) -> Compaction:
        """Merge files that are smaller than half of `file_bytes`, in one commit. Readers see the same rows. Raises
        `Failed` as `append` does.
        """
