"""Companions: first tests that real and simulated companions share, then tests of the real process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from odradek.env import companion as companion_module
from odradek.env.companion_frames import Outgoing
from odradek.env.ports import (
    FILES_MAX,
    Companion,
    CompanionFailed,
    CompanionLost,
    CompanionRefused,
    Dir,
    DiskError,
    FileClosed,
    FileMissing,
    ResourcesShort,
)
from odradek.env.real import RealEnv
from odradek.env.real_descriptors import readable
from sim.machine.waiting import NodeCrashed
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.processes import command_prefix
from tests.env.companions import MIB

MIRROR = "tests.env.companions:Mirror"
PROCESS = "tests.env.companions:Process"
ROOT = Path(__file__).resolve().parents[2]


class Maker(Protocol):
    """The part of `Env` that these tests use."""

    def new_companion(self, factory: str, *args: Any) -> Companion: ...

    def open_dir(self, path: str, *, create: bool = False) -> Dir: ...


@pytest.fixture
def real() -> Iterator[RealEnv]:
    """Make the real environment. Its companions end with the test."""
    env = RealEnv()
    yield env
    env.close()


@pytest.fixture(params=["real", "sim"])
def env(request: pytest.FixtureRequest) -> Maker:
    """Make the real and the simulated environment in turn."""
    if request.param == "sim":
        return World(1, Weather()).node_env("a")
    made: Maker = request.getfixturevalue("real")
    return made


def test_a_call_returns_what_the_method_returns(env: Maker) -> None:
    """The factory and the method get their arguments, and the caller gets the method's result."""
    mirror = env.new_companion(MIRROR, 7, "x")
    assert mirror.call("made_of") == (7, "x")
    assert mirror.call("echo", 1, None, {"a": [b"b"]}) == (1, None, {"a": [b"b"]})
    mirror.close()


def test_long_bytes_pass_both_ways(env: Maker) -> None:
    """Bytes, bytearrays and arrays of up to 4 MiB keep their types in both directions, nested or repeated."""
    mirror = env.new_companion(MIRROR)
    long, array = os.urandom(4 * MIB), np.arange(MIB, dtype=np.int32)
    for value in (long, bytearray(long), b"", bytearray(b"short"), [long, {"again": long}]):
        (back,) = mirror.call("echo", value)
        assert type(back) is type(value)
        assert back == value
    for numbers in (array, array[:9], array.reshape(1024, 1024).T[::2]):
        (there,) = mirror.call("echo", numbers)
        assert np.array_equal(there, numbers)
        assert there.flags.writeable
    mirror.close()


def test_an_exception_comes_back_as_it_is(env: Maker) -> None:
    """An exception of the factory or the method reaches the caller, and the object goes on working."""
    mirror = env.new_companion(MIRROR)
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        mirror.call("fail", ZeroDivisionError("by nothing"))
    with pytest.raises(ResourcesShort) as caught:
        mirror.call("fail", ResourcesShort("/data", "/data/a.log", "read", 24, "too many"))
    error = caught.value
    assert (error.directory, error.path, error.operation, error.errno, error.reason, str(error)) == (
        "/data",
        "/data/a.log",
        "read",
        24,
        "too many",
        "read /data/a.log: too many",
    )
    with pytest.raises(AttributeError, match="no_such_method"):
        mirror.call("no_such_method")
    assert mirror.call("echo", 1) == (1,)
    never_made = env.new_companion("tests.env.companions:NeverMade", "a reason")
    for _ in range(2):
        with pytest.raises(LookupError, match="a reason"):
            never_made.call("echo")
    mirror.close()
    never_made.close()


def test_a_pinned_file_is_read_even_if_it_was_removed(env: Maker, tmp_path: Path) -> None:
    """A `File` among the arguments arrives with path, size and `pread`, and reads the same file even after its
    removal."""
    directory = env.open_dir(str(tmp_path / "data"), create=True)
    file = directory.open("a.log", create=True)
    file.append(b"0123456789")
    file.rest()
    file.pin()
    mirror = env.new_companion(MIRROR)
    assert mirror.call("read", file, 4, 3) == (file.path, 10, b"3456")
    directory.remove("a.log")
    file.close()
    assert mirror.call("read", file, 100, 8) == (file.path, 10, b"89")
    assert mirror.call("read_all", {"one": [file, file]}) == {"one": [b"0123456789"] * 2}
    file.unpin()
    with pytest.raises(FileClosed):
        mirror.call("read", file, 1, 0)
    assert mirror.call("echo", 1) == (1,)
    mirror.close()


def test_a_closed_companion_is_lost(env: Maker) -> None:
    """After `close`, which may be called twice, each call raises `CompanionLost`, even if the companion was never used
    before."""
    for is_used in (False, True):
        mirror = env.new_companion(MIRROR)
        if is_used:
            mirror.call("echo")
        mirror.close()
        mirror.close()
        with pytest.raises(CompanionLost, match="closed"):
            mirror.call("echo")


def test_a_dead_node_calls_nothing() -> None:
    """In the simulator a companion dies with its node, like all ports of the node."""
    world = World(1, Weather())
    called: list[str] = []

    async def main() -> None:
        env = world.node_env("a")
        mirror = env.new_companion(MIRROR)
        mirror.call("echo")
        world.crash("a")
        try:
            mirror.call("echo")
        except NodeCrashed:
            called.append("crashed")

    world.run(main)
    assert called == ["crashed"]


# --- the process


def children() -> set[str]:
    """Return the child processes of this process, zombies included."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        # `Thread.join` returns shortly before the kernel ends the thread. Its children pass to another thread.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update((task / "children").read_text().split())
    return found


def descriptors() -> dict[str, str]:
    """Count the descriptors of this process that companions use."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(("socket:", "pipe:")):
                found[fd] = target
    return found


def test_nothing_is_started_before_the_first_call(real: RealEnv) -> None:
    """The process starts with the first call. After `close` there is neither a zombie nor a descriptor."""
    before = children(), descriptors()
    process = real.new_companion(PROCESS)
    assert (children(), descriptors()) == before
    pid = process.call("pid")
    assert children() - before[0] == {str(pid)}
    assert len(descriptors()) == len(before[1]) + 2
    process.close()
    assert (children(), descriptors()) == before


def test_the_process_has_what_it_needs_and_nothing_else(real: RealEnv, tmp_path: Path) -> None:
    """The process inherits neither locks nor files, has a lower priority than the node, and finds the same packages."""
    directory = real.open_dir(str(tmp_path))
    directory.lock()
    (tmp_path / "leaky").touch()
    fd = os.open(tmp_path / "leaky", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        status = real.new_companion(PROCESS).call("status")
    finally:
        os.close(fd)
    held = [target for target in status["descriptors"] if not target.startswith(("socket:", "pipe:"))]
    assert not [target for target in held if target.startswith(str(tmp_path))]
    assert status["nice"] == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    # The first entry is the folder of the started program, which may have modules with the same names.
    paths = list(dict.fromkeys(map(os.path.abspath, sys.path[1:])))
    if str(ROOT) not in paths:
        paths.insert(0, str(ROOT))
    assert status["sys.path"][: len(paths)] == paths
    assert status["threads"] == "1"


def test_a_killed_process_is_lost_and_the_next_one_works(real: RealEnv) -> None:
    """If the process is killed, each later call raises `CompanionLost`. A new companion works."""
    before = children(), descriptors()
    process = real.new_companion(PROCESS)
    os.kill(process.call("pid"), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(CompanionLost, match="ended by SIGKILL"):
            process.call("pid")
    assert (children(), descriptors()) == before, "nothing waits for `close`"
    with pytest.raises(CompanionLost, match="ended with status 3"):
        real.new_companion(PROCESS).call("end", 3)
    assert (children(), descriptors()) == before
    assert real.new_companion(PROCESS).call("pid") > 0


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Make a named pipe, through which a companion announces that a call runs."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def first_line(fifo: Path) -> str:
    """Return the line that a companion writes. Raise `AssertionError` if none comes, for example as it has ended."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor) as pipe:
        assert readable([descriptor], 60), "the companion announces nothing"
        os.set_blocking(descriptor, True)
        return pipe.readline()


def test_close_ends_a_call_that_runs(real: RealEnv, fifo: Path) -> None:
    """If `close` is called during another thread's call, that call raises `CompanionLost` at once, even if the
    companion is busy."""
    before = children(), descriptors()
    process = real.new_companion(PROCESS)
    caught: list[BaseException] = []

    def call() -> None:
        try:
            process.call("hold", str(fifo))
        except CompanionLost as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert int(first_line(fifo)) == process.pid
    process.close()
    thread.join()
    assert [str(error) for error in caught] == [f"the companion {PROCESS} was closed"]
    assert (children(), descriptors()) == before


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_process_ends_when_its_node_is_killed(fifo: Path, is_busy: bool) -> None:
    """If the node is killed, its companion ends at once, even during a call or after the thread that started it."""
    script = f"""
import sys, threading
from odradek.env.real import RealEnv
process = RealEnv().new_companion({PROCESS!r})
thread = threading.Thread(target=lambda: print(process.call("pid"), flush=True))
thread.start(); thread.join()
if {is_busy}: process.call("hold", sys.argv[1])
else: threading.Event().wait()
"""
    node = subprocess.Popen(
        [*command_prefix(), sys.executable, "-c", script, str(fifo)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        companion = os.pidfd_open(pid)
        if is_busy:
            assert int(first_line(fifo)) == pid
        assert not readable([companion], 0)
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
    assert readable([companion], 30), "the companion has outlived its node"
    os.close(companion)


def test_the_signals_that_stop_a_node_leave_its_companion(real: RealEnv) -> None:
    """A companion ignores SIGINT and SIGTERM, which reach all processes of a terminal or service. It lives as long as
    its node."""
    process = real.new_companion(PROCESS)
    pid = process.call("pid")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        assert process.call("pid") == pid


def test_an_error_that_cannot_be_pickled_comes_as_its_text(real: RealEnv) -> None:
    """An error or result that cannot be pickled becomes `CompanionFailed` with type, text and a note of the place."""
    mirror = real.new_companion(MIRROR)
    with pytest.raises(CompanionFailed, match=r"companions\.Unpicklable: \('told', <unlocked") as caught:
        mirror.call("fail_oddly")
    (note,) = caught.value.__notes__
    assert note.startswith("the companion process raised this at: ")
    assert note.endswith(" fail_oddly")
    with pytest.raises(TypeError, match="cannot pickle"):
        mirror.call("result_that_stays")
    with pytest.raises(TypeError, match="cannot pickle"):
        mirror.call("echo", threading.Lock())
    assert mirror.call("echo", 1) == (1,)


def test_a_memoryview_arrives_as_bytes(real: RealEnv) -> None:
    """A memoryview arrives as its bytes in order, since the other process does not share its memory."""
    mirror = real.new_companion(MIRROR)
    whole = memoryview(bytes(range(256)) * 1024)
    for view in (whole, whole[1:4], whole[::2], whole[:0], whole.cast("I")):
        (back,) = mirror.call("echo", view)
        assert type(back) is bytes
        assert back == view.tobytes()


def test_a_lent_file_is_of_use_during_its_call(real: RealEnv, tmp_path: Path) -> None:
    """A file that is passed to a call can be read during this call. Then it is closed, and the companion keeps no
    descriptor."""
    file = real.open_dir(str(tmp_path)).open("a.log", create=True)
    file.append(b"x")
    mirror = real.new_companion(MIRROR)
    mirror.call("keep", file)
    with pytest.raises(FileClosed):
        mirror.call("read_kept")
    with pytest.raises(ValueError, match="one call passes 251 files"):
        mirror.call("echo", [file] * (FILES_MAX + 1))
    assert len(mirror.call("read_all", {"all": [file] * FILES_MAX})["all"]) == FILES_MAX
    file.close()


def test_a_failed_read_names_the_directory(real: RealEnv, tmp_path: Path) -> None:
    """If a companion's read fails, the node gets a `DiskError` with the log directory, as if the node itself had
    read."""
    file = real.open_dir(str(tmp_path)).open("a.log", create=True)
    mirror = real.new_companion(MIRROR)
    with pytest.raises(DiskError) as caught:
        mirror.call("read", file, 1, -1)
    assert (caught.value.directory, caught.value.path, caught.value.operation) == (
        str(tmp_path),
        file.path,
        "read",
    )
    assert not isinstance(caught.value, FileMissing)


def test_a_start_that_the_system_refuses_may_be_tried_again(
    real: RealEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system cannot start a process (fork(2), EAGAIN), `CompanionRefused` is raised and a later call may try
    again."""
    before = children(), descriptors()
    process = real.new_companion(PROCESS)

    def refuse(*args: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(companion_module.subprocess, "Popen", refuse)
        with pytest.raises(CompanionRefused, match=r"did not start: .*temporarily unavailable"):
            process.call("pid")
    assert (children(), descriptors()) == before
    assert process.call("pid") == process.pid
    process.close()


def test_calls_of_two_threads_have_their_turns(real: RealEnv) -> None:
    """If two threads call at the same time, each gets the answer to its own call."""
    mirror = real.new_companion(MIRROR)
    answers: dict[int, list[Any]] = {0: [], 1: []}

    def ask(number: int) -> None:
        for turn in range(200):
            answers[number].append(mirror.call("echo", number, turn, bytes(turn)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [(number, turn, bytes(turn)) for turn in range(200)] for number in answers}


def test_a_companion_is_of_its_environment(real: RealEnv) -> None:
    """`RealEnv.close` ends its companions, so that a process that embeds a node has no child left."""
    before = children()
    made = [real.new_companion(PROCESS) for _ in range(2)]
    pids = {process.call("pid") for process in made}
    assert len(pids) == 2
    real.close()
    assert children() == before


def test_a_companion_gives_way() -> None:
    """A companion raises its niceness on any system. It also works if the kernel lacks long time slices."""
    script = "import os; from odradek.env.low_priority import *; give_way(); print(os.getpriority(0, 0) - NICENESS)"
    before = os.getpriority(os.PRIO_PROCESS, 0)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(said.stdout) == before
    assert not said.stderr


def test_a_frame_in_a_cycle_is_collected_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is garbage in a cycle, like one in the traceback of an error, reports nothing on stderr."""
    reported: list[Any] = []
    gc.collect()  # Other tests may have left garbage that does report something.
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    cycle: list[Any] = [Outgoing("a value")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert reported == []
