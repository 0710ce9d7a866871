"""Requests to the quorum on the controller listener: Raft's requests, changes of voters, chunks of snapshots,
fetches of readers that are no replicas. PORTED.

Raft's requests are passed to the core, which answers them by effects. All other requests are answered here:
chunks of snapshots, the state of the quorum, changes of the voters (once they are committed). Readers that
are not replicas have a negative replica id. They get the committed log from any node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.env.ports import ConnectionLost, DiskRefused
from odradek.metadata_quorum.features import KRAFT_VERSION, KRAFT_VERSION_LEVEL
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft import membership
from odradek.metadata_quorum.raft.effects import Answer
from odradek.metadata_quorum.raft.messages import FetchAnswer
from odradek.metadata_quorum.raft.replication import WAIT_MS_MAX
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica import wire_messages
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.describe_quorum import describe_quorum
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.metadata_quorum.replica.quorum_leader import QuorumLeader
from odradek.metadata_quorum.replica.snapshot_transfer import LeaderView, answer_fetch_snapshot
from odradek.metadata_quorum.replica.wire_messages import METADATA_TOPIC, METADATA_TOPIC_ID, NOBODY
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages import fetch
from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from odradek.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from odradek.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from odradek.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from odradek.wire.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from odradek.wire.messages.vote import VoteRequest
from odradek.wire.structure import ZERO_UUID, Message

__all__ = ["QuorumRequests"]

FETCH_BYTES_MAX = 8 << 20
CLIENT_SOFTWARE, CLIENT_SOFTWARE_VERSION = "odradek-controller", "1"
READERS_MAX = 1000
"""The limit for the parked fetches of all readers that are not replicas. Beyond this limit, a fetch is
answered at once with the present records.
"""
RAFT_REQUESTS = (VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest, fetch.FetchRequest)
VOTER_REQUESTS = (AddRaftVoterRequest, RemoveRaftVoterRequest, UpdateRaftVoterRequest)

Respond = Callable[[Message], None]


@attrs.frozen
class _Asked:
    """A request that was passed to the core and is not answered yet."""

    message: Message
    bytes_max: int
    respond: Respond


class QuorumRequests:
    """The requests of other nodes that wait for an answer, and the changes of voters that wait for their commit."""

    def __init__(self, driver: QuorumDriver, decisions: QuorumLeader, peers: QuorumPeers) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._decisions = decisions
        self._peers = peers
        self._asked: dict[int, _Asked] = {}
        self._count = 0
        self._changes: list[tuple[int, Message, Respond]] = []
        """Changes of the voters that are not committed yet: the offset, the request, and the callback for the
        answer.
        """
        self.voters_written: tuple[int, int] | None = None
        """The offset and epoch of the last voter set that this node has appended as leader; None if there is
        none.
        """
        self._is_asking_voter = False
        """True while this node asks a future voter which versions it supports."""
        self._advanced = driver.env.event()
        self._readers = 0
        decisions.subscribe(self._on_high_watermark)

    def receive(self, request: Message, version: int, respond: Respond) -> None:
        """Handle a request for the quorum (`QUORUM_APIS`).

        `respond` is called once with the response, now or later.
        """
        driver = self._driver
        if not driver.is_running:
            respond(self._refuse(request, ErrorCode.BROKER_NOT_AVAILABLE))
        elif isinstance(request, fetch.FetchRequest) and wire_messages.replica_id_of(request) < 0:
            driver.start_soon(self._serve_reader, request, respond)
        elif isinstance(request, RAFT_REQUESTS):
            self._receive_raft(request, respond)
        elif isinstance(request, FetchSnapshotRequest):
            driver.start_soon(self._serve_snapshot, request, respond)
        elif isinstance(request, DescribeQuorumRequest):
            clock = driver.clock
            respond(
                describe_quorum(
                    driver.core,
                    request,
                    self._decisions.high_watermark if self._decisions.is_leading else -1,
                    clock.monotonic(),
                    clock.wall_ms(),
                )
            )
        elif isinstance(request, VOTER_REQUESTS):
            self._change_voters(request, respond)
        else:
            raise AssertionError(f"{type(request).__name__} is not a request of the quorum")

    def _refuse(self, request: Message, code: ErrorCode) -> Message:
        match request:
            case FetchSnapshotRequest():
                return FetchSnapshotResponse(error_code=code)
            case DescribeQuorumRequest():
                return DescribeQuorumResponse(code, code.message)
            case AddRaftVoterRequest() | RemoveRaftVoterRequest() | UpdateRaftVoterRequest():
                return _voter_answer(request, code)
            case _:
                return wire_messages.refuse(request, code)

    # -- Raft ---------------------------------------------------------------------------------------------------------

    def _receive_raft(self, request: Message, respond: Respond) -> None:
        driver = self._driver
        try:
            decoded = wire_messages.decode_request(
                request, me=self._settings.me, cluster_id=self._settings.cluster_id
            )
            endpoints = wire_messages.leader_endpoints_of(request)
        except KafkaError as error:
            respond(wire_messages.refuse(request, error.code))
            return
        self._peers.own_copy.note_received(decoded)
        self._count += 1
        bytes_max = min(request.max_bytes, FETCH_BYTES_MAX) if isinstance(request, fetch.FetchRequest) else 0
        self._asked[self._count] = _Asked(request, bytes_max, respond)
        named = [(node_id, self._peers.chosen(listening)) for node_id, listening in endpoints.items()]
        if decoded.epoch < driver.core.epoch:
            named = []
        known = [(node_id, self._peers.said_address_of(node_id)) for node_id, _ in named]
        for node_id, address in named:
            self._peers.note_address(node_id, address)
        driver.report(driver.core.receive_request, self._count, decoded)
        for node_id, before in known:
            if driver.core.leader_id != node_id:
                reached("quorum.address_of_false_leader_dropped")
                # The core does not accept the sender as the leader. So the address in the sender's request is
                # not stored.
                self._peers.note_address(node_id, before)

    def answer(self, effect: Answer) -> None:
        """Send an answer of the core to the sender of the request. If the answer needs records, read them
        from the log.
        """
        driver = self._driver
        asked = self._asked.pop(effect.request_id)
        response, records = effect.response, b""
        if isinstance(response, FetchAnswer):
            # If a snapshot has replaced the records meanwhile, no records are sent. The answer to the next
            # fetch names the snapshot.
            if effect.read_offset is not None and effect.read_offset >= driver.log.log_start_offset:
                bytes_max = 1 if driver.env.buggify("quorum.short_read") else asked.bytes_max
                records = self._decisions.read(effect.read_offset, bytes_max)
            if effect.read_offset is not None and not records:
                reached("quorum.records_went_before_answer")
            if not driver.core.has_committed_in_epoch:
                reached("quorum.high_watermark_withheld")
                # The receiver may know a higher high watermark from an earlier leader. So this leader does
                # not send its own high watermark yet.
                response = attrs.evolve(response, high_watermark=-1)
        leader = None
        address = None if response.leader_id is None else self._peers.address_of(response.leader_id)
        if response.leader_id is not None and address is not None:
            leader = wire_messages.Leader(response.leader_id, *address)
        asked.respond(wire_messages.encode_response(response, asked.message, leader, records))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    async def _serve_snapshot(self, request: FetchSnapshotRequest, respond: Respond) -> None:
        driver = self._driver
        leader = LeaderView(
            self._settings.me.node_id,
            self._settings.cluster_id,
            driver.core.epoch,
            driver.core.leader_id,
            self._peers.leader_address(),
        )
        if driver.env.buggify("snapshot.tiny_chunk"):
            request.max_bytes = min(request.max_bytes, 100)
        answer = await driver.env.workers.run(answer_fetch_snapshot, request, driver.snapshot_store, leader)
        if answer.served is not None:
            driver.report(driver.core.snapshot_served, answer.served)
        respond(answer.response)

    # -- readers ------------------------------------------------------------------------------------------------------

    async def _serve_reader(self, request: fetch.FetchRequest, respond: Respond) -> None:
        """Answer a Fetch of a reader that is not a replica, as soon as there are committed records."""
        driver, clock = self._driver, self._driver.clock
        wait_ms_max = 0 if self._readers >= READERS_MAX else min(request.max_wait_ms, WAIT_MS_MAX)
        deadline = clock.monotonic() + max(0, wait_ms_max) / 1000
        self._readers += 1
        try:
            offset = self._reader_offset(request)
            while True:
                self._advanced = self._advanced if not self._advanced.is_set() else driver.env.event()
                if 0 <= offset < driver.log.log_start_offset and driver.core.log.snapshot is not None:
                    respond(self._reader_answer(request, b"", snapshot=driver.core.log.snapshot))
                    return
                if not driver.log.log_start_offset <= offset <= self._decisions.high_watermark:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
                bytes_max = max(1, min(request.max_bytes, FETCH_BYTES_MAX))
                records = await self._read_in_turn(offset, bytes_max)
                if records or clock.monotonic() >= deadline or request.min_bytes <= 0:
                    break
                with clock.timeout_at(deadline):
                    await self._advanced.wait()
        except KafkaError as error:
            respond(self._reader_answer(request, b"", error.code))
        except DiskRefused:
            respond(self._reader_answer(request, b"", ErrorCode.KAFKA_STORAGE_ERROR))
        except ConnectionLost:
            return
        else:
            respond(self._reader_answer(request, records))
        finally:
            self._readers -= 1

    async def _read_in_turn(self, offset: int, bytes_max: int) -> bytes:
        """Read committed records from `offset` on in a worker, while no part of the log is removed."""
        driver, decisions = self._driver, self._decisions
        async with driver.reading:
            return await driver.env.workers.run(decisions.read_committed, offset, bytes_max)

    def _reader_offset(self, request: fetch.FetchRequest) -> int:
        if request.cluster_id is not None and request.cluster_id != self._settings.cluster_id:
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        topic = request.topics[0]
        known = topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC
        if not known or topic.partitions[0].partition != 0:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[0].fetch_offset

    def _reader_answer(
        self,
        request: fetch.FetchRequest,
        records: bytes,
        code: ErrorCode = ErrorCode.NONE,
        snapshot: OffsetAndEpoch | None = None,
    ) -> fetch.FetchResponse:
        """Make the response to a reader.

        `snapshot` is the snapshot to load if the requested records are no longer in the log.
        """
        driver = self._driver
        leader_id, address = driver.core.leader_id, self._peers.leader_address()
        partition = fetch.PartitionData(
            0,
            code,
            self._decisions.high_watermark,
            self._decisions.high_watermark,
            driver.log.log_start_offset,
            current_leader=fetch.LeaderIdAndEpoch(
                NOBODY if leader_id is None else leader_id, driver.core.epoch
            ),
            aborted_transactions=None,
            records=records,
        )
        if snapshot is not None:
            partition.snapshot_id = fetch.SnapshotId(snapshot.offset, snapshot.epoch)
        endpoints = []
        if leader_id is not None and address is not None:
            endpoints.append(fetch.NodeEndpoint(leader_id, *address))
        return fetch.FetchResponse(
            responses=[fetch.FetchableTopicResponse(METADATA_TOPIC, METADATA_TOPIC_ID, [partition])],
            node_endpoints=endpoints,
        )

    # -- voters -------------------------------------------------------------------------------------------------------

    def _change_voters(self, request: Any, respond: Respond) -> None:
        """Append the requested voter set. The request is answered when the set is committed (KIP-853)."""
        driver = self._driver
        try:
            voters = self._changed(request)
        except KafkaError as error:
            respond(self._voter_answer(request, error.code, error.message))
            return
        if voters == driver.core.voters:
            respond(self._voter_answer(request, ErrorCode.NONE))
        elif isinstance(request, AddRaftVoterRequest):
            self._is_asking_voter = True
            driver.start_soon(self._ask_and_add, request, respond)
        elif isinstance(request, UpdateRaftVoterRequest):
            self._is_asking_voter = True
            driver.start_soon(self._reach_and_update, request, voters, respond)
        else:
            self._append_voters(request, voters, respond)

    async def _ask_and_add(self, request: AddRaftVoterRequest, respond: Respond) -> None:
        """Add a voter, after checking that it can be reached at its listeners and supports `kraft.version` 1
        (KIP-853).
        """
        try:
            try:
                kraft_versions = await self._kraft_versions_of(request)
            finally:
                self._is_asking_voter = False
            # By now this node may have lost its leadership, or the new voter may have fallen behind. So check
            # again.
            voters = self._changed(request)
        except KafkaError as error:
            respond(self._voter_answer(request, error.code, error.message))
            return
        added = voters.get(request.voter_id)
        assert added is not None
        voters = voters.with_voter(attrs.evolve(added, kraft_versions=kraft_versions))
        self._append_voters(request, voters, respond)

    async def _reach_and_update(
        self, request: UpdateRaftVoterRequest, voters: VoterSet, respond: Respond
    ) -> None:
        """Write a voter's new address to the log, after checking that the voter answers there."""
        voter = voters.get(request.voter_id)
        assert voter is not None
        address = self._settings.chosen(voter.endpoints)
        try:
            try:
                reason = await self._peers.reach(voter.key, address)
            finally:
                self._is_asking_voter = False
            if reason:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason)
            # By now this node may have lost its leadership, so check again.
            voters = self._changed(request)
        except KafkaError as error:
            self._driver.logger.warning(
                "quorum.voter_not_reached",
                voter=request.voter_id,
                address="{}:{}".format(*address),
                error=str(error),
            )
            respond(self._voter_answer(request, error.code))
            return
        self._append_voters(request, voters, respond)

    async def _kraft_versions_of(self, request: AddRaftVoterRequest) -> tuple[int, int]:
        """Ask a future voter for the levels of `kraft.version` that it supports.

        Returns the lowest and the highest. Raises `KafkaError` with Kafka's codes.
        """
        driver = self._driver
        asked = next(
            (each for each in request.listeners if each.name == self._settings.listener),
            request.listeners[0],
        )
        deadline = driver.clock.monotonic() + self._settings.raft.request_timeout_seconds
        try:
            answer = await self._peers.channel((asked.host, asked.port)).request(
                ApiVersionsRequest(CLIENT_SOFTWARE, CLIENT_SOFTWARE_VERSION), deadline
            )
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code))
        except (ConnectionLost, KafkaError, ProtocolError) as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"voter {request.voter_id} does not answer at {asked.host}:{asked.port}: {error}",
            ) from error
        spoken = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        low, high = spoken.get(KRAFT_VERSION, (0, 0))
        if not low <= KRAFT_VERSION_LEVEL <= high:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"voter {request.voter_id} supports {KRAFT_VERSION} {low} to {high}, but the cluster "
                f"uses {KRAFT_VERSION_LEVEL}",
            )
        return low, high

    def _append_voters(self, request: Any, voters: VoterSet, respond: Respond) -> None:
        driver = self._driver
        driver.logger.info("quorum.voters", voters=str([str(each.key) for each in voters.voters]))
        offset = self._decisions.append_control([voters.to_record()], voters)
        self.voters_written = offset, self._decisions.epoch
        if isinstance(request, AddRaftVoterRequest) and not request.ack_when_committed:
            respond(self._voter_answer(request, ErrorCode.NONE))
        else:
            self._changes.append((offset, request, respond))

    def _changed(self, request: Any) -> VoterSet:
        """Return the requested voter set, after checks in Kafka's order. Raises `KafkaError`."""
        driver = self._driver
        core = driver.core
        if request.cluster_id is not None and request.cluster_id != self._settings.cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{self._settings.cluster_id}"',
            )
        if isinstance(request, UpdateRaftVoterRequest):
            if request.current_leader_epoch < core.epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            if request.current_leader_epoch > core.epoch:
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self._decisions.is_beginning_or_leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
            verb = type(request).__name__.removesuffix("RaftVoterRequest")
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        endpoints: tuple[tuple[str, str, int], ...] = ()
        if not isinstance(request, RemoveRaftVoterRequest):
            endpoints = tuple((each.name, each.host, each.port) for each in request.listeners)
            known = self._settings.endpoints[0][0] if self._settings.endpoints else None
            if known is not None and all(name != known for name, _, _ in endpoints):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"the request does not say where the voter's listener {known} is",
                )
        if self._changes or self._decisions.has_waiting_control or self._is_asking_voter:
            reached("quorum.second_voter_change_refused")
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                "an earlier change of the voters is not committed yet: repeat the request later",
            )
        if not driver.has_dynamic_voters:
            reason = "the voters are configured statically (kraft.version is 0)"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, reason)
        match request:
            case AddRaftVoterRequest():
                added = Voter(key, endpoints)
                code = membership.refusal_to_add(core, added)
                self._check(code, f"voter {key} cannot be added: {_WHY.get(code, '')}")
                return core.voters.with_voter(added)
            case RemoveRaftVoterRequest():
                code = membership.refusal_to_remove(core, key)
                self._check(code, f"voter {key} cannot be removed: {_WHY.get(code, '')}")
                return core.voters.without(key.node_id)
            case _:
                code = membership.refusal(core)
                self._check(code, _WHY.get(code, ""))
                known_voter = core.voters.get(key.node_id)
                if known_voter is None or not known_voter.key.matches(key):
                    raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
                spoken = request.kraft_version_feature
                low, high = spoken.min_supported_version, spoken.max_supported_version
                if not low <= 1 <= high:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the voter does not support kraft.version 1")
                return core.voters.with_voter(Voter(key, endpoints, (low, high)))

    @staticmethod
    def _check(code: ErrorCode, reason: str) -> None:
        if code is not ErrorCode.NONE:
            raise KafkaError(code, reason)

    def _on_high_watermark(self, high_watermark: int) -> None:
        self._advanced.set()
        done = [each for each in self._changes if each[0] < high_watermark]
        self._changes = [each for each in self._changes if each[0] >= high_watermark]
        for _, request, respond in done:
            respond(self._voter_answer(request, ErrorCode.NONE))

    def lost_leadership(self) -> None:
        """Answer all uncommitted changes of voters with an error. It is unknown whether the next leader
        commits these changes.
        """
        changes, self._changes = self._changes, []
        for _, request, respond in changes:
            respond(self._voter_answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _voter_answer(self, request: Message, code: ErrorCode, reason: str | None = None) -> Message:
        driver = self._driver
        answer = _voter_answer(request, code, reason)
        if isinstance(answer, UpdateRaftVoterResponse):
            leader_id, address = driver.core.leader_id, self._peers.leader_address()
            host, port = ("", -1) if address is None else address
            answer.current_leader = CurrentLeader(
                NOBODY if leader_id is None else leader_id, driver.core.epoch, host, port
            )
        return answer


_WHY = {
    ErrorCode.REQUEST_TIMED_OUT: "the voter lags behind the leader, or an earlier change of the voters is not committed yet",
    ErrorCode.DUPLICATE_VOTER: "the node is a voter already",
    ErrorCode.VOTER_NOT_FOUND: "the node is not a voter",
    ErrorCode.INVALID_REQUEST: "the node is the last voter",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this node does not lead the quorum",
}


def _voter_answer(request: Message, code: ErrorCode, reason: str | None = None) -> Message:
    if isinstance(request, UpdateRaftVoterRequest):
        return UpdateRaftVoterResponse(0, code)
    cls = AddRaftVoterResponse if isinstance(request, AddRaftVoterRequest) else RemoveRaftVoterResponse
    return cls(0, code, None if code is ErrorCode.NONE else (reason or code.message))
