"""Reports the directory of each of this broker's replicas to the controller (AssignReplicasToDirs, KIP-858).
PORTED.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.data_plane.newest_image import NewestImage
from odradek.env.ports import Clock, ConnectionLost, Event, Log
from odradek.metadata_quorum.ports import PeerChannel
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from odradek.wire.topic_partition import TopicIdPartition

ASSIGNMENTS_PER_REQUEST = 190
"""The most assignments in one request, so that the controller decides it at once. Kafka sends up to 2,250."""
RETRY_SECONDS = 0.2
_FINAL = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
)
"""The error codes after which the report of a replica is not sent again. Either the controller has accepted
it, or the replica no longer exists.
"""


class DirectoryAssignments:
    """The assignments of replicas to directories that the controller has not confirmed yet. Only the newest
    assignment of each replica is kept. Each kept assignment is sent until the controller confirms it.
    """

    def __init__(
        self,
        node_id: int,
        controller: PeerChannel,
        clock: Clock,
        new_event: Callable[[], Event],
        newest: NewestImage,
        *,
        request_timeout_ms: int,
        log: Log,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._clock = clock
        self._new_event = new_event
        self._newest = newest
        self._timeout_seconds = request_timeout_ms / 1000
        self._log = log
        self.pending: dict[TopicIdPartition, bytes] = {}
        self._wake = new_event()

    def note(self, topic_id: bytes, index: int, directory_id: bytes) -> None:
        """Report a replica's directory to the controller soon. Called if the metadata does not name this
        directory yet.
        """
        self.pending[TopicIdPartition(topic_id, index)] = directory_id
        self._wake.set()

    async def run(self) -> None:
        """Send assignments to the controller until cancelled. Start this once the controller knows this
        broker.
        """
        while True:
            if not self.pending:
                self._wake = self._new_event()
                await self._wake.wait()
            if not await self._report():
                await self._clock.sleep_until(self._clock.monotonic() + RETRY_SECONDS)

    async def _report(self) -> bool:
        """Send one AssignReplicasToDirs request. Returns true if the controller has accepted it."""
        reported = dict(list(self.pending.items())[:ASSIGNMENTS_PER_REQUEST])
        own = self._newest.image.brokers.get(self._node_id)
        request = AssignReplicasToDirsRequest(
            self._node_id, -1 if own is None else own.epoch, _grouped(reported)
        )
        try:
            deadline = self._clock.monotonic() + self._timeout_seconds
            response: AssignReplicasToDirsResponse = await self._controller.request(request, deadline)
        except (KafkaError, ConnectionLost) as error:
            reached("disks.assignments_not_sent")
            self._log.warning("broker.directories_not_reported", error=str(error))
            return False
        if response.error_code:
            self._log.warning("broker.directories_not_reported", error=ErrorCode(response.error_code).name)
            return False
        for directory in response.directories:
            for topic in directory.topics:
                for answer in topic.partitions:
                    replica = TopicIdPartition(topic.topic_id, answer.partition_index)
                    if answer.error_code in _FINAL and self.pending.get(replica) == directory.id:
                        del self.pending[replica]
        return not any(self.pending.get(replica) == reported[replica] for replica in reported)


def _grouped(reported: dict[TopicIdPartition, bytes]) -> list[AssignReplicasToDirsRequestDirectoryData]:
    by_directory: dict[bytes, dict[bytes, list[AssignReplicasToDirsRequestPartitionData]]] = {}
    for (topic_id, index), directory in reported.items():
        partitions = by_directory.setdefault(directory, {}).setdefault(topic_id, [])
        partitions.append(AssignReplicasToDirsRequestPartitionData(index))
    return [
        AssignReplicasToDirsRequestDirectoryData(
            directory,
            [AssignReplicasToDirsRequestTopicData(topic_id, numbers) for topic_id, numbers in topics.items()],
        )
        for directory, topics in by_directory.items()
    ]
