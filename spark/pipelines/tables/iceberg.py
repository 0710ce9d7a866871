"""Loads of a topic into an Iceberg table: each snapshot of the table has the data and the offsets of one load. SHELL.

Theory of operation
===================

    TABLE/
        _catalog.db      the catalog, an SQLite database: it names the table's current metadata
        metadata/        snapshots, each with a summary
        data/load-*/     the files that Spark's tasks have written
        _lock            held by the writer

Spark writes the files of a load where they stay, and no snapshot names them. Then the package pyiceberg adds them by one
commit (`add_files`), which reads only their footers. The summary of the snapshot says which batch of which query it is,
and at which offsets the next one begins:

    odradek.query   the topic id
    odradek.batch   the number of the load
    odradek.ends    the next offset of each partition, as JSON

A restart looks for the newest snapshot with such a summary, from the current one backwards. So a table that was rolled back
to an older snapshot gets the records again that it has lost. If the job dies before the commit, its files belong to no
snapshot. The next run removes them, and loads the same records.

pyiceberg repeats a commit that another writer has overtaken. Then two loads of the same records would both be there. So the
property `commit.retry.num-retries` of the table is 0.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as parquet

from odradek.spark.pipelines.failure import Failed, require
from odradek.spark.pipelines.tables.committed import Compaction, Places

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["IDENTIFIER", "IcebergLoads"]

IDENTIFIER = "odradek.records"
"""The name of the table in its catalog."""
_QUERY, _BATCH, _ENDS = "odradek.query", "odradek.batch", "odradek.ends"
_RETRIES = "commit.retry.num-retries"
_LOAD = "load-"
_ROWS_PER_BATCH = 64 << 10


def require_iceberg() -> None:
    """Raise `Failed` if pyiceberg or the package of its catalog is not installed."""
    for module in ("pyiceberg", "sqlalchemy"):
        require(module, "--iceberg needs the package pyiceberg: pip install 'odradek[iceberg]'")


class IcebergLoads:
    """The Iceberg table in a directory. Raises `Failed` if the package is not installed."""

    def __init__(self, path: Path) -> None:
        require_iceberg()
        self._path = path.resolve()
        self._table: Table | None = None
        """The snapshot from which the next load was planned. A commit fails if another writer has committed since."""
        self._state: dict[str, str] = {}
        """The properties of the newest snapshot of a load."""

    @cached_property
    def _catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        self._path.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(
            "odradek", uri=f"sqlite:///{self._path}/_catalog.db", warehouse=_address(self._path)
        )

    def ends(self, topic: str, topic_id: str, partitions: Sequence[int]) -> dict[int, int] | None:
        """Return the next offset of each partition according to the table; None if no load was committed."""
        if not self._catalog.table_exists(IDENTIFIER):
            self._drop_orphans(set())
            return None
        table = self._catalog.load_table(IDENTIFIER)
        if table.properties.get(_RETRIES) != "0":
            with table.transaction() as changes:
                changes.set_properties({_RETRIES: "0"})
        self._follow(table)
        self._drop_orphans(self._referenced(table))
        if not self._state:
            return None
        if self._state[_QUERY] != topic_id:
            raise Failed(
                f"{self._path} holds another topic than '{topic}', or an earlier topic of this name: "
                "load into another table"
            )
        return {int(index): end for index, end in json.loads(self._state[_ENDS]).items()}

    def staging(self, load: int) -> Path:
        """Return the directory for the files of a load. They stay there when they are committed."""
        # The snapshot makes the name new: a load that replaces rows has the number of the load before.
        after = self._table.metadata.current_snapshot_id if self._table is not None else None
        return self._path / "data" / f"{_LOAD}{load:08d}-after-{after or 0}"

    def append(
        self, staged: Path, partition_by: Sequence[str], topic_id: str, ends: Mapping[int, int]
    ) -> None:
        """Add the files of a load to the table, which is created by the first one."""
        state = {
            _QUERY: topic_id,
            _BATCH: str(int(self._state.get(_BATCH, "-1")) + 1),
            _ENDS: json.dumps({str(index): end for index, end in sorted(ends.items())}),
        }
        files = _files(staged)
        if not files and self._table is None:
            # The records of the load were aborted. Without a table there is no place for its offsets.
            return

        with self._committing():
            table = self._table or self._create(parquet.read_schema(_path_of(files[0])), partition_by)
            with table.transaction() as changes:
                if files:
                    changes.add_files(files, state)
                else:
                    with changes.update_snapshot(snapshot_properties=state).fast_append():
                        pass

    def replace(self, staged: Path, places: Places) -> None:
        """Replace the rows of these offsets. Files that also have other rows are written anew."""
        table, files, state = self._known(), _files(staged), self._state
        columns = parquet.read_schema(_path_of(files[0])).remove_metadata()

        with self._committing(), table.transaction() as changes:
            with changes.update_schema() as schema:
                schema.union_by_name(columns)
            changes.delete(_at(places), state)
            changes.add_files(files, state)

    def compact(self, file_bytes: int) -> Compaction:
        """Merge small files of each partition of the table."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        table = self._known()
        groups: dict[tuple[object, ...], list[DataFile]] = {}
        for task in table.scan().plan_files():
            if task.file.file_size_in_bytes < file_bytes // 2 and not task.delete_files:
                values = task.file.partition
                place = (task.file.spec_id, *(values[at] for at in range(len(values))))
                groups.setdefault(place, []).append(task.file)
        small = [part for files in groups.values() for part in _parted(files, file_bytes)]
        if not small:
            return Compaction(0, 0)
        folder = self.staging(int(self._state.get(_BATCH, "0")))
        folder.mkdir(parents=True)
        made = [folder / f"merged-{number:05d}.parquet" for number in range(len(small))]
        schema = table.schema().as_arrow()
        for path, files in zip(made, small, strict=True):
            _merge([_path_of(each.file_path) for each in files], path, schema)

        with (
            self._committing(),
            table.transaction() as changes,
            changes.update_snapshot(snapshot_properties=self._state).overwrite() as snapshot,
        ):
            for path, files in zip(made, small, strict=True):
                for each in files:
                    snapshot.delete_data_file(each)
                snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, _address(path)))
        return Compaction(sum(map(len, small)), len(made))

    def _known(self) -> Table:
        if self._table is None:
            raise Failed(f"{self._path} has no Iceberg table yet")
        return self._table

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
        """Create the table in one commit. Spark's own notes in the files' schema are left out."""
        self._catalog.create_namespace_if_not_exists(IDENTIFIER.partition(".")[0])
        with (
            self._catalog.create_table_transaction(
                IDENTIFIER,
                schema=schema.remove_metadata(),
                location=_address(self._path),
                properties={_RETRIES: "0"},
            ) as changes,
            changes.update_spec() as spec,
        ):
            for name in partition_by:
                spec.add_identity(name)
        return self._catalog.load_table(IDENTIFIER)

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Follow the table after a commit in a `with` block. Raises `Failed` if the commit fails."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        try:
            yield
        except (CommitFailedException, ValidationException) as error:
            raise Failed(
                f"another job has written to {self._path} during this load: start this job again ({error})"
            ) from error
        except ValueError as error:
            raise Failed(f"the Iceberg table {self._path} cannot be written: {error}") from error
        self._follow(self._catalog.load_table(IDENTIFIER))

    def _follow(self, table: Table) -> None:
        """Keep the table, and the summary of the newest snapshot of a load. Raises `Failed` if there is none although
        the table has rows.
        """
        self._table, self._state = table, {}
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if _ENDS in summary:
                self._state = {key: summary[key] for key in (_QUERY, _BATCH, _ENDS)}
                return
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if table.current_snapshot() is not None:
            raise Failed(
                f"no snapshot of {self._path} has the offsets of a load: another job has made the table, or the "
                "snapshots of the loads have expired, so load into another table"
            )

    def _referenced(self, table: Table) -> set[str]:
        """Return the folders of loads with files that a snapshot names."""
        folders: set[str] = set()
        manifests = {
            each.manifest_path: each for snap in table.snapshots() for each in snap.manifests(table.io)
        }
        for manifest in manifests.values():
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                folders |= {part for part in Path(entry.data_file.file_path).parts if part.startswith(_LOAD)}
        return folders

    def _drop_orphans(self, referenced: set[str]) -> None:
        """Remove the files of loads that were killed before their commit."""
        for folder in (self._path / "data").glob(f"{_LOAD}*"):
            if folder.name not in referenced:
                shutil.rmtree(folder)


def _files(staged: Path) -> list[str]:
    """Return the addresses of the Parquet files below a folder that have rows."""
    paths = [path for path in sorted(staged.rglob("*.parquet")) if parquet.read_metadata(path).num_rows]
    return [_address(path) for path in paths]


def _address(path: Path) -> str:
    # pyiceberg takes the text as it is, so nothing in it is escaped.
    return f"file://{path}"


def _path_of(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def _at(places: Places) -> str:
    """Make the condition of the rows that come from these offsets."""
    return " or ".join(
        f"(partition = {index} and offset >= {first} and offset < {end})"
        for index, (first, end) in sorted(places.items())
    )


def _parted(files: Sequence[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Divide files into parts of about `file_bytes`. A part of one file is left out: nothing would be gained."""
    parts: list[list[DataFile]] = [[]]
    size = 0
    for each in sorted(files, key=lambda file: str(file.file_path)):
        if parts[-1] and size + each.file_size_in_bytes > file_bytes:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += each.file_size_in_bytes
    return [part for part in parts if len(part) > 1]


def _merge(sources: Sequence[Path], target: Path, schema: pa.Schema) -> None:
    """Write the rows of several Parquet files into one, batch by batch. Columns that a file lacks are null."""
    plain = pa.schema([pa.field(each.name, _narrow(each.type)) for each in schema])
    with parquet.ParquetWriter(target, plain) as writer:
        for source in sources:
            file = parquet.ParquetFile(source)
            for batch in file.iter_batches(_ROWS_PER_BATCH):
                rows = pa.Table.from_batches([batch])
                columns = [
                    rows[each.name].cast(each.type)
                    if each.name in rows.column_names
                    else pa.nulls(rows.num_rows, each.type)
                    for each in plain
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=plain))


def _narrow(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark writes in place of Arrow's large texts and bytes."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
