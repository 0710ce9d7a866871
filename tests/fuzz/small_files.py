"""Target `small_files`: checkpoints, indexes and other small files of a log directory, one at a time.

The first byte of an input chooses the file; the rest is its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crc32c import crc32c

from odradek.data_plane.log.directory.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    decode_offsets,
    encode_clean_shutdown,
    encode_offsets,
    take_clean_shutdown,
)
from odradek.data_plane.log.loading import read_topic_id, write_topic_id
from odradek.data_plane.log.log_types import METADATA_FILE_NAME
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs, MalformedCheckpoint
from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState, has_open_transaction
from odradek.data_plane.log.segments.aborted_index import (
    AbortedIndex,
    AbortedTransaction,
    DamagedTransactionIndex,
)
from odradek.data_plane.log.segments.segment_index import DamagedIndex, SegmentIndex
from odradek.metadata_quorum.ports import MetadataLogCorrupt, QuorumState
from odradek.metadata_quorum.replica.checkpoint_files import open_snapshot, parse_snapshot_name
from odradek.metadata_quorum.replica.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    NotALogDirectory,
    read_meta_properties,
)
from odradek.metadata_quorum.replica.quorum_state import FILE_NAME, FileQuorumStateStore
from odradek.wire.topic_partition import TopicPartition
from sim.machine.disk import SimDir
from tests.fuzz.target import Input, Target
from tests.log.support import ROOT, new_disk

_SNAPSHOT_CRC = slice(2, 6)


def _directory(name: str, content: bytes) -> SimDir:
    """Make a directory with one file in it."""
    directory = new_disk().open_dir(ROOT, create=True)
    directory.write_atomic(name, content)
    return directory


def offsets(content: bytes) -> None:
    """Read a checkpoint of offsets and write it again."""
    try:
        found = decode_offsets(content)
    except MalformedCheckpoint:
        return
    assert decode_offsets(encode_offsets(found)) == found


def epochs(content: bytes) -> None:
    """Read a checkpoint of leader epochs, use it, and write it again."""
    try:
        found = LeaderEpochs.decode(content)
    except MalformedCheckpoint:
        return
    assert LeaderEpochs.decode(found.encode()).entries == found.entries
    for epoch, start in found.entries:
        assert found.epoch_for_offset(start) is not None
        found.end_offset_for(epoch, start)
    found.truncate_from_end(5)
    found.truncate_from_start(3)


def producers(content: bytes) -> None:
    """Set a valid checksum in a snapshot of producers, read it, and write it again."""
    data = bytearray(content)
    if len(data) >= _SNAPSHOT_CRC.stop:
        data[_SNAPSHOT_CRC] = crc32c(bytes(data[_SNAPSHOT_CRC.stop :])).to_bytes(4, "big")
    has_open_transaction(bytes(data))
    try:
        state = ProducerState.decode(bytes(data))
    except DamagedSnapshot:
        return
    list(state.active_producers())
    first = state.encode()
    assert ProducerState.decode(first).encode() == first
    state.forget_ended(7)
    state.expire(1 << 50, 1)


def index(content: bytes) -> None:
    """Read the offset index and the time index of one segment, and add to them."""
    given = Input(content)
    size, cut = given.short(), given.short()
    try:
        found = SegmentIndex.from_bytes(given.take(cut), given.rest(), size)
    except DamagedIndex:
        return
    again = SegmentIndex.from_bytes(
        found.offset_bytes(0, len(found.offsets)), found.time_bytes(0, len(found.times)), size
    )
    assert (again.offsets, again.positions) == (found.offsets, found.positions)
    assert (again.times, again.time_offsets) == (found.times, found.time_offsets)
    for offset in (0, 1, 1000, (1 << 31) - 1):
        assert 0 <= found.position_for_offset(offset)[1] <= size
        found.offset_for_timestamp(offset)
    found.truncate(10, 100)
    assert not found.positions or found.positions[-1] < 100


def aborted(content: bytes) -> None:
    """Read an index of aborted transactions, and add to it."""
    try:
        found = AbortedIndex.decode(content)
    except DamagedTransactionIndex:
        return
    assert found.encode() == content
    found.collect(3, 9, [])
    found.truncate(5)
    assert all(entry.last_offset < 5 for entry in found)


def meta(content: bytes) -> None:
    """Read `meta.properties`."""
    try:
        found = read_meta_properties(_directory(META_PROPERTIES, content))
    except NotALogDirectory:
        return
    assert isinstance(found.node_id, int)
    assert len(found.directory_id) == 16


def quorum_state(content: bytes) -> None:
    """Read a controller's file with its vote and epoch, and write it again."""
    store = FileQuorumStateStore(_directory(FILE_NAME, content))
    try:
        found = store.load()
    except MetadataLogCorrupt:
        return
    assert found is not None
    store.save(found)
    assert store.load() == found


def clean_shutdown(content: bytes) -> None:
    """Read the file that marks a clean shutdown."""
    found = take_clean_shutdown(_directory(CLEAN_SHUTDOWN_FILE, content))
    assert found is not None
    assert found >= -1


def topic_id(content: bytes) -> None:
    """Read `partition.metadata`."""
    directory = _directory(METADATA_FILE_NAME, content)
    assert len(read_topic_id(directory, [METADATA_FILE_NAME])) == 16


def snapshot_name(content: bytes) -> None:
    """Read bytes as the name of a snapshot, and as a snapshot."""
    parse_snapshot_name(content.decode("latin-1"))
    try:
        open_snapshot(content, source="fuzz")
    except MetadataLogCorrupt:
        return


KINDS: tuple[Callable[[bytes], None], ...] = (
    offsets,
    epochs,
    producers,
    index,
    aborted,
    meta,
    quorum_state,
    clean_shutdown,
    topic_id,
    snapshot_name,
)


def run(data: bytes) -> None:
    """Read one file, and write its contents again."""
    given = Input(data)
    KINDS[given.byte() % len(KINDS)](given.rest())


def seeds() -> Iterator[bytes]:
    """Return a file of each kind, as a node writes it."""
    found = SegmentIndex()
    txns = AbortedIndex()
    for at in range(1, 4):
        found.append(at * 7, at * 500)
        found.append_time(at * 1000, at * 7)
        txns.append(AbortedTransaction(at, at * 10, at * 10 + 5, at * 10))
    offset_bytes = found.offset_bytes(0, 3)
    directory = new_disk().open_dir(ROOT, create=True)
    FileQuorumStateStore(directory).save(QuorumState(1, 5, 2, bytes(range(16))))
    write_topic_id(directory, bytes(range(16)))
    state = ProducerState()
    contents: dict[Callable[[bytes], None], bytes] = {
        offsets: encode_offsets({TopicPartition("words", 0): 7, TopicPartition("a.b", 12): 0}),
        epochs: LeaderEpochs(((0, 0), (3, 10), (4, 10), (9, 400))).encode(),
        producers: state.encode(),
        index: (2000).to_bytes(2, "big")
        + len(offset_bytes).to_bytes(2, "big")
        + offset_bytes
        + found.time_bytes(0, 3),
        aborted: txns.encode(),
        meta: MetaProperties("cluster", 1, bytes(range(16))).encode(),
        quorum_state: directory.read_bytes(FILE_NAME),
        clean_shutdown: encode_clean_shutdown(7),
        topic_id: directory.read_bytes(METADATA_FILE_NAME),
        snapshot_name: b"00000000000000000017-0000000003.checkpoint",
    }
    for number, kind in enumerate(KINDS):
        yield bytes([number]) + contents[kind]


TARGET = Target("small_files", run, seeds)
