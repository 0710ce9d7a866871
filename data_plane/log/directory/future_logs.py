"""The files of a future replica: makes a log's copy on another disk, swaps it with the live log, settles swaps
after a crash (KIP-113).

Theory of operation
-------------------
The *live log* is the log that serves requests, on the old disk. Its future replica lies on the new disk, in a
directory `TOPIC-N.ID-future` (Kafka's name). Upkeep, checkpoints and readers know only the live log. When the
future replica has all records, it replaces the live log. The steps of a swap, in order:

1. The future log is closed: everything in it is on the device.
2. The checkpoints of the new log directory get the log's start, its first dirty offset, and its recovery
   point.
3. A file `caught-up` (Odradek's own) is made in the future log's directory, durably. From here on the future
   log is complete, until a record is appended to the live log.
4. The live log's directory is renamed to `-delete`, durably.
5. The future log's directory gets the log's name, durably. The log is opened under it.

The loop takes all steps in one turn, so neither log changes between the steps. If a crash interrupts them,
`settle_moves` finishes or undoes the swap at the next start, before any log is opened. If the old disk still
has the live log, the file `caught-up` is removed. If the live log is gone, step 5 is repeated. So at any time
exactly one directory has the live log.

A `caught-up` file may be out of date. This happens if the new disk was offline when a swap was given up, and
the live log has grown since. If the old disk is offline now, only the metadata shows that the file is
outdated. The metadata names the new directory before a swap. It names the old directory again after a swap
that was given up. So step 5 is repeated only if the metadata names the new directory.

PORTED except for the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import attrs

from odradek.data_plane.log.directory.log_dir import FUTURE_SUFFIX, LogDir
from odradek.data_plane.log.loading import LoadOptions, open_partition_log, read_topic_id, write_topic_id
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.producer_state import ProducerState
from odradek.data_plane.log.segments.small_files import remove_if_present
from odradek.env.ports import Dir, DiskError, FileMissing, Log
from odradek.named_states import reached
from odradek.wire.topic_partition import TopicPartition

CAUGHT_UP_FILE = "caught-up"
NAME_BYTES_MAX = 255
_FUTURE_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-([0-9]{1,10})\.[0-9a-f]{32}-future")


def future_name(topic: str, partition: int, number: int) -> str:
    """Return the name of a future replica's directory; `number` is a random number of 128 bits. With a long
    topic name, the result may be longer than file systems allow (`NAME_BYTES_MAX`).
    """
    return f"{topic}-{partition}.{number:032x}{FUTURE_SUFFIX}"


def parse_future_name(name: str) -> TopicPartition | None:
    """Parse topic and partition from the name of a future replica's directory; returns None for any other
    name.
    """
    match = _FUTURE_NAME.fullmatch(name)
    return None if match is None else TopicPartition(match[1], int(match[2]))


def begin_future(log_dir: LogDir, current: PartitionLog) -> str:
    """Make an empty directory for a future replica of the log `current` (blocking). Returns its name. Raises
    `DiskError`.
    """
    key = TopicPartition(current.topic, current.partition)
    log_dir.checkpoints.forget_gone(key)
    name = future_name(current.topic, current.partition, log_dir.context.random.getrandbits(128))
    directory = log_dir.directory.subdir(name, create=True)
    write_topic_id(directory, current.topic_id)
    return name


def open_future(log_dir: LogDir, name: str, current: PartitionLog, start_offset: int) -> PartitionLog:
    """Open a future replica (blocking). If it has records, it is recovered as after a crash. Raises
    `DiskError`.
    """
    context = log_dir.context
    options = LoadOptions(
        is_clean=False,
        is_known=False,
        log_start_offset=start_offset,
        now_ms=context.clock.wall_ms(),
        random=context.random,
        log=context.log,
    )
    directory = log_dir.directory.subdir(name)
    has_records = any(each.endswith(".log") for each in directory.list())
    if has_records:
        options = attrs.evolve(options, log_start_offset=-1)
    log = open_partition_log(directory, current.topic, current.partition, current.config, log_dir, options)
    # Sync the entry of the new directory now. Otherwise a loss of power after the swap could remove the
    # entry, although the old log is already gone.
    log_dir.directory.sync()
    return log


# -- the swap ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Swap:
    """The steps of one swap, in order. Both logs have the same records. `remove_current` is the point of no
    return.

    `current` is the live log in the directory `source`; `future` is its copy in the directory `target`.
    `copy_state` and `remove_current` run on the loop; `remove_current` waits a limited time for the source
    disk. All other steps run in the target disk's thread: `close_future`, `save_checkpoints`,
    `mark_caught_up`, later `rename_future` and `open_moved`.
    """

    current: PartitionLog
    source: LogDir
    future: PartitionLog
    target: LogDir
    name: str
    """The name of the future replica's directory."""

    def prepare(self) -> None:
        """Take the steps on the target disk that come before the point of no return (blocking). Raises
        `DiskError`.
        """
        self.close_future()
        self.save_checkpoints()
        self.mark_caught_up()

    def copy_state(self) -> None:
        """Copy the part of the live log's state that its records do not contain. Raises `DiskError`.

        The copy knows the leader epochs and producers of its own records. The live log also knows epochs that
        began without a record, and producers whose records were deleted.
        """
        current, future = self.current, self.future
        future.epochs = LeaderEpochs.decode(current.epochs.encode())
        future.epochs.is_dirty = True
        # Give the copy a producer state of its own. The live log may change its state while the disk's thread
        # closes the copy.
        future.producers.take(ProducerState.decode(current.load_producers().encode()))

    def close_future(self) -> None:
        self.future.close()

    def save_checkpoints(self) -> None:
        current, checkpoints = self.current, self.target.checkpoints
        checkpoints.expect(
            current.home.key,
            log_start_offset=current.log_start_offset
            if current.log_start_offset > self.future.segment_list.base_offset
            else None,
            first_dirty_offset=current.first_dirty_offset,
            recovery_point=self.future.log_end_offset,
        )
        checkpoints.write_expected(current.first_dirty_offset)

    def mark_caught_up(self) -> None:
        self.target.directory.subdir(self.name).write_atomic(CAUGHT_UP_FILE, b"")

    def remove_current(self) -> None:
        """Take the live log out of service. If its own disk hangs or fails now, the copy replaces it
        nevertheless.

        The source disk then keeps a second log of the same name for a while. A start uses the log in the
        directory that the metadata names.
        """
        source = self.source
        source.delete_log(self.current.topic, self.current.partition)
        if source.offline_reason is None and not source.is_stalled:
            try:
                source.directory.in_time(source.directory.sync, lambda synced: None)
            except DiskError as error:
                source.disk_failed_unless_refused(error)

    def rename_future(self) -> None:
        _take_name(self.target.directory, self.name, f"{self.current.topic}-{self.current.partition}")

    def undo(self) -> None:
        """Undo the steps of `prepare` (blocking). Raises `DiskError`."""
        self.target.checkpoints.expect_no_longer(self.current.home.key)
        directory = self.target.directory.subdir(self.name)
        if remove_if_present(directory, CAUGHT_UP_FILE):
            directory.sync()

    def remove_future(self) -> None:
        """Remove the copy, and undo the steps of `prepare` (blocking). Raises `DiskError`."""
        self.target.checkpoints.expect_no_longer(self.current.home.key)
        with suppress(FileMissing):
            self.target.directory.remove_tree(self.name)

    def move_in(self) -> PartitionLog:
        """Take the target disk's steps after the point of no return (blocking). Returns the log under its
        final name. Raises `DiskError`.
        """
        self.rename_future()
        return self.open_moved()

    def open_moved(self) -> PartitionLog:
        """Open the log under its final name, not yet in service (blocking). Raises `DiskError`."""
        current, target = self.current, self.target
        context = target.context
        options = LoadOptions(
            is_clean=True,
            recovery_point=self.future.log_end_offset,
            log_start_offset=current.log_start_offset,
            first_dirty_offset=current.first_dirty_offset,
            high_watermark=current.high_watermark,
            now_ms=context.clock.wall_ms(),
            random=context.random,
            log=context.log,
        )
        directory = target.directory.subdir(f"{current.topic}-{current.partition}")
        log = open_partition_log(directory, current.topic, current.partition, current.config, target, options)
        if log.log_end_offset != current.log_end_offset:
            raise AssertionError(
                f"{log}: the moved log ends at offset {log.log_end_offset}, and the log before the "
                f"move ended at {current.log_end_offset}"
            )
        log.store_start(log.log_start_offset)
        return log

    def serve(self, moved: PartitionLog) -> None:
        """Put the moved log into service on the loop, with the state that has changed since the swap began."""
        current = self.current
        moved.set_config(current.config)
        moved.advance_high_watermark(current.high_watermark)
        if current.log_start_offset > moved.log_start_offset:
            moved.set_log_start_offset(current.log_start_offset)
        moved.producers.verifications = current.producers.verifications
        self.target.adopt(moved)
        self.target.checkpoints.expect_no_longer(current.home.key)


def _take_name(directory: Dir, future: str, name: str) -> None:
    directory.rename(future, name)
    directory.sync()
    remove_if_present(directory.subdir(name), CAUGHT_UP_FILE)


# -- the start of a broker ---------------------------------------------------------------------------------------------


Assigned: TypeAlias = Callable[[TopicPartition, bytes], bytes | None]
"""A function (partition, topic id) that returns the id of the directory that the metadata names for this
broker's replica. Returns None if the metadata names no directory.
"""


def settle_moves(log_dirs: Sequence[LogDir], assigned: Assigned, log: Log) -> list[tuple[LogDir, DiskError]]:
    """Finish or undo swaps that a crash has interrupted (blocking). Call it before the logs are opened.

    Returns the directories that failed, each with its first error.
    """
    failed: dict[str, tuple[LogDir, DiskError]] = {}
    listed: dict[str, list[str]] = {}
    online = [log_dir for log_dir in log_dirs if log_dir.offline_reason is None]
    for log_dir in online:
        try:
            listed[log_dir.path] = log_dir.directory.list()
        except DiskError as error:
            failed[log_dir.path] = log_dir, error
    for log_dir in online:
        for name in listed.get(log_dir.path, ()):
            key = parse_future_name(name)
            if key is not None and log_dir.path not in failed:
                try:
                    _settle(log_dir, name, key, listed, assigned, log)
                except DiskError as error:
                    failed[log_dir.path] = log_dir, error
    return list(failed.values())


def _settle(
    log_dir: LogDir,
    name: str,
    key: TopicPartition,
    listed: dict[str, list[str]],
    assigned: Assigned,
    log: Log,
) -> None:
    directory = log_dir.directory.subdir(name)
    if not directory.exists(CAUGHT_UP_FILE):
        return
    live = f"{key.topic}-{key.partition}"
    is_here = assigned(key, read_topic_id(directory, directory.list())) == log_dir.directory_id
    if any(live in names for names in listed.values()) or not is_here:
        reached("moves.swap_undone_at_start")
        directory.remove(CAUGHT_UP_FILE)
        directory.sync()
        return
    reached("moves.swap_finished_at_start")
    _take_name(log_dir.directory, name, live)
    log.info("partition.moved", topic=key.topic, partition=key.partition, directory=log_dir.path, at="start")


def futures_of(log_dir: LogDir) -> dict[TopicPartition, tuple[str, bytes]]:
    """Find the future replicas in a directory (blocking). Returns partition -> (name of the replica's
    directory, topic id). Raises `DiskError`.
    """
    found = {}
    for name in log_dir.directory.list():
        key = parse_future_name(name)
        if key is not None and log_dir.directory.is_dir(name):
            directory = log_dir.directory.subdir(name)
            found[key] = (name, read_topic_id(directory, directory.list()))
    return found
