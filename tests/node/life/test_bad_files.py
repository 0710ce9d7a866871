"""Damaged files in a node's directory: the node repairs them, refuses to start with one line, or leaves them alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from odradek.node.main import ENDED, NEEDS_OPERATOR
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.metadata import MetadataRequest
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess
from testkit.raw_requests import RawClient
from tests.cli.running import odradek_here, odradek_in_nursery
from tests.node.requests.test_bad_batches import LATEST, NOT_A_REPLICA, create_topic, good_batch

BATCHES = 24
RECORD_BYTES = 100_000
FIRST = "00000000000000000000"
WAIT_SECONDS = 30.0
_NOT_YET = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make the directories of a killed node and of a stopped node. Both have a log of three segments."""
    root = tmp_path_factory.mktemp("templates")
    properties = prepare_odradek(root / "killed", settings={"log.segment.bytes": str(1 << 20)})
    server = launch_odradek(properties)
    try:
        with RawClient(server.bootstrap) as client:
            create_topic(client, "kept")
            for serial in range(BATCHES):
                answer = client.produce("kept", good_batch(1, size=RECORD_BYTES))
                assert (answer.error_code, answer.base_offset) == (0, serial)
    finally:
        server.kill()
    copy = copy_of(root / "killed", root / "clean")
    assert launch_odradek(copy / "server.properties").stop() == 0
    return {"killed": root / "killed", "clean": copy}


def copy_of(source: Path, target: Path) -> Path:
    """Copy the directory, and let its properties point to the copy."""
    shutil.copytree(source, target)
    properties = target / "server.properties"
    properties.write_text(properties.read_text().replace(str(source), str(target)))
    (target / "server.log").unlink(missing_ok=True)
    return target


@pytest.fixture
def take(templates: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A function that makes a fresh copy of a template."""
    return lambda name: copy_of(templates[name], tmp_path / f"{name}-{len(os.listdir(tmp_path))}")


@contextmanager
def running(directory: Path) -> Iterator[tuple[ServerProcess, RawClient]]:
    """Run the node of a directory and connect to it. It must still run at the end of the block; then it is killed."""
    server = launch_odradek(directory / "server.properties")
    try:
        with RawClient(server.bootstrap) as client:
            yield server, client
        assert server.is_running(), server.log_tail()
    finally:
        server.kill()


def partition_dir(directory: Path) -> Path:
    return directory / "data" / "kept-0"


def segments(directory: Path) -> list[Path]:
    found = sorted(partition_dir(directory).glob("*.log"))
    assert len(found) == 3
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def log_end_offset(client: RawClient, topic: str = "kept") -> int:
    request = ListOffsetsRequest(
        NOT_A_REPLICA, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, LATEST)])]
    )
    offset: int = client.request(request, 7).topics[0].partitions[0].offset
    return offset


def fetch(client: RawClient, offset: int) -> tuple[int, list[int]]:
    """Fetch from `offset` on; return error code and base offsets."""
    topic = FetchTopic("kept", bytes(16), [FetchPartition(0, -1, offset, -1, -1, 1 << 20)])
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=0, session_epoch=-1, topics=[topic]
    )
    answer = client.request(request, 12).responses[0].partitions[0]
    data = bytes(answer.records or b"")
    return answer.error_code, [header.base_offset for _, header in iter_batches(data)]


def refusal(directory: Path, status: int = NEEDS_OPERATOR) -> str:
    """Return the single line with which the node refuses to start. `status` is the exit status that it must have."""
    done = odradek_in_nursery("server", directory / "server.properties")
    assert done.code == status, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("odradek: ")]
    assert len(lines) == 1, done.err
    assert "Traceback" not in done.err
    return lines[0]


@pytest.mark.parametrize("cut", [1, 50_000, 100_070])
def test_a_torn_tail_is_cut_off(take: Callable[[str], Path], cut: int) -> None:
    """A torn batch after the last whole one is cut off and logged, and nothing else is lost."""
    directory = take("killed")
    last = segments(directory)[-1]
    os.truncate(last, last.stat().st_size - cut)
    with running(directory) as (server, client):
        assert log_end_offset(client) == BATCHES - 1
        assert client.produce("kept", good_batch(1)).base_offset == BATCHES - 1
        truncated = [line for line in server.log_tail(50).splitlines() if "log.truncated" in line]
        assert len(truncated) == 1
        assert last.name in truncated[0]


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damaged_indexes_are_rebuilt(take: Callable[[str], Path], damage: str) -> None:
    """Indexes that are flipped, truncated or missing are rebuilt, and every offset is found."""
    directory = take("clean")
    for name in (f"{FIRST}.index", f"{FIRST}.timeindex"):
        path = partition_dir(directory) / name
        if damage == "flipped":
            flip(path, 0)
            flip(path, path.stat().st_size - 2)
        elif damage == "cut":
            os.truncate(path, path.stat().st_size - 3)
        else:
            path.unlink()
    with running(directory) as (_, client):
        for offset in range(0, BATCHES, 5):
            error, offsets = fetch(client, offset)
            assert (error, offsets[0]) == (0, offset)


def test_a_flipped_bit_above_the_recovery_point(take: Callable[[str], Path]) -> None:
    """A flipped bit above the recovery point is found by recovery. The log ends there, and a log line names file and
    position."""
    directory = take("killed")
    first, second, _ = segments(directory)
    flip(second, 500)
    end_offset = int(second.stem)
    with running(directory) as (server, client):
        assert log_end_offset(client) == end_offset
        log = server.log_tail(50)
        assert f"{second.name} position=0 " in log
        assert "checksum is wrong" in log
        assert fetch(client, 0)[1][0] == 0
    assert first.exists()


def test_a_flipped_bit_below_the_recovery_point(take: Callable[[str], Path]) -> None:
    """A flipped bit below the recovery point is not noticed at the start. `log dump --verify` names file and
    position."""
    directory = take("clean")
    first = segments(directory)[0]
    flip(first, 500)
    with running(directory) as (_, client):
        assert log_end_offset(client) == BATCHES
    done = odradek_here("log", "dump", "--verify", partition_dir(directory))
    assert done.code == 1
    assert first.name in done.out + done.err
    assert "checksum is wrong" in done.out + done.err


def test_what_is_not_ours_is_left_alone(take: Callable[[str], Path]) -> None:
    """Foreign files stay unchanged. A partition unknown to the cluster is kept in a directory with the suffix
    `-stray`."""
    directory = take("clean")
    data = directory / "data"
    foreign = [data / "notes.txt", data / "lost+found" / "file", partition_dir(directory) / "notes.txt"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not a log")
    shutil.copytree(partition_dir(directory), data / "unknown-3")
    inside = sorted(path.name for path in (data / "unknown-3").iterdir())
    for _ in range(2):
        with running(directory) as (_, client):
            assert log_end_offset(client) == BATCHES
            assert [topic.name for topic in client.request(MetadataRequest(None), 12).topics] == ["kept"]
        (stray,) = data.glob("unknown-3.*-stray")
        assert set(inside) <= {path.name for path in stray.iterdir()} | {
            f"{FIRST}.index",
            f"{FIRST}.timeindex",
        }
        assert not (data / "unknown-3").exists()
    assert all(path.read_text() == "not a log" for path in foreign)


@pytest.mark.parametrize("damage", [b"", bytes(43)], ids=["empty", "zeros"])
def test_a_log_whose_topic_is_unreadable_waits_for_an_operator(
    take: Callable[[str], Path], damage: bytes
) -> None:
    """If `partition.metadata` is unreadable, the log is kept and answers with an error. When the file is repaired, all
    records are back."""
    directory = take("clean")
    path = partition_dir(directory) / "partition.metadata"
    text = path.read_bytes()
    path.write_bytes(damage)
    with running(directory) as (server, client):
        assert wait_for_error(client) == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("kept", good_batch(1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (line,) = [line for line in server.log_path.read_text().splitlines() if "log.id_unreadable" in line]
        assert "level=error" in line
        assert str(path) in line
    assert path.read_bytes() == damage
    path.write_bytes(text)
    with running(directory) as (_, client):
        deadline = time.monotonic() + WAIT_SECONDS
        while (answer := client.produce("kept", good_batch(1))).error_code and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (answer.error_code, answer.base_offset) == (0, BATCHES)
        assert log_end_offset(client) == BATCHES + 1


def wait_for_error(client: RawClient) -> int:
    """Fetch until the node knows the topic; return the error code."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (code := fetch(client, 0)[0]) in _NOT_YET and time.monotonic() < deadline:
        time.sleep(0.1)
    return code


def test_meta_properties_that_do_not_fit(take: Callable[[str], Path]) -> None:
    """A foreign, broken or missing `meta.properties` is refused with one line that names it. So is a missing
    directory."""
    directory = take("clean")
    data = directory / "data"
    meta = data / "meta.properties"
    text = meta.read_text()
    meta.write_text(text.replace("node.id=1", "node.id=7"))
    assert "formatted for node 7" in refusal(directory)
    meta.write_bytes(b"\x00\xff\xfe\x01 garbage\n=\n")
    assert "meta.properties" in refusal(directory)
    meta.unlink()
    assert "meta.properties" in refusal(directory)
    data.rename(directory / "elsewhere")
    assert str(data) in refusal(directory, ENDED), "the disk may be mounted later, so a retry makes sense"


def test_a_mount_point_without_its_disk(take: Callable[[str], Path]) -> None:
    """An empty directory may be a mount point whose disk comes late, so the exit status asks for a retry. For a
    directory with other files, it asks for none."""
    directory = take("clean")
    data = directory / "data"
    data.rename(directory / "elsewhere")
    data.mkdir()
    said = refusal(directory, ENDED)
    assert f"{data} is empty: mount its disk, or format the directory if it is new" in said
    assert list(data.iterdir()) == [], "nothing may be written into a mount point"
    (data / "notes.txt").write_text("not a log")
    assert "has no file meta.properties" in refusal(directory)


def test_a_separate_mount_point_of_the_metadata_log(take: Callable[[str], Path]) -> None:
    """An empty `metadata.log.dir` is also treated as a mount point, with a retry."""
    directory = take("clean")
    place = directory / "metadata"
    place.mkdir()
    properties = directory / "server.properties"
    properties.write_text(f"{properties.read_text()}metadata.log.dir={place}\n")
    assert f"{place} is empty" in refusal(directory, ENDED)
    assert list(place.iterdir()) == []


def test_a_blank_disk_has_to_be_formatted(take: Callable[[str], Path], small_disk: Path) -> None:
    """Waiting does not help against a blank disk that is mounted, so the exit status asks for an operator."""
    directory = take("clean")
    properties = directory / "server.properties"
    properties.write_text(properties.read_text().replace(f"{directory / 'data'}", str(small_disk)))
    assert f"{small_disk} is empty" in refusal(directory)


def test_directories_of_two_clusters(take: Callable[[str], Path]) -> None:
    """Directories with different cluster ids stop the start."""
    directory = take("clean")
    foreign = directory / "foreign"
    foreign.mkdir()
    text = (directory / "data" / "meta.properties").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("cluster.id", "directory.id"))]
    lines += ["cluster.id=AAAAAAAAAAAAAAAAAAAAAQ", "directory.id=BBBBBBBBBBBBBBBBBBBBBQ"]
    (foreign / "meta.properties").write_text("\n".join(lines) + "\n")
    properties = directory / "server.properties"
    settings = properties.read_text().replace("log.dirs=", f"log.dirs={foreign},")
    properties.write_text(settings + f"metadata.log.dir={directory / 'data'}\n")
    assert "different clusters" in refusal(directory)


@pytest.mark.parametrize("hold", [fcntl.flock, fcntl.lockf], ids=["odradek", "kafka"])
def test_a_directory_that_another_process_holds(
    take: Callable[[str], Path], hold: Callable[[IO[bytes], int], object]
) -> None:
    """A directory whose `.lock` file is locked, by flock or by a POSIX lock, is refused."""
    directory = take("clean")
    with (directory / "data" / ".lock").open("ab") as lock:
        hold(lock, fcntl.LOCK_EX)
        assert "another process has locked the directory" in refusal(directory, ENDED)


def test_damage_in_the_metadata_stops_the_node(take: Callable[[str], Path]) -> None:
    """Damage inside the metadata log, or in quorum-state, stops the start with one line that names the file."""
    directory = take("killed")
    metadata = directory / "data" / "__cluster_metadata-0"
    flip(metadata / f"{FIRST}.log", 70)
    assert f"{FIRST}.log" in refusal(directory)
    directory = take("killed")
    (directory / "data" / "__cluster_metadata-0" / "quorum-state").write_text("{ not json")
    said = refusal(directory)
    assert "quorum-state" in said
    assert "move __cluster_metadata-0 and metadata-log-begun out of the directory" in said


def test_a_metadata_log_that_is_gone_names_one_way_out(take: Callable[[str], Path]) -> None:
    """A controller that has lost its quorum-state stops. Its message offers exactly one way to restore it."""
    directory = take("killed")
    (directory / "data" / "__cluster_metadata-0" / "quorum-state").unlink()
    said = refusal(directory)
    assert "has no file quorum-state" in said
    assert said.lower().count("restore ") == 1, said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB on a loop device."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(path: Path) -> None:
    """Fill the rest of the disk with this file."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(bytes(size)) == size:
                    continue
            except OSError:
                continue


def test_a_full_disk(small_disk: Path) -> None:
    """On a full disk Produce gets KAFKA_STORAGE_ERROR, and reads still work. With room again, Produce and CreateTopics
    succeed."""
    directory = small_disk / "node"
    prepare_odradek(directory)
    filler = small_disk / "filler"
    with running(directory) as (server, client):
        create_topic(client, "kept")
        assert client.produce("kept", good_batch(1, size=RECORD_BYTES)).base_offset == 0
        fill(filler)
        for _ in range(3):
            answer = client.produce("kept", good_batch(1, size=RECORD_BYTES))
            assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert log_end_offset(client) == 1
        assert fetch(client, 0) == (0, [0])
        request = CreateTopicsRequest([CreatableTopic("late", 40, 1, [], [])], 500, False)
        created = client.request(request, 5).topics[0].error_code
        assert ErrorCode(created) in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
        filler.unlink()
        deadline = time.monotonic() + WAIT_SECONDS
        # The node refuses writes until it next measures the disk, which may take a while on a busy machine.
        while (answer := client.produce("kept", good_batch(1, size=RECORD_BYTES))).error_code:
            assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
            assert time.monotonic() < deadline, server.log_tail()
        assert answer.base_offset == 1
        while client.produce("late", good_batch(1)).error_code:
            assert time.monotonic() < deadline, server.log_tail()
        create_topic(client, "later")
        assert client.produce("later", good_batch(1)).base_offset == 0
