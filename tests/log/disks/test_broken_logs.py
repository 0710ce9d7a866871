"""Logs whose topic is unknown, or whose parts a bug has left inconsistent."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.log_types import METADATA_FILE_NAME
from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from odradek.wire.uuid_text import uuid_to_text
from tests.log.support import ROOT, TOPIC_ID, Node, append, batch, content

# --- a log whose topic is not known


@pytest.mark.parametrize("text", [b"", bytes(43), b"version: 0\ntopic_id: x", b"\xff\xfe"])
def test_a_log_that_does_not_say_whose_it_is_stays_as_it_is(text: bytes) -> None:
    """`partition.metadata` is damaged, as after a power loss.

    The log is not loaded, and an error names the file. Its checkpoints are kept.
    """
    node = Node()
    log = node.log()
    append(log, batch(3))
    log.advance_high_watermark(3)
    log.set_log_start_offset(2)
    before = content(log)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    directory = node.disk.open_dir(ROOT).subdir("t-0")
    directory.write_atomic(METADATA_FILE_NAME, text)
    node.start()
    assert node.log_dir.get("t", 0) is None
    assert [each["file"] for each in node.events("log.id_unreadable")] == [f"{ROOT}/t-0/{METADATA_FILE_NAME}"]
    assert node.events("log.id_unreadable")[0]["log_level"] == "error"
    node.look(61_000)
    node.look(61_000)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    directory = node.disk.open_dir(ROOT).subdir("t-0")
    directory.write_atomic(METADATA_FILE_NAME, f"version: 0\ntopic_id: {uuid_to_text(TOPIC_ID)}".encode())
    log = node.start().logs[TopicPartition("t", 0)]
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (2, 3, TOPIC_ID)
    assert content(log) == before


def test_an_empty_log_without_a_topic_is_nothing_to_keep() -> None:
    """An empty log has a damaged `partition.metadata`, as after a crash during its creation.

    It is simply created again.
    """
    node = Node()
    node.log()
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.disk.open_dir(ROOT).subdir("t-0").write_atomic(METADATA_FILE_NAME, b"")
    node.start()
    assert not node.events("log.id_unreadable")
    assert not node.log_dir.unreadable


@pytest.mark.parametrize("damage", [b"", bytes(20)])
def test_a_spoilt_file_of_epochs_is_made_anew_from_the_log(damage: bytes) -> None:
    """The file of leader epochs is damaged.

    It is rebuilt from the log, since a follower needs it to find where its log diverges.
    """
    node = Node()
    log = node.log()
    for epoch in (3, 3, 5):
        append(log, batch(2), epoch=epoch)
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.disk.open_dir(ROOT).subdir("t-0").write_atomic(EPOCHS_FILE_NAME, damage)
    log = node.start().logs[TopicPartition("t", 0)]
    assert log.epochs.entries == ((3, 0), (5, 4))
    assert len(node.events("log.epochs_unreadable")) == 1


def test_an_empty_file_of_epochs_beside_no_records_is_kafkas() -> None:
    """An empty file of leader epochs beside an empty log is normal: Kafka creates one with each log."""
    node = Node()
    node.log()
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    node.disk.open_dir(ROOT).subdir("t-0").write_atomic(EPOCHS_FILE_NAME, b"")
    node.start()
    assert not node.events("log.epochs_unreadable")


# --- a bug in an append


@pytest.mark.reaches("log.append_met_a_bug")
def test_a_bug_behind_the_write_ends_the_appends_of_that_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug raises after an append has written its batch.

    The log can be read but not written until the next start, which finds the batch.
    """
    node = Node()
    log = node.log()
    append(log, batch(2, producer_id=5, producer_epoch=0, base_sequence=0))
    real = type(log.active).note_batch

    def broken(*args: object) -> None:
        raise OverflowError("a bug")

    monkeypatch.setattr(type(log.active), "note_batch", broken)
    with pytest.raises(OverflowError):
        append(log, batch(2, producer_id=5, producer_epoch=0, base_sequence=2))
    monkeypatch.setattr(type(log.active), "note_batch", real)
    with pytest.raises(KafkaError) as caught:
        append(log, batch())
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 2
    assert [header.base_offset for _, header in iter_batches(content(log))] == [0]
    other = node.log("t", 1)
    append(other, batch())
    node.log_dir.close_clean(1)
    node.disk.crash("all")
    log = node.start().logs[TopicPartition("t", 0)]
    assert log.log_end_offset == 4
    assert log.load_producers().entries[5].last_sequence == 3
    append(log, batch(2, producer_id=5, producer_epoch=0, base_sequence=4))


def test_a_bug_before_the_write_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug raises before an append writes anything. The next batch is accepted."""
    log = Node().log()

    def broken(*args: object, **more: object) -> None:
        raise OverflowError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("odradek.data_plane.log.partition_log.assign_offsets", broken)
        with pytest.raises(OverflowError):
            append(log, batch())
    assert append(log, batch()).base_offset == 0
