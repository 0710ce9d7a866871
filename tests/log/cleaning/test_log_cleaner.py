"""A broker's log cleaner: the order of logs, the number of passes, and passes that fail or end early."""

from __future__ import annotations

import errno
import math
import struct
from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import pytest

from odradek.data_plane.log.cleaning.log_cleaner import LINGER_SECONDS
from odradek.data_plane.log.cleaning_pass import cleanable_end
from odradek.data_plane.log.directory.log_dir import DiskSpace
from odradek.data_plane.log.dump import verify_partition
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import CompanionLost
from odradek.wire.batches.batch_header import HEADER_SIZE, MAGIC_OFFSET, iter_batches, seal
from tests.log.cleaning.cleaner_node import COMPACTED, SETTINGS, CleanerNode, is_clean
from tests.log.cleaning.passes import clean
from tests.log.compacted.naive_cleaner import latest_values, visible
from tests.log.compacted.test_swap import fill_keyed, temporary_files
from tests.log.support import Node, append, batch, content, fill

DELETED = attrs.evolve(COMPACTED, cleanup_policy=("delete",))
ATTRIBUTES_LOW_BYTE = 22


def latest_rows(log: PartitionLog) -> list[int]:
    """Return the offsets that a cleaned log keeps: the latest of each key, and all of the active segment."""
    end = log.active.base_offset
    latest = {record.key: record.offset for record in visible(log) if record.offset < end}
    return [
        record.offset
        for record in visible(log)
        if record.offset >= end or latest[record.key] == record.offset
    ]


# --- which log, and how many at a time


@pytest.mark.parametrize(("per_disk", "expected"), [(1, 1), (2, 2), (3, 3)])
def test_a_disk_has_no_more_passes_than_it_may(per_disk: int, expected: int) -> None:
    """With four threads and two disks, no disk has more passes than `odradek.log.cleaner.threads.per.disk`.

    A log has one pass at a time.
    """

    async def script(node: CleanerNode) -> None:
        logs = [node.log(f"t{number}", disk=number % 2) for number in range(12)]
        wanted = {log.topic: latest_rows(log) for log in logs}
        most: Counter[str] = Counter()

        def watch(method: str) -> None:
            for log_dir in node.log_dirs:
                passes = sum(1 for log in log_dir.logs.values() if log.cleaning.token is not None)
                most[log_dir.path] = max(most[log_dir.path], passes)

        node.on_call = watch
        node.cleaner.run()
        await node.until(lambda: all(is_clean(log) for log in logs))
        assert {log.topic: [record.offset for record in visible(log)] for log in logs} == wanted
        assert len(node.events("log.cleaned")) == len(logs) == node.cleaner.figures.passes
        assert most == {"disk-0": expected, "disk-1": expected}

    for seed in range(5):
        settings = attrs.evolve(SETTINGS, threads=6, threads_per_disk=per_disk)
        CleanerNode(settings, disks=2, seed=seed).play(script)


def test_the_dirtiest_log_comes_first() -> None:
    """The log with the highest dirty ratio, of those that are due, is cleaned first, as in Kafka."""

    async def script(node: CleanerNode) -> None:
        half = node.log("half")
        node.cleaner.run()
        await node.until(lambda: is_clean(half))
        node.configure(backoff_ms=1_000_000)
        await node.sleep(2)
        for number in range(40):
            node.append(half, [(b"new-%d" % number, b"value")])
        dirty = node.log("dirty")
        node.cleaner.look_now()
        await node.until(lambda: is_clean(half) and is_clean(dirty))
        assert [event["topic"] for event in node.events("log.cleaned")] == ["half", "dirty", "half"]

    CleanerNode().play(script)


def test_companions_end_when_all_has_been_clean_for_a_minute() -> None:
    """A companion ends when all logs have been clean for a minute.

    The next dirty log uses a running companion or starts one.
    """

    async def script(node: CleanerNode) -> None:
        node.cleaner.run()
        await node.sleep(5)
        assert not node.companions
        log = node.log("t")
        await node.until(lambda: is_clean(log))
        await node.sleep(LINGER_SECONDS / 2)
        log = node.log("soon")
        await node.until(lambda: is_clean(log))
        assert [each.is_closed for each in node.companions] == [False]
        await node.sleep(LINGER_SECONDS + 1)
        assert [each.is_closed for each in node.companions] == [True]
        log = node.log("later")
        await node.until(lambda: is_clean(log))
        assert [each.is_closed for each in node.companions] == [True, False]

    CleanerNode().play(script)


@pytest.mark.parametrize(
    "change",
    [
        {"load_factor": 0.0},
        {"load_factor": -1.0},
        {"load_factor": 5.0},
        {"load_factor": math.nan},
        {"io_bytes_per_second_max": -1.0},
        {"io_bytes_per_second_max": math.nan},
        {"io_bytes_per_second_max": math.inf},
        {"io_buffer_bytes": 0},
        {"backoff_ms": 0},
    ],
    ids=str,
)
def test_numbers_that_kafka_accepts_do_not_stop_the_cleaner(change: dict[str, float]) -> None:
    """Kafka accepts any number for some keys. Where a number is impossible, the cleaner uses the nearest possible
    value."""

    async def script(node: CleanerNode) -> None:
        node.cleaner.run()
        await node.sleep(3)
        log = node.log("t")
        await node.until(lambda: is_clean(log))

    CleanerNode(attrs.evolve(SETTINGS, **change)).play(script)


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_a_new_rate_counts_for_a_pass_that_waits(rate: float) -> None:
    """A pass waits for `log.cleaner.io.max.bytes.per.second`, or is halted by 0. A new value applies to it at once."""

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        node.cleaner.run()
        await node.until(lambda: log.cleaning.token is not None)
        await node.sleep(60)
        assert log.cleaning.token is not None
        node.configure(io_bytes_per_second_max=1e9)
        await node.sleep(2)
        assert is_clean(log)

    CleanerNode(attrs.evolve(SETTINGS, io_bytes_per_second_max=rate)).play(script)


def test_a_pass_that_is_over_waits_for_no_rate() -> None:
    """A log is deleted while its pass waits for the I/O rate. The pass ends at once."""

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        node.cleaner.run()
        await node.until(lambda: log.cleaning.token is not None)
        log.cleaning.abort("the log was deleted")
        await node.sleep(2)
        assert node.events("log.cleaning_aborted")

    CleanerNode(attrs.evolve(SETTINGS, io_bytes_per_second_max=1e-3)).play(script)


def test_threads_come_and_go_with_the_configuration() -> None:
    """`log.cleaner.threads` changes while the broker runs. The number of threads follows."""

    async def script(node: CleanerNode) -> None:
        node.cleaner.run()
        for threads in (3, 1, 4, 2, 5):
            node.configure(threads=threads)
            await node.sleep(0.1)
            assert node.cleaner.statistics()["threads"] == threads
            assert node.cleaner.statistics()["dead_threads"] == 0

    CleanerNode().play(script)


def test_a_thread_that_was_busy_when_others_went_is_counted_once() -> None:
    """Threads end in any order after a change of the configuration.

    After each further change their number is as configured.
    """

    async def script(node: CleanerNode) -> None:
        node.configure(threads=3)
        for number in range(3):
            node.log(f"t{number}", disk=number)
        node.cleaner.run()
        await node.until(
            lambda: all(log.cleaning.token for each in node.log_dirs for log in each.logs.values())
        )
        # Each of the three threads is in a pass. A thread ends only after its pass, so at first only one thread ends.
        node.configure(threads=1, io_bytes_per_second_max=1000)
        await node.until(lambda: node.cleaner.statistics()["threads"] == 2)
        for threads in (3, 2):
            node.configure(threads=threads)
            await node.sleep(60)
            assert node.cleaner.statistics()["threads"] == threads

    for seed in range(6):
        CleanerNode(disks=3, seed=seed).play(script)


def test_a_change_of_configuration_leaves_a_pass_under_way_alone() -> None:
    """All keys of `log.cleaner.*` change during a pass.

    The pass keeps its buffers, and the next one uses the new values.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        wanted = latest_rows(log)
        changes = iter([{"dedupe_buffer_bytes": 1 << 12}, {"io_buffer_bytes": 1 << 17}, {"threads": 2}])

        def change(method: str) -> None:
            fields = next(changes, None)
            if fields is not None:
                node.configure(**fields)

        node.on_call = change
        node.cleaner.run()
        await node.until(lambda: is_clean(log))
        assert next(changes, None) is None
        assert [record.offset for record in visible(log)] == wanted
        assert node.cleaner.figures.passes_failed == 0

    CleanerNode().play(script)


# --- logs that cannot be cleaned


def _damaged(data: bytearray) -> None:
    data[HEADER_SIZE + 5] ^= 1


def _displaced(data: bytearray) -> None:
    ((_, header), *_) = iter_batches(data)
    data[header.size + 4] ^= 1


def _old_format(data: bytearray) -> None:
    data[MAGIC_OFFSET] = 1


def _unknown_format(data: bytearray) -> None:
    data[MAGIC_OFFSET] = 3


def _unknown_codec(data: bytearray) -> None:
    ((_, header), *_) = iter_batches(data)
    first = data[: header.size]
    first[ATTRIBUTES_LOW_BYTE] |= 7
    seal(first)
    data[: header.size] = first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_damaged, "checksum"),
        (_displaced, "offsets"),
        (_old_format, "magic 1"),
        (_unknown_format, "unknown magic, 3"),
        (_unknown_codec, "7"),
    ],
)
def test_a_log_that_cannot_be_cleaned_is_set_aside(change: Callable[[bytearray], None], reason: str) -> None:
    """A log with a damaged batch is tried once.

    The log is not truncated, the damage is reported, and other logs are cleaned.
    """

    async def script(node: CleanerNode) -> None:
        bad = node.log("bad")
        await node.env.new_workers().run(bad.flush)
        path = f"disk-0/bad-0/{bad.segments[1].name('.log')}"
        data = bytearray(node.disk.peek("disk-0/bad-0")[bad.segments[1].name(".log")])
        change(data)
        node.disk.rewrite(path, bytes(data))
        before = node.disk.peek("disk-0/bad-0")
        node.cleaner.run()
        await node.until(lambda: bool(bad.cleaning.uncleanable_reason))
        good = node.log("good")
        await node.until(lambda: is_clean(good))
        await node.sleep(10)
        after = node.disk.peek("disk-0/bad-0")
        assert {name: after[name] for name in before} == before
        assert not [name for name in after if name.endswith((".cleaned", ".swap"))]
        (event,) = node.events("log.uncleanable")
        assert event["topic"] == "bad"
        assert reason in event["reason"]
        assert bad.cleaning.first_dirty_offset == -1
        statistics = node.cleaner.statistics()
        assert (statistics["uncleanable_partitions"], statistics["passes_failed"]) == (1, 1)
        assert statistics["uncleanable_bytes"] == bad.size_bytes
        assert node.log_dirs[0].offline_reason is None

    CleanerNode().play(script)


def test_an_error_that_nobody_expects_sets_its_log_aside() -> None:
    """The record loop raises an unexpected error.

    The log is not cleaned any more, and the node goes on, since the error would come again after a restart.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t")

        def fail(method: str) -> None:
            if method == "clean":
                raise struct.error("int too large to convert")

        node.on_call = fail
        node.cleaner.run()
        await node.until(lambda: bool(node.events("log.uncleanable")))
        assert "error: int too large to convert" in (log.cleaning.uncleanable_reason or "")
        assert log.cleaning.token is None
        assert not temporary_files(log.directory)
        node.on_call = lambda method: None
        other = node.log("other")
        await node.until(lambda: is_clean(other))

    CleanerNode().play(script)


# --- passes that fail, and are tried again


def test_a_pass_without_memory_is_tried_again() -> None:
    """The companion has no memory for its map of keys. The companion ends, and the next pass has a new one."""

    async def script(node: CleanerNode) -> None:
        log = node.log("t")

        def fail(method: str) -> None:
            if len(node.companions) == 1:
                raise MemoryError

        node.on_call = fail
        node.cleaner.run()
        await node.until(lambda: is_clean(log))
        assert [each.is_closed for each in node.companions] == [True, False]
        (event,) = node.events("log.cleaning_failed")
        assert event["reason"] == "the log cleaner lacks memory for its map of keys"

    CleanerNode().play(script)


@pytest.mark.parametrize("at_call", range(1, 8))
def test_a_companion_that_dies_takes_its_pass_with_it(at_call: int) -> None:
    """A companion dies during a pass.

    The log is as before, temporary files are removed, and the next pass has a new companion.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        wanted, before, calls = latest_rows(log), latest_values(visible(log)), 0

        def die(method: str) -> None:
            nonlocal calls
            calls += 1
            if calls == at_call:
                raise CompanionLost("killed")

        node.on_call = die
        node.cleaner.run()
        await node.until(lambda: node.cleaner.figures.passes_failed == 1 and log.cleaning.token is None)
        assert node.companions[0].is_closed
        assert latest_values(visible(log)) == before
        assert not list(verify_partition(log.directory))
        assert not [name for name in temporary_files(log.directory) if not name.endswith(".deleted")]
        assert log.cleaning.first_dirty_offset == -1
        await node.until(lambda: is_clean(log))
        assert len(node.companions) == 2
        assert [record.offset for record in visible(log)] == wanted
        assert [event["reason"] for event in node.events("log.cleaning_failed")] == ["killed"]

    # Small reads, so that a pass makes many calls.
    CleanerNode(attrs.evolve(SETTINGS, io_buffer_bytes=1)).play(script)


@pytest.mark.parametrize("operation", ["append", "create", "rename"])
def test_a_disk_that_fills_up_in_a_pass_loses_nothing(operation: str) -> None:
    """The disk is full during a pass.

    The pass fails, the directory is reported full, and cleaning continues when there is room.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        wanted, before = latest_rows(log), content(log)
        log_dir = node.log_dirs[0]
        node.disk.fail_next(errno.ENOSPC, operation=operation, path_part=".cleaned")
        node.cleaner.run()
        await node.until(lambda: node.cleaner.figures.passes_failed == 1)
        await node.sleep(10)
        assert log_dir.full_since is not None
        assert log_dir.offline_reason is None
        assert content(log) == before
        assert not temporary_files(log.directory)
        assert node.cleaner.figures.passes == 0
        log_dir.full_since = None  # as the check of free space does once there is room
        await node.until(lambda: is_clean(log))
        assert [record.offset for record in visible(log)] == wanted

    CleanerNode().play(script)


def test_a_log_whose_passes_fail_holds_up_no_other() -> None:
    """The passes of a log fail again and again.

    Other logs are cleaned in between, and its passes become less frequent.
    """

    async def script(node: CleanerNode) -> None:
        bad, good = node.log("bad"), node.log("good")

        def die(method: str) -> None:
            if bad.cleaning.token is not None:
                raise CompanionLost("killed")

        node.on_call = die
        node.cleaner.run()
        await node.until(lambda: is_clean(good))
        await node.sleep(100)
        assert 5 < bad.cleaning.passes_failed < 9
        node.on_call = lambda method: None
        await node.until(lambda: is_clean(bad))
        assert bad.cleaning.passes_failed == 0

    CleanerNode().play(script)


@pytest.mark.reaches("cleaner.no_room")
def test_a_pass_leaves_appends_their_room() -> None:
    """A pass begins only if the disk has room for more than a whole segment, so that appends still fit."""

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        log_dir = node.log_dirs[0]
        log_dir.space = DiskSpace(1 << 30, 16 << 20)
        node.cleaner.run()
        await node.until(lambda: node.cleaner.figures.passes_failed == 3)
        assert not temporary_files(log.directory)
        assert log.cleaning.first_dirty_offset == -1
        assert "the disk has only" in node.events("log.cleaning_failed")[0]["reason"]
        log_dir.measure_space()
        await node.until(lambda: is_clean(log))

    CleanerNode().play(script)


# --- what ends a pass early

ABORTS: dict[str, Callable[[CleanerNode, PartitionLog], object]] = {
    "truncation": lambda node, log: log.truncate_to(log.segments[2].base_offset),
    "DeleteRecords": lambda node, log: log.set_log_start_offset(log.segments[3].base_offset + 1),
    "policy": lambda node, log: log.set_config(DELETED),
    "deletion": lambda node, log: node.log_dirs[0].delete_log("t", 0),
    "stop": lambda node, log: node.cleaner.stop(),
}


@pytest.mark.parametrize("how", ABORTS)
@pytest.mark.parametrize("operation", ["sync", "begin", "map_records", "rewrite_by", "clean"])
def test_what_ends_a_pass_early(how: str, operation: str) -> None:
    """A truncation, DeleteRecords, another policy, a deletion or a stop comes during a pass.

    The pass makes no further swaps.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        other = node.log("other")
        done = False

        def act(found: str) -> None:
            nonlocal done
            if found == operation and not done and log.log_end_offset and node.companions:
                done = True
                ABORTS[how](node, log)

        def on_operation(name: str, path: str, position: int, count: int) -> None:
            if "t-0/" in path and path.endswith(".log"):
                act(name)

        node.on_call = act
        node.disk.on_operation = on_operation
        expected = latest_values(visible(log))
        node.cleaner.run()
        await node.until(lambda: done and log.cleaning.token is None)
        if how == "stop":
            await node.until(lambda: not node.cleaner.statistics()["threads"])
            assert all(each.is_closed for each in node.companions)
        else:
            await node.until(lambda: is_clean(other))
        assert not node.events("log.uncleanable")
        if how == "deletion":
            assert log.is_closed
            return
        if how != "truncation":
            found = latest_values(visible(log))
            assert found == {key: found[key] for key in expected if key in found}
        if how in ("truncation", "DeleteRecords"):
            await node.until(lambda: is_clean(log))
            assert [record.offset for record in visible(log)] == latest_rows(log)
        else:
            assert log.cleaning.first_dirty_offset == -1
        log.check()
        assert not list(verify_partition(log.directory))
        assert not [name for name in temporary_files(log.directory) if not name.endswith(".deleted")]

    CleanerNode().play(script)


@pytest.mark.reaches("cleaner.plan_outdated")
def test_a_truncation_beside_the_first_flush_ends_the_pass() -> None:
    """A log is truncated during a pass, and new records are appended.

    The pass ends, since its planned end may now be within a segment.
    """
    node = Node(COMPACTED)
    log = node.log()
    fill_keyed(log, Random(1), 40)
    end_offset = log.active.base_offset
    steps = 0

    def between() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            log.truncate_to(log.segments[1].base_offset)
            while log.log_end_offset < end_offset - 1:
                append(log, batch(1), epoch=20)
            append(log, batch(9), epoch=20)
            fill(log, 20, 3)
            log.flush()

    assert clean(log, end_offset, between=between) is None
    assert end_offset not in [segment.base_offset for segment in log.segments]
    assert steps == 1
    assert clean(log, cleanable_end(log)) is not None


# --- a topic that becomes compacted


def test_a_topic_that_becomes_compacted() -> None:
    """A topic becomes compacted.

    Its records without a key are removed and counted, and new ones are refused, as in Kafka.
    """

    async def script(node: CleanerNode) -> None:
        log = node.log("t", config=DELETED)
        for number in range(5):
            node.append(log, [(None, b"no key"), (b"key", b"%d" % number), (None, None)])
        for _ in range(20):
            node.append(log, [(b"last", b"value")])
        node.cleaner.run()
        await node.sleep(5)
        assert not node.events("log.cleaning_began")
        keyed = latest_values([record for record in visible(log) if record.key is not None])
        log.set_config(COMPACTED)
        node.cleaner.look_now()
        await node.until(lambda: is_clean(log))
        assert latest_values(visible(log)) == keyed
        (event,) = node.events("log.cleaned")
        assert event["keyless_records"] == 10
        assert log.cleaning.last_pass is not None
        assert log.cleaning.last_pass.keyless_records == 10

    CleanerNode().play(script)


def test_nothing_is_cleaned_when_the_cleaner_is_off() -> None:
    """With `log.cleaner.enable=false` nothing is cleaned. Only a restart can change this key."""

    async def script(node: CleanerNode) -> None:
        log = node.log("t")
        node.cleaner.run()
        node.configure(threads=4)
        await node.sleep(60)
        assert log.cleaning.first_dirty_offset == -1
        assert node.cleaner.statistics()["threads"] == node.cleaner.statistics()["dead_threads"] == 0

    CleanerNode(attrs.evolve(SETTINGS, enable=False)).play(script)
