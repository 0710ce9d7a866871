"""RemoveRaftVoter: a quorum of static voters removes none."""

from __future__ import annotations

from odradek.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from odradek.wire.structure import ZERO_UUID
from tests.conformance.asking.talk import Talk, case

DIRECTORY = bytes(range(16))


def _of_any_cluster(response: RemoveRaftVoterResponse) -> RemoveRaftVoterResponse:
    """Remove the id of the cluster from the answer."""
    response.error_message = (response.error_message or "").partition(" the cluster id")[0]
    return response


@case("remove_raft_voter v0")
def _(talk: Talk) -> None:
    talk.ask(RemoveRaftVoterRequest(None, 4, DIRECTORY), 0)
    talk.ask(RemoveRaftVoterRequest(None, 1, DIRECTORY), 0)
    talk.ask(RemoveRaftVoterRequest(None, 4, ZERO_UUID), 0)
    talk.ask(RemoveRaftVoterRequest(None, -1, DIRECTORY), 0)
    talk.ask(RemoveRaftVoterRequest("another-cluster", 4, DIRECTORY), 0, _of_any_cluster)
