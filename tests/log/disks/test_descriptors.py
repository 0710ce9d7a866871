"""A process without free file descriptors refuses calls that need one.

No record is lost, and directories stay online.
"""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import Origin
from odradek.env import real_dirs, real_files
from odradek.env.ports import DiskError, DiskRefused
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS, InlineWorkers, ManualClock, finish
from tests.env.descriptors import descriptors_below
from tests.log.support import DIRECTORY_ID, TOPIC_ID, append, batch, content, open_log

SIZE = len(batch(producer_id=1, producer_epoch=0, base_sequence=0))
CONFIG = LogConfig(
    segment_bytes=3 * SIZE, index_interval_bytes=1, file_delete_delay_ms=0, flush_ms=0, retention_ms=3_600_000
)


class Shortage:
    """Makes calls that open a descriptor fail: `times` calls from number `first` on."""

    def __init__(self) -> None:
        self.calls = 0
        self.first = 0
        self.times = 0

    def _count(self) -> None:
        self.calls += 1
        if self.first <= self.calls < self.first + self.times:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._count()
            return function(*args, **options)

        return call


@contextmanager
def _short() -> Iterator[Shortage]:
    """Make each call that opens a descriptor able to fail, during the block."""
    shortage = Shortage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_files.os, "open", shortage.taking(os.open))
        patch.setattr(real_files.os, "listdir", shortage.taking(os.listdir))
        patch.setattr(real_dirs.shutil, "rmtree", shortage.taking(real_dirs.shutil.rmtree))
        patch.setattr(real_dirs, "open", shortage.taking(builtins.open), raising=False)
        yield shortage


class Run:
    """A log directory on a real disk, with steps that are repeated if they are refused."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.offline: list[str] = []
        self.clock = ManualClock()
        self.refused = 0
        directory = real_dirs.open_dir(self.path, create=True)
        directory.write_atomic(META_PROPERTIES, MetaProperties("c", 1, DIRECTORY_ID).encode())
        self.log_dir = self.start()

    def start(self) -> LogDir:
        logger = structlog.wrap_logger(None, processors=[_dropped])
        context = LogDirContext(
            clock=self.clock,
            workers=InlineWorkers(),
            random=Random(1),
            log=logger,
            on_offline=lambda log_dir, reason: self.offline.append(reason),
            retention_check_interval_ms=1,
        )
        self.log_dir = LogDir.open(real_dirs.open_dir(self.path), context, config_for=lambda topic: CONFIG)
        return self.log_dir

    def patiently(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except DiskRefused:
                self.refused += 1
            except KafkaError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                self.refused += 1
            else:
                return

    def look(self) -> None:
        self.clock.now_ms += 120_000
        finish(self.log_dir.background.look(self.clock.now_ms))

    def steps(self) -> None:
        """Create, append, roll, flush, truncate, read and delete. Offsets 3 to 9 remain in `t`."""
        log_dir = self.log_dir
        self.patiently(lambda: log_dir.create_log("t", 0, TOPIC_ID, CONFIG))
        log = log_dir.logs["t", 0]

        def fill(first: int, end: int) -> None:
            for at in range(first, end):
                data = batch(producer_id=1, producer_epoch=0, base_sequence=at, timestamp=NOW_MS)
                self.patiently(lambda data=data: append(log, data))
            log.advance_high_watermark(end)

        fill(0, 9)
        self.patiently(self.look)
        self.patiently(lambda: log.truncate_to(5))
        assert log.log_end_offset == 5
        fill(5, 8)
        self.patiently(lambda: log.truncate_to(6))
        fill(6, 10)
        self.patiently(lambda: content(log))
        for segment in log.segments[:-1]:
            segment.file.rest()
            segment.index = None
        self.patiently(lambda: content(log))
        log.set_log_start_offset(3)
        self.patiently(self.look)
        self.patiently(lambda: log_dir.create_log("gone", 0, TOPIC_ID, CONFIG))
        log_dir.delete_log("gone", 0)
        self.patiently(self.look)
        self.patiently(self.look)
        self.patiently(self.look)


def _dropped(*_: object) -> None:
    raise structlog.DropEvent


@pytest.mark.long
def test_every_want_of_a_descriptor_is_a_refusal_and_nothing_else(tmp_path: Path) -> None:
    """Each call that opens a descriptor fails in turn, once or three times.

    Only the call is refused. The directory stays online, and in the end the log is complete.
    """
    with _short() as shortage:
        reference = Run(tmp_path / "reference")
        begun = shortage.calls
        reference.steps()
        last = shortage.calls
        expected = content(reference.log_dir.logs["t", 0])
    assert last - begun > 40
    for number in range(begun + 1, last + 1):
        told = number
        with _short() as shortage:
            run = Run(tmp_path / str(number))
            shortage.first, shortage.times = number, 1 + 2 * (number % 2)
            run.steps()
            shortage.times = 0
            log = run.log_dir.logs["t", 0]
            assert run.offline == [], told
            assert content(log) == expected, told
            assert list(verify_partition(log.directory)) == [], told
            assert log.load_producers().entries[1].last_sequence == 9, told
        run.log_dir.directory.unlock()
        for each in run.log_dir.logs.values():
            each.abandon()
        log_dir = run.start()
        finish(log_dir.load())
        assert content(log_dir.logs["t", 0]) == expected, told
        log_dir.directory.unlock()


def test_a_start_waits_for_descriptors(tmp_path: Path) -> None:
    """Logs fail to open at a start, since all descriptors are taken.

    They are opened as soon as descriptors are free.
    """
    run = Run(tmp_path)
    run.steps()
    expected = content(run.log_dir.logs["t", 0])
    run.log_dir.directory.unlock()
    log_dir = run.start()
    with _short() as shortage:
        shortage.first, shortage.times = 2, 7
        finish(log_dir.load())
        assert shortage.calls > 8
    assert run.offline == []
    assert content(log_dir.logs["t", 0]) == expected


def test_a_failed_sync_stays_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync fails with an error that looks temporary.

    The failure is final, since the kernel may have dropped the pages.
    """
    log = open_log(real_dirs.open_dir(str(tmp_path)))
    append(log, batch())

    def fails(fd: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(real_files.os, "fdatasync", fails)
    with pytest.raises(DiskError) as caught:
        log.flush()
    assert not isinstance(caught.value, DiskRefused)
    assert log.offline


_MANY = 300
_WITH_FEW = """
import resource, sys
from tests.log.disks import test_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
getattr(test_descriptors, sys.argv[1])(sys.argv[2])
"""


def _with_few(function: Callable[[str], None], path: Path) -> None:
    """Call a function of this module in a process that may open 64 descriptors."""
    done = subprocess.run(
        [sys.executable, "-c", _WITH_FEW, function.__name__, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def open_and_use(path: str) -> None:
    """Run by a process with few descriptors: recover, flush, read everything, append."""
    before = len(os.listdir("/proc/self/fd"))
    run = Run(Path(path))
    finish(run.log_dir.load())
    assert run.offline == [], run.offline
    log = run.log_dir.logs["t", 0]
    assert len(log.segments) > _MANY
    assert len(os.listdir("/proc/self/fd")) - before < 10
    finish(run.log_dir.background.look(10**9))
    run.patiently(log.flush)
    assert log.recovery_point == log.log_end_offset
    log.advance_high_watermark(log.log_end_offset)
    offset = 0
    while offset < log.log_end_offset:
        try:
            found = log.read(offset, 1 << 20, upper_bound=log.log_end_offset, min_one=True)
        except DiskRefused:
            run.look()
            continue
        found.release()
        offset = found.next_offset
    run.patiently(lambda: append(log, batch()))
    assert run.offline == []


def test_a_log_with_more_segments_than_descriptors_opens(tmp_path: Path) -> None:
    """A log has more segments than the process may open files. It is recovered, read and written."""
    run = Run(tmp_path)
    log = run.log_dir.create_log("t", 0, TOPIC_ID, LogConfig())
    jump = 1 << 31
    for at in range(_MANY + 1):
        data = batch(base_offset=at * jump, leader_epoch=0)
        append(log, data, origin=Origin.REPLICA)
    assert len(log.segments) == _MANY + 1
    log.abandon()
    run.log_dir.directory.unlock()
    _with_few(open_and_use, tmp_path)


def open_many_logs(path: str) -> None:
    """Run by a process with few descriptors: load all logs, and use each of them."""
    run = Run(Path(path))
    finish(run.log_dir.load())
    assert run.offline == []
    assert len(run.log_dir.logs) == _LOGS
    for log in run.log_dir.logs.values():
        assert log.log_end_offset == 1
        while log.log_end_offset == 1:
            run.patiently(run.look)
            with suppress(DiskRefused, KafkaError):
                append(log, batch())
    assert run.offline == []


_LOGS = 100


@pytest.mark.parametrize("is_clean", [False, True])
def test_more_logs_than_descriptors_are_loaded(tmp_path: Path, is_clean: bool) -> None:
    """A node has more logs than the process may open files. They are loaded after a crash or a clean stop."""
    run = Run(tmp_path)
    for at in range(_LOGS):
        append(run.log_dir.create_log("t", at, TOPIC_ID, CONFIG), batch())
    if is_clean:
        run.log_dir.close_clean(broker_epoch=1)
    else:
        for log in run.log_dir.logs.values():
            log.abandon()
    run.log_dir.directory.unlock()
    _with_few(open_many_logs, tmp_path)


def test_a_log_takes_no_descriptor_before_its_first_record(tmp_path: Path) -> None:
    """A new log opens no file before its first record.

    So a client that creates many topics does not use up the descriptors.
    """
    run = Run(tmp_path)
    before = descriptors_below(tmp_path)
    logs = [run.log_dir.create_log("t", at, TOPIC_ID, CONFIG) for at in range(20)]
    assert descriptors_below(tmp_path) == before
    for log in logs:
        append(log, batch())
    assert descriptors_below(tmp_path) == before + 20
