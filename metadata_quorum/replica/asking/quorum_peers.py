"""The requests of a quorum replica to other nodes: their addresses, pauses after failures, reports to the core,
and this voter's new address (KIP-853). PORTED.

A request to a node is sent to the address that this node reported when it was the leader. Without such an
address, the request is sent to one of three other places. These are the place where the node was found, its
address in the voter set, and a bootstrap server. While a node stays out of reach, requests to it become less
and less frequent. The core gets the first failures at once, since a broken connection is the first sign that
a leader is dead.

**A voter may have moved.** If the log names the voters (kraft.version 1), a voter is identified by its id and
directory. A Vote or BeginQuorumEpoch that fails at the voter's address is also sent to all addresses of all
bootstrap servers. An answer counts if exactly one place answers as this voter (`voter_places.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.ports import PeerChannel, PeerChannels
from odradek.metadata_quorum.raft.messages import BeginEpoch, FetchAnswer, Request, Vote
from odradek.metadata_quorum.raft.roles import Follower
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.metadata_quorum.replica import wire_messages
from odradek.metadata_quorum.replica.asking.own_copy import OwnCopy
from odradek.metadata_quorum.replica.asking.voter_places import Place, VoterPlaces
from odradek.metadata_quorum.replica.asking.voter_search import Outcome, VoterSearch
from odradek.metadata_quorum.replica.driver_protocol import QuorumDriver
from odradek.metadata_quorum.replica.peers import NeverSent
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.update_raft_voter import KRaftVersionFeature, Listener, UpdateRaftVoterRequest
from odradek.wire.structure import ZERO_UUID

__all__ = ["QuorumPeers"]

FIRST_BOOTSTRAP_ID = -2
"""The id of the first bootstrap server. Bootstrap servers have addresses but no known ids. So they get the
ids -2, -3 and so on, as in Kafka.
"""
FAILURES_LOGGED_AT_ONCE = 3
SECONDS_BETWEEN_FAILURES_MAX = 0.5


class QuorumPeers:
    """The addresses of the other nodes, and the outcomes of the last requests to them."""

    def __init__(self, driver: QuorumDriver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._bootstrap = {
            FIRST_BOOTSTRAP_ID - at: address for at, address in enumerate(self._settings.bootstrap_servers)
        }
        self._places = VoterPlaces(self._settings.raft.fetch_timeout_seconds)
        self._search = VoterSearch(driver, self._places)
        self._sought: set[ReplicaKey] = set()
        """Voters that are being searched for at other places."""
        self._copied: set[ReplicaKey] = set()
        """Voters that answer at two places. This is logged once for each of them."""
        self.own_copy = OwnCopy(driver, self._search, self._places)
        self._addresses: dict[int, tuple[str, int]] = {}
        """For each node, the address that it reported as its own when it was the leader."""
        self.refusals: dict[int, ErrorCode] = {}
        """For each node that refused this node's last requests, the error code of the last refusal."""
        self.leader_high_watermark = -1
        """The largest high watermark that a leader has sent to this node; -1 before the first."""
        self.is_named_leader = False
        """True if the last answer named this node as the leader. Either this node was the leader before, or
        another node has the same id.
        """
        self._failures: dict[int, int] = {}
        """The number of failed requests in a row, by node."""
        self._update_at = float("-inf")

    def connect(self, connections: PeerChannels) -> None:
        """Set the connections through which all later requests are sent."""
        self._search.connections = connections

    @property
    def only_strangers(self) -> bool:
        """True if the last answer of each bootstrap server (except this node itself) came from a node of
        another cluster.
        """
        return self._search.only_strangers

    @property
    def bootstrap_ids(self) -> tuple[int, ...]:
        return tuple(self._bootstrap)

    def channel(self, address: tuple[str, int]) -> PeerChannel:
        """Return the channel to this address."""
        return self._search.channel(Place(*address))

    def channel_to(self, node_id: int) -> PeerChannel | None:
        """Return the channel to a node; None while its address is unknown."""
        place = self._place_of(node_id)
        return None if place is None else self._search.channel(place)

    def said_address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the address that a node has reported as its own; None if there is none."""
        return self._addresses.get(node_id)

    def note_address(self, node_id: int, address: tuple[str, int] | None) -> None:
        """Store the address that a node reports as its own. If `address` is None, remove the stored address."""
        if address is None:
            self._addresses.pop(node_id, None)
        else:
            self._addresses[node_id] = address

    def leader_address(self) -> tuple[str, int] | None:
        """Return host and port at which the leader serves controllers' requests; None while no leader is
        known.
        """
        leader_id = self._driver.core.leader_id
        return None if leader_id is None else self.address_of(leader_id)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return host and port at which other nodes can reach a node. Returns None while its address is
        unknown.
        """
        place = self._place_of(node_id)
        return None if place is None else place.named

    def _place_of(self, node_id: int) -> Place | None:
        """Return the place where a node most probably listens; None if none is known."""
        if node_id == self._settings.me.node_id and self._settings.endpoints:
            return Place(*self._settings.endpoints[0][1:])
        voter = self._driver.core.voters.get(node_id)
        endpoints = () if voter is None else voter.endpoints
        said = self._addresses.get(node_id)
        # Another node may report the address of a listener whose protocol this node cannot use. So an
        # endpoint from the voter set has priority.
        if endpoints and (said is None or any(each[1:] == said for each in endpoints)):
            logged = self.chosen(endpoints)
            assert voter is not None
            return self._places.found(voter.key, logged) or Place(*logged)
        address = self._bootstrap.get(node_id) if said is None else said
        return None if address is None else Place(*address)

    def chosen(self, endpoints: Sequence[wire_messages.Endpoint]) -> tuple[str, int]:
        """Return host and port of the endpoint at which this node reaches another node. The endpoint is
        chosen by the name of its listener (`QuorumSettings.listener`).
        """
        return self._settings.chosen(endpoints)

    async def ask(self, node_id: int, request: Request) -> None:
        """Send a request to a node, and report the answer or the failure to the core."""
        driver = self._driver
        place = self._place_of(node_id)
        if place is None:
            unknown = KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"no request can be sent to node {node_id}, because its address is not known",
            )
            outcome = Outcome(Place("", 0), error=unknown)
        else:
            outcome = await self._search.ask(place, request)
            outcome = await self._ask_voter(request, outcome)
        error, response = outcome.error, outcome.response
        if response is not None:
            self._take(node_id, request, outcome)
        elif isinstance(error, ConnectionLost):
            await self._count_failure(node_id, paused=isinstance(error, NeverSent))
            # The node may have moved away from the address that it reported. The voter set and the next
            # leader have newer addresses, so drop this one.
            self.note_address(node_id, None)
            driver.report(driver.core.request_failed, node_id, request, broken=True)
        else:
            await self._count_failure(node_id)
            if isinstance(error, KafkaError) and error.code is not ErrorCode.REQUEST_TIMED_OUT:
                self.refusals[node_id] = error.code
                self._log_refused(node_id, error)
            driver.report(driver.core.request_failed, node_id, request, broken=False)

    def _take(self, node_id: int, request: Request, outcome: Outcome) -> None:
        """Report an answer to the core, and store the addresses that it contains."""
        driver, response = self._driver, outcome.response
        assert response is not None
        self._failures.pop(node_id, None)
        self.refusals.pop(node_id, None)
        self.is_named_leader = response.leader_id == self._settings.me.node_id
        known = [(each, self._addresses.get(each)) for each in outcome.addresses]
        self._addresses.update(outcome.addresses)
        driver.report(driver.core.receive_response, node_id, request, response)
        for each, before in known:
            if driver.core.leader_id != each:
                reached("quorum.claimed_leader_address_undone")
                # The core does not accept the leader that the answer names. So the leader's address in the
                # answer is not stored either.
                self.note_address(each, before)
        if isinstance(response, FetchAnswer) and response.error is ErrorCode.NONE:
            self._note_high_watermark(response.high_watermark)
            self._update_voter()

    # -- voters that have moved -----------------------------------------------------------------------------------------

    async def _ask_voter(self, request: Request, first: Outcome) -> Outcome:
        """Check that the answer `first` comes from the voter that the request names.

        If not, send the request to other places where the voter may be.
        """
        if not isinstance(request, Vote | BeginEpoch):
            # Only Vote and BeginQuorumEpoch name a voter by id and directory. So any answer to another
            # request is accepted.
            return first
        voter = request.voter
        if voter.directory_id == ZERO_UUID or not self._driver.has_dynamic_voters:
            return first
        if first.is_the_voters:
            return self._only_answer(voter, [first])
        if voter in self._sought:
            return first
        self._sought.add(voter)
        try:
            places = await self._places_beyond(voter, first.place)
            outcomes = await self._search.ask_all(dict.fromkeys(places, request))
        finally:
            self._sought.discard(voter)
        answers = [each for each in outcomes if each.is_the_voters]
        if not answers:
            self._places.forget(voter)
            return first
        outcome = self._only_answer(voter, answers)
        if outcome.response is not None:
            logged = self._logged(voter)
            self.note_address(voter.node_id, None)
            if self._places.note_found(voter, outcome.place, logged):
                reached("quorum.voter_found_elsewhere")
                self._driver.logger.info(
                    "quorum.voter_found", voter=voter.node_id, address=str(outcome.place)
                )
        return outcome

    async def reach(self, voter: ReplicaKey, address: tuple[str, int]) -> str:
        """Check that a voter answers at this address, before the address is written to the log. Returns "" if
        it does, otherwise the reason for a refusal.
        """
        begin = BeginEpoch(self._driver.core.epoch, self._settings.me, voter)
        outcome = await self._search.ask(Place(*address), begin)
        if outcome.is_the_voters:
            outcome = self._only_answer(voter, [outcome])
        if outcome.is_the_voters:
            return ""
        return (
            "another voter or directory answers at that address"
            if outcome.error is None
            else str(outcome.error)
        )

    def _logged(self, voter: ReplicaKey) -> tuple[str, int] | None:
        """Return the voter's address in the log; None if there is none."""
        known = self._driver.core.voters.get(voter.node_id)
        return None if known is None or not known.endpoints else self.chosen(known.endpoints)

    async def _places_beyond(self, voter: ReplicaKey, tried: Place) -> list[Place]:
        """Return the places where a voter may be. Leave out `tried`, and places where other voters answer."""
        await self._search.resolve(tried.host, tried.port)
        logged, now = self._logged(voter), self._driver.clock.monotonic()
        places = [] if logged is None or Place(*logged) == tried else [Place(*logged)]
        places += await self._search.bootstrap_places()
        return [
            each
            for each in dict.fromkeys(places)
            if each != tried and not self._places.is_another(voter, each, now)
        ]

    def _only_answer(self, voter: ReplicaKey, answers: list[Outcome]) -> Outcome:
        """Return the only answer of a voter.

        If the voter answers at two places, return an error, because neither answer counts.
        """
        now = self._driver.clock.monotonic()
        others = [(each.place, self._places.note_answer(voter, each.place, now)) for each in answers]
        for place, other in others:
            if other is not None:
                reached("quorum.voter_at_two_places")
                self._log_copied(voter, place, other)
                both = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"voter {voter} answers at two addresses, {other} and {place}, so neither answer counts",
                )
                return Outcome(place, error=both)
        self._copied.discard(voter)
        return answers[0]

    def _log_copied(self, voter: ReplicaKey, one: Place, other: Place) -> None:
        """Log that a voter answers at two places, unless this is already logged."""
        if voter not in self._copied:
            self._copied.add(voter)
            self._driver.logger.error(
                "quorum.voter_at_two_addresses",
                voter=voter.node_id,
                reason=f"voter {voter} answers at {other} and at {one}, so neither answer counts. If the "
                "voter has not just moved, one of the two nodes runs on a copy of its directory: "
                "stop that node",
            )

    async def _count_failure(self, node_id: int, *, paused: bool = False) -> None:
        """Count a failed request, and pause before the next one. If `paused` is true, the connection itself
        pauses, so this method does not.
        """
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        if failures > FAILURES_LOGGED_AT_ONCE and not paused:
            clock = self._driver.clock
            backoff = self._settings.raft.retry_backoff_seconds * 2 ** min(
                failures - FAILURES_LOGGED_AT_ONCE, 16
            )
            await clock.sleep_until(clock.monotonic() + min(backoff, SECONDS_BETWEEN_FAILURES_MAX))

    def _log_refused(self, node_id: int, error: KafkaError) -> None:
        """Log that a node refuses requests. Failures repeat many times a second, so a run of failures gives
        one log line.
        """
        if self._failures.get(node_id) == 1:
            self._driver.logger.warning("quorum.request_refused", node=node_id, error=str(error))

    def _note_high_watermark(self, high_watermark: int) -> None:
        if high_watermark > self.leader_high_watermark:
            is_first = self.leader_high_watermark < 0
            self.leader_high_watermark = high_watermark
            if is_first:
                self._driver.notify_observers()

    # -- the voter's own entry ------------------------------------------------------------------------------------------

    def _update_voter(self) -> None:
        """Send the leader this voter's present address, if the log has a different address for it (KIP-853)."""
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
        channel = self.channel_to(leader_id)
        if channel is None:
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
            answer = await channel.request(request, deadline)
        except (ConnectionLost, KafkaError, ProtocolError) as error:
            driver.logger.warning("quorum.voter_not_updated", error=str(error))
        else:
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                driver.logger.warning("quorum.voter_not_updated", error=code.name)
