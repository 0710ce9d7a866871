"""Control records of the metadata log and of snapshots: each field is as wide as the request's field that it is copied
from.

These records are encoded only after the answer to the request, when an error would come too late. So every value must
be certain to fit.
"""

from __future__ import annotations

import pytest

from odradek.wire.messages.add_raft_voter import AddRaftVoterRequest
from odradek.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from odradek.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from odradek.wire.structure import Message
from tests.bounds.fields import fields_of

A_CONSTANT = "a constant"
VOTERS = "the ids of the voters, which are those of a VotersRecord or of the node's configuration"
Sources = tuple[str, ...] | str
"""The fields of requests from which a value is copied. A text in their place says why there are none."""

ROWS: dict[str, Sources] = {
    "VotersRecord.version": A_CONSTANT,
    "VotersRecord.voters": "one for each AddRaftVoter that was committed",
    "VotersRecord.voters.voter_id": ("AddRaftVoterRequest.voter_id", "UpdateRaftVoterRequest.voter_id"),
    "VotersRecord.voters.endpoints": ("AddRaftVoterRequest.listeners", "UpdateRaftVoterRequest.listeners"),
    **{
        f"VotersRecord.voters.endpoints.{name}": (
            f"AddRaftVoterRequest.listeners.{name}",
            f"UpdateRaftVoterRequest.listeners.{name}",
        )
        for name in ("name", "host", "port")
    },
    **{
        f"VotersRecord.voters.kraft_version_feature.{name}": (
            f"UpdateRaftVoterRequest.kraft_version_feature.{name}",
        )
        for name in ("min_supported_version", "max_supported_version")
    },
    "LeaderChangeMessage.version": A_CONSTANT,
    "LeaderChangeMessage.leader_id": "the node's own id",
    "LeaderChangeMessage.voters": VOTERS,
    "LeaderChangeMessage.voters.voter_id": VOTERS,
    "LeaderChangeMessage.granting_voters": VOTERS,
    "LeaderChangeMessage.granting_voters.voter_id": VOTERS,
    "KRaftVersionRecord.version": A_CONSTANT,
    "KRaftVersionRecord.kraft_version": A_CONSTANT,
    "SnapshotHeaderRecord.version": A_CONSTANT,
    "SnapshotHeaderRecord.last_contained_log_timestamp": "the clock's",
    "SnapshotFooterRecord.version": A_CONSTANT,
}
TYPES: tuple[type[Message], ...] = (
    VotersRecord,
    LeaderChangeMessage,
    KRaftVersionRecord,
    SnapshotHeaderRecord,
    SnapshotFooterRecord,
)
FIELDS = {field.path: field.kind for cls in TYPES for field in fields_of(cls)}
REQUEST_FIELDS = {
    field.path: field.kind
    for cls in (AddRaftVoterRequest, UpdateRaftVoterRequest)
    for field in fields_of(cls)
}


def test_every_field_has_a_row() -> None:
    """If the schema gets a new field, a row must say where its value comes from."""
    assert sorted(ROWS) == sorted(FIELDS)


@pytest.mark.parametrize("path", [path for path, row in ROWS.items() if not isinstance(row, str)])
def test_a_field_is_as_wide_as_its_sources(path: str) -> None:
    """The record's field has the same type as the fields of requests, so each value of a request fits the record."""
    assert {REQUEST_FIELDS[source] for source in ROWS[path]} == {FIELDS[path]}
