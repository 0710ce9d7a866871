"""What a replica of the quorum asks others: how to reach them, how long to wait, what to make of the answer. PORTED.

A node is reached by what it has said itself (when it led), else by what the voters say, else by the bootstrap servers. A
node that cannot be reached again and again is asked less and less often; the first failures are reported at once, since
a broken connection is the first sign that a leader is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metadata_quorum.raft.messages import Fetch, FetchAnswer, Request
from metadata_quorum.raft.roles import Follower
from metadata_quorum.replica import wire_messages
from metadata_quorum.replica.peers import NeverSent, PeerConnections
from odradek.env.ports import ConnectionLost
from wire.errors import ErrorCode, KafkaError, ProtocolError
from wire.messages.update_raft_voter import KRaftVersionFeature, Listener, UpdateRaftVoterRequest

if TYPE_CHECKING:
    from metadata_quorum.replica.raft_quorum import RaftQuorum

__all__ = ["QuorumPeers"]

FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers have addresses but no ids yet: they are asked under -2, -3 and so on, as in Kafka."""
FAILURES_TOLD_AT_ONCE = 3
SECONDS_BETWEEN_FAILURES_MAX = 0.5


class QuorumPeers:
    """The asking side of `RaftQuorum`."""

    def __init__(self, quorum: RaftQuorum, bootstrap: Sequence[tuple[str, int]]) -> None:
        self._quorum = quorum
        self._bootstrap = {FIRST_BOOTSTRAP_ID - at: address for at, address in enumerate(bootstrap)}
        self.connections: PeerConnections
        self.addresses: dict[int, tuple[str, int]] = {}
        """How nodes that lead or led say they can be reached."""
        self.leader_high_watermark = -1
        self.is_told_to_lead = False
        """Whether the last answer named this very node as the leader."""
        self._failures: dict[int, int] = {}
        """Of requests in a row, by node."""
        self._update_at = float("-inf")

    @property
    def bootstrap_ids(self) -> tuple[int, ...]:
        return tuple(self._bootstrap)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """How to reach a node; None while nobody has said."""
        quorum = self._quorum
        if node_id == quorum.me.node_id and quorum.endpoints:
            return quorum.endpoints[0][1:]
        if node_id in self.addresses:
            return self.addresses[node_id]
        voter = quorum.core.voters.get(node_id)
        if voter is not None and voter.endpoints:
            return voter.endpoints[0][1:]
        return self._bootstrap.get(node_id)

    async def ask(self, node_id: int, request: Request) -> None:
        """Ask, and report the answer, or that there is none."""
        quorum, clock = self._quorum, self._quorum.clock
        address = self.address_of(node_id)
        message = wire_messages.encode_request(
            request,
            cluster_id=quorum.cluster_id,
            endpoints=quorum.endpoints,
            fetch_bytes_max=quorum.config.fetch_bytes_max,
        )
        try:
            if address is None:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"the address of node {node_id} is not known"
                )
            deadline = clock.monotonic() + quorum.config.request_timeout
            answer = await self.connections.channel(*address).request(message, deadline)
            response, addresses = wire_messages.decode_response(answer)
            if isinstance(response, FetchAnswer) and isinstance(request, Fetch):
                _check_fetched(request, response)
        except ConnectionLost as error:
            await self._count_failure(node_id, paused=isinstance(error, NeverSent))
            # Who was said to be there may have moved; the voters and the next leader know better.
            self.addresses.pop(node_id, None)
            quorum.report(quorum.core.request_failed, node_id, request, broken=True)
        except (KafkaError, ProtocolError) as error:
            await self._count_failure(node_id)
            if isinstance(error, KafkaError) and error.code is not ErrorCode.REQUEST_TIMED_OUT:
                quorum.refusals[node_id] = error.code
                self._tell_refused(node_id, error)
            quorum.report(quorum.core.request_failed, node_id, request, broken=False)
        else:
            self._failures.pop(node_id, None)
            quorum.refusals.pop(node_id, None)
            self.is_told_to_lead = response.leader_id == quorum.me.node_id
            known = [(each, self.addresses.get(each)) for each in addresses]
            self.addresses.update(addresses)
            quorum.report(quorum.core.receive_response, node_id, request, response)
            for each, before in known:
                if quorum.leader_id != each:
                    # It was said to lead and does not: where it is was hearsay, too.
                    quorum.note_address(each, before)
            if isinstance(response, FetchAnswer) and response.error is ErrorCode.NONE:
                self._note_high_watermark(response.high_watermark)
                self._update_voter()

    async def _count_failure(self, node_id: int, *, paused: bool = False) -> None:
        """`paused`: the next request to this node waits for the next attempt to reach it in any case."""
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        if failures > FAILURES_TOLD_AT_ONCE and not paused:
            clock = self._quorum.clock
            backoff = self._quorum.config.retry_backoff * 2 ** min(failures - FAILURES_TOLD_AT_ONCE, 16)
            await clock.sleep_until(clock.monotonic() + min(backoff, SECONDS_BETWEEN_FAILURES_MAX))

    def _tell_refused(self, node_id: int, error: KafkaError) -> None:
        """Once for each row of failures: this repeats itself many times in a second."""
        if self._failures.get(node_id) == 1:
            self._quorum.logger.warning("quorum.request_refused", node=node_id, error=str(error))

    def _note_high_watermark(self, high_watermark: int) -> None:
        if high_watermark > self.leader_high_watermark:
            is_first = self.leader_high_watermark < 0
            self.leader_high_watermark = high_watermark
            if is_first:
                self._quorum.tell_observers()

    # -- the voter's own entry ------------------------------------------------------------------------------------------

    def _update_voter(self) -> None:
        """A voter that listens elsewhere than the log says tells the leader (KIP-853)."""
        quorum = self._quorum
        core, now = quorum.core, quorum.clock.monotonic()
        known = core.voters.get(quorum.me.node_id)
        if not isinstance(core.role, Follower) or not quorum.has_dynamic_voters or not quorum.endpoints:
            return
        if known is None or known.key != quorum.me or known.endpoints == quorum.endpoints:
            return
        if now >= self._update_at:
            self._update_at = now + quorum.config.fetch_timeout
            quorum.start_soon(self._send_update, core.role.leader_id, core.epoch)

    async def _send_update(self, leader_id: int, epoch: int) -> None:
        quorum = self._quorum
        address = self.address_of(leader_id)
        if address is None:
            return
        low, high = 0, 1
        request = UpdateRaftVoterRequest(
            quorum.cluster_id,
            epoch,
            quorum.me.node_id,
            quorum.me.directory_id,
            [Listener(*endpoint) for endpoint in quorum.endpoints],
            KRaftVersionFeature(low, high),
        )
        deadline = quorum.clock.monotonic() + quorum.config.request_timeout
        try:
            answer = await self.connections.channel(*address).request(request, deadline)
        except (ConnectionLost, KafkaError, ProtocolError) as error:
            quorum.logger.warning("quorum.voter_not_updated", error=str(error))
        else:
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                quorum.logger.warning("quorum.voter_not_updated", error=code.name)


def _check_fetched(request: Fetch, response: FetchAnswer) -> None:
    """Raises `KafkaError` for batches that do not continue our log: no sound leader sends them."""
    offset, epoch = request.offset, request.last_epoch
    for batch in response.batches:
        if batch.base_offset != offset or not epoch <= batch.epoch <= response.epoch:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{batch} does not continue offset {offset}")
        offset, epoch = batch.last_offset + 1, batch.epoch
