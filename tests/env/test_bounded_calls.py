"""Calls to a disk for which the loop waits only for a limited time. A late call is undone, and calls keep their
order."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.env import real_dirs, real_files
from odradek.env.bounded_calls import BoundedCalls, CallHangs, Undo
from odradek.env.ports import DiskError, DiskFull, DiskHung, FileClosed, FileMissing, disk_error
from odradek.env.real_dirs import RealDir, open_dir

SOON_SECONDS = 0.05


def no_undo() -> Undo:
    raise AssertionError("the call was abandoned, though its device answered in time")


def test_a_call_that_is_answered_in_time_gives_its_result() -> None:
    """If the device answers in time, the caller gets the function's result from the thread of the disk."""
    calls = BoundedCalls(60)
    threads = [calls.run(lambda number: (number, threading.get_ident()), no_undo, each) for each in range(50)]
    assert [number for number, _ in threads] == list(range(50))
    assert {ident for _, ident in threads} != {threading.get_ident()}
    calls.settle()
    calls.close()


def test_an_abandoned_call_is_undone_once_the_device_answers() -> None:
    """An abandoned call is undone when the device answers. Until then other calls are refused at once, and `settle`
    waits."""
    calls = BoundedCalls(SOON_SECONDS)
    answer = threading.Event()
    undone: list[object] = []

    def slow(value: int) -> int:
        answer.wait()
        return value

    with pytest.raises(CallHangs):
        calls.run(slow, lambda: undone.append, 5)
    with pytest.raises(CallHangs):
        calls.run(slow, no_undo, 6)
    assert not undone
    answer.set()
    calls.settle()
    assert undone == [5]
    assert calls.run(slow, no_undo, 7) == 7
    calls.close()


def test_an_undoing_that_fails_is_told_once() -> None:
    """If undoing a late call fails, `settle` raises the error once. The disk is then offline."""
    calls = BoundedCalls(SOON_SECONDS)
    answer = threading.Event()

    def undo(result: Any) -> None:
        raise OSError(errno.EIO, "gone")

    with pytest.raises(CallHangs):
        calls.run(answer.wait, lambda: undo)
    answer.set()
    with pytest.raises(OSError, match="gone"):
        calls.settle()
    calls.settle()
    calls.close()


def test_the_interpreter_changes_hands_quickly_only_while_the_loop_waits() -> None:
    """The interpreter's switch interval is short only while the loop waits for a call, since a short interval slows
    workers."""
    calls = BoundedCalls(60)
    usual = sys.getswitchinterval()
    assert calls.run(sys.getswitchinterval, no_undo) < usual / 10
    assert sys.getswitchinterval() == usual
    calls.close()


def test_a_call_that_hangs_keeps_nobody_from_closing() -> None:
    """`close` returns during a hanging call and refuses later calls. The disk's thread ends after it has undone the
    late call."""
    calls = BoundedCalls(SOON_SECONDS)
    answer, began, undone = threading.Event(), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow() -> None:
        threads.append(threading.current_thread())
        began.set()
        answer.wait()

    with pytest.raises(CallHangs):
        calls.run(slow, lambda: lambda _: undone.set())
    began.wait()
    calls.close()
    calls.close()
    answer.set()
    threads[0].join()
    assert undone.is_set()
    with pytest.raises(CallHangs):
        calls.run(slow, no_undo)


class SlowDevice:
    """A device on which writes to one directory wait for `answer`, and then succeed or fail with `error`."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, *, create: bool = False) -> None:
        self.directory: RealDir = open_dir(str(path), create=create)
        self.directory.bound_calls(SOON_SECONDS)
        self.answer = threading.Event()
        self.answer.set()
        self.error: OSError | None = None
        write: Callable[[int, bytes], tuple[int, OSError | None]] = real_files._write_all

        def late(fd: int, data: bytes) -> tuple[int, OSError | None]:
            self.answer.wait()
            written, error = write(fd, data)
            return written, self.error or error

        patch.setattr(real_files, "_write_all", late)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    return SlowDevice(tmp_path, monkeypatch)


def test_an_append_that_hangs_leaves_nothing(device: SlowDevice) -> None:
    """If the bytes of an abandoned append arrive late, they are cut off. By then the caller may have reused its buffer
    or closed the file."""
    file = device.directory.subdir("t-0", create=True).open("0.log", create=True)
    assert file.append(b"first") == 0
    device.answer.clear()
    buffer = bytearray(b"second")
    with pytest.raises(DiskHung):
        file.append(memoryview(buffer))
    buffer[:] = b"others"
    assert file.size == 5
    with pytest.raises(DiskHung):
        device.directory.open("another", create=True)
    with pytest.raises(DiskHung):
        file.truncate(0)
    file.rest()
    file.close()
    device.answer.set()
    device.directory.settle()
    assert device.directory.read_bytes("t-0/0.log") == b"first"
    file = device.directory.open("t-0/0.log")
    assert file.append(b"third") == 5
    file.close()
    device.directory.unlock()


def test_workers_are_not_bounded(device: SlowDevice) -> None:
    """A worker's append goes straight to the device, even while an append of the loop hangs."""
    file = device.directory.open("a", create=True)
    device.answer.clear()
    with pytest.raises(DiskHung):
        file.append(b"loop")
    done: list[int] = []

    def work() -> None:
        mine = device.directory.open("b", create=True)
        done.append(mine.append(b"worker"))
        mine.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [0]
    device.answer.set()
    device.directory.settle()
    assert device.directory.read_bytes("b") == b"worker"
    assert device.directory.read_bytes("a") == b""


@pytest.mark.parametrize(("number", "is_final"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_the_error_of_an_abandoned_append_is_told_by_settle(
    device: SlowDevice, number: int, is_final: bool
) -> None:
    """An abandoned append fails late. `settle` raises the error if the device is broken (EIO), but not if it is full
    (ENOSPC)."""
    file = device.directory.open("a", create=True)
    device.answer.clear()
    device.error = OSError(number, "told late")
    with pytest.raises(DiskHung):
        file.append(b"x")
    device.answer.set()
    if is_final:
        with pytest.raises(DiskError, match="told late"):
            device.directory.settle()
    device.directory.settle()
    assert device.directory.file_size("a") == 0


def test_the_error_of_an_append_in_time_is_as_without_a_bound(device: SlowDevice) -> None:
    """If an append fails in time on a full disk, it raises `DiskFull`, and `size` counts the written bytes."""
    file = device.directory.open("a", create=True)
    device.error = OSError(errno.ENOSPC, "No space left")
    with pytest.raises(DiskFull):
        file.append(b"xyz")
    assert file.size == 3
    file.truncate(0)
    device.error = None
    assert file.append(b"abc") == 0


# --- work of several calls, and calls that change nothing


def test_work_in_time_gives_its_result_or_its_error(device: SlowDevice) -> None:
    """Work of several calls runs in the disk's thread, and its result or its error reaches the caller."""
    directory = device.directory
    directory.bound_calls(60.0)  # A busy disk may take long for a sync.

    def work() -> int:
        directory.write_atomic("a", b"x")
        directory.rename("a", "b")
        return threading.get_ident()

    assert directory.in_time(work) != threading.get_ident()
    assert directory.list() == ["b"]
    with pytest.raises(FileMissing):
        directory.in_time(lambda: directory.rename("a", "b"))
    workers: list[int] = []
    worker = threading.Thread(target=lambda: workers.append(directory.in_time(threading.get_ident)))
    worker.start()
    worker.join()
    assert workers == [worker.ident], "workers may wait themselves"


@pytest.mark.parametrize("is_undone", [True, False])
def test_work_that_hangs_is_undone_or_goes_on(device: SlowDevice, is_undone: bool) -> None:
    """Work that hangs is undone or finished late, as its caller has chosen. Until then other calls wait or are
    refused."""
    directory = device.directory
    answer = threading.Event()
    undone: list[int] = []

    def work() -> int:
        answer.wait()
        directory.write_atomic("a", b"x")
        return 5

    with pytest.raises(DiskHung) as caught:
        directory.in_time(work, undone.append if is_undone else None)
    assert caught.value.goes_on != is_undone
    with pytest.raises(DiskHung) as caught:
        directory.in_time(lambda: directory.write_atomic("b", b"x"))
    assert not caught.value.goes_on, "it has not begun"
    answer.set()
    directory.settle()
    assert directory.list() == ["a"]
    assert undone == ([5] if is_undone else [])


@pytest.mark.parametrize(
    ("error", "is_final"), [(errno.EIO, True), (errno.ENOSPC, False), (errno.ENOENT, False)]
)
def test_the_error_of_work_that_was_to_be_undone_is_told_by_settle(
    device: SlowDevice, error: int, is_final: bool
) -> None:
    """Abandoned work fails late. `settle` raises the error if the device is broken, but not if it is full."""
    directory = device.directory
    answer = threading.Event()

    def work() -> None:
        answer.wait()
        raise disk_error("d", "p", "rename", error, "told late")

    with pytest.raises(DiskHung):
        directory.in_time(work, lambda done: None)
    answer.set()
    if is_final:
        with pytest.raises(DiskError, match="told late"):
            directory.settle()
    directory.settle()


def test_looks_into_a_directory_are_bounded(device: SlowDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing, reading and opening are refused while the device hangs, and leave nothing behind."""
    directory = device.directory
    directory.write_atomic("a", b"x")
    answer = threading.Event()
    stat = os.stat

    def slow(*args: Any, **options: Any) -> os.stat_result:
        answer.wait()
        return stat(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(real_dirs.os, "stat", slow)
        with pytest.raises(DiskHung):
            directory.open("a")
    looks: list[Callable[[], object]] = [
        directory.list,
        lambda: directory.read_bytes("a"),
        lambda: directory.file_size("a"),
        lambda: directory.modified_ms("a"),
        lambda: directory.subdir("a"),
    ]
    for look in looks:
        with pytest.raises(DiskHung):
            look()
    answer.set()
    directory.settle()
    assert directory.read_bytes("a") == b"x"


def test_a_read_of_what_is_not_in_memory_is_bounded(
    device: SlowDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging read fills a separate buffer, since the caller may reuse the buffer that it passed. The file stays
    open for the read."""
    file = device.directory.open("a", create=True)
    file.append(b"0123456789")
    answer = threading.Event()
    answer.set()
    pread = os.pread

    def cold(*args: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, "cold")

    def slow(fd: int, count: int, offset: int) -> bytes:
        answer.wait()
        return pread(fd, count, offset)

    monkeypatch.setattr(real_files.os, "preadv", cold)
    monkeypatch.setattr(real_files.os, "pread", slow)
    buffer = bytearray(4)
    assert (file.pread(3, 2), file.pread(9, 5), file.pread_into(buffer, 1)) == (b"234", b"56789", 4)
    assert buffer == b"1234"
    answer.clear()
    with pytest.raises(DiskHung):
        file.pread_into(buffer, 6)
    with pytest.raises(DiskHung):
        file.pread(3, 2)
    file.close()
    answer.set()
    device.directory.settle()
    assert buffer == b"1234"
    with pytest.raises(FileClosed):
        file.pin()


def test_an_opening_that_hangs_is_bounded_and_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an open hangs, files of other disks can be opened. A file that opens too late is closed again."""
    hung = SlowDevice(tmp_path / "hung", monkeypatch, create=True).directory
    hung.write_atomic("a", b"x")
    other = open_dir(str(tmp_path / "other"), create=True)
    other.write_atomic("b", b"y")
    answer, began = threading.Event(), threading.Event()
    system_open = os.open

    def slow(path: str, *args: Any, **options: Any) -> int:
        if str(path).endswith("hung/a"):
            began.set()
            answer.wait()
        return system_open(path, *args, **options)

    monkeypatch.setattr(real_files.os, "open", slow)
    file = hung.open("a")
    worker = threading.Thread(target=file.pin)
    worker.start()
    began.wait()
    sound = other.open("b")
    sound.pin()
    assert sound.pread(1, 0) == b"y"
    sound.unpin()
    sound.close()
    with pytest.raises(DiskHung):
        file.pread(1, 0)
    answer.set()
    worker.join()
    hung.settle()
    assert file.pread(1, 0) == b"x"
    file.unpin()
    file.close()
