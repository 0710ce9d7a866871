"""A node reaches controllers at the listener of the name that it has itself, whatever others name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.asking.quorum_peers import QuorumPeers
from odradek.metadata_quorum.replica.driver_protocol import QuorumSettings

PLAIN, SECURED = ("CONTROLLER", "two", 9093), ("CONTROLLER_SSL", "two", 9097)


def peers(listener: str | None, *endpoints: tuple[str, str, int]) -> QuorumPeers:
    """The view of node 1, where node 2 votes and listens there."""
    voters = VoterSet.of([Voter(ReplicaKey(1)), Voter(ReplicaKey(2), endpoints)])
    driver = SimpleNamespace(
        settings=QuorumSettings(ReplicaKey(1), "cluster", listener=listener),
        core=SimpleNamespace(voters=voters, leader_id=2),
    )
    return QuorumPeers(cast(Any, driver))


def test_the_endpoint_of_the_own_listener() -> None:
    """The endpoint counts whose name is the first of the node's own listeners; else the first one."""
    assert peers("CONTROLLER_SSL", PLAIN, SECURED).leader_address() == ("two", 9097)
    assert peers("CONTROLLER", PLAIN, SECURED).leader_address() == ("two", 9093)
    assert peers("OTHER", PLAIN, SECURED).leader_address() == ("two", 9093)


def test_an_address_that_others_name() -> None:
    """A node that comes by plaintext names the plaintext endpoint: it is read as the node's, not as the address."""
    known = peers("CONTROLLER_SSL", PLAIN, SECURED)
    known.note_address(2, ("two", 9093))
    assert known.leader_address() == ("two", 9097)
    # A voter that listens elsewhere than the log says is believed.
    known.note_address(2, ("two", 9999))
    assert known.leader_address() == ("two", 9999)
