"""A node connects to the listener of a controller that has the same name as the node's own first listener."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings

PLAIN, SECURED = ("CONTROLLER", "two", 9093), ("CONTROLLER_SSL", "two", 9097)


def peers(listener: str | None, *endpoints: tuple[str, str, int]) -> QuorumPeers:
    """Make node 1's view of the quorum, in which node 2 votes and has these endpoints."""
    voters = VoterSet.of([Voter(ReplicaKey(1)), Voter(ReplicaKey(2), endpoints)])
    driver = SimpleNamespace(
        settings=QuorumSettings(ReplicaKey(1), "cluster", listener=listener),
        core=SimpleNamespace(voters=voters, leader_id=2),
    )
    return QuorumPeers(cast(Any, driver))


def test_the_endpoint_of_the_own_listener() -> None:
    """The endpoint with the name of the node's first listener is used. If there is none, the first endpoint is used."""
    assert peers("CONTROLLER_SSL", PLAIN, SECURED).leader_address() == ("two", 9097)
    assert peers("CONTROLLER", PLAIN, SECURED).leader_address() == ("two", 9093)
    assert peers("OTHER", PLAIN, SECURED).leader_address() == ("two", 9093)


def test_an_address_that_others_name() -> None:
    """Another node announces a voter's plaintext address.

    The address only shows which voter leads. Requests go to that voter's secured endpoint.
    """
    known = peers("CONTROLLER_SSL", PLAIN, SECURED)
    known.note_address(2, ("two", 9093))
    assert known.leader_address() == ("two", 9097)
    # An address that the log lacks is used as it is.
    known.note_address(2, ("two", 9999))
    assert known.leader_address() == ("two", 9999)
