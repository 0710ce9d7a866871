"""The `quorum-state` file: the epoch, vote and leader that a voter must not lose, as JSON (Kafka's
QuorumStateData, versions 0 and 1).
"""

from __future__ import annotations

import json

from odradek.env.ports import Dir
from odradek.metadata_quorum.ports import MetadataLogCorrupt, QuorumState
from odradek.wire.uuid_text import uuid_from_text, uuid_to_text

FILE_NAME = "quorum-state"
_SIZE_MAX = 1 << 20


class FileQuorumStateStore:
    """The `QuorumStateStore` that keeps the state in a file in the metadata log's directory."""

    def __init__(self, directory: Dir) -> None:
        self._directory = directory

    def load(self) -> QuorumState | None:
        if not self._directory.exists(FILE_NAME):
            return None
        try:
            return _parse(json.loads(self._directory.read_bytes(FILE_NAME, _SIZE_MAX)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MetadataLogCorrupt(f"{self._directory.path}/{FILE_NAME} cannot be read: {error}") from error

    def save(self, state: QuorumState) -> None:
        document = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": uuid_to_text(state.voted_directory_id),
            "data_version": 1,
        }
        self._directory.write_atomic(FILE_NAME, json.dumps(document, separators=(",", ":")).encode())


def _parse(document: dict[str, object]) -> QuorumState:
    version = document["data_version"]
    if version not in (0, 1):
        raise ValueError(f"the file has the unknown data_version {version}")
    leader_id, leader_epoch, voted_id = (document[key] for key in ("leaderId", "leaderEpoch", "votedId"))
    if not (isinstance(leader_id, int) and isinstance(leader_epoch, int) and isinstance(voted_id, int)):
        raise ValueError("the ids and epochs in the file must be numbers")
    directory = uuid_from_text(str(document["votedDirectoryId"])) if version == 1 else bytes(16)
    return QuorumState(leader_id, leader_epoch, voted_id, directory)
