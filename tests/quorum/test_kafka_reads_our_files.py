"""Apache Kafka 4.3's tools read our metadata log, its snapshots, and a formatted directory.

One check is made by hand, since it takes too long here: Kafka itself starts on a directory of our node, and leads its
partitions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from odradek.data_plane.metadata_log import METADATA_LOG_DIRECTORY
from odradek.env.real import RealEnv
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.metadata_quorum.replica.metadata_batches import read_batches
from odradek.metadata_quorum.replica.storage_format import (
    StorageFormat,
    format_storage,
    initial_voters,
    storage_info,
)
from odradek.wire.uuid_text import uuid_to_text
from tests.kafka_tools import run_tool_here
from tests.quorum.voters.node_parts import (
    CLUSTER_ID,
    ask,
    create,
    delete,
    format_node,
    join,
    producer_ids,
    running_controller,
)

pytestmark = pytest.mark.java


@pytest.fixture
def used_directory(tmp_path: Path, kafka_jars: Path) -> Path:
    """A node's directory after two starts. A topic was created, another was deleted, and a block of producer ids was
    allocated."""
    path = tmp_path / "data"

    async def main() -> None:
        env = RealEnv(7)
        format_node(env.open_dir(str(path), create=True))
        for name in ("first", "second"):
            async with running_controller(env, path=str(path)) as service:
                epoch = await join(service, env)
                await ask(service, env, create(name, 2))
                await ask(service, env, producer_ids(epoch))
                if name == "second":
                    await ask(service, env, delete("first"))

    trio.run(main)
    return path


def test_dump_log_segments_reads_every_record(used_directory: Path) -> None:
    """`DumpLogSegments --cluster-metadata-decoder` finds only valid batches, and the same records as our own reader."""
    log = used_directory / METADATA_LOG_DIRECTORY / f"{0:020d}.log"
    snapshot = used_directory / METADATA_LOG_DIRECTORY / f"{0:020d}-{0:010d}.checkpoint"
    files = ",".join(map(str, (log, snapshot)))
    text = run_tool_here(
        "org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", files
    )
    assert "isvalid: false" not in text
    in_log = text.partition("Dumping " + str(snapshot))[0]
    found = re.findall(r'^\| offset: (\d+) .*payload: \{"type":"([A-Z_]+)_RECORD"', in_log, re.MULTILINE)
    ours = [
        (str(offset), re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__.removesuffix("Record")).upper())
        for batch in read_batches(log.read_bytes(), source="log")
        for offset, record in enumerate(batch.records, batch.base_offset)
        if not batch.is_control
    ]
    assert found == ours
    assert len(ours) >= 18
    for word in ("LeaderChange", "KRaftVersion", "KRaftVoters"):
        assert word in in_log
    in_snapshot = text[len(in_log) :]
    for word in ("SnapshotHeader", "KRaftVoters", "SnapshotFooter"):
        assert word in in_snapshot
    directory_id = re.search(r'"voterDirectoryId":"([^"]+)"', in_snapshot)
    assert directory_id is not None
    assert directory_id[1] in (used_directory / "meta.properties").read_text()


def test_storage_tool_reads_a_formatted_directory(used_directory: Path) -> None:
    """`StorageTool info` finds our ids and reports no problem."""
    properties = used_directory.parent / "node.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={used_directory}\n"
    )
    text = run_tool_here("kafka.tools.StorageTool", "info", "-c", properties)
    assert "Found problem" not in text
    assert f"cluster.id={CLUSTER_ID}" in text
    assert f"directory.id={uuid_to_text(b'directory-number')}" in text


@pytest.mark.parametrize("text", [" a b=:#!\\ ", "cDZEekk4T3hTNGVlNzB3LUtUbkxaQQo="])
def test_cluster_ids_are_read_alike(tmp_path: Path, kafka_jars: Path, text: str) -> None:
    """Any text may be a cluster id. Kafka and Odradek read each other's file, even if the id has white space,
    separators or padding."""
    properties = tmp_path / "node.properties"
    env = RealEnv(7)
    for name in ("ours", "theirs"):
        path = tmp_path / name
        properties.write_text(
            "process.roles=broker\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
            f"listeners=PLAINTEXT://:9092\ncontroller.listener.names=CONTROLLER\nlog.dirs={path}\n"
        )
        if name == "theirs":
            run_tool_here("kafka.tools.StorageTool", "format", "-c", properties, "-t", text)
        else:
            directory = env.open_dir(str(path), create=True)
            wanted = StorageFormat(
                cluster_id=text, node_id=1, directory_ids=[b"directory-number"], timestamp_ms=0
            )
            format_storage([directory], directory, wanted)
        assert f"{{cluster.id={text}, directory.id=" in run_tool_here(
            "kafka.tools.StorageTool", "info", "-c", properties
        )
        meta = storage_info(env.open_dir(str(path))).meta
        assert meta is not None
        assert meta.cluster_id == text


def test_initial_controllers_are_written_as_kafka_writes_them(tmp_path: Path, kafka_jars: Path) -> None:
    """Our `format --initial-controllers` writes the same ids, version and voters as Kafka's `format`."""
    controllers = "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg,2@localhost:9094:MvDxzVmcRsaTz33bUuRU6A"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    properties = tmp_path / "node.properties"
    properties.write_text(
        "process.roles=controller\nnode.id=2\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        f"listeners=CONTROLLER://:9094\ncontroller.listener.names=CONTROLLER\nlog.dirs={theirs}\n"
    )
    words = ("format", "-c", properties, "-t", CLUSTER_ID, "--initial-controllers", controllers)
    run_tool_here("kafka.tools.StorageTool", *words)
    directory = RealEnv(7).open_dir(str(ours), create=True)
    format_storage(
        [directory],
        directory,
        StorageFormat(
            cluster_id=CLUSTER_ID,
            node_id=2,
            directory_ids=[b"a-random-id-here"],
            voters=initial_voters(controllers, "CONTROLLER"),
            timestamp_ms=1,
        ),
    )
    name = f"{METADATA_LOG_DIRECTORY}/{0:020d}-{0:010d}.checkpoint"
    found = [decode_snapshot((path / name).read_bytes(), source=str(path)) for path in (theirs, ours)]
    assert found[0].control_records == found[1].control_records
    assert len(found[0].control_records) == 2
    identities = [
        sorted(line for line in (path / "meta.properties").read_text().splitlines() if line[0] != "#")
        for path in (theirs, ours)
    ]
    assert identities[0] == identities[1]
