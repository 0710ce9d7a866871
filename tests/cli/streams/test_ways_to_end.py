"""`consume --group` commits exactly the records that it printed, however it ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek import Admin, Consumer, Producer
from odradek.wire.topic_partition import TopicPartition
from tests.cli.running import command, environment, odradek_here
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("cli")
PARTITIONS = 4
RECORDS = 300
"""Total number of records. With `WIDE` bytes each, they are more than a pipe takes."""
WIDE = 900
WAIT_SECONDS = 60.0


@pytest.fixture
def admin(node: RunningNode) -> Iterator[Admin]:
    """An administration client of the node."""
    with Admin(bootstrap_servers=node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(node: RunningNode, fresh_topic: Callable[[str], str]) -> str:
    """A topic whose values begin with their own place, `partition:offset:`, and are padded to `WIDE` bytes."""
    name = fresh_topic("ends")
    odradek_here("topic", "create", name, "--partitions", str(PARTITIONS), bootstrap=node.bootstrap)
    # One batch for each partition, so that a small fetch brings one partition's records.
    with Producer(bootstrap_servers=node.bootstrap, linger_ms=60_000, batch_size=1 << 20) as producer:
        for number in range(RECORDS):
            partition, offset = number % PARTITIONS, number // PARTITIONS
            producer.send(name, f"{partition}:{offset}:".ljust(WIDE, "x").encode(), partition=partition)
        producer.flush()
    return name


class Member:
    """A member of a group: `consume --group` as a process that writes into a pipe of ours."""

    def __init__(self, node: RunningNode, topic: str, group: str, *options: str | Path) -> None:
        self.process = subprocess.Popen(
            command("consume", topic, "--group", group, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(node.bootstrap),
            # Under `nohup`, child processes inherit an ignored SIGHUP.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def lines(self, count: int) -> list[bytes]:
        """Wait for `count` lines and return them."""
        return [self.out.readline() for _ in range(count)]

    def wait_full(self) -> None:
        """Wait until the pipe is full, so that the process is blocked in a write or soon will be."""
        deadline = time.monotonic() + WAIT_SECONDS
        writing = os.open(f"/proc/self/fd/{self.out.fileno()}", os.O_WRONLY)
        try:
            room = select.poll()
            room.register(writing, select.POLLOUT)
            while room.poll(0):
                assert time.monotonic() < deadline, "the member did not fill the pipe"
                os.sched_yield()
        finally:
            os.close(writing)

    def end(self, number: int | None = None) -> tuple[int, list[bytes], str]:
        """Send the signal and wait. Return the exit status, the lines still unread, and the text on stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out.splitlines(keepends=True), err.decode()


def committed(admin: Admin, topic: str, group: str) -> dict[int, int]:
    """Return the group's committed offset of each partition."""
    (found,) = admin.list_group_offsets({group: None})
    assert not isinstance(found, Exception)
    return {key.partition: each.offset for key, each in found.offsets.items() if key.topic == topic}


def printed(lines: list[bytes]) -> dict[int, int]:
    """Count the whole lines of each partition, which must be its first records in order, without duplicates."""
    whole = [line for line in lines if line.endswith(b"\n")]
    places = [tuple(map(int, line.split(b":")[:2])) for line in whole]
    for index in range(PARTITIONS):
        offsets = [offset for partition, offset in places if partition == index]
        assert offsets == list(range(len(offsets)))
    counts = Counter(partition for partition, _ in places)
    return {index: counts[index] for index in range(PARTITIONS)}


def members(admin: Admin, group: str) -> int:
    """Return the current number of members of the group."""
    (found,) = admin.describe_groups([group])
    return len(found.members)


@pytest.mark.parametrize("limit", [1, 7, 100, RECORDS])
def test_a_limit(
    node: RunningNode,
    admin: Admin,
    topic: str,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
    limit: int,
) -> None:
    """A poll may return more records than --max-messages allows. The surplus is not committed, and the next run begins
    with it."""
    keys = tmp_path / "client.properties"
    keys.write_text("fetch.max.bytes=1\n")
    group = fresh_topic("group")
    lines: list[bytes] = []
    for _ in range(2):
        options = ("--max-messages", str(limit), "--command-config", keys)
        status, found, err = Member(node, topic, group, *options).end()
        lines += found
        assert (status, err) == (0, "")
        assert committed(admin, topic, group) == printed(lines)
    assert sum(printed(lines).values()) == min(2 * limit, RECORDS)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_a_signal_while_it_waits_for_records(
    node: RunningNode,
    admin: Admin,
    topic: str,
    fresh_topic: Callable[[str], str],
    number: signal.Signals,
    status: int,
) -> None:
    """At a signal, all printed records are committed and the member leaves the group. Ctrl-C gives status 130; other
    signals kill the process."""
    group = fresh_topic("group")
    member = Member(node, topic, group, "--follow")
    lines = member.lines(RECORDS)
    assert member.end(number) == (status, [], "")
    assert committed(admin, topic, group) == printed(lines)
    assert members(admin, group) == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_while_it_waits_for_a_reader(
    node: RunningNode,
    admin: Admin,
    topic: str,
    fresh_topic: Callable[[str], str],
    number: signal.Signals,
    status: int,
) -> None:
    """A signal comes while the pipe is full. The lines in the pipe are committed, and the next member gets all the
    others once."""
    group = fresh_topic("group")
    member = Member(node, topic, group)
    member.wait_full()
    code, lines, err = member.end(number)
    assert (code, err) == (status, "")
    assert 0 < len(lines) < RECORDS
    assert committed(admin, topic, group) == printed(lines)
    assert members(admin, group) == 0
    code, rest, _ = Member(node, topic, group).end()
    assert code == 0
    assert sorted(lines + rest) == sorted(set(lines + rest))
    assert len(lines + rest) == RECORDS


def test_a_reader_that_leaves(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """With `| head`, the records that the pipe took are committed. Those of the failed write come again."""
    group = fresh_topic("group")
    member = Member(node, topic, group)
    member.wait_full()
    taken = member.lines(3)
    held = struct.unpack("i", fcntl.ioctl(member.out, termios.FIONREAD, b"\0\0\0\0"))[0]
    member.out.close()
    _, err = member.process.communicate(timeout=WAIT_SECONDS)
    assert (member.process.returncode, err) == (1, b"")
    commits = committed(admin, topic, group)
    assert sum(commits.values()) >= len(taken)
    assert sum(commits.values()) < RECORDS, held
    code, rest, _ = Member(node, topic, group).end()
    assert code == 0
    counts = Counter(int(line.split(b":")[0]) for line in rest)
    assert {index: RECORDS // PARTITIONS - counts[index] for index in range(PARTITIONS)} == commits


def test_a_reader_that_was_never_there(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """If even the first write fails, the start offsets are committed, so the lag is the whole topic."""
    group = fresh_topic("group")
    member = Member(node, topic, group)
    member.out.close()
    _, err = member.process.communicate(timeout=WAIT_SECONDS)
    assert (member.process.returncode, err) == (1, b"")
    assert committed(admin, topic, group) == dict.fromkeys(range(PARTITIONS), 0)


def test_a_disk_that_is_full(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """If the output is on a full disk, nothing new is committed, and one line gives the reason."""
    group = fresh_topic("group")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command("consume", topic, "--group", group),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(node.bootstrap),
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"odradek: the output cannot be written: the device has no space left\n"
    assert committed(admin, topic, group) == dict.fromkeys(range(PARTITIONS), 0)


def test_a_closed_output_reads_nothing(
    node: RunningNode, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """Without a standard output, `consume --group` refuses to run, since its records would be lost."""
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command("consume", topic, "--group", fresh_topic("group"))],
        capture_output=True,
        env=environment(node.bootstrap),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"odradek: standard output is closed, ")


def test_a_static_member_stays(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """SIGTERM commits, but a member with a `group.instance.id` stays in the group for its next start (KIP-345)."""
    keys = tmp_path / "client.properties"
    keys.write_text("group.instance.id=one\nenable.auto.commit=true\n")
    group = fresh_topic("group")
    member = Member(node, topic, group, "--follow", "--command-config", keys)
    lines = member.lines(RECORDS)
    assert member.end(signal.SIGTERM) == (-signal.SIGTERM, [], "")
    assert committed(admin, topic, group) == printed(lines)
    assert members(admin, group) == 1


def test_a_second_signal_ends_at_once(
    node: RunningNode, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """During the clean end after the first signal, a second one ends the process at once, even if the node is
    silent."""
    if node.process is None:
        pytest.skip("the environment names the server, and the test may stop only its own")
    member = Member(node, topic, fresh_topic("group"), "--follow")
    member.lines(RECORDS)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        member.process.send_signal(signal.SIGTERM)
        handled = Path(f"/proc/{member.process.pid}/status")
        bit = 1 << (signal.SIGTERM - 1)
        deadline = time.monotonic() + WAIT_SECONDS
        while int(handled.read_text().split("SigCgt:")[1].split()[0], 16) & bit:
            assert time.monotonic() < deadline, "the member still catches SIGTERM after the first one"
            os.sched_yield()
        assert member.end(signal.SIGTERM)[0] == -signal.SIGTERM
    finally:
        os.kill(node.process.pid, signal.SIGCONT)


def test_markers_leave_no_lag(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """A marker and an aborted transaction follow the last record. A read_committed member commits the offset after
    them."""
    group = fresh_topic("group")
    with Producer(bootstrap_servers=node.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, b"0:75:", partition=0)
            producer.flush()
            end()
    each = RECORDS // PARTITIONS
    with Consumer(bootstrap_servers=node.bootstrap, isolation_level="read_committed") as reader:
        deadline = time.monotonic() + WAIT_SECONDS
        while reader.end_offsets([(topic, 0)])[TopicPartition(topic, 0)] < each + 4:
            assert time.monotonic() < deadline, "the last stable offset did not pass the markers"
    code, lines, err = Member(node, topic, group, "--isolation", "read_committed").end()
    assert (code, err, len(lines)) == (0, "", RECORDS + 1)
    assert committed(admin, topic, group) == {0: each + 4, 1: each, 2: each, 3: each}
