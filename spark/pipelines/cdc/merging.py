"""MERGE of changes into a Delta table, in any order and any number of times.

Theory of operation
===================

    TABLE/              the rows of the source, each with the position of its last change
    TABLE/_deletions/   the keys that were deleted of late, each with the position of its deletion

A position is the place of a change in the database's log. A change is applied only if its position is greater than the
position that is known for its key. So a change that comes again, or too late, has no effect. That makes a repeated
batch harmless: after a crash, the same table results.

A row that is deleted leaves the table, and its position with it. A late change would insert the row again. So the
position of the deletion is kept in the second table, which is written first. A deletion there is a fact about the source,
so it does no harm if the job dies before the first table follows. After `keep_deletions_ms` it is removed.

MERGE is that of the package deltalake (delta-rs). It needs neither a jar nor Spark. Each MERGE is one commit of its table,
so that readers see all of a batch or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from odradek.spark.pipelines.cdc.envelopes import CHANGED, DELETED, POSITION
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.tables.delta import require_delta

__all__ = ["MergedTable"]

_FOUND = "_found"


class MergedTable:
    """The Delta table in a directory that follows a table of a database. Raises `Failed` if deltalake is missing."""

    def __init__(
        self,
        path: Path,
        keys: Sequence[str],
        keep_deletions_ms: int,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        require_delta("this job")
        import deltalake

        self._delta = deltalake
        self._path = path
        self._deletions = path / "_deletions"
        self._keys = list(keys)
        self._keep_deletions_ms = keep_deletions_ms
        self._step = step

    def merge(self, changes: pa.Table) -> None:
        """Apply changes, at most one for each key, with the columns that `last_changes` returns.

        Raises `Failed` if another job has written to the table, or if the table has other columns.
        """
        if not changes.num_rows:
            return
        try:
            self._step("note the deletions")
            self._note_deletions(changes)
            wanted = self._without_outdated(changes)
            self._step("merge")
            if wanted.num_rows:
                self._merge_rows(wanted)
            self._step("merged")
        except self._delta.exceptions.CommitFailedError as error:
            raise Failed(
                f"another job has written to {self._path}: start this job again ({error})"
            ) from error
        except self._delta.exceptions.DeltaError as error:
            raise Failed(f"the Delta table {self._path} cannot be written: {error}") from error

    def _note_deletions(self, changes: pa.Table) -> None:
        deletions = changes.filter(changes[DELETED]).select([*self._keys, POSITION, CHANGED])
        if not deletions.num_rows:
            return
        table = self._delta.DeltaTable.create(self._deletions, schema=deletions.schema, mode="ignore")
        horizon = pc.max(changes[CHANGED]).as_py() - self._keep_deletions_ms
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in deletions.column_names}
        (
            table.merge(deletions, self._same_key(), source_alias="source", target_alias="target")
            .when_matched_update(columns, predicate=f"source.{POSITION} > target.{POSITION}")
            .when_not_matched_insert(columns)
            .when_not_matched_by_source_delete(predicate=f"target.{CHANGED} < {horizon}")
            .execute()
        )

    def _without_outdated(self, changes: pa.Table) -> pa.Table:
        """Leave out changes that are older than the deletion of their row."""
        if not self._delta.DeltaTable.is_deltatable(str(self._deletions)):
            return changes
        deletions = self._delta.DeltaTable(self._deletions).to_pyarrow_table(columns=[*self._keys, POSITION])
        deletions = deletions.rename_columns([*self._keys, _FOUND])
        joined = changes.join(deletions, self._keys, join_type="left outer")
        is_new = pc.greater_equal(joined[POSITION], joined[_FOUND])
        return joined.filter(pc.fill_null(is_new, True)).select(changes.column_names)

    def _merge_rows(self, changes: pa.Table) -> None:
        names = [name for name in changes.column_names if name != DELETED]
        schema = changes.select(names).schema
        table = self._delta.DeltaTable.create(self._path, schema=schema, mode="ignore")
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in names}
        is_newer = f"source.{POSITION} > target.{POSITION}"
        (
            table.merge(changes, self._same_key(), source_alias="source", target_alias="target")
            .when_matched_delete(predicate=f"source.{DELETED} and {is_newer}")
            .when_matched_update(columns, predicate=f"not source.{DELETED} and {is_newer}")
            .when_not_matched_insert(columns, predicate=f"not source.{DELETED}")
            .execute()
        )

    def _same_key(self) -> str:
        return " and ".join(f"target.{_quoted(key)} = source.{_quoted(key)}" for key in self._keys)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
