"""The partitions on the disks of a broker that a recovery of the quorum left out, as the broker finds them."""

from __future__ import annotations

from pathlib import Path

from odradek.data_plane.log.loading import write_topic_id
from odradek.env.real import RealEnv
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.node.directories import unknown_partitions
from odradek.wire.messages.metadata_records import PartitionRecord, TopicRecord

KNOWN, OTHER = b"known topic id..", b"other topic id.."


def image() -> MetadataImage:
    """Make an image with partition 0 of one topic."""
    builder = ImageBuilder(MetadataImage.empty("cluster"))
    builder.replay(0, TopicRecord("t", KNOWN))
    builder.replay(
        1,
        PartitionRecord(partition_id=0, topic_id=KNOWN, replicas=[1], isr=[1], leader=1, directories=[KNOWN]),
    )
    return builder.build()[0]


def test_what_the_metadata_lack_is_found(tmp_path: Path) -> None:
    """Logs and copies of moves count by topic id and number. Deleted logs, strays and nameless logs are left out."""
    directory = RealEnv().open_dir(str(tmp_path), create=True)
    names = {
        "t-0": KNOWN,
        "t-1": KNOWN,
        "late-0": OTHER,
        "late-3.0123456789abcdef0123456789abcdef-future": OTHER,
        "gone-0.0123456789abcdef0123456789abcdef-delete": OTHER,
        "gone-0.0123456789abcdef0123456789abcdef-stray": OTHER,
        "__cluster_metadata-0": OTHER,
    }
    for name, topic_id in names.items():
        write_topic_id(directory.subdir(name, create=True), topic_id)
    directory.subdir("torn-0", create=True)
    missing = tmp_path / "not mounted"
    found = unknown_partitions([directory, RealEnv().open_dir(str(missing), create=True)], image())
    assert sorted(found) == [
        f"{tmp_path}/late-0",
        f"{tmp_path}/late-3.0123456789abcdef0123456789abcdef-future",
        f"{tmp_path}/t-1",
    ]
