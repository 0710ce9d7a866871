"""AddRaftVoter: a quorum of static voters accepts no new one."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from odradek.wire.structure import ZERO_UUID
from tests.conformance.asking.talk import Talk, case

DIRECTORY = bytes(range(16))
LISTENERS = [Listener("CONTROLLER", "127.0.0.1", 9)]


def _of_any_cluster(response: AddRaftVoterResponse) -> AddRaftVoterResponse:
    """Remove the id of the cluster from the answer."""
    response.error_message = (response.error_message or "").partition(" the cluster id")[0]
    return response


def _versions(talk: Talk, *, version: int) -> None:
    talk.ask(AddRaftVoterRequest(None, 10_000, 4, DIRECTORY, LISTENERS), version)
    talk.ask(
        AddRaftVoterRequest("another-cluster", 10_000, 4, DIRECTORY, LISTENERS), version, _of_any_cluster
    )


for _version in range(2):
    case(f"add_raft_voter v{_version}")(partial(_versions, version=_version))


@case("add_raft_voter of voters that cannot be")
def _(talk: Talk) -> None:
    talk.ask(AddRaftVoterRequest(None, 10_000, -1, DIRECTORY, LISTENERS), 1)
    talk.ask(AddRaftVoterRequest(None, 10_000, 4, ZERO_UUID, LISTENERS), 1)
    talk.ask(AddRaftVoterRequest(None, 10_000, 4, DIRECTORY, []), 1)
    talk.ask(AddRaftVoterRequest(None, 10_000, 4, DIRECTORY, [Listener("OTHER", "127.0.0.1", 9)]), 1)
    talk.ask(AddRaftVoterRequest(None, 10_000, 1, DIRECTORY, LISTENERS), 1)
    talk.ask(AddRaftVoterRequest(None, 0, 4, DIRECTORY, LISTENERS), 1)
