"""Requests of a replica of the quorum to other nodes: their addresses, the waits, the reports of answers. PORTED.

The address of a node is its own statement (when it led), else the voters' entry, else a bootstrap server. A node that
stays out of reach is asked less and less often. The first failures are reported at once, since a broken connection is
the first sign that a leader is dead.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.ports import PeerChannel, PeerChannels
from odradek.metadata_quorum.raft.messages import Fetch, FetchAnswer, Request
from odradek.metadata_quorum.raft.roles import Follower
from odradek.metadata_quorum.replica import wire_messages
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.metadata_quorum.replica.peers import NeverSent
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.update_raft_voter import KRaftVersionFeature, Listener, UpdateRaftVoterRequest

__all__ = ["QuorumPeers"]

FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers have addresses but no ids yet: they are asked under -2, -3 and so on, as in Kafka."""
FAILURES_TOLD_AT_ONCE = 3
SECONDS_BETWEEN_FAILURES_MAX = 0.5


class QuorumPeers:
    """The addresses of the other nodes, and their last answers."""

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._bootstrap = {
            FIRST_BOOTSTRAP_ID - at: address for at, address in enumerate(self._settings.bootstrap_servers)
        }
        self._sender = wire_messages.Sender(
            self._settings.cluster_id, self._settings.endpoints, self._settings.raft.fetch_bytes_max
        )
        self.connections: PeerChannels
        self._addresses: dict[int, tuple[str, int]] = {}
        """The addresses that nodes gave as their own when they led."""
        self.refusals: dict[int, ErrorCode] = {}
        """The error codes with which nodes have refused this one since their last good answer."""
        self.leader_high_watermark = -1
        """The largest high watermark that a leader has sent to this node, -1 before."""
        self.is_told_to_lead = False
        """True if the last answer named this very node as the leader: it led before, or another has its id."""
        self._failures: dict[int, int] = {}
        """Failed requests in a row, by node."""
        self._update_at = float("-inf")

    @property
    def bootstrap_ids(self) -> tuple[int, ...]:
        return tuple(self._bootstrap)

    def channel(self, address: tuple[str, int]) -> PeerChannel:
        """Return the channel to the node that listens at this address."""
        return self.connections.channel(*address)

    def said_address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the address that a node has given as its own."""
        return self._addresses.get(node_id)

    def note_address(self, node_id: int, address: tuple[str, int] | None) -> None:
        """Note the address that a node gives as its own; None: forget it."""
        if address is None:
            self._addresses.pop(node_id, None)
        else:
            self._addresses[node_id] = address

    def leader_address(self) -> tuple[str, int] | None:
        """Host and port where the leader serves controllers' requests, None while no leader is known."""
        leader_id = self._driver.core.leader_id
        return None if leader_id is None else self.address_of(leader_id)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Find the address of a node; None while it is unknown."""
        driver = self._driver
        if node_id == self._settings.me.node_id and self._settings.endpoints:
            return self._settings.endpoints[0][1:]
        voter = driver.core.voters.get(node_id)
        endpoints = () if voter is None else voter.endpoints
        said = self._addresses.get(node_id)
        # Others name a node by the listener at which they reach it, which may ask for another protocol than ours.
        if endpoints and (said is None or any(each[1:] == said for each in endpoints)):
            return self.chosen(endpoints)
        return self._bootstrap.get(node_id) if said is None else said

    def chosen(self, endpoints: Sequence[wire_messages.Endpoint]) -> tuple[str, int]:
        """Choose one of a node's endpoints for this node: that of the listener of the same name."""
        mine = (each for each in endpoints if each[0] == self._settings.listener)
        return next(mine, endpoints[0])[1:]

    async def ask(self, node_id: int, request: Request) -> None:
        """Send a request, and report its answer or its failure to the core."""
        driver, clock = self._driver, self._driver.clock
        address = self.address_of(node_id)
        message = wire_messages.encode_request(request, self._sender)
        try:
            if address is None:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"the address of node {node_id} is not known"
                )
            deadline = clock.monotonic() + self._settings.raft.request_timeout_seconds
            answer = await self.channel(address).request(message, deadline)
            response, addresses = wire_messages.decode_response(answer)
            if isinstance(response, FetchAnswer) and isinstance(request, Fetch):
                _check_fetched(request, response)
        except ConnectionLost as error:
            await self._count_failure(node_id, paused=isinstance(error, NeverSent))
            # The node may have moved from the address that it gave. The voters and the next leader know better.
            self.note_address(node_id, None)
            driver.report(driver.core.request_failed, node_id, request, broken=True)
        except (KafkaError, ProtocolError) as error:
            await self._count_failure(node_id)
            if isinstance(error, KafkaError) and error.code is not ErrorCode.REQUEST_TIMED_OUT:
                self.refusals[node_id] = error.code
                self._tell_refused(node_id, error)
            driver.report(driver.core.request_failed, node_id, request, broken=False)
        else:
            self._failures.pop(node_id, None)
            self.refusals.pop(node_id, None)
            self.is_told_to_lead = response.leader_id == self._settings.me.node_id
            known = [(each, self._addresses.get(each)) for each in addresses]
            self._addresses.update(addresses)
            driver.report(driver.core.receive_response, node_id, request, response)
            for each, before in known:
                if driver.core.leader_id != each:
                    # Another node has wrongly claimed to lead. The address came from that node too.
                    self.note_address(each, before)
            if isinstance(response, FetchAnswer) and response.error is ErrorCode.NONE:
                self._note_high_watermark(response.high_watermark)
                self._update_voter()

    async def _count_failure(self, node_id: int, *, paused: bool = False) -> None:
        """Count a failure and wait; `paused`: the next request to this node waits for the next attempt anyway."""
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        if failures > FAILURES_TOLD_AT_ONCE and not paused:
            clock = self._driver.clock
            backoff = self._settings.raft.retry_backoff_seconds * 2 ** min(
                failures - FAILURES_TOLD_AT_ONCE, 16
            )
            await clock.sleep_until(clock.monotonic() + min(backoff, SECONDS_BETWEEN_FAILURES_MAX))

    def _tell_refused(self, node_id: int, error: KafkaError) -> None:
        """Log one line for each row of failures: they repeat many times a second."""
        if self._failures.get(node_id) == 1:
            self._driver.logger.warning("quorum.request_refused", node=node_id, error=str(error))

    def _note_high_watermark(self, high_watermark: int) -> None:
        if high_watermark > self.leader_high_watermark:
            is_first = self.leader_high_watermark < 0
            self.leader_high_watermark = high_watermark
            if is_first:
                self._driver.tell_observers()

    # -- the voter's own entry ------------------------------------------------------------------------------------------

    def _update_voter(self) -> None:
        """Send the leader this voter's address if the log has another one (KIP-853)."""
        driver = self._driver
        core, now = driver.core, driver.clock.monotonic()
        known = core.voters.get(self._settings.me.node_id)
        if (
            not isinstance(core.role, Follower)
            or not driver.has_dynamic_voters
            or not self._settings.endpoints
        ):
            return
        if known is None or known.key != self._settings.me or known.endpoints == self._settings.endpoints:
            return
        if now >= self._update_at:
            self._update_at = now + self._settings.raft.fetch_timeout_seconds
            driver.start_soon(self._send_update, core.role.leader_id, core.epoch)

    async def _send_update(self, leader_id: int, epoch: int) -> None:
        driver = self._driver
        address = self.address_of(leader_id)
        if address is None:
            return
        low, high = 0, 1
        request = UpdateRaftVoterRequest(
            self._settings.cluster_id,
            epoch,
            self._settings.me.node_id,
            self._settings.me.directory_id,
            [Listener(*endpoint) for endpoint in self._settings.endpoints],
            KRaftVersionFeature(low, high),
        )
        deadline = driver.clock.monotonic() + self._settings.raft.request_timeout_seconds
        try:
            answer = await self.channel(address).request(request, deadline)
        except (ConnectionLost, KafkaError, ProtocolError) as error:
            driver.logger.warning("quorum.voter_not_updated", error=str(error))
        else:
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                driver.logger.warning("quorum.voter_not_updated", error=code.name)


def _check_fetched(request: Fetch, response: FetchAnswer) -> None:
    """Check that fetched batches continue our log. Raises `KafkaError` for others: no sound leader sends them."""
    offset, epoch = request.offset, request.last_epoch
    for batch in response.batches:
        if batch.base_offset != offset or not epoch <= batch.epoch <= response.epoch:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{batch} does not continue offset {offset}")
        offset, epoch = batch.last_offset + 1, batch.epoch
