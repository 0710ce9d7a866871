"""The publication of directories of data together with their offsets: readers see either both or neither.

The two table jobs are built on this module.

Theory of operation
===================

    TABLE/
        _plan.json       the ranges that the next step reads; a restart reads the same ranges
        _staging/        the step that is being written; Spark ignores names that begin with _
        load=00000003/   a finished step: files of data, and _offsets.json

A step is written in `_staging`, with its offsets file last. Then all files are synced, and one rename moves the
directory into the table. So a reader sees a whole step or nothing of it. The offsets in the newest directory alone
decide where the next step begins. Anything in `_staging` at the start comes from a crash, and is deleted.

If there is a plan, the job follows it. So after a crash the job reads exactly the ranges that the crashed attempt
read, and makes the same directories.

The rename must be atomic. Renames are atomic on local disks, NFS and HDFS, but not on object stores (use a table
format there). The table must be on a path that is mounted here. A lock ensures that there is only one writer.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from odradek.spark.pipelines.job import Failed

__all__ = ["Landed", "Landing", "Ranges", "table_path"]

_OBJECT_STORES = (
    "s3",
    "s3a",
    "s3n",
    "gs",
    "az",
    "abfs",
    "abfss",
    "adl",
    "wasb",
    "wasbs",
    "oss",
    "swift",
    "r2",
)

Ranges = dict[int, tuple[int, int]]
"""The range of each partition: the first offset, and the offset after the last record."""

Step = Callable[[str], None]
"""A function that is called before each step, with the name of the step. Tests use it to end the job there."""


@attrs.frozen
class Landed:
    """One finished directory of the table: its number, topic, offsets and path."""

    number: int
    path: Path
    topic: str
    topic_id: str
    ranges: Ranges
    more: dict[str, Any] = attrs.field(factory=dict)
    """Further values that the job stores together with the offsets."""


def table_path(text: str) -> Path:
    """Return the directory of the table that the user names. Raises `Failed` for a path that is not mounted on this
    machine.
    """
    scheme, sign, rest = text.partition(":")
    if not sign or "/" in scheme:
        return Path(text)
    if scheme.lower() in _OBJECT_STORES:
        raise Failed(
            f"{text} is in an object store, which cannot rename atomically: name a directory that is "
            "mounted on this machine"
        )
    if scheme.lower() == "file" and rest.startswith("/"):
        return Path(rest.removeprefix("//"))
    if rest.startswith("//"):
        raise Failed(f"{text} is not a directory that is mounted on this machine")
    return Path(text)


class Landing:
    """A table in which data and offsets are published together. `kind` is the part of the directories' names before
    the `=`.
    """

    def __init__(self, table: Path, kind: str, step: Step = lambda _: None) -> None:
        # Spark's Java process may have another working directory, so make the path absolute.
        self.table = table.resolve()
        self.kind = kind
        self.step = step
        table.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table's lock during a `with` block, to be its only writer. Raises `Failed` if another job holds
        it.
        """
        with (self.table / "_lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failed(f"another job writes to {self.table}") from None
            shutil.rmtree(self.table / "_staging", ignore_errors=True)
            yield

    def landed(self) -> list[Landed]:
        """List the finished directories of the table, the oldest first."""
        found = []
        for path in sorted(self.table.glob(f"{self.kind}=*")):
            content = json.loads((path / "_offsets.json").read_text())
            found.append(
                Landed(
                    int(path.name.partition("=")[2]),
                    path,
                    content["topic"],
                    content["topic_id"],
                    _ranges(content["ranges"]),
                    content["more"],
                )
            )
        return found

    def plan(self, number: int, topic_id: str, wanted: Callable[[], Ranges]) -> Ranges:
        """Return the ranges to read in step `number`.

        If a crashed attempt has planned this step, return its ranges. Otherwise call `wanted`, store the
        ranges for a later attempt, and return them. If all ranges are empty, nothing is stored.

        Raises `Failed` if the crashed attempt has read a topic with another id, because its offsets mean
        other records.
        """
        path = self.table / "_plan.json"
        if path.exists():
            noted = json.loads(path.read_text())
            if noted["number"] == number:
                if noted.get("topic_id", topic_id) != topic_id:
                    raise Failed(
                        f"a load into {self.table} was not finished when its topic was deleted and "
                        "created again: load the topic into another table"
                    )
                return _ranges(noted["ranges"])
        ranges = wanted()
        if not any(end > first for first, end in ranges.values()):
            return ranges
        self.step("note the plan")
        noted = {str(index): each for index, each in ranges.items()}
        _write_whole(path, {"number": number, "topic_id": topic_id, "ranges": noted})
        return ranges

    def land(
        self, number: int, topic: str, topic_id: str, ranges: Ranges, write: Callable[[str], dict[str, Any]]
    ) -> Landed:
        """Publish step `number`: `write(directory)` writes the data and returns further values, which are stored with
        the offsets. Then one rename puts the directory into the table.
        """
        staged = self.table / "_staging" / f"{self.kind}={number:08d}"
        shutil.rmtree(staged, ignore_errors=True)
        self.step("write the data")
        more = write(str(staged))
        self.step("write the offsets")
        content = {
            "topic": topic,
            "topic_id": topic_id,
            "ranges": {str(index): each for index, each in ranges.items()},
            "more": more,
        }
        _write_whole(staged / "_offsets.json", content)
        self.step("sync")
        _sync_tree(staged)
        self.step("land")
        target = self.table / staged.name
        staged.rename(target)
        _sync_directory(self.table)
        self.step("landed")
        return Landed(number, target, topic, topic_id, ranges, more)

    def drop(self, old: Landed) -> None:
        """Remove a directory that a newer directory has replaced. The directory is first moved out of the table as a
        whole, and then deleted.
        """
        staged = self.table / "_staging"
        staged.mkdir(exist_ok=True)
        away = staged / f"old-{old.path.name}"
        shutil.rmtree(away, ignore_errors=True)
        old.path.rename(away)
        self.step("remove an old directory")
        shutil.rmtree(away)


def _ranges(content: dict[str, list[int]]) -> Ranges:
    return {int(index): (first, end) for index, (first, end) in content.items()}


def _write_whole(path: Path, content: object) -> None:
    """Write a JSON file under another name and rename it, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync_directory(path.parent)


def _sync_tree(top: Path) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            _sync(Path(directory) / name)
        _sync_directory(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    _sync(path)
