"""`consume --group` commits exactly what it handed over, however it ends."""

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
"""Records in all: with `WIDE` bytes each they are more than a pipe takes."""
WIDE = 900
WAIT_SECONDS = 60.0


@pytest.fixture
def admin(node: RunningNode) -> Iterator[Admin]:
    """An administrator of the node."""
    with Admin(bootstrap_servers=node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(node: RunningNode, fresh_topic: Callable[[str], str]) -> str:
    """A topic whose records say their place: `partition:offset:` and a filling."""
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
    """A member of a group as a process; a pipe of ours is its output."""

    def __init__(self, node: RunningNode, topic: str, group: str, *options: str | Path) -> None:
        self.process = subprocess.Popen(
            command("consume", topic, "--group", group, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(node.bootstrap),
            # A suite that runs under `nohup` hands its children a hang-up that is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def lines(self, count: int) -> list[bytes]:
        """So many lines, waited for."""
        return [self.out.readline() for _ in range(count)]

    def wait_full(self) -> None:
        """Wait until the pipe takes no more, so that the process waits for a reader, or is about to."""
        deadline = time.monotonic() + WAIT_SECONDS
        writing = os.open(f"/proc/self/fd/{self.out.fileno()}", os.O_WRONLY)
        try:
            room = select.poll()
            room.register(writing, select.POLLOUT)
            while room.poll(0):
                assert time.monotonic() < deadline, "the pipe was not filled"
                os.sched_yield()
        finally:
            os.close(writing)

    def end(self, number: int | None = None) -> tuple[int, list[bytes], str]:
        """Send the signal; exit status, the lines that were left to read, what stands on stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out.splitlines(keepends=True), err.decode()


def committed(admin: Admin, topic: str, group: str) -> dict[int, int]:
    """The committed offset by partition."""
    (found,) = admin.list_group_offsets({group: None})
    assert not isinstance(found, Exception)
    return {key.partition: each.offset for key, each in found.offsets.items() if key.topic == topic}


def printed(lines: list[bytes]) -> dict[int, int]:
    """The number of whole records printed, by partition; they are the first of it, each once and in order."""
    whole = [line for line in lines if line.endswith(b"\n")]
    places = [tuple(map(int, line.split(b":")[:2])) for line in whole]
    for index in range(PARTITIONS):
        offsets = [offset for partition, offset in places if partition == index]
        assert offsets == list(range(len(offsets)))
    counts = Counter(partition for partition, _ in places)
    return {index: counts[index] for index in range(PARTITIONS)}


def members(admin: Admin, group: str) -> int:
    """The number of the group's members now."""
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
    """--max-messages cuts a poll: what it cut off is not committed, and the next round begins with it."""
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
    """All is committed, the member has left, and the process dies of the signal (of Ctrl-C with 130)."""
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
    """A pipe that is full: the lines in it are committed, the others come to the next member, none twice."""
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
    """`| head`: what the pipe took is committed; the write that failed is not, and comes again."""
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
    """The first write fails: the place to begin is committed, and the lag is all there is."""
    group = fresh_topic("group")
    member = Member(node, topic, group)
    member.out.close()
    _, err = member.process.communicate(timeout=WAIT_SECONDS)
    assert (member.process.returncode, err) == (1, b"")
    assert committed(admin, topic, group) == dict.fromkeys(range(PARTITIONS), 0)


def test_a_disk_that_is_full(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """A write that the disk refuses hands nothing over; one line says so."""
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
    """Records of a group go to somebody: the command needs a standard output."""
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
    """SIGTERM commits, but a member with a `group.instance.id` keeps its place for its next start (KIP-345)."""
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
    """While the first is obeyed the default handler is back: a silent node holds nobody up."""
    if node.process is None:
        pytest.skip("the server was named by the environment: it is not ours to stop")
    member = Member(node, topic, fresh_topic("group"), "--follow")
    member.lines(RECORDS)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        member.process.send_signal(signal.SIGTERM)
        handled = Path(f"/proc/{member.process.pid}/status")
        bit = 1 << (signal.SIGTERM - 1)
        deadline = time.monotonic() + WAIT_SECONDS
        while int(handled.read_text().split("SigCgt:")[1].split()[0], 16) & bit:
            assert time.monotonic() < deadline, "the first signal was not obeyed"
            os.sched_yield()
        assert member.end(signal.SIGTERM)[0] == -signal.SIGTERM
    finally:
        os.kill(node.process.pid, signal.SIGCONT)


def test_markers_leave_no_lag(
    node: RunningNode, admin: Admin, topic: str, fresh_topic: Callable[[str], str]
) -> None:
    """Behind the last record stand a marker and an aborted transaction: a committed reader commits behind them."""
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
            assert time.monotonic() < deadline, "the markers were not written"
    code, lines, err = Member(node, topic, group, "--isolation", "read_committed").end()
    assert (code, err, len(lines)) == (0, "", RECORDS + 1)
    assert committed(admin, topic, group) == {0: each + 4, 1: each, 2: each, 3: each}
