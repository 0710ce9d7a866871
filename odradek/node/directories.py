"""The directories of a node: opened, locked and checked at the start, blank disks adopted, failed ones left
out; logs loaded, closed at the end. PORTED.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from functools import partial

import attrs

from odradek.data_plane.log.directory.future_logs import parse_future_name, settle_moves
from odradek.data_plane.log.directory.log_dir import LogDir, LogDirContext
from odradek.data_plane.log.directory.log_loader import METADATA_TOPIC, parse_partition_name
from odradek.data_plane.log.loading import read_topic_id
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import NO_TOPIC_ID
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import Dir, DiskError, DiskHung, Event, FileMissing, Log, TaskGroup
from odradek.metadata_quorum.config.typed_settings import settings_of
from odradek.metadata_quorum.controller.unclean_recovery import unread_brokers
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.metadata_quorum.recovery.recovered_image import RECOVERIES
from odradek.metadata_quorum.replica.meta_properties import (
    EmptyDirectory,
    MetaProperties,
    NotALogDirectory,
    read_meta_properties,
)
from odradek.metadata_quorum.replica.storage_format import StorageError, adopt_directory
from odradek.named_states import reached
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import ADOPT_BLANK_DISKS, RESERVE_BYTES, UNSYNCED_BYTES
from odradek.serving.node_env import NodeEnv
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Directories", "NodeCannotStart", "NodeCannotStartYet", "unknown_partitions"]

ANSWER_LOOK_SECONDS = 0.1
"""The seconds between two checks of a disk that hangs while the node stops."""
_NAMED_MAX = 10


class NodeCannotStart(Exception):
    """Raised if the configuration contradicts the disks or the cluster. The text is one line with advice."""


class NodeCannotStartYet(NodeCannotStart):
    """Raised if an address, a mount or a device is missing, but may appear later. A later start may succeed."""


class Directories:
    """The log directories of a node, and the directory of the metadata log, which may be a separate one."""

    def __init__(
        self,
        config: NodeConfig,
        env: NodeEnv,
        log: Log,
        *,
        on_offline: Callable[[LogDir, str], None],
        on_start_stored: Callable[[PartitionLog], None],
        on_answer: Callable[[], None],
        config_for: Callable[[str], LogConfig],
    ) -> None:
        """`config_for` returns the configuration of a topic's logs. It is not called before `load`."""
        self._config = config
        self._env = env
        self._log = log
        self._on_offline = on_offline
        self._on_start_stored = on_start_stored
        self._on_answer = on_answer
        self._config_for = config_for
        self.log_dirs: list[LogDir] = []
        self.by_path: dict[str, LogDir] = {}
        self.unavailable: dict[str, str] = {}
        """Log directories that could not be opened at the start, each with the reason."""
        self.metadata_root: Dir
        """The directory that holds the metadata log."""
        self._loading: list[Event] = []
        """For each directory whose logs are being opened, an event that is set when all are open."""
        self.metadata_directory_id: bytes
        """The second part of a voter's identity, beside its node id. A voter whose disk was wiped is another voter
        (KIP-853)."""

    def open(self) -> None:
        """Open and lock all directories. Raises `NodeCannotStart`, `NodeCannotStartYet`, `NotALogDirectory` or
        `DiskError`.
        """
        config, context = self._config, self._context()
        failed: dict[str, DiskError | NotALogDirectory] = {}
        for path in config.log_dirs:
            try:
                log_dir = self._open(path, context)
            except (DiskError, NotALogDirectory) as error:
                failed[path] = error
                continue
            self.log_dirs.append(log_dir)
            self.by_path[path] = log_dir
        for path, failure in failed.items():
            if not self._adopt_if_blank(path, context):
                self._pass_over(path, failure)
        if not self.log_dirs:
            may_come = any(
                isinstance(failure, DiskError) or self._may_be_unmounted(path, failure)
                for path, failure in failed.items()
            )
            refusal = NodeCannotStartYet if may_come else NodeCannotStart
            raise refusal(f"none of the log directories can be used: {'; '.join(self.unavailable.values())}")
        self._check()
        self._open_metadata_root()

    def _open(self, path: str, context: LogDirContext) -> LogDir:
        """Open one directory. Raises `NotALogDirectory`, `DiskError`."""
        config, env = self._config, self._env
        has_several = len(config.log_dirs) > 1
        workers = env.new_workers() if has_several else env.workers
        directory = env.open_dir(path)
        context = attrs.evolve(context, workers=workers)
        log_dir = LogDir.open(directory, context, config_for=self._config_for)
        # Only now limit the time of calls to the disk, because the opening itself must wait for every disk.
        self._bound_calls(directory)
        return log_dir

    def _bound_calls(self, directory: Dir, *, looks: bool = True) -> None:
        """Limit the time for which the event loop waits for a call to this disk, if the node has several."""
        seconds = self._config.disk_write_wait_seconds
        if len(self._config.log_dirs) > 1 and seconds > 0:
            directory.bound_calls(seconds, looks=looks)

    def _adopt_if_blank(self, path: str, context: LogDirContext) -> bool:
        """Format a blank disk at `path` and use it in place of the old one, if the configuration allows it. Return true
        if the disk is in use now.

        The replicas on the new disk begin empty, and copy their records from the leaders. The new directory id shows
        the controller that the old disk is gone.
        """
        env = self._env
        try:
            is_needed = path == self._config.metadata_log_dir
            if is_needed or not self.log_dirs or not env.is_blank_disk(path):
                return False
            if not self._config.get_bool(ADOPT_BLANK_DISKS):
                self._log.warning("log_dir.blank", directory=path)
                return False
            adopt_directory(
                env.open_dir(path, create=True), self.cluster_id, self._config.node_id, env.new_uuid()
            )
            log_dir = self._open(path, context)
        except (DiskError, NotALogDirectory, StorageError) as error:
            self._log.error("log_dir.not_adopted", directory=path, reason=str(error))
            return False
        self._log.warning("log_dir.adopted", directory=path)
        self.by_path[path] = log_dir
        self.log_dirs = [self.by_path[each] for each in self._config.log_dirs if each in self.by_path]
        return True

    def _context(self) -> LogDirContext:
        env = self._env
        return settings_of(
            LogDirContext,
            self._config.config_layers,
            clock=env.clock,
            workers=env.workers,
            random=env.random,
            log=self._log,
            on_offline=self._on_offline,
            on_start_stored=self._on_start_stored,
            on_answer=self._on_answer,
            buggify=env.buggify,
            reserve_bytes=self._config.get_int(RESERVE_BYTES),
            unsynced_bytes_max=self._config.get_int(UNSYNCED_BYTES),
            agreed_clock=env.agreed_clock,
        )

    def _pass_over(self, path: str, error: DiskError | NotALogDirectory) -> None:
        """Continue without a directory that cannot be opened. Raises the error if the node needs this directory."""
        reason = str(error)
        if isinstance(error, FileMissing):
            reason = f"log directory {path} is missing or was never formatted ({self._way_out(path)})"
        if isinstance(error, DiskError) and (error.operation, error.errno) == ("lock", errno.EWOULDBLOCK):
            # The disk works, but another node uses it. So this node must not continue without the directory.
            raise error
        if path == self._config.metadata_log_dir or len(self._config.log_dirs) == 1:
            if self._may_be_unmounted(path, error):
                raise NodeCannotStartYet(reason) from error
            raise error
        self.unavailable[path] = reason
        self._log.error("directory.offline", directory=path, reason=reason)

    def _may_be_unmounted(self, path: str, error: Exception) -> bool:
        """True if the disk of this directory may simply not be mounted: the path is missing, or it is empty
        and not a blank disk.
        """
        if isinstance(error, EmptyDirectory):
            return not self._env.is_blank_disk(path)
        return isinstance(error, FileMissing)

    def _way_out(self, path: str) -> str:
        """Return advice about a directory that is missing. If another directory is present, the node was
        formatted before. The advice then names ways to replace only the missing directory.
        """
        if path == self._config.metadata_log_dir or not self.log_dirs:
            return "`odradek storage format` formats it"
        return "mount its disk, or run `odradek storage adopt` to use a blank disk in its place"

    def _check(self) -> None:
        config = self._config
        if len({log_dir.directory_id for log_dir in self.log_dirs}) != len(self.log_dirs):
            raise NodeCannotStart(
                "two log directories have the same directory.id, so one of the two is a copy of the "
                "other: remove the copy from log.dirs"
            )
        clusters = {log_dir.cluster_id: None for log_dir in self.log_dirs}
        if len(clusters) != 1:
            raise NodeCannotStart(f"the log directories belong to different clusters: {', '.join(clusters)}")
        for log_dir in self.log_dirs:
            if log_dir.node_id != config.node_id:
                raise NodeCannotStart(
                    f"{log_dir.path} was formatted for node {log_dir.node_id}, but node.id is {config.node_id}"
                )

    def _open_metadata_root(self) -> None:
        """Open the directory of the metadata log: one of the log directories, or a separate one, which is locked
        here.
        """
        path = self._config.metadata_log_dir
        if path in self.by_path:
            # Open the directory once more for the metadata log. So its calls have a thread and a time limit of their
            # own, and only the quorum's tasks wait for them.
            self.metadata_root = self._env.open_dir(path)
            self._bound_calls(self.metadata_root, looks=False)
            self.metadata_directory_id = self.by_path[path].directory_id
            return
        root = self._env.open_dir(path)
        meta = self._read_metadata_root(root)
        root.lock()
        if (meta.cluster_id, meta.node_id) != (self.cluster_id, self._config.node_id):
            raise NodeCannotStart(
                f"{path} was formatted for node {meta.node_id} of cluster {meta.cluster_id}, but the "
                f"log directories are for node {self._config.node_id} of cluster {self.cluster_id}"
            )
        self.metadata_root, self.metadata_directory_id = root, meta.directory_id

    def _read_metadata_root(self, root: Dir) -> MetaProperties:
        """Read the meta properties of a separate directory. Raises `NodeCannotStartYet` if its disk may be unmounted."""
        try:
            return read_meta_properties(root)
        except EmptyDirectory as error:
            if self._may_be_unmounted(root.path, error):
                raise NodeCannotStartYet(str(error)) from error
            raise

    @property
    def cluster_id(self) -> str:
        return self.log_dirs[0].cluster_id

    @property
    def clean_shutdown_broker_epoch(self) -> int:
        """The broker epoch with which all directories were closed cleanly; -1 if they were not."""
        epochs = [log_dir.clean_shutdown_broker_epoch for log_dir in self.log_dirs]
        # An unavailable directory may have lost records, so such a start does not count as clean.
        if self.unavailable or len(set(epochs)) != 1 or epochs[0] is None:
            return -1
        return epochs[0]

    async def load(self, tasks: TaskGroup, image: MetadataImage) -> None:
        """Open all logs, in all directories at the same time, because each waits for its own device.

        If a move between directories was interrupted, `image` decides which directory keeps the replica.
        """
        if len(self.log_dirs) > 1:
            run, assigned = self._env.workers.run, partial(_directory_of, image, self._config.node_id)
            for log_dir, error in await run(settle_moves, self.log_dirs, assigned, self._log):
                log_dir.disk_failed(error)
        loaded = self._loading = [self._env.event() for _ in self.log_dirs]

        async def load(log_dir: LogDir, done: Event) -> None:
            await log_dir.load()
            done.set()

        for log_dir, done in zip(self.log_dirs, loaded, strict=True):
            tasks.start_soon(load, log_dir, done)
        for done in loaded:
            await done.wait()

    async def check_unread_topics(self, image: MetadataImage) -> None:
        """Raise `NodeCannotStart` if the last recovery of the quorum could not read this broker, and its disks have
        partitions that the metadata lack.

        The recovered metadata come from other nodes, so they may lack topics that only this broker has. At other
        starts the logs of unknown topics are set aside as strays, and unfinished moves are removed. Here that would
        hide acknowledged records. So this check comes before the logs are opened, and an operator decides.
        """
        node_id = self._config.node_id
        was_recovered = RECOVERIES in image.broker_configs(None)
        if node_id not in unread_brokers(image) and not (was_recovered and node_id not in image.brokers):
            return
        online = [each.directory for each in self.log_dirs if each.offline_reason is None]
        unknown = await self._env.workers.run(unknown_partitions, online, image)
        if not unknown:
            return
        reached("broker.unread_topics_refused")
        named = ", ".join(unknown[:_NAMED_MAX])
        more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
        raise NodeCannotStart(
            f"the metadata log was recovered while this node's disks could not be read. It lacks these partitions of "
            f"the node, or they were deleted since then: {named}{more}. To keep their records, stop all nodes and run "
            "`odradek quorum recover` again with this node. To do without them, move these directories out of the log "
            "directory"
        )

    def stop_loading(self) -> None:
        """Stop the opening of logs, because the node is to stop while it still starts."""
        for log_dir in self.log_dirs:
            log_dir.stop_loading()

    async def close(self, broker_epoch: int, wait_until: float) -> list[str]:
        """Sync and close all directories. Return the paths whose device does not answer by `wait_until` (monotonic
        seconds).

        The returned directories, and those that fail meanwhile, get no clean-shutdown marker. All other directories
        get one. If the broker was never registered, `broker_epoch` is -1, and the epoch of the last clean shutdown
        stays.
        """
        for loaded in self._loading:
            await loaded.wait()
        if broker_epoch < 0:
            broker_epoch = self.clean_shutdown_broker_epoch
        clock, left_behind = self._env.clock, []
        for log_dir in sorted(self.log_dirs, key=_hangs):
            while _hangs(log_dir) and clock.monotonic() < wait_until:
                await clock.sleep_until(clock.monotonic() + ANSWER_LOOK_SECONDS)
            try:
                if _hangs(log_dir):
                    left_behind.append(log_dir.path)
                    raise DiskHung(log_dir.path, log_dir.path, "close", 0, "the disk does not answer")
                await self._env.workers.run(log_dir.close_clean, broker_epoch)
            except DiskError as error:
                self._log.error("node.directory_not_closed", directory=log_dir.path, error=str(error))
        return left_behind

    def unlock(self, left_behind: Collection[str]) -> None:
        """Release the locks of all directories except `left_behind`. These stay locked, because the process
        may have to live on until their devices answer.
        """
        for log_dir in self.log_dirs:
            if log_dir.path not in left_behind:
                log_dir.directory.unlock()
        if self.metadata_root.path not in left_behind:
            self.metadata_root.unlock()


def _hangs(log_dir: LogDir) -> bool:
    return log_dir.is_stalled and log_dir.offline_reason is None


def unknown_partitions(log_dirs: Collection[Dir], image: MetadataImage) -> list[str]:
    """List the directories of partitions, and of their copies in a move, whose topic id and number the metadata lack
    (blocking). Unreadable directories, and partitions that lost their topic id, are left out.
    """
    found = []
    for log_dir in log_dirs:
        try:
            for name in log_dir.list_directories():
                key = parse_future_name(name) or parse_partition_name(name)
                if key is None or key.topic == METADATA_TOPIC:
                    continue
                directory = log_dir.subdir(name)
                topic_id = read_topic_id(directory, directory.list())
                known: TopicImage | None = image.topics_by_id.get(topic_id)
                if topic_id != NO_TOPIC_ID and (known is None or key.partition not in known.partitions):
                    found.append(f"{log_dir.path}/{name}")
        except DiskError:
            # The start meets the same error when it opens the logs, and leaves the directory out.
            continue
    return found


def _directory_of(image: MetadataImage, node_id: int, key: TopicPartition, topic_id: bytes) -> bytes | None:
    """Return the id of the directory that the metadata assign to a replica of this node; None if there is none."""
    topic = image.topics_by_id.get(topic_id)
    partition: PartitionImage | None = None if topic is None else topic.partitions.get(key.partition)
    if partition is None or node_id not in partition.replicas:
        return None
    return partition.directory_of(node_id)
