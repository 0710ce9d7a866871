"""Requests to a voter at one place or at all places where it may be, by name resolution of the bootstrap
servers. PORTED.

Any answer except INVALID_VOTER_KEY comes from the voter that the request names. Only the requests Vote and
BeginQuorumEpoch name a voter by id and directory. So only these two requests are sent to addresses that may
belong to other nodes. Each request contains this cluster's id, so that nodes of other clusters refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.ports import PeerChannel, PeerChannels
from odradek.metadata_quorum.raft.messages import Fetch, FetchAnswer, Request, Response
from odradek.metadata_quorum.replica import wire_messages
from odradek.metadata_quorum.replica.asking.voter_places import Place, VoterPlaces
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError

__all__ = ["Outcome", "VoterSearch"]


@attrs.frozen
class Outcome:
    """The result of one request at one place: either a response with the addresses in it, or an error."""

    place: Place
    response: Response | None = None
    addresses: dict[int, tuple[str, int]] = attrs.Factory(dict)
    error: ConnectionLost | KafkaError | ProtocolError | None = None

    @property
    def is_the_voters(self) -> bool:
        """True if the answer is from the voter that the request names."""
        return self.response is not None and self.response.error is not ErrorCode.INVALID_VOTER_KEY

    @property
    def is_of_another_cluster(self) -> bool:
        return isinstance(self.error, KafkaError) and self.error.code is ErrorCode.INCONSISTENT_CLUSTER_ID


class VoterSearch:
    """The sender of requests to places (a host, a port and maybe an IP address), through this node's channels."""

    def __init__(self, driver: QuorumDriver, places: VoterPlaces) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._places = places
        self._sender = wire_messages.Sender(
            self._settings.cluster_id, self._settings.endpoints, self._settings.raft.fetch_bytes_max
        )
        self.connections: PeerChannels
        self.strangers: dict[tuple[str, int], bool] = {}
        """For each host and port, True if its last answer came from a node of another cluster."""

    def channel(self, place: Place) -> PeerChannel:
        """Return the channel to this place."""
        return self.connections.channel(place.host, place.port, address=place.address)

    async def ask(self, place: Place, request: Request, patience_seconds: float | None = None) -> Outcome:
        """Send a request to a place, and wait for the outcome.

        The wait takes at most `patience_seconds`. If this is None, it takes at most the usual request timeout.
        """
        limit = self._settings.raft.request_timeout_seconds if patience_seconds is None else patience_seconds
        deadline = self._driver.clock.monotonic() + limit
        message = wire_messages.encode_request(request, self._sender)
        try:
            answer = await self.channel(place).request(message, deadline)
            response, addresses = wire_messages.decode_response(answer)
            if isinstance(response, FetchAnswer) and isinstance(request, Fetch):
                _check_fetched(request, response)
            outcome = Outcome(place, response, addresses)
        except (ConnectionLost, KafkaError, ProtocolError) as error:
            outcome = Outcome(place, error=error)
        if outcome.response is not None or outcome.is_of_another_cluster:
            self.strangers[place.host, place.port] = outcome.is_of_another_cluster
        return outcome

    async def ask_all(
        self, questions: Mapping[Place, Request], patience_seconds: float | None = None
    ) -> list[Outcome]:
        """Send requests to several places at once. Returns the outcomes, in the order of the places."""
        outcomes: dict[Place, Outcome] = {}
        done = self._driver.env.event()

        async def ask(place: Place) -> None:
            outcomes[place] = await self.ask(place, questions[place], patience_seconds)
            if len(outcomes) == len(questions):
                done.set()

        for place in questions:
            self._driver.start_soon(ask, place)
        if questions:
            await done.wait()
        return [outcomes[place] for place in questions]

    async def bootstrap_places(self) -> list[Place]:
        """Return all addresses of all bootstrap servers, except this node's own endpoints."""
        own = {endpoint[1:] for endpoint in self._settings.endpoints}
        found: dict[Place, None] = {}
        for host, port in self._settings.bootstrap_servers:
            if (host, port) not in own:
                addresses = await self.resolve(host, port)
                # If a name has a single address, keep the name: it is resolved again for each connection,
                # since the address may change.
                several = [Place(host, port, address) for address in addresses if len(addresses) > 1]
                found |= dict.fromkeys(several or [Place(host, port)])
        return list(found)

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve a host name.

        Returns the host's IP addresses. If the name cannot be resolved now, the result is the last known
        addresses.
        """
        try:
            addresses = await self.connections.addresses_of(host, port)
        except ConnectionLost:
            return self._places.addresses_of(host)
        self._places.note_addresses(host, addresses)
        return addresses

    @property
    def only_strangers(self) -> bool:
        """True if the last answer of each bootstrap server (except this node itself) came from a node of
        another cluster.
        """
        own = {endpoint[1:] for endpoint in self._settings.endpoints}
        return all(
            self.strangers.get(each, False) for each in self._settings.bootstrap_servers if each not in own
        )


def _check_fetched(request: Fetch, response: FetchAnswer) -> None:
    """Check that fetched batches continue this node's log.

    Raises `KafkaError` otherwise, since no correct leader sends such batches.
    """
    offset, epoch = request.offset, request.last_epoch
    for batch in response.batches:
        if batch.base_offset != offset or not epoch <= batch.epoch <= response.epoch:
            reached("quorum.unfitting_batch_refused")
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch {batch} cannot follow offset {offset}")
        offset, epoch = batch.last_offset + 1, batch.epoch
