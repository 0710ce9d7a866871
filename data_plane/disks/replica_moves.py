"""Moves replicas between the disks of one broker while they are served (AlterReplicaLogDirs, KIP-113):
requests, copying, its throttle, the swap, resumption.

Theory of operation
-------------------
    requested -> copying -> caught up: reported to the controller -> its record names the new directory -> swapped
        '----------'-------------------'--- given up: the copy is removed

A move makes a future replica in the other directory (`log/directory/future_logs`). Each target directory has a
task that copies one replica after the other. A worker reads from the live log, and the loop appends to the copy
as a follower does. If the live log is truncated, the copy is truncated by leader epochs, as a follower's log
is. When the copy has caught up, the broker reports the new directory to the controller (AssignReplicasToDirs).
It continues to copy until the metadata log has the controller's record. Only then does it make the swap. So the
metadata always names the directory of a swapped replica, and a restart makes no empty log elsewhere.

Rules
* Until the swap the live log serves the replica, even if the metadata already names the new directory. If a
  move is given up after the new directory was reported, the old directory is reported again.
* The loop copies the last records in the same turn in which it makes the swap. So the replica is served
  without interruption.
* During a move the cleaner leaves the live log alone (Kafka's rule).
* After a restart the copying continues where it ended. A future replica whose topic is gone is removed.
* At a start, the directory that the metadata names may have a future replica but no log. If no other
  directory has the log either, the log is on an offline disk. Then the broker reports the replica to the
  controller as LOST, and makes no new log.

PORTED.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from odradek.data_plane.disks.directory_assignments import DirectoryAssignments
from odradek.data_plane.log.directory.future_logs import (
    NAME_BYTES_MAX,
    Swap,
    begin_future,
    future_name,
    futures_of,
    open_future,
)
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.truncation import truncation_offset
from odradek.env.ports import DiskError, DiskHung, DiskRefused, FileClosed, FileMissing, TaskGroup
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
CHUNK_BYTES = 1 << 20
LAST_BYTES_MAX = 4 << 20
"""The most bytes that the event loop itself copies in the turn of the swap."""
RETRY_SECONDS = 1.0
"""The time in seconds before a move tries a disk again, after the disk refused an operation, hung or went
offline.
"""
LOOK_SECONDS = 0.1
"""The time in seconds between two checks for the controller's record, and for new records to copy."""
THROTTLE_SECONDS = 1.0
"""The length, in seconds, of the window over which the copy rate is averaged."""


class MovesHost(BrokerHost, Protocol):
    """The interface of the broker that `ReplicaMoves` uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def hosted(self) -> HostedTopics: ...

    @property
    def log_dirs(self) -> Sequence[LogDir]: ...

    @property
    def config_layers(self) -> BrokerConfigLayers: ...

    def run_woken(self) -> None:
        """Answer the parked requests that an event has woken."""


@attrs.define(eq=False)
class Move:
    """A replica that is being moved to the directory `target`."""

    partition: Partition
    target: LogDir
    name: str
    """The name of the future replica's directory."""
    future: PartitionLog | None = None
    """The log of the future replica (the copy); None until the move begins."""
    truncations_seen: int = -1
    is_near: bool = False
    """True if the last copied chunk was small, so the copy may have caught up."""
    is_reported: bool = False
    """True if the controller has accepted the report that the replica is in `target`."""
    is_over: bool = False
    error: str = ""

    @property
    def size_bytes(self) -> int:
        return 0 if self.future is None else self.future.size_bytes

    @property
    def lag(self) -> int:
        """The number of offsets that the copy still lacks."""
        end = 0 if self.future is None else self.future.log_end_offset
        return max(0, self.partition.log.log_end_offset - end)


class MoveThrottle:
    """Limits the rate of all moves of one broker, in bytes a second
    (`replica.alter.log.dirs.io.max.bytes.per.second`).
    """

    def __init__(self, now: float) -> None:
        self._owed_bytes = 0.0
        """The bytes copied beyond the rate so far. A negative value is the number of bytes that may be copied
        without delay.
        """
        self._at = now

    def spend(self, count: int) -> None:
        """Count `count` copied bytes."""
        self._owed_bytes += count

    def delay(self, rate: int | None, now: float) -> float:
        """Return the seconds to wait until the copied bytes are within `rate` (bytes a second; None:
        unlimited).
        """
        elapsed, self._at = now - self._at, now
        if rate is None:
            self._owed_bytes = 0.0
            return 0.0
        rate = max(rate, 1)
        self._owed_bytes = max(self._owed_bytes - elapsed * rate, -THROTTLE_SECONDS * rate)
        return max(0.0, self._owed_bytes / rate)


class ReplicaMoves:
    """All moves of one broker's replicas between its directories."""

    def __init__(self, broker: MovesHost, assignments: DirectoryAssignments) -> None:
        self._broker = broker
        self._assignments = assignments
        self._throttle = MoveThrottle(broker.clock.monotonic())
        self.moves: dict[TopicPartition, Move] = {}
        self._queues: dict[str, list[Move]] = {}
        """The queue of moves for each target directory, by its path. One task works on each queue."""
        self._found: dict[tuple[str, TopicPartition], tuple[str, bytes]] = {}
        """The future replicas found at the start: (directory path, partition) -> (name of the replica's
        directory, topic id).
        """
        self._unsynced: dict[str, LogDir] = {}
        """The directories, by path, in which moves were given up since the last `sync_given_up`."""
        self._is_stopped = False
        self.bytes_copied = 0
        self.swapped = 0
        self.given_up = 0

    # -- requests of clients ----------------------------------------------------------------------------------------

    def ask(self, partition: Partition, target: LogDir) -> None:
        """Begin to move a replica to this directory. If the replica is already there, give up its move to
        another directory.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION for a name that is too long, KAFKA_STORAGE_ERROR.
        """
        log = partition.log
        key = TopicPartition(log.topic, log.partition)
        move = self.moves.get(key)
        if move is not None:
            if move.target is target and move.partition is partition:
                return
            self._give_up(move, "an operator asked for another move of this replica")
        if log.owner is target or self._is_stopped:
            return
        try:
            directory = target.directory
            name = directory.in_time(lambda: begin_future(target, log), directory.remove_tree)
        except DiskError as error:
            target.disk_failed_unless_refused(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._begin(Move(partition, target, name))

    def sync_given_up(self) -> None:
        """Sync the renames of given-up future replicas before the client gets its answer, so that no restart
        resumes these moves. If a device is slow, the answer does not wait for its sync. If the broker dies
        before that sync ends, the next start resumes the move.
        """
        unsynced, self._unsynced = self._unsynced, {}
        for target in unsynced.values():
            if target.is_served and not target.is_stalled:
                try:
                    target.directory.in_time(target.directory.sync, lambda synced: None)
                except DiskError as error:
                    target.disk_failed_unless_refused(error)

    def check_name(self, topic: str, index: int) -> None:
        """Raise `KafkaError` INVALID_TOPIC_EXCEPTION if a future replica's name would be too long (Kafka's rule)."""
        if len(future_name(topic, index, 0)) > NAME_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "the topic name is too long to move a replica to another directory",
            )

    def in_directory(self, log_dir: LogDir) -> list[Move]:
        """List the moves whose target is this directory."""
        return [move for move in self.moves.values() if move.target is log_dir]

    # -- events from the broker -------------------------------------------------------------------------------------

    def resume(self, partition: Partition) -> None:
        """Resume the move of this replica if the last process has left it unfinished. Called when the replica
        is hosted.
        """
        log = partition.log
        key = TopicPartition(log.topic, log.partition)
        for target in self._broker.log_dirs:
            found = self._found.get((target.path, key))
            if (
                found is not None
                and found[1] == log.topic_id
                and log.owner is not target
                and key not in self.moves
            ):
                del self._found[target.path, key]
                self._begin(Move(partition, target, found[0]))

    def remove_unknown(self) -> None:
        """Remove each future replica that is not in the metadata, or whose log is already in the same
        directory. Called at the start, once the logs are hosted.
        """
        for (path, key), (name, topic_id) in list(self._found.items()):
            target = next(each for each in self._broker.log_dirs if each.path == path)
            partition = self._broker.hosted.partition(key.topic, key.partition)
            if partition is not None or not self._is_expected(key, topic_id):
                del self._found[path, key]
                target.background.remove_tree_at(name, 0)

    def _is_expected(self, key: TopicPartition, topic_id: bytes) -> bool:
        topic = self._broker.newest.image.topics.get(key.topic)
        image = None if topic is None or topic.topic_id != topic_id else topic.partitions.get(key.partition)
        return image is not None and self._broker.node_id in image.replicas

    async def find_futures(self) -> None:
        """Search the directories for future replicas, at the start."""
        for log_dir in self._broker.log_dirs:
            if log_dir.offline_reason is None:
                try:
                    found = await log_dir.workers.run_long(futures_of, log_dir)
                except DiskError as error:
                    log_dir.disk_failed(error)
                    continue
                self._found.update({(log_dir.path, key): each for key, each in found.items()})

    def has_only_future(self, topic: str, index: int, topic_id: bytes, assigned: bytes) -> bool:
        """True if the directory that the metadata names for a replica has a future replica of it, but no log."""
        key = TopicPartition(topic, index)
        return any(
            log_dir.directory_id == assigned
            and log_dir.get(topic, index) is None
            and self._found.get((log_dir.path, key), ("", b""))[1] == topic_id
            for log_dir in self._broker.log_dirs
        )

    def explains(self, partition: Partition, directory_id: bytes) -> bool:
        """True if the replica is about to move to this directory, and the controller knows about the move. So
        the metadata may name this directory although the replica is still in another directory.
        """
        move = self.moves.get(TopicPartition(partition.log.topic, partition.log.partition))
        return move is not None and move.is_reported and move.target.directory_id == directory_id

    def directory_offline(self, log_dir: LogDir) -> None:
        """Give up all moves from or to a directory that has failed."""
        for move in list(self.moves.values()):
            if move.target is log_dir or move.partition.log.owner is log_dir:
                self._give_up(move, f"{log_dir.path} is offline")

    def stop(self) -> None:
        """Stop copying, because the directories are about to be closed. The next start resumes the moves."""
        self._is_stopped = True
        for move in self.moves.values():
            if move.future is not None:
                move.future.abandon()

    # -- one move ---------------------------------------------------------------------------------------------------

    def _begin(self, move: Move) -> None:
        log = move.partition.log
        self.moves[TopicPartition(log.topic, log.partition)] = move
        log.cleaning.is_held = True
        log.abort_cleaning("a move to another directory replaces this log")
        path = move.target.path
        queue = self._queues.get(path)
        if queue is None:
            queue = self._queues[path] = []
            self._broker.tasks.start_soon(self._work_off, path, queue)
        queue.append(move)
        self._broker.log.info(
            "partition.moving",
            topic=log.topic,
            partition=log.partition,
            source=getattr(log.owner, "path", ""),
            target=path,
        )

    async def _work_off(self, path: str, queue: list[Move]) -> None:
        while queue and not self._is_stopped:
            move = queue[0]
            if not move.is_over:
                await self._carry_out(move)
            queue.remove(move)
            if not move.is_over and not self._is_stopped:
                # This move waits for a disk, so put it at the end of the queue. Other moves in the queue
                # continue meanwhile.
                queue.append(move)
        self._queues.pop(path, None)

    def _is_wanted(self, move: Move) -> bool:
        return not self._is_stopped and not move.is_over and self._broker.hosted.holds(move.partition)

    async def _carry_out(self, move: Move) -> None:
        """Copy a replica and swap it with its copy. Returns early if a disk does not answer or has no room."""
        clock = self._broker.clock
        while self._is_wanted(move):
            owed_seconds = self._owed_seconds()
            if owed_seconds:
                # Sleep in short parts, since the rate may change meanwhile.
                await clock.sleep_until(clock.monotonic() + min(owed_seconds, THROTTLE_SECONDS))
                continue
            try:
                pause = await self._step(move)
            except DiskRefused as error:
                move.target.disk_refused(error)
                self._complain(move, str(error))
                pause = RETRY_SECONDS
            except (FileClosed, FileMissing):
                reached("moves.segment_went")
                # Try again soon, because a segment or a log was removed while a worker used it.
                pause = LOOK_SECONDS
            except (DiskError, KafkaError) as error:
                # If a disk has failed, it is offline by now, and the move is already given up. After any
                # other error the move is tried again.
                self._complain(move, str(error))
                if isinstance(error, CorruptBatch) and move.future is not None:
                    reached("moves.rot_suspected")
                    move.partition.suspect(move.future.log_end_offset)
                pause = RETRY_SECONDS
            if pause:
                await clock.sleep_until(clock.monotonic() + pause)
            if pause == RETRY_SECONDS and self._is_wanted(move):
                return
        if not move.is_over and not self._is_stopped:
            self._give_up(move, "this broker does not serve the replica any more")

    def _complain(self, move: Move, error: str) -> None:
        if move.error != error:
            move.error = error
            log = move.partition.log
            self._broker.log.warning(
                "partition.move_waits", topic=log.topic, partition=log.partition, error=error
            )

    async def _step(self, move: Move) -> float:
        """Take the next step of a move. Returns the seconds to wait before the following step. Raises
        `DiskError`, `KafkaError`.
        """
        current = move.partition.log
        if current.offline or move.target.is_stalled:
            return RETRY_SECONDS
        if move.future is None:
            opened = await move.target.workers.run_long(
                open_future, move.target, move.name, current, current.log_start_offset
            )
            if not self._is_wanted(move):
                reached("moves.opened_too_late")
                opened.abandon()
                return 0
            move.future = opened
            # Compare the leader epochs first, because this copy may have been begun before a restart.
            move.truncations_seen = -1
        future = move.future
        self._match(move, current, future)
        if future.log_end_offset == current.log_end_offset:
            move.is_near = True
        if not move.is_near:
            return await self._copy(move, current, future)
        if not move.is_reported:
            await move.target.workers.run_long(future.flush)
            if self._is_wanted(move) and move.partition.log is current:
                move.is_reported = True
                self._assignments.note(current.topic_id, current.partition, move.target.directory_id)
            return 0
        image = move.partition.image
        if image is None or image.directory_of(self._broker.node_id) != move.target.directory_id:
            pause = await self._copy(move, current, future)
            return max(pause, LOOK_SECONDS) if move.is_near else pause
        if not self._copy_rest(current, future):
            reached("moves.fell_behind_again")
            move.is_near = False
            return 0
        self._swap(move, current, future)
        return 0

    def _match(self, move: Move, current: PartitionLog, future: PartitionLog) -> None:
        """Truncate the copy wherever the live log was truncated. If the live log now starts beyond the copy's
        end, restart the copy from there.
        """
        if current.log_start_offset > future.log_end_offset:
            future.truncate_fully_and_start_at(current.log_start_offset)
        while move.truncations_seen != current.durability.truncations:
            epoch = future.latest_epoch
            if future.log_end_offset > future.log_start_offset and epoch >= 0:
                found, end = current.end_offset_for_epoch(epoch)
                offset = truncation_offset(
                    future.epochs, future.log_end_offset, found, max(end, current.log_start_offset)
                )
                if found < 0:
                    offset = future.log_start_offset
                if offset < future.log_end_offset or found != epoch:
                    before = future.log_end_offset, future.latest_epoch
                    future.truncate_to(max(offset, future.log_start_offset))
                    if (future.log_end_offset, future.latest_epoch) != before:
                        continue
            if future.log_end_offset > current.log_end_offset:
                future.truncate_to(current.log_end_offset)
            move.truncations_seen = current.durability.truncations
        if current.log_start_offset > future.log_end_offset:
            future.truncate_fully_and_start_at(current.log_start_offset)

    async def _copy(self, move: Move, current: PartitionLog, future: PartitionLog) -> float:
        """Copy one chunk of records. Returns the seconds to wait before the next chunk."""
        offset, truncations = future.log_end_offset, current.durability.truncations
        offset = max(offset, current.log_start_offset)
        owner = current.owner
        workers = owner.workers if isinstance(owner, LogDir) else move.target.workers
        data = await workers.run(
            lambda: current.read_bytes(offset, CHUNK_BYTES, upper_bound=current.log_end_offset, min_one=True)
        )
        if (
            not self._is_wanted(move)
            or move.partition.log is not current
            or current.durability.truncations != truncations
            or future.log_end_offset > offset
        ):
            return 0
        move.is_near = len(data) < CHUNK_BYTES // 2 and future.log_end_offset >= current.active.base_offset
        if not data:
            return LOOK_SECONDS
        self._append(future, data)
        self._throttle.spend(len(data))
        return 0

    def _owed_seconds(self) -> float:
        """Return the seconds by which the throttle delays the next chunk."""
        rate = broker_value(RATE_KEY, self._broker.config_layers)
        return self._throttle.delay(rate if isinstance(rate, int) else None, self._broker.clock.monotonic())

    def _append(self, future: PartitionLog, data: bytes) -> None:
        future.append(memoryview(bytearray(data)), Origin.REPLICA, -1, self._broker.clock.wall_ms())
        self.bytes_copied += len(data)

    def _copy_rest(self, current: PartitionLog, future: PartitionLog) -> bool:
        """Copy the last records on the event loop. Returns false if there are too many."""
        copied = 0
        while future.log_end_offset < current.log_end_offset:
            data = current.read_bytes(
                max(future.log_end_offset, current.log_start_offset),
                CHUNK_BYTES,
                upper_bound=current.log_end_offset,
                min_one=True,
            )
            if not data:
                return False
            self._append(future, data)
            copied += len(data)
            if copied > LAST_BYTES_MAX:
                return False
        return True

    def _swap(self, move: Move, current: PartitionLog, future: PartitionLog) -> None:
        """Replace the live log by the copy, within this turn of the event loop."""
        source = current.owner
        assert isinstance(source, LogDir)
        swap = Swap(current, source, future, move.target, move.name)
        # Remove the move from the list, because from here on other parts of the broker must not give it up.
        key = TopicPartition(current.topic, current.partition)
        del self.moves[key]
        move.is_over = True
        target, name = move.target, f"{current.topic}-{current.partition}"
        try:
            target.names.reserve(name)
            swap.copy_state()
            target.directory.in_time(swap.prepare, lambda prepared: swap.remove_future())
        except DiskError as error:
            target.names.free(name)
            self._not_swapped(swap, error)
            return
        swap.remove_current()
        try:
            target.change(
                swap.move_in,
                lambda moved: self._swapped(move, swap, moved),
                lambda error: self._swap_failed(swap, error),
            )
        except DiskHung as error:
            reached("moves.swap_goes_on_late")
            # Let the replica refuse requests, and its log refuse changes, until the device answers.
            target.disk_refused(error)
            current.home.unsettle()
            if not error.goes_on:
                self._swap_failed(swap, error)
        except DiskError as error:
            self._swap_failed(swap, error)

    def _swapped(self, move: Move, swap: Swap, moved: PartitionLog) -> None:
        """Serve the copy instead of the live log, unless the replica has been removed meanwhile."""
        current, target = swap.current, move.target
        target.names.free(f"{current.topic}-{current.partition}")
        current.home.settle()
        swap.serve(moved)
        if not self._broker.hosted.holds(move.partition) or move.partition.log is not current:
            reached("moves.swapped_too_late")
            target.delete_log(current.topic, current.partition)
            return
        move.partition.log = moved
        self.swapped += 1
        self._broker.log.info(
            "partition.moved",
            topic=current.topic,
            partition=current.partition,
            source=swap.source.path,
            target=target.path,
            log_end_offset=moved.log_end_offset,
        )
        move.partition.wake_watchers()
        self._broker.run_woken()

    def _not_swapped(self, swap: Swap, error: DiskError) -> None:
        """Continue to serve the live log, since the swap has failed before the point of no return."""
        current, target = swap.current, swap.target
        self._log_not_moved(swap, error)
        swap.future.abandon()
        current.cleaning.is_held = False
        self.given_up += 1
        if isinstance(error, DiskHung):
            reached("moves.swap_put_off_for_hung_disk")
            # Leave the copy alone. `remove_future` removes it when the device answers.
            target.checkpoints.expect_no_longer(current.home.key)
            target.disk_refused(error)
        else:
            try:
                target.directory.in_time(swap.undo, lambda undone: None)
            except DiskError as failure:
                target.disk_failed_unless_refused(failure)
            target.background.remove_tree_at(swap.name, 0)
            target.disk_failed_unless_refused(error)
        if isinstance(current.owner, LogDir):
            self._assignments.note(current.topic_id, current.partition, current.owner.directory_id)

    def _swap_failed(self, swap: Swap, error: Exception) -> None:
        """Take the target disk offline after a swap that has failed after the point of no return. The copy
        there is complete, under the old or the new name, but cannot be opened.
        """
        if not isinstance(error, DiskError):
            raise error
        current, target = swap.current, swap.target
        target.names.free(f"{current.topic}-{current.partition}")
        self._log_not_moved(swap, error)
        swap.future.abandon()
        current.home.settle()
        target.disk_failed(error)

    def _log_not_moved(self, swap: Swap, error: DiskError) -> None:
        self._broker.log.error(
            "partition.not_moved",
            topic=swap.current.topic,
            partition=swap.current.partition,
            source=swap.source.path,
            target=swap.target.path,
            error=str(error),
        )

    def _give_up(self, move: Move, reason: str) -> None:
        log, target = move.partition.log, move.target
        key = TopicPartition(log.topic, log.partition)
        if self.moves.get(key) is move:
            del self.moves[key]
        move.is_over = True
        self.given_up += 1
        log.cleaning.is_held = False
        if move.future is not None:
            move.future.abandon()
        if target.offline_reason is None:
            target.give_up_future(move.name)
            self._unsynced[target.path] = target
        if move.is_reported and isinstance(log.owner, LogDir) and self._broker.hosted.holds(move.partition):
            self._assignments.note(log.topic_id, log.partition, log.owner.directory_id)
        self._broker.log.info(
            "partition.move_given_up",
            topic=log.topic,
            partition=log.partition,
            target=target.path,
            reason=reason,
        )

    def statistics(self) -> dict[str, int]:
        """Return figures for metrics. Bytes and numbers of moves count from the start of the process."""
        return {
            "replicas_moving": len(self.moves),
            "moved_bytes": self.bytes_copied,
            "replicas_moved": self.swapped,
            "moves_given_up": self.given_up,
        }
