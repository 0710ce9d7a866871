"""Loads of a topic that are appended to a Delta table: each commit of the table has the data and the offsets of one
load.

Spark writes a load as Parquet to a staging directory. This process copies the load into the table's own files, and
makes the commit. The commit has an application transaction (Delta's `txn` action) for each partition of the topic.
The transaction's name has the topic id, and its version is the next offset to load. So the table itself says where
the next load begins, and two writers that began at the same offsets cannot both commit. A topic that was deleted and
created again has another id, so the table has no offsets for it.

The job needs the package deltalake (the extra `delta`), but no jar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odradek.spark.pipelines.failure import Failed, require
from odradek.spark.pipelines.tables.committed import Compaction, Places

__all__ = ["DeltaLoads", "require_delta"]

_ROWS_PER_BATCH = 64 << 10


def require_delta(who: str) -> None:
    """Raise `Failed` if the package deltalake is not installed, with a sentence about `who` needs it."""
    require("deltalake", f"{who} needs the package deltalake: pip install 'odradek[delta]'")


class DeltaLoads:
    """Appends loads to a Delta table in a directory. Raises `Failed` if the package is not installed."""

    def __init__(self, path: Path) -> None:
        require_delta("--delta")
        import deltalake

        self._delta: Any = deltalake
        self._path = str(path)
        self._table: Any = None
        """The version of the table from which the next load was planned. A commit fails if another writer has
        committed since.
        """

    def ends(self, topic: str, topic_id: str, partitions: Sequence[int]) -> dict[int, int] | None:
        """Return the next offset of each partition according to the table; None if there is no table yet.

        Raises `Failed` if the table has data of another topic.
        """
        if not self._delta.DeltaTable.is_deltatable(self._path):
            return None
        self._table = self._delta.DeltaTable(self._path)
        found = self._versions(topic_id, partitions)
        if not found:
            raise Failed(
                f"{self._path} holds another topic than '{topic}', or an earlier topic of this name: "
                "load into another table"
            )
        return found

    def staging(self, load: int) -> Path:
        """Return a directory below the table, whose files are copied by the commit."""
        return Path(self._path).resolve() / "_staging" / f"load-{load}"

    def append(
        self, staged: Path, partition_by: Sequence[str], topic_id: str, ends: Mapping[int, int]
    ) -> None:
        """Commit the rows of the Parquet files in `staged` to the table. `ends` are the next offsets after these
        rows.

        Raises `Failed` if another job has committed for this topic since the last call of `ends` or `append`.
        """
        rows = _rows_of(staged)
        transactions = [
            self._delta.Transaction(_application(topic_id, index), end) for index, end in sorted(ends.items())
        ]
        is_new = self._table is None
        try:
            self._delta.write_deltalake(
                self._path if is_new else self._table,
                rows,
                mode="error" if is_new else "append",
                partition_by=list(partition_by) or None if is_new else None,
                commit_properties=self._delta.CommitProperties(app_transactions=transactions),
            )
        except self._delta.exceptions.CommitFailedError as error:
            raise self._other_writer(str(error)) from error
        except self._delta.exceptions.DeltaError as error:
            if is_new and self._delta.DeltaTable.is_deltatable(self._path):
                raise self._other_writer(str(error)) from error
            raise Failed(f"the Delta table {self._path} cannot be written: {error}") from error
        self._table = self._delta.DeltaTable(self._path)
        if self._versions(topic_id, list(ends)) != dict(ends):
            raise self._other_writer("the table's offsets have changed")

    def replace(self, staged: Path, places: Places) -> None:
        """Replace the rows of these offsets. Files that also have other rows are written anew."""
        predicate = " or ".join(
            f"(partition = {index} and offset >= {first} and offset < {end})"
            for index, (first, end) in sorted(places.items())
        )
        try:
            self._delta.write_deltalake(
                self._table, _rows_of(staged), mode="overwrite", predicate=predicate, schema_mode="merge"
            )
        except self._delta.exceptions.CommitFailedError as error:
            raise self._other_writer(str(error)) from error
        except self._delta.exceptions.DeltaError as error:
            raise Failed(f"the Delta table {self._path} cannot be written: {error}") from error
        self._table = self._delta.DeltaTable(self._path)

    def compact(self, file_bytes: int) -> Compaction:
        """Merge small files of each partition of the table. The offsets are kept."""
        try:
            done = self._table.optimize.compact(target_size=file_bytes)
        except self._delta.exceptions.CommitFailedError as error:
            raise self._other_writer(str(error)) from error
        self._table = self._delta.DeltaTable(self._path)
        return Compaction(int(done["numFilesRemoved"]), int(done["numFilesAdded"]))

    def _versions(self, topic_id: str, partitions: Sequence[int]) -> dict[int, int]:
        found = {
            index: self._table.transaction_version(_application(topic_id, index)) for index in partitions
        }
        return {index: end for index, end in found.items() if end is not None}

    def _other_writer(self, reason: str) -> Failed:
        return Failed(
            f"another job has written to {self._path} during this load: start this job again ({reason})"
        )


def _rows_of(staged: Path) -> Any:
    """Read the rows of the Parquet files in a directory, batch by batch."""
    import pyarrow as pa
    import pyarrow.dataset

    data = pyarrow.dataset.dataset(str(staged), format="parquet")
    return pa.RecordBatchReader.from_batches(data.schema, data.to_batches(batch_size=_ROWS_PER_BATCH))


def _application(topic_id: str, partition: int) -> str:
    return f"odradek {topic_id} {partition}"
