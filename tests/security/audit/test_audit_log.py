"""The audit log: each line is written once, memory and files are limited, and a failing disk stops nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from odradek.env.ports import Dir, DiskFull, File
from odradek.env.real import RealEnv
from odradek.security.audit.audit_log import LINES_MAX, AuditLog, AuditSettings
from testkit.by_hand import KeptLog


def audit_log(path: Path, **settings: int) -> tuple[AuditLog, KeptLog]:
    env, notes = RealEnv(), KeptLog()
    directory = env.open_dir(str(path), create=True)
    return AuditLog(env, notes, directory, AuditSettings(**settings)), notes


def lines(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


def test_a_line_is_json_and_keeps_its_order(tmp_path: Path) -> None:
    audit, _ = audit_log(tmp_path)
    audit.note("denied", principal="User:alice", resource="topic:a\nb\u2028\u00fc", offset=7)
    audit.close()
    (text,) = (tmp_path / "audit-refusals.log").read_text().splitlines()
    assert text.isascii()
    found = json.loads(text)
    assert list(found) == ["time", "event", "principal", "resource", "offset"]
    assert found["resource"] == "topic:a\nb\u2028\u00fc"
    assert found["time"].endswith("+00:00")


def test_equal_lines_become_one(tmp_path: Path) -> None:
    audit, _ = audit_log(tmp_path)
    for _ in range(1000):
        audit.note("denied", principal="User:alice")
        audit.note("denied", principal="User:bob")
    audit.close()
    assert [(each["principal"], each["count"]) for each in lines([tmp_path / "audit-refusals.log"])] == [
        ("User:alice", 1000),
        ("User:bob", 1000),
    ]


def test_memory_is_bounded_and_gaps_are_told(tmp_path: Path) -> None:
    audit, _ = audit_log(tmp_path)
    for number in range(LINES_MAX + 5):
        audit.note("denied", principal=f"User:{number}" + "x" * 5000)
    audit.close()
    found = lines([tmp_path / "audit-refusals.log"])
    assert len(found) == LINES_MAX + 1
    assert found[-1]["event"] == "lines.missing"
    assert found[-1]["count"] == 5
    assert len(found[0]["principal"]) < 1100


def test_files_are_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    audit, _ = audit_log(tmp_path, bytes_max=1000, files_max=3)
    for number in range(100):
        audit.note("changed", number=number)
        audit._write(audit._take())
    audit.close()
    files = [tmp_path / "audit.log.2", tmp_path / "audit.log.1", tmp_path / "audit.log"]
    assert sorted(tmp_path.glob("audit.log*")) == sorted(files)
    assert all(path.stat().st_size <= 1000 for path in files)
    numbers = [each["number"] for each in lines(files)]
    assert numbers == list(range(numbers[0], 100))


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for number in range(2):
        audit, _ = audit_log(tmp_path)
        audit.note("started", number=number)
        audit.close()
    assert [each["number"] for each in lines([tmp_path / "audit.log"])] == [0, 1]


@pytest.mark.trio
async def test_the_task_writes_by_itself(tmp_path: Path) -> None:
    audit, _ = audit_log(tmp_path)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit.run)
            for number in range(2):
                audit.note("changed", number=number)
                while not (tmp_path / "audit.log").exists() or len(lines([tmp_path / "audit.log"])) <= number:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


class FullDisk:
    """A directory whose files accept only half of each write, as on a full disk, until `has_room` is set."""

    def __init__(self, real: Dir) -> None:
        self._real = real
        self.path = real.path
        self.has_room = False

    def open(self, name: str, *, create: bool = False) -> FullFile:
        return FullFile(self, self._real.open(name, create=create))


class FullFile:
    """A file of a `FullDisk`."""

    def __init__(self, disk: FullDisk, real: File) -> None:
        self._disk = disk
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def append(self, data: bytes) -> int:
        if self._disk.has_room:
            return self._real.append(data)
        self._real.append(data[: len(data) // 2])
        raise DiskFull(self._disk.path, self._real.path, "append", 28, "No space left on device")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    env, notes = RealEnv(), KeptLog()
    disk = FullDisk(env.open_dir(str(tmp_path), create=True))
    audit = AuditLog(env, notes, disk, AuditSettings())  # type: ignore[arg-type]
    audit.note("denied", principal="User:alice")
    taken = audit._take()
    assert not audit._write(taken)
    audit._lose(taken)
    assert notes.events == ["audit.not_written"]
    disk.has_room = True
    audit.note("denied", principal="User:bob")
    audit.close()
    assert [(each["event"], each.get("principal")) for each in lines([tmp_path / "audit-refusals.log"])] == [
        ("denied", "User:bob"),
        ("lines.missing", None),
    ]


def test_half_a_line_of_a_killed_process_spoils_no_other(tmp_path: Path) -> None:
    """A killed process has left half a line. The next line begins on a new line."""
    (tmp_path / "audit-refusals.log").write_bytes(b'{"event": "denied", "princ')
    audit, _ = audit_log(tmp_path)
    audit.note("denied", principal="User:bob")
    audit.close()
    half, whole = (tmp_path / "audit-refusals.log").read_bytes().splitlines()
    assert half == b'{"event": "denied", "princ'
    assert json.loads(whole)["principal"] == "User:bob"


def test_lines_that_are_lost_twice_count_once(tmp_path: Path) -> None:
    """The line that counts missing lines is lost itself.

    The next such line has the whole count, and the metric counts each line once.
    """
    env, notes = RealEnv(), KeptLog()
    disk = FullDisk(env.open_dir(str(tmp_path), create=True))
    audit = AuditLog(env, notes, disk, AuditSettings())  # type: ignore[arg-type]
    for number in range(3):
        audit.note("denied", principal=f"User:{number}", count=2)
        audit.close()
    assert audit.statistics() == {"lines_waiting": 0, "lines_missing": 6, "lines_further": 0}
    disk.has_room = True
    audit.close()
    assert lines([tmp_path / "audit-refusals.log"])[-1]["count"] == 6


@pytest.mark.trio
async def test_a_stop_writes_the_rest(tmp_path: Path) -> None:
    """A line is noted just before the stop. It is in the file, and the task ends."""
    audit, _ = audit_log(tmp_path)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit.run)
            audit.note("login", principal="User:first")
            await trio.lowlevel.checkpoint()
            audit.note("login", principal="User:last")
            await audit.stop()
    assert [each["principal"] for each in lines([tmp_path / "audit.log"])] == ["User:first", "User:last"]
