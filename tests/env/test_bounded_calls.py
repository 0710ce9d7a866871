"""Calls to a disk that the loop waits for only so long: abandoned ones are undone, and none overtakes another."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek.env import real_files
from odradek.env.bounded_calls import BoundedCalls, CallHangs, Undo
from odradek.env.ports import DiskError, DiskFull, DiskHung
from odradek.env.real_files import RealDir, open_dir

SOON_SECONDS = 0.05


def no_undo() -> Undo:
    raise AssertionError("it is not abandoned")


def test_a_call_that_is_answered_in_time_gives_its_result() -> None:
    """The caller gets what the function returned, call after call, from the thread of the disk."""
    calls = BoundedCalls(60)
    threads = [calls.run(lambda number: (number, threading.get_ident()), no_undo, each) for each in range(50)]
    assert [number for number, _ in threads] == list(range(50))
    assert {ident for _, ident in threads} != {threading.get_ident()}
    calls.settle()
    calls.close()


def test_an_abandoned_call_is_undone_once_the_device_answers() -> None:
    """Until then every call is refused at once; `settle` waits for it."""
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
    """`settle` raises it; the disk is offline then."""
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
    """Each of three hand-overs would wait a switch interval beside a busy worker; workers pay for short ones."""
    calls = BoundedCalls(60)
    usual = sys.getswitchinterval()
    assert calls.run(sys.getswitchinterval, no_undo) < usual / 10
    assert sys.getswitchinterval() == usual
    calls.close()


def test_a_call_that_hangs_keeps_nobody_from_closing() -> None:
    """After `close` every call is refused; the thread ends when the device has answered and the call is undone."""
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
    """Lets the writes of one directory wait for `answer`, and then happen, or fail with `error`."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory: RealDir = open_dir(str(path))
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
    """Its bytes are cut off when they arrive at last, though the caller's buffer, or the file, is gone by then."""
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
    """A worker's append goes straight to the device, also while the loop's hangs."""
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
    """A dead device is told; one that was full is sound."""
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
    """A full disk raises `DiskFull`, and `size` counts what was written."""
    file = device.directory.open("a", create=True)
    device.error = OSError(errno.ENOSPC, "No space left")
    with pytest.raises(DiskFull):
        file.append(b"xyz")
    assert file.size == 3
    file.truncate(0)
    device.error = None
    assert file.append(b"abc") == 0
