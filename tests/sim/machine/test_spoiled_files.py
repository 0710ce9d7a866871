"""Small files are damaged. The product detects the damage, or knows less than before, but never uses a wrong value."""

from __future__ import annotations

from random import Random

import pytest

from odradek.data_plane.log.directory.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    decode_offsets,
    encode_offsets,
)
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs, MalformedCheckpoint
from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState
from odradek.wire.topic_partition import TopicPartition
from sim.storm.disk_damage import _ways_to_spoil

TRIES = 200


def spoiled(name: str, data: bytes) -> list[bytes]:
    """Damage a file of this name in all possible ways, many times."""
    random = Random(1)
    ways = _ways_to_spoil(name)
    return [random.choice(ways)(data, random) for _ in range(TRIES)]


def test_a_spoiled_checkpoint_is_refused_or_says_less() -> None:
    """A damaged checkpoint is refused, or has smaller offsets. Then only more is recovered or compacted than
    necessary."""
    offsets = {TopicPartition("t", 0): 123, TopicPartition("u", 1): 45678}
    refused = 0
    for data in spoiled(HIGH_WATERMARK_FILE, encode_offsets(offsets)):
        try:
            found = decode_offsets(data)
        except MalformedCheckpoint:
            refused += 1
        else:
            assert all(offset <= offsets[key] for key, offset in found.items())
    assert refused > TRIES / 2


def test_spoiled_leader_epochs_are_refused() -> None:
    """Damaged leader epochs are refused. The node then rebuilds them from the log."""
    for data in spoiled(EPOCHS_FILE, LeaderEpochs(((1, 0), (5, 123))).encode()):
        with pytest.raises(MalformedCheckpoint):
            LeaderEpochs.decode(data)


def test_a_spoiled_snapshot_of_producers_is_refused() -> None:
    """A damaged producer snapshot is always detected by its checksum."""
    for data in spoiled("00000000000000000007.snapshot", ProducerState().encode()):
        with pytest.raises(DamagedSnapshot):
            ProducerState.decode(data)


def test_an_index_is_cut_within_an_entry() -> None:
    """An index file, of offsets or times, is always cut within an entry."""
    for name, size in (("0.index", 8), ("0.timeindex", 12)):
        assert all(len(data) % size for data in spoiled(name, bytes(4 * size)))


def test_files_that_only_an_operator_could_mend_are_left_alone() -> None:
    """Files that only an operator could repair are never damaged."""
    for name in (LOG_START_FILE, "partition.metadata", "quorum-state", "0.log", "0.checkpoint"):
        assert not _ways_to_spoil(name)
