"""Requests to a voter that is not at the address in the log: which addresses are asked, and which answer counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio

from odradek.env.real import RealEnv
from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.metadata_quorum.raft.messages import BeginEpoch, EndEpoch, Fetch, Request, Vote, VoteAnswer
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica import wire_messages
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings
from odradek.metadata_quorum.replica.peers import NeverSent
from odradek.wire.errors import ErrorCode

ME, TWO, THREE = (ReplicaKey(each, bytes([each]) * 16) for each in (1, 2, 3))
PRE_VOTE = Vote(4, ME, TWO, OffsetAndEpoch(9, 4), pre_vote=True)
OLD, FIRST, SECOND = ("old-two", 9093), ("first", 9093), ("second", 9093)
EPOCH = 4


@attrs.define
class Driver:
    """A driver whose peers are a table of answers by address. It keeps the reports to its core."""

    answers: dict[tuple[str, int], ErrorCode]
    nursery: trio.Nursery
    has_dynamic_voters: bool = True
    bootstrap: tuple[tuple[str, int], ...] = (FIRST, SECOND)
    names: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    heard: list[tuple[str, int, str | None]] = attrs.field(factory=list)
    reports: list[tuple[str, Any, dict[str, bool]]] = attrs.field(factory=list)
    lines: list[tuple[str, str]] = attrs.field(factory=list)

    def peers(self) -> QuorumPeers:
        real = RealEnv()
        voters = VoterSet.of(
            Voter(key, (("CONTROLLER", f"old-{name}", 9093),))
            for key, name in ((ME, "one"), (TWO, "two"), (THREE, "three"))
        )

        def note(event: str, **fields: object) -> None:
            self.lines.append((event, str(fields.get("reason", ""))))

        def report(function: str, *arguments: Any, **options: bool) -> None:
            self.reports.append((function, arguments[-1], options))

        driver = SimpleNamespace(
            settings=QuorumSettings(ME, "cluster", bootstrap_servers=self.bootstrap),
            core=SimpleNamespace(
                voters=voters,
                epoch=EPOCH,
                leader_id=None,
                request_failed="failed",
                receive_response="answered",
            ),
            clock=real.clock,
            env=SimpleNamespace(event=trio.Event),
            logger=SimpleNamespace(info=note, warning=note, error=note),
            has_dynamic_voters=self.has_dynamic_voters,
            start_soon=self.nursery.start_soon,
            report=report,
        )
        peers = QuorumPeers(cast(Any, driver))
        peers.connect(cast(Any, self))
        return peers

    def channel(self, host: str, port: int, *, address: str | None = None) -> Channel:
        return Channel(self, host, port, address)

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        return self.names.get(host, (host,))


@attrs.frozen
class Channel:
    """A channel to one address."""

    driver: Driver
    host: str
    port: int
    address: str | None

    async def request(self, message: Any, deadline: float) -> Any:
        self.driver.heard.append((self.host, self.port, self.address))
        code = self.driver.answers.get((self.address or self.host, self.port))
        if code is None:
            raise NeverSent(f"{self.host}:{self.port}: refused")
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return wire_messages.refuse(message, code)
        granted = code is ErrorCode.NONE
        return wire_messages.encode_response(VoteAnswer(EPOCH, None, granted, code), message, None)


async def ask(driver: Driver, *requests: Request) -> QuorumPeers:
    """Send requests to voter 2, one after another."""
    peers = driver.peers()
    for request in requests:
        await peers.ask(2, request)
    return peers


@pytest.mark.trio
async def test_the_address_in_the_log_comes_first(nursery: trio.Nursery) -> None:
    """A voter answers at its address in the log. No other address is asked."""
    driver = Driver({OLD: ErrorCode.NONE, FIRST: ErrorCode.NONE}, nursery)
    await ask(driver, PRE_VOTE)
    assert driver.heard == [(*OLD, None)]
    assert [name for name, _, _ in driver.reports] == ["answered"]


@pytest.mark.trio
async def test_all_bootstrap_servers_are_asked_and_the_voter_is_kept(nursery: trio.Nursery) -> None:
    """All bootstrap servers are asked, and the voter answers at one of them.

    The next request goes there, and INVALID_VOTER_KEY logs nothing.
    """
    driver = Driver({FIRST: ErrorCode.INVALID_VOTER_KEY, SECOND: ErrorCode.NONE}, nursery)
    peers = await ask(driver, PRE_VOTE, PRE_VOTE)
    assert sorted(driver.heard[1:3]) == [(*FIRST, None), (*SECOND, None)]
    assert driver.heard[3:] == [(*SECOND, None)]
    assert [answer.granted for _, answer, _ in driver.reports] == [True, True]
    assert [event for event, _ in driver.lines] == ["quorum.voter_found"]
    assert peers.address_of(2) == SECOND


@pytest.mark.trio
async def test_every_address_of_a_name_is_asked(nursery: trio.Nursery) -> None:
    """A bootstrap name has several addresses.

    Each is asked under this name, and the next request goes to the address at which the voter answered.
    """
    found = {
        ("10.0.0.1", 9093): ErrorCode.INVALID_VOTER_KEY,
        ("10.0.0.2", 9093): ErrorCode.NONE,
    }
    names = {"voters": ("10.0.0.1", "10.0.0.2", "10.0.0.3")}
    driver = Driver(found, nursery, bootstrap=(("voters", 9093),), names=names)
    peers = await ask(driver, PRE_VOTE, PRE_VOTE)
    assert sorted(driver.heard[1:4], key=str) == [("voters", 9093, each) for each in names["voters"]]
    assert driver.heard[4:] == [("voters", 9093, "10.0.0.2")]
    assert peers.address_of(2) == ("10.0.0.2", 9093)


@pytest.mark.trio
async def test_a_voter_that_answers_at_two_addresses_has_no_vote(nursery: trio.Nursery) -> None:
    """A voter answers at two addresses. No answer reaches the core, and one error names both."""
    driver = Driver({FIRST: ErrorCode.NONE, SECOND: ErrorCode.NONE}, nursery)
    peers = await ask(driver, PRE_VOTE, PRE_VOTE)
    assert [(name, options) for name, _, options in driver.reports] == [("failed", {"broken": False})] * 2
    ((event, reason),) = driver.lines
    assert event == "quorum.voter_at_two_addresses"
    assert "first:9093" in reason
    assert "second:9093" in reason
    assert peers.refusals == {}


@pytest.mark.trio
async def test_an_answer_elsewhere_soon_after_one_at_the_logs_address(nursery: trio.Nursery) -> None:
    """A voter answers at its address in the log, and soon after elsewhere.

    These are two processes, so the second answer fails.
    """
    driver = Driver({OLD: ErrorCode.NONE}, nursery)
    peers = await ask(driver, PRE_VOTE)
    driver.answers = {SECOND: ErrorCode.NONE}
    await peers.ask(2, PRE_VOTE)
    assert [name for name, _, _ in driver.reports] == ["answered", "failed"]
    assert [event for event, _ in driver.lines] == ["quorum.voter_at_two_addresses"]


@pytest.mark.trio
async def test_a_stranger_at_the_old_address_is_no_refusal(nursery: trio.Nursery) -> None:
    """A node of another cluster answers at the voter's old address.

    The voter is found elsewhere, and nothing is refused.
    """
    driver = Driver({OLD: ErrorCode.INCONSISTENT_CLUSTER_ID, SECOND: ErrorCode.NONE}, nursery)
    peers = await ask(driver, PRE_VOTE)
    assert [answer.granted for _, answer, _ in driver.reports] == [True]
    assert peers.refusals == {}
    assert not peers.only_strangers


@pytest.mark.trio
async def test_strangers_everywhere_are_a_refusal(nursery: trio.Nursery) -> None:
    """All addresses answer that they belong to another cluster.

    The start is refused, since this node itself is in the wrong cluster.
    """
    code = ErrorCode.INCONSISTENT_CLUSTER_ID
    driver = Driver({OLD: code, FIRST: code, SECOND: code}, nursery)
    peers = await ask(driver, PRE_VOTE)
    assert peers.refusals == {2: code}
    assert peers.only_strangers
    assert [event for event, _ in driver.lines] == ["quorum.request_refused"]


@pytest.mark.trio
@pytest.mark.parametrize(
    "request_",
    [Fetch(EPOCH, ME, 9, EPOCH), EndEpoch(EPOCH, 1, (TWO,)), BeginEpoch(EPOCH, ME, ReplicaKey(2))],
    ids=["Fetch", "EndEpoch", "a voter without a directory"],
)
async def test_only_requests_that_name_their_voter_go_elsewhere(
    request_: Request, nursery: trio.Nursery
) -> None:
    """Only requests that contain the voter's key are sent to other addresses.

    Any node could answer the other requests as if they were meant for itself.
    """
    driver = Driver({FIRST: ErrorCode.NONE, SECOND: ErrorCode.NONE}, nursery)
    await ask(driver, request_)
    assert driver.heard == [(*OLD, None)]
    assert [(name, options) for name, _, options in driver.reports] == [("failed", {"broken": True})]


@pytest.mark.trio
async def test_static_voters_are_asked_at_their_addresses_only(nursery: trio.Nursery) -> None:
    """Static voters are asked only at their configured addresses (kraft.version 0). They have no directory ids."""
    driver = Driver({FIRST: ErrorCode.NONE}, nursery, has_dynamic_voters=False)
    await ask(driver, PRE_VOTE)
    assert driver.heard == [(*OLD, None)]
