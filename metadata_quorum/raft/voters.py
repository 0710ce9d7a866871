"""The voters: replica keys, voter sets, majorities (KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from odradek.wire.messages.control_records import (
    Endpoint,
    KRaftVersionFeature,
    VotersRecord,
    VotersRecordVoter,
)
from odradek.wire.structure import ZERO_UUID

__all__ = ["ReplicaKey", "Voter", "VoterSet"]


@attrs.frozen(order=True)
class ReplicaKey:
    """The identity of a replica: a node together with its metadata directory. A node that restarts with an
    empty disk is another replica.

    A directory id of zeros means that the directory is unknown. So a voter in a static configuration stands
    for any replica of its node.
    """

    node_id: int
    directory_id: bytes = ZERO_UUID

    def matches(self, other: ReplicaKey) -> bool:
        """True if this key stands for the replica `other`: both have the same node id. If this key has a
        directory id, `other` must have the same directory id, too.
        """
        if self.node_id != other.node_id:
            return False
        return self.directory_id in (ZERO_UUID, other.directory_id)

    def __str__(self) -> str:
        return str(self.node_id)


@attrs.frozen
class Voter:
    """A voter and its addresses: `endpoints` are (listener name, host, port)."""

    key: ReplicaKey
    endpoints: tuple[tuple[str, str, int], ...] = ()
    kraft_versions: tuple[int, int] = (0, 1)


@attrs.frozen
class VoterSet:
    """A set of voters, sorted by id. A node id occurs only once."""

    voters: tuple[Voter, ...]

    def __attrs_post_init__(self) -> None:
        ids = self.node_ids
        if sorted(set(ids)) != list(ids):
            raise ValueError(f"the voter ids {ids} must ascend, and each id must be unique")

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> VoterSet:
        return cls(tuple(sorted(voters, key=lambda voter: voter.key)))

    @classmethod
    def of_ids(cls, node_ids: Sequence[int]) -> VoterSet:
        """Make the voter set of a static configuration, in which directory ids are unknown."""
        return cls.of(Voter(ReplicaKey(node_id)) for node_id in node_ids)

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(voter.key.node_id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.key.node_id == node_id), None)

    def has(self, replica: ReplicaKey) -> bool:
        """True if this replica, with its directory id, is a voter."""
        voter = self.get(replica.node_id)
        return voter is not None and voter.key.matches(replica)

    def is_only(self, replica: ReplicaKey) -> bool:
        return len(self.voters) == 1 and self.has(replica)

    def with_voter(self, voter: Voter) -> VoterSet:
        """Return this set with `voter` added. It replaces an existing voter with the same node id."""
        return self.of([*(each for each in self.voters if each.key.node_id != voter.key.node_id), voter])

    def without(self, node_id: int) -> VoterSet:
        return self.of(each for each in self.voters if each.key.node_id != node_id)

    def to_record(self) -> VotersRecord:
        return VotersRecord(
            0,
            [
                VotersRecordVoter(
                    voter.key.node_id,
                    voter.key.directory_id,
                    [Endpoint(*endpoint) for endpoint in voter.endpoints],
                    KRaftVersionFeature(*voter.kraft_versions),
                )
                for voter in self.voters
            ],
        )

    @classmethod
    def from_record(cls, record: VotersRecord) -> VoterSet:
        return cls.of(
            Voter(
                ReplicaKey(entry.voter_id, entry.voter_directory_id),
                tuple((each.name, each.host, each.port) for each in entry.endpoints),
                (
                    entry.kraft_version_feature.min_supported_version,
                    entry.kraft_version_feature.max_supported_version,
                ),
            )
            for entry in record.voters
        )
