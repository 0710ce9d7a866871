"""Reports full and hung disks to the controller: whose replicas should not lead, and which hung directories
heartbeats report as offline. PORTED. So replicas on other brokers become leaders instead.

Theory of operation
-------------------
* A directory in trouble (`odradek.data_plane.disks.disk_watch`) is listed in this broker's own configuration
  (`odradek.serving.disk_troubles`). For each leader in this directory, the controller elects another replica
  that is in sync and lies in a sound directory. If a partition has no such replica, its leader stays.
* Replicas in a **hung** directory cannot follow their leaders either, and a write with acks=all would wait
  for them. So heartbeats list the directory in `offline_log_dirs` (Kafka's field), and its replicas leave the
  ISRs at once. There is one condition. If a replica in the directory is in an ISR, this ISR must have another
  sound replica. The directory stays in the list while it hangs. When the device answers again, the broker
  registers anew, with the same incarnation and with the directory. The replicas keep their logs, because the
  directory still has the same id.
* If **all** directories hang, the heartbeat instead requests that the broker be fenced, under the same
  condition. Not all directories can be offline, since a registration needs at least one.
* A **full** directory stays online. Its replicas can be read. They leave the ISRs when they lag behind their
  leaders. The directory gets no new replicas, because it is cordoned (KIP-1066).

* A directory that an operator has **demoted** (`odradek disk demote`) is listed too, so that other replicas
  lead. Nothing else about it changes.

The broker sends the list until the metadata contains the same list. So the list also arrives after a lost
answer or a change of the controller. After a restart, it replaces an outdated list in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.ports import BrokerHost
from odradek.data_plane.replication.hosted_topics import HostedTopics
from odradek.env.ports import ConnectionLost, Env
from odradek.metadata_quorum.ports import PeerChannel
from odradek.named_states import reached
from odradek.serving.disk_troubles import (
    DEMOTED_LOG_DIRS,
    TROUBLED_LOG_DIRS,
    Trouble,
    TroubledDirectory,
    demoted_paths,
    troubles_text,
)
from odradek.wire.config_resources import RESOURCE_BROKER
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

RETRY_SECONDS = 1.0
SHOWN_SECONDS_MAX = 60.0
"""The longest wait in seconds for the metadata to contain a list that the controller has accepted. After this
time the list is sent again.
"""
_SET, _DELETE = 0, 1


class TroublesHost(BrokerHost, Protocol):
    """The interface of the broker that `DirectoryTroubles` uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def env(self) -> Env: ...

    @property
    def hosted(self) -> HostedTopics: ...

    @property
    def log_dirs(self) -> Sequence[LogDir]: ...

    @property
    def controller(self) -> PeerChannel: ...

    @property
    def request_timeout_ms(self) -> int: ...

    def disk_answers(self, log_dir: LogDir) -> None:
        """Called when a device that hung has answered again."""

    def run_woken(self) -> None:
        """Answer the parked requests that an event has woken."""


class DirectoryTroubles:
    """Reports this broker's directories in trouble to the controller."""

    def __init__(self, broker: TroublesHost) -> None:
        self._broker = broker
        self._log = broker.log
        self._given_up: dict[bytes, None] = {}
        """The ids of hung directories that this broker reports as offline."""
        self._demoted_since: dict[str, int] = {}
        """The wall-clock time, in milliseconds, at which each demoted directory was first seen as demoted; by
        path.
        """
        self._wake = broker.env.event()
        self.heartbeat_now: Callable[[], None] = lambda: None
        """A function that sends a heartbeat at once."""

    # -- troubles in heartbeats and registrations -------------------------------------------------------------------

    def given_up(self) -> tuple[bytes, ...]:
        """Return the ids, sorted, of the hung directories that heartbeats must report as offline."""
        found: dict[bytes, None] = {}
        for log_dir in self._broker.log_dirs:
            if log_dir.trouble is Trouble.HUNG and log_dir.offline_reason is None:
                directory = log_dir.directory_id
                if directory in self._given_up or self._may_go(directory):
                    found[directory] = None
        if list(found) != list(self._given_up):
            for directory in found:
                if directory not in self._given_up:
                    self._log.warning("directory.reported_offline", directory=self._path(directory))
            self._given_up = found
        return tuple(sorted(found))

    @property
    def full(self) -> tuple[bytes, ...]:
        """The ids of the full directories, sorted."""
        return tuple(
            sorted(each.directory_id for each in self._broker.log_dirs if each.trouble is Trouble.FULL)
        )

    def _path(self, directory: bytes) -> str:
        return next(each.path for each in self._broker.log_dirs if each.directory_id == directory)

    def _may_go(self, directory: bytes) -> bool:
        """True if the directory may be reported as offline. For each of its replicas that is in an ISR,
        another replica in the ISR must be able to lead.
        """
        broker = self._broker
        me = broker.node_id
        image = broker.newest.image
        troubled = [each for ids in image.troubled_directories.values() for each in ids]
        for partition in broker.hosted.partitions():
            log = partition.log
            known = image.partition(log.topic, log.partition)
            if known is None or not isinstance(log.owner, LogDir) or log.owner.directory_id != directory:
                continue
            if me in known.isr and not any(
                (other := image.brokers.get(replica)) is not None
                and other.is_active
                and known.is_online(replica, other)
                and known.directory_of(replica) not in troubled
                for replica in known.isr
                if replica != me
            ):
                return False
        return True

    # -- troubles in the metadata -----------------------------------------------------------------------------------

    def changed(self, log_dir: LogDir) -> None:
        """Called when a directory gets into trouble, or its trouble ends."""
        if log_dir.trouble is None:
            self._broker.disk_answers(log_dir)
        self._wake.set()
        self.heartbeat_now()
        self._broker.run_woken()

    def config_changed(self) -> None:
        """Called when the metadata has a new configuration of this broker."""
        self._wake.set()

    async def run(self) -> None:
        """Send the list of troubles to the controller whenever it changes, until cancelled. Start this once
        the controller knows this broker.
        """
        clock = self._broker.clock
        while True:
            self._wake = self._broker.env.event()
            if self.text() == self._shown():
                await self._wake.wait()
                continue
            pause = SHOWN_SECONDS_MAX if await self._report() else RETRY_SECONDS
            with clock.timeout_at(clock.monotonic() + pause):
                await self._wake.wait()

    def text(self) -> str:
        """Return the list of this broker's directories in trouble as text; empty if all are sound."""
        demoted = self._demoted()
        found = []
        for each in self._broker.log_dirs:
            if each.trouble is not None:
                found.append(
                    TroubledDirectory(each.directory_id, each.trouble, each.trouble_since_ms, each.path)
                )
            elif each.path in demoted:
                since_ms = self._demoted_since.setdefault(each.path, self._broker.clock.wall_ms())
                found.append(TroubledDirectory(each.directory_id, Trouble.DEMOTED, since_ms, each.path))
        return troubles_text(found)

    def _demoted(self) -> frozenset[str]:
        """Return the paths of the directories whose replicas should not lead, because an operator has demoted
        them (`odradek disk demote`).
        """
        broker = self._broker
        text = broker.newest.image.broker_configs(broker.node_id).get(DEMOTED_LOG_DIRS, "")
        paths = frozenset(demoted_paths(text))
        for path in [each for each in self._demoted_since if each not in paths]:
            del self._demoted_since[path]
        return paths

    def _shown(self) -> str:
        broker = self._broker
        return broker.newest.image.broker_configs(broker.node_id).get(TROUBLED_LOG_DIRS, "")

    async def _report(self) -> bool:
        """Send the list of directories in trouble. Returns true if the controller has stored it."""
        broker = self._broker
        wanted = self.text()
        config = AlterableConfig(TROUBLED_LOG_DIRS, _SET if wanted else _DELETE, wanted or None)
        request = IncrementalAlterConfigsRequest(
            [AlterConfigsResource(RESOURCE_BROKER, str(broker.node_id), [config])], False
        )
        try:
            deadline = broker.clock.monotonic() + broker.request_timeout_ms / 1000
            response: IncrementalAlterConfigsResponse = await broker.controller.request(request, deadline)
        except (KafkaError, ConnectionLost) as error:
            reached("disks.troubles_not_sent")
            self._log.warning("broker.troubles_not_reported", error=str(error))
            return False
        for answer in response.responses:
            if answer.error_code:
                self._log.warning("broker.troubles_not_reported", error=ErrorCode(answer.error_code).name)
                return False
        return True
