"""A node starts on a log directory of Apache Kafka, whose metadata has ACLs and a user, a quota and a token."""

from __future__ import annotations

import tarfile
from pathlib import Path

import attrs
import pytest

from odradek.metadata_quorum.image.access_image import AccessImage
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import START_WITHOUT_ACLS
from odradek.node.directories import NodeCannotStart
from odradek.node.main import NEEDS_OPERATOR
from odradek.node.unenforced_rules import UnenforcedRules
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from testkit.by_hand import KeptLog
from testkit.odradek_server import launch_odradek
from testkit.processes import combined_node_properties, free_ports
from testkit.raw_requests import RawClient
from tests.cli.running import odradek_in_nursery
from tests.quorum.test_image import replayed

ARCHIVE = Path(__file__).parents[2] / "quorum" / "data" / "kafka-4.3.0-with-rules.tar.xz"
METADATA = "__cluster_metadata-0"
ACL = AccessControlEntryRecord(b"1" * 16, 2, "t", 3, "User:alice", "*", 3, 3)


def prepare(directory: Path, **settings: str) -> Path:
    """Unpack Kafka's directory and write our properties; return their path."""
    data = directory / "data"
    if not data.exists():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(data, filter="data")
    properties = {
        **combined_node_properties(directory, *free_ports(2)),
        "log.dirs": str(data),
        # Write a snapshot as soon as there is a new record.
        "metadata.log.max.record.bytes.between.snapshots": "1",
        **settings,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def rules_in(directory: Path) -> AccessImage:
    """Read the ACLs and other access records from Kafka's own metadata log."""
    builder = ImageBuilder(MetadataImage.empty("c"))
    for batch in read_batches((directory / METADATA / f"{0:020}.log").read_bytes(), source="Kafka's log"):
        for offset, record in enumerate(batch.records, batch.base_offset):
            if record is not None and not batch.is_control:
                builder.replay(offset, record, batch.epoch)
    return builder.build()[0].access


def newest_snapshot(directory: Path) -> AccessImage:
    path = max((directory / METADATA).glob("*.checkpoint"))
    snapshot = decode_snapshot(path.read_bytes(), source=path.name)
    return replayed(MetadataImage.empty("c"), *snapshot.records)[0].access


def test_a_node_does_not_start_on_acls_that_nobody_enforces(tmp_path: Path) -> None:
    """A node refuses to start with ACLs that it would not enforce. One line says what was found and what to do."""
    properties = prepare(tmp_path)
    done = odradek_in_nursery("server", properties)
    assert done.code == NEEDS_OPERATOR, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("odradek: ")]
    assert "holds ACLs (1)" in line
    assert f"{START_WITHOUT_ACLS}=true" in line
    assert "Traceback" not in done.err


def test_with_the_operators_word_it_starts_and_loses_nothing(tmp_path: Path) -> None:
    """If the operator allows rules that are not enforced, the node starts. Its snapshots contain all of Kafka's rules,
    also after a restart."""
    properties = prepare(tmp_path, **{START_WITHOUT_ACLS: "true"})
    expected = rules_in(tmp_path / "data")
    assert (len(expected.acls), len(expected.scram_credentials)) == (1, 1)
    assert (len(expected.client_quotas), len(expected.delegation_tokens)) == (1, 1)
    of_kafka = set((tmp_path / "data" / METADATA).glob("*.checkpoint"))
    for _ in range(2):
        server = launch_odradek(properties)
        try:
            with RawClient(server.bootstrap) as client:
                answer = client.request(MetadataRequest(None), 12)
                assert [topic.name for topic in answer.topics] == ["t"]
        finally:
            assert server.stop() == 0, server.log_tail()
        assert "rules.not_enforced" in (tmp_path / "server.log").read_text()
    assert max((tmp_path / "data" / METADATA).glob("*.checkpoint")) not in of_kafka
    assert newest_snapshot(tmp_path / "data") == expected


def test_acls_that_come_later_are_told_once(tmp_path: Path) -> None:
    """If ACLs appear while a node runs, it logs this once and continues, but refuses its next start."""
    path = prepare(tmp_path)
    config = NodeConfig.from_properties(dict(line.split("=", 1) for line in path.read_text().splitlines()))
    journal = KeptLog()
    rules = UnenforcedRules(config, journal)
    image = MetadataImage.empty("c")
    rules.check(image)
    second = attrs.evolve(ACL, id=b"2" * 16)
    for record, told in ((ACL, 1), (second, 1)):
        image, delta = replayed(image, record)
        rules.apply(image, delta)
        assert journal.events == ["rules.not_enforced"] * told
    with pytest.raises(NodeCannotStart, match=r"ACLs \(2\)"):
        UnenforcedRules(config, KeptLog()).check(image)
    image, _ = replayed(image, *[RemoveAccessControlEntryRecord(each * 16) for each in (b"1", b"2")])
    UnenforcedRules(config, KeptLog()).check(image)
