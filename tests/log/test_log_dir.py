"""A log directory: start and stop, checkpoints, deletion, and files that are left alone."""

from __future__ import annotations

import errno
import gc
import tracemalloc
from pathlib import Path

import pytest

from odradek.data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    decode_offsets,
    encode_clean_shutdown,
    encode_offsets,
    take_clean_shutdown,
)
from odradek.data_plane.log.directory.log_dir import LogDir, parse_partition_name
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.leader_epochs import MalformedCheckpoint
from odradek.data_plane.log.segments.file_names import file_name
from odradek.env.ports import DiskError, DiskFull, DiskHung
from odradek.env.real_dirs import open_dir
from odradek.metadata_quorum.replica.meta_properties import META_PROPERTIES, MetaProperties, NotALogDirectory
from odradek.wire.topic_partition import TopicPartition
from testkit.by_hand import NOW_MS, finish
from tests.log.support import (
    DIRECTORY_ID,
    ROOT,
    TOPIC_ID,
    Node,
    append,
    batch,
    content,
    fill,
    new_disk,
    offsets_in,
    retain,
)

SIZE = len(batch())


# --- the small files


def test_meta_properties_say_who_owns_the_directory() -> None:
    """meta.properties has Kafka's version 1, with comments and escapes."""
    meta = MetaProperties("H5nlA7uKR0-zDRxvMJS5iw", 3, DIRECTORY_ID)
    assert MetaProperties.decode(meta.encode()) == meta
    text = b"#\n#Sat Nov 21 2026\nnode.id=3\nversion=1\ncluster.id=a\\:b\\=c\ndirectory.id=EBESExQVFhcYGRobHB0eHw\n"
    assert MetaProperties.decode(text) == MetaProperties("a:b=c", 3, DIRECTORY_ID)


def test_a_cluster_id_is_read_as_kafka_reads_it() -> None:
    """A cluster id is decoded as Latin-1 with escapes, as Kafka 4.3 does.

    Kafka's tool writes the file in UTF-8. So Kafka's own nodes, too, read "clüster" as another id.
    """
    lines = "node.id=3\nversion=1\ncluster.id=%s\ndirectory.id=EBESExQVFhcYGRobHB0eHw\n"
    for written, known in (("clüster", "clÃ¼ster"), ("\\ a\\fb ", " a\fb "), ("\\u20AC", "€")):
        assert MetaProperties.decode((lines % written).encode()).cluster_id == known


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version=0\ncluster.id=x\nnode.id=1\ndirectory.id=EBESExQVFhcYGRobHB0eHw\n",
        b"version=1\nnode.id=1\n",
    ]
    + [
        b"version=1\ncluster.id=x\nnode.id=%s\ndirectory.id=%s\n" % pair
        for pair in ((b"x", b"x"), (b"1", b"x"))
    ],
)
def test_another_meta_properties_is_refused(data: bytes) -> None:
    """A malformed meta.properties, or one of another version, is refused, and the directory is not changed."""
    with pytest.raises(NotALogDirectory):
        MetaProperties.decode(data)


def test_an_unformatted_directory_is_refused() -> None:
    """An unformatted directory is not opened. A formatted one has cluster id, node id and directory id."""
    disk = new_disk()
    directory = disk.open_dir("fresh", create=True)
    node = Node()
    with pytest.raises(NotALogDirectory):
        LogDir.open(directory, node.log_dir.context, config_for=lambda topic: LogConfig())
    directory.write_atomic(META_PROPERTIES, MetaProperties("c", 2, DIRECTORY_ID).encode())
    opened = LogDir.open(directory, node.log_dir.context, config_for=lambda topic: LogConfig())
    assert (opened.cluster_id, opened.node_id, opened.directory_id) == ("c", 2, DIRECTORY_ID)


def test_offset_checkpoints_are_kafkas_text() -> None:
    """Offset checkpoints have Kafka's format: version 0, number of entries, and lines of `topic partition offset`."""
    offsets = {("a", 0): 5, ("b.c-d", 12): 0}
    assert encode_offsets(offsets) == b"0\n2\na 0 5\nb.c-d 12 0\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(b"") == {}
    damaged = (b"0\n1\n", b"0\n1\na 0\n", b"0\n1\na x 0\n", b"7\n0\n", b"0\nx\n", b"0\n1\na 0 -1\n")
    for data in (*damaged, b"0\n1\na 0 9223372036854775808\n", b"0\n1\na 0 5 5\n"):
        with pytest.raises(MalformedCheckpoint):
            decode_offsets(data)


def test_the_clean_shutdown_marker_counts_once() -> None:
    """The marker of a clean shutdown is Kafka's JSON.

    It is removed when it is read, even if a power loss follows. A marker without an epoch also means a clean shutdown.
    """
    assert encode_clean_shutdown(322) == b'{"version":0,"brokerEpoch":322}'
    disk = new_disk()
    directory = disk.open_dir(ROOT, create=True)
    endless = b'{"version":0,"brokerEpoch":Infinity}'
    huge = b'{"version":0,"brokerEpoch":9223372036854775808}'
    made: tuple[tuple[bytes, int], ...] = ((encode_clean_shutdown(322), 322), (b"", -1), (b"[]", -1))
    low = b'{"version":0,"brokerEpoch":-9223372036854775809}'
    damaged = (b'{"version":9}', endless, huge, low, b"[" * 200_000)
    for data, epoch in (*made, *((each, -1) for each in damaged)):
        directory.write_atomic(CLEAN_SHUTDOWN_FILE, data)
        assert take_clean_shutdown(directory) == epoch
        disk.crash("synced")
        directory = disk.open_dir(ROOT)
        assert take_clean_shutdown(directory) is None


# --- a full disk has no room for a longer name


def test_a_log_is_deleted_on_a_disk_without_room_for_its_new_name() -> None:
    """A deleted log cannot be renamed on a full disk.

    Its name stays taken until its files are removed, which makes room.
    """
    node = Node()
    fill(node.log(), 3)
    other = node.log("other")
    node.disk.fail_next(errno.ENOSPC, operation="rename", path_part="t-0", times=2)
    node.log_dir.delete_log("t", 0)
    assert node.offline == []
    with pytest.raises(DiskFull):
        node.log()
    append(other, batch())
    node.look()
    assert not [name for name in node.log_dir.directory.list() if name.startswith("t-")]
    assert node.log().log_end_offset == 0


def test_a_stray_waits_for_room_for_its_new_name() -> None:
    """A stray log cannot be renamed on a full disk. It is kept, and renamed when there is room."""
    node = Node()
    fill(node.log(), 3)
    node.disk.fail_next(errno.ENOSPC, operation="rename", path_part="t-0", times=3)
    node.log_dir.set_stray("t", 0)
    for _ in range(2):
        node.look()
        assert [name for name in node.log_dir.directory.list() if name.startswith("t-")] == ["t-0"]
    node.look()
    (kept,) = (name for name in node.log_dir.directory.list() if name.startswith("t-"))
    assert kept.endswith("-stray")
    assert node.offline == []


def test_retention_goes_on_without_room_for_longer_names() -> None:
    """Expired segments cannot be renamed on a full disk. They are removed at once, which makes room."""
    node = Node(LogConfig(segment_bytes=2 * SIZE, retention_bytes=2 * SIZE))
    log = node.log()
    fill(log, 10)
    node.disk.fail_next(errno.ENOSPC, operation="rename", path_part="t-0/0000", times=10**6)
    before = len(log.segments)
    assert retain(log, NOW_MS) > 0
    assert len(log.segments) < before
    assert node.offline == []
    names = log.directory.list()
    assert not [name for name in names if name.endswith(".deleted")]
    assert len([name for name in names if name.endswith(".log")]) == len(log.segments)


# --- start and stop


def test_everything_is_back_after_a_clean_shutdown() -> None:
    """After a clean shutdown nothing is recovered.

    Contents, high watermarks, log starts, topic ids and broker epoch are as before.
    """
    node = Node()
    log, other = node.log(), node.log("other.topic", 7)
    fill(log, 5, 2)
    log.set_log_start_offset(3)
    append(log, batch())
    fill(other, 1)
    stored = content(other)
    node.log_dir.close_clean(41)
    node.disk.crash("synced")
    node.start()
    assert node.log_dir.clean_shutdown_broker_epoch == 41
    assert node.events("log.recovered") == []
    log, other = node.log(), node.log("other.topic", 7)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 10, 11)
    assert (content(other), other.topic_id) == (stored, TOPIC_ID)
    assert log.recovery_point == 11
    node.disk.crash("all")
    node.start()
    assert node.log_dir.clean_shutdown_broker_epoch is None
    assert len(node.events("log.recovered")) == 2


def test_a_log_start_behind_the_end_is_not_believed_after_a_clean_shutdown() -> None:
    """After a clean shutdown a checkpointed log start is beyond the log's end.

    The checkpoint must be damaged, and it is ignored.
    """
    node = Node()
    log = node.log()
    fill(log, 5, 2)
    stored = content(log)
    node.log_dir.close_clean(41)
    starts = encode_offsets({TopicPartition(log.topic, log.partition): (1 << 63) - 1})
    node.log_dir.directory.write_atomic(LOG_START_FILE, starts)
    node.disk.crash("synced")
    node.start()
    log = node.log()
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    assert content(log) == stored
    assert len(node.events("log.start_not_believed")) == 1


def test_what_a_log_start_behind_the_end_takes_out_of_a_log_is_kept() -> None:
    """After a crash a checkpointed log start is beyond the log's end.

    The log begins there, and the old bytes are kept in a file.
    """
    node = Node()
    log = node.log()
    fill(log, 5, 2)
    stored = content(log)
    starts = encode_offsets({TopicPartition(log.topic, log.partition): 5000})
    node.log_dir.directory.write_atomic(LOG_START_FILE, starts)
    node.disk.crash("all")
    node.start()
    log = node.log()
    assert (log.log_start_offset, log.log_end_offset) == (5000, 5000)
    (event,) = node.events("log.start_is_behind_end")
    (kept_as,) = event["kept_as"]
    assert log.directory.read_bytes(kept_as) == stored
    append(log, batch())
    assert log.log_end_offset == 5001


def test_after_a_crash_recovery_starts_at_the_recovery_point() -> None:
    """The background flush raises the recovery point.

    Recovery after a crash starts at its checkpoint, and logs one line for each log.
    """
    node = Node(LogConfig(segment_bytes=4 * SIZE))
    log = node.log()
    fill(log, 10)
    node.look(60_000)
    node.look(60_000)
    fill(log, 3)
    node.disk.crash("all")
    node.start()
    (event,) = node.events("log.recovered")
    assert (event["segments"], event["log_end_offset"]) == (2, 13)
    assert node.log().recovery_point == 10


@pytest.mark.parametrize("is_full", [False, True])
def test_a_log_cut_below_its_checkpoints_says_so_before_anything_is_appended(is_full: bool) -> None:
    """Recovery cuts a log below its checkpoints. The checkpoints are lowered before an append, or removed if the disk
    is full."""
    node = Node(LogConfig(segment_bytes=4 * SIZE))
    fill(node.log(), 10)
    node.look(60_000)
    node.look(60_000)
    node.disk.open_dir(ROOT).write_atomic(CLEANER_FILE, encode_offsets({("t", 0): 10}))
    node.disk.corrupt(f"{ROOT}/t-0/{file_name(8, '.log')}", SIZE + 30)
    node.disk.crash("all")
    if is_full:
        node.disk.fail_next(errno.ENOSPC, operation="append", path_part=RECOVERY_POINT_FILE)
    node.start()
    assert (node.log().log_end_offset, node.log().recovery_point) == (9, 9)
    node.disk.crash("synced")
    directory = node.disk.open_dir(ROOT)
    if is_full:
        assert not {RECOVERY_POINT_FILE, CLEANER_FILE} & {*directory.list()}
    else:
        assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", 0): 9}
        assert offsets_in(node, CLEANER_FILE) == {("t", 0): 0}


def test_a_second_process_is_kept_out() -> None:
    """A log directory is locked, so that a second process cannot open it."""
    node = Node()
    with pytest.raises(DiskError):
        LogDir.open(node.disk.open_dir(ROOT), node.log_dir.context, config_for=lambda topic: LogConfig())


def test_an_unreadable_checkpoint_costs_only_time() -> None:
    """A checkpoint of recovery points is malformed. Everything is recovered."""
    node = Node()
    fill(node.log(), 5)
    node.look(60_000)
    node.look(60_000)
    node.disk.crash("all")
    for name in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE):
        node.disk.open_dir(ROOT).write_atomic(name, b"7\nwhat\n")
    node.start()
    assert len(node.events("log_dir.checkpoint_unreadable")) == 2
    assert (node.log().log_end_offset, node.log().high_watermark) == (5, 0)


def test_a_crash_while_loading_loses_no_recovery_point() -> None:
    """A checkpoint is written while logs are still being loaded. It keeps the entries of those logs."""
    node = Node()
    for partition in range(40):
        fill(node.log("t", partition), 1)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    directory = node.disk.open_dir(ROOT)
    log_dir = LogDir.open(directory, node.log_dir.context, config_for=lambda topic: LogConfig())
    log_dir.checkpoints.write_recovery_points()
    assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", partition): 1 for partition in range(40)}


# --- the contents of the directory


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("t-0", ("t", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("t", None),
        ("t-x", None),
        ("-1", None),
        ("t-0.0123456789abcdef0123456789abcdef-delete", None),
        ("t-0.0123456789abcdef0123456789abcdef-stray", None),
        ("t-0.0123456789abcdef0123456789abcdef-future", None),
        ("lost+found", None),
    ],
)
def test_partition_directories_are_known_by_name(name: str, parsed: tuple[str, int] | None) -> None:
    """A directory's name is `topic-partition`, split at the last dash."""
    assert parse_partition_name(name) == parsed


def test_foreign_files_and_directories_are_left_alone() -> None:
    """Foreign files, lost+found, the metadata log, strays and future replicas are left alone.

    Half-deleted logs are removed.
    """
    node = Node()
    node.log_dir.close_clean(1)
    directory = node.disk.open_dir(ROOT)
    kept = ["lost+found", "__cluster_metadata-0", "t-1.00-stray", "t-2.00-future", "backup"]
    for name in [*kept, "t-3.00-delete"]:
        directory.subdir(name, create=True).open("file", create=True).append(b"mine")
    directory.open("notes-1", create=True)
    node.disk.crash("all")
    node.start()
    node.look()
    assert node.log_dir.logs == {}
    left = node.disk.open_dir(ROOT).list()
    assert {"notes-1", *kept} <= set(left)
    assert "t-3.00-delete" not in left
    assert all(node.disk.open_dir(ROOT).subdir(name).read_bytes("file") == b"mine" for name in kept)
    assert [event["name"] for event in node.events("log_dir.stray")] == ["t-1.00-stray"]


def test_a_deleted_log_goes_after_a_delay() -> None:
    """A deleted log is renamed at once, so that its name is free. It is removed after file.delete.delay.ms."""
    node = Node(LogConfig(file_delete_delay_ms=60_000))
    fill(node.log(), 3)
    reader = node.log().read(0, 100, upper_bound=3)
    assert reader.file is not None
    node.log_dir.delete_log("t", 0)
    assert node.log_dir.get("t", 0) is None
    fill(node.log(), 1)
    (renamed,) = (name for name in node.disk.open_dir(ROOT).list() if name.endswith("-delete"))
    assert renamed.startswith("t-0.")
    assert len(renamed) == len("t-0.") + 32 + len("-delete")
    node.look(59_000)
    assert node.disk.open_dir(ROOT).exists(renamed)
    assert node.log_dir.statistics()["directories_to_remove"] == 1
    node.look(1_000)
    assert not node.disk.open_dir(ROOT).exists(renamed)
    assert len(reader.file.pread(reader.count, 0)) == reader.count
    reader.release()
    assert node.log().log_end_offset == 1


def test_long_topic_names_are_cut_in_the_new_name() -> None:
    """A long topic name is cut in the name of a deleted log, since file names have at most 255 bytes."""
    node = Node()
    node.log("x" * 249, 12)
    node.log_dir.delete_log("x" * 249, 12)
    (renamed,) = (name for name in node.disk.open_dir(ROOT).list() if name.endswith("-delete"))
    assert len(renamed) == 255


def test_a_stray_is_set_aside_and_kept() -> None:
    """A log that the cluster does not know is renamed and kept, for an operator to inspect."""
    node = Node()
    fill(node.log(), 3)
    node.log_dir.set_stray("t", 0)
    node.look(10_000_000)
    (renamed,) = (name for name in node.disk.open_dir(ROOT).list() if name.endswith("-stray"))
    assert "00000000000000000000.log" in node.disk.open_dir(ROOT).subdir(renamed).list()


def test_a_log_of_another_topic_with_the_same_name_becomes_a_stray() -> None:
    """A new log has the name of an existing log, but another topic id. The existing log becomes a stray."""
    node = Node()
    log = node.log()
    fill(log, 3)
    assert node.log_dir.create_log("t", 0, TOPIC_ID, node.config) is log
    fresh = node.log_dir.create_log("t", 0, bytes(reversed(TOPIC_ID)), node.config)
    assert (fresh.log_end_offset, fresh.topic_id) == (0, bytes(reversed(TOPIC_ID)))
    assert any(name.endswith("-stray") for name in node.disk.open_dir(ROOT).list())


def test_a_topic_made_anew_while_the_disk_hangs_gets_nothing_of_the_old_one() -> None:
    """A topic is recreated while the disk hangs. The new log is refused until the old log is renamed (seed 431033)."""
    node = Node()
    fill(node.log(), 3)
    node.log_dir.set_stalled(True)
    node.log_dir.delete_log("t", 0)
    node.log_dir.set_stalled(True)
    with pytest.raises(DiskHung):
        node.log_dir.create_log("t", 0, bytes(reversed(TOPIC_ID)), node.config)
    node.log_dir.set_stalled(False)
    assert node.log_dir.create_log("t", 0, bytes(reversed(TOPIC_ID)), node.config).log_end_offset == 0


def test_a_new_log_is_durable_with_its_first_flush() -> None:
    """The first flush of a log makes its directory, topic id and records durable (flush.messages=1)."""
    node = Node()
    log = node.log()
    fill(log, 2)
    node.disk.crash("synced")
    node.start()
    assert node.log_dir.logs == {}
    log = node.log()
    fill(log, 2)
    log.flush()
    node.disk.crash("synced")
    node.start()
    assert (node.log().log_end_offset, node.log().topic_id) == (2, TOPIC_ID)


def test_a_topics_id_is_durable_before_its_records() -> None:
    """The first flush of a log fails, and then the power is cut. The log may have lost records, but its topic id is
    known."""
    for seed in range(20):
        node = Node()
        log = node.log()
        fill(log, 2)
        # Only the names of the files are durable by now.
        for path in (f"{ROOT}/t-0", ROOT):
            node.disk.open_dir(path).sync()
        node.disk.fail_next(errno.EIO, operation="sync", path_part=".log")
        with pytest.raises(DiskError):
            log.flush()
        node.disk.random.seed(seed)
        node.disk.crash("random")
        node.start()
        assert {kept.topic_id for kept in node.log_dir.logs.values()} == {TOPIC_ID}


# --- many partitions


def test_an_empty_partition_costs_little_memory(tmp_path: Path) -> None:
    """An empty partition takes at most 2.5 KiB of objects, since a node has thousands of them."""
    directory = open_dir(str(tmp_path))
    directory.write_atomic(META_PROPERTIES, MetaProperties("c", 1, DIRECTORY_ID).encode())
    log_dir = LogDir.open(directory, Node().log_dir.context, config_for=lambda topic: LogConfig())
    finish(log_dir.load())
    config = LogConfig()
    log_dir.create_log("warm", 0, TOPIC_ID, config)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for partition in range(200):
            log_dir.create_log("t", partition, TOPIC_ID, config)
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 200
    finally:
        tracemalloc.stop()
    assert each <= 2560


def test_loading_many_partitions_syncs_nothing_per_partition() -> None:
    """A load after a clean shutdown needs a single sync for all partitions. It reads only segments with records."""
    node = Node()
    for partition in range(50):
        node.log("t", partition)
    fill(node.log("t", 7), 3)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    operations: list[tuple[str, str]] = []
    node.disk.on_operation = lambda operation, path, *_: operations.append((operation, path))
    node.start()
    assert len(node.log_dir.logs) == 50
    assert [path for operation, path in operations if operation == "sync"] == [ROOT]
    assert {path for operation, path in operations if operation == "read" and path.endswith(".log")} == {
        f"{ROOT}/t-7/00000000000000000000.log"
    }
    assert len(operations) < 50 * 8


@pytest.mark.parametrize("gone", ["deleted", "stray", "deleted in another life"])
def test_a_log_does_not_inherit_what_the_checkpoints_say_of_its_namesake(gone: str) -> None:
    """A log is recreated under the same name. It does not inherit its predecessor's entries in the checkpoints.

    Otherwise it would lose records to the old log start, show uncommitted records, or skip the check of bytes below the
    old recovery point.
    """
    config = LogConfig(segment_bytes=4 * SIZE)
    node = Node(config)
    log = node.log()
    fill(log, 10)
    log.set_log_start_offset(7)
    for _ in range(2):
        node.look(60_000)
    assert offsets_in(node, LOG_START_FILE) == {("t", 0): 7}
    assert offsets_in(node, RECOVERY_POINT_FILE) == {("t", 0): 10}
    if gone != "stray":
        node.log_dir.delete_log("t", 0)
    if gone == "deleted in another life":
        node.disk.crash("all")
        node.start()
    log = node.log_dir.create_log("t", 0, bytes(range(100, 116)), config)
    for _ in range(6):
        append(log, batch())
    log.advance_high_watermark(2)
    node.disk.crash("all")
    node.start()
    log = node.log()
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)
    assert log.high_watermark <= 2
    (event,) = node.events("log.recovered")
    assert event["bytes"] == 6 * SIZE
    assert log.recovery_point == 0
