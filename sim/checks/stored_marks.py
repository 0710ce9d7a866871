"""Check of checkpoints: recovery points, log start offsets and clean-shutdown markers agree with the logs on the same
disk. PURE.

1. A recovery point, in memory or in the checkpoint, is at most the end offset of the synced log.
2. No log begins below the log start offset in its checkpoint: deleted records stay deleted over a restart.
3. A clean-shutdown marker is written only when all logs of the directory are synced.

A marker is checked when it is renamed to its final name. A checkpoint is checked when it has changed and all logs of
its directory are loaded. A log start is checked after its log was opened. In addition, each call of `look` checks
unchanged checkpoints and all log starts with probability `LOOK_ANYWAY`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from odradek.data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    decode_offsets,
)
from odradek.data_plane.log.directory.log_dir import METADATA_TOPIC, parse_partition_name
from odradek.data_plane.log.parts.leader_epochs import MalformedCheckpoint
from sim.checks.stored_logs import StoredLogs, is_segment
from sim.checks.watched import Hosted, Processes, moved_of, partition_name
from sim.history import SafetyViolation
from sim.machine.disk import SimDisk
from sim.machine.members import Member
from sim.machine.platter import Folder, Inode

__all__ = ["StoredMarks"]

LOOK_ANYWAY = 0.02
"""The probability that a call of `look` reads a directory's checkpoints although they have not changed."""
MARKER_RENAMED = f"/{CLEAN_SHUTDOWN_FILE}.tmp"


class StoredMarks:
    """The check of checkpoints and markers. Call `watch_markers` once, then `look` again and again."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/stored marks")
        self._durable = StoredLogs(is_durable=True)
        self._points: dict[tuple[str, str], tuple[object, int]] = {}
        self._checkpoints: dict[tuple[str, str], Inode] = {}
        self.points_seen = self.checkpoints_seen = self.markers_seen = 0

    # --- recovery points in memory, and checkpoints

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check new and changed checkpoints, recovery points and log starts. Raises `SafetyViolation`."""
        opened = [each for each in moved_of(hosted) if self._look_at_point(each)]
        for member, node in self._processes.living():
            if node.broker is not None:
                # A starting broker may truncate damaged logs. It lowers the checkpoint before it reports that all
                # logs are loaded, so the check must wait until then.
                loading = [each.path for each in node.broker.log_dirs if not each.is_loaded]
                for path in member.config.log_dirs:
                    if path in loading:
                        continue
                    self._look_at_checkpoints(member, path, anyway=self._random.random() < LOOK_ANYWAY)
        self._look_at_starts(hosted if self._random.random() < LOOK_ANYWAY else opened)

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check all checkpoints, recovery points and log starts. Raises `SafetyViolation`."""
        self._points.clear()
        self._checkpoints.clear()
        self.look(hosted)

    def _look_at_point(self, each: Hosted) -> bool:
        """Check a log's recovery point. Return True if the log was opened since the last call of `look`. Raises
        `SafetyViolation`.
        """
        log = each.partition.log
        if log.offline:
            return False
        place = (each.member.name, log.directory.path)
        point = log.recovery_point
        known = self._points.get(place)
        if known == (log, point):
            return False
        self._points[place] = (log, point)
        self.points_seen += 1
        disk = self._processes.world.machine(each.member.name).disk
        end_offset = self._durable.end_offset(disk, log.directory.path)
        if point > max(end_offset, log.log_start_offset if not log.size_bytes else 0):
            raise SafetyViolation(
                f"recovery point: {each.member.name} has synced {partition_name(each.partition)} up to {point}, and the "
                f"disk has it up to {end_offset}"
            )
        return known is None or known[0] is not log

    def _look_at_checkpoints(self, member: Member, path: str, *, anyway: bool) -> None:
        disk = self._processes.world.machine(member.name).disk
        inode = disk.on_platter(path).get(RECOVERY_POINT_FILE)
        if not isinstance(inode, Inode) or (
            self._checkpoints.get((member.name, path)) is inode and not anyway
        ):
            return
        self._checkpoints[member.name, path] = inode
        self.checkpoints_seen += 1
        try:
            offsets = self._offsets(inode)
        except MalformedCheckpoint:
            # A fault has damaged the checkpoint, so there are no offsets to check. The broker will recover all logs
            # of this directory.
            return
        for (topic, partition), offset in offsets.items():
            where = f"{path}/{topic}-{partition}"
            if not offset or not disk.in_cache(where):
                continue
            end_offset = self._durable.end_offset(disk, where)
            if offset > end_offset:
                raise SafetyViolation(
                    f"recovery-point checkpoint: {where} on {member.name} is synced up to {offset}, and the disk has it up "
                    f"to {end_offset}"
                )

    @staticmethod
    def _offsets(inode: Inode | Folder | None) -> Mapping[tuple[str, int], int]:
        """Read a checkpoint's offsets; empty if the file is missing."""
        if not isinstance(inode, Inode):
            return {}
        stored = decode_offsets(bytes(inode.data))
        return {(topic, partition): offset for (topic, partition), offset in stored.items()}

    def _look_at_starts(self, hosted: Sequence[Hosted]) -> None:
        """Check that no log begins below its offset in the log-start checkpoint."""
        stored: dict[tuple[str, str], Mapping[tuple[str, int], int]] = {}
        for each in hosted:
            log = each.partition.log
            if log.offline:
                continue
            directory = log.directory.path.rpartition("/")[0]
            place = (each.member.name, directory)
            if place not in stored:
                disk = self._processes.world.machine(each.member.name).disk
                stored[place] = self._offsets(disk.in_cache(directory).get(LOG_START_FILE))
            least = stored[place].get((log.topic, log.partition), 0)
            if log.log_start_offset < least:
                raise SafetyViolation(
                    f"log start: {partition_name(each.partition)} on {each.member.name} begins at {log.log_start_offset}, "
                    f"and its checkpoint says {least}"
                )

    # --- markers

    def watch_markers(self) -> None:
        """Check each clean-shutdown marker from now on, when it is renamed to its final name."""
        for member in self._processes.cluster.members:
            self._watch_disk(member, self._processes.world.machine(member.name).disk)

    def _watch_disk(self, member: Member, disk: SimDisk) -> None:
        others = disk.on_operation

        def on_operation(operation: str, path: str, position: int, count: int) -> None:
            if others is not None:
                others(operation, path, position, count)
            if operation == "rename" and path.endswith(MARKER_RENAMED):
                try:
                    self.check_marker(member, disk, path.removesuffix(MARKER_RENAMED))
                except SafetyViolation as error:
                    self._processes.world.refute(error)

        disk.on_operation = on_operation

    def check_marker(self, member: Member, disk: SimDisk, path: str) -> None:
        """Check that all logs in a directory are synced. Raises `SafetyViolation`."""
        self.markers_seen += 1
        for name, entry in disk.folder_at(path).entries.items():
            key = parse_partition_name(name)
            if key is None or key.topic == METADATA_TOPIC or not isinstance(entry, Folder):
                continue
            durable = disk.on_platter(f"{path}/{name}")
            for file, inode in entry.entries.items():
                if not is_segment(file) or not isinstance(inode, Inode) or not inode.data:
                    continue
                if (
                    durable.get(file) is not inode
                    or inode.durable_size < len(inode.data)
                    or inode.durable_rest
                ):
                    raise SafetyViolation(
                        f"clean-shutdown marker: {member.name} leaves one in {path}, and {name}/{file} is not synced"
                    )
