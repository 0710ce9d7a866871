"""The files that formatting writes, and the cases in which it refuses."""

from __future__ import annotations

import pytest

from odradek.env.ports import Dir
from odradek.metadata_quorum.features import BOOTSTRAP_FEATURES
from odradek.metadata_quorum.ports import MetadataLogCorrupt
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.metadata_quorum.replica.storage_format import (
    StorageError,
    StorageFormat,
    VoterEndpoint,
    bootstrap_features,
    find_meta_properties,
    format_storage,
    initial_voters,
    storage_info,
)
from odradek.wire.messages.control_records import KRaftVersionRecord, VotersRecord
from odradek.wire.messages.metadata_records import FeatureLevelRecord
from sim.machine.disk import SimDisk
from sim.machine.disk_files import PowerCut
from tests.quorum.voters.node_parts import CLUSTER_ID, DIRECTORY_ID

OTHER_ID = b"another-one-here"
VOTER = VoterEndpoint("CONTROLLER", "127.0.0.1", 9093)


def format_all(*directories: Dir, ignore_formatted: bool = False, cluster_id: str = CLUSTER_ID) -> list[str]:
    return format_storage(
        directories,
        directories[0],
        StorageFormat(
            cluster_id=cluster_id,
            node_id=1,
            directory_ids=[DIRECTORY_ID, OTHER_ID][: len(directories)],
            voter=VOTER,
            timestamp_ms=1,
        ),
        ignore_formatted=ignore_formatted,
    )


def directories() -> tuple[Dir, Dir]:
    disk = SimDisk()
    return disk.open_dir("/a", create=True), disk.open_dir("/b", create=True)


def test_a_formatted_node_has_an_identity_features_and_a_voter() -> None:
    """Directories are formatted as by `storage format --standalone` of Kafka 4.3.

    Each has meta.properties, and one of them has voters and features.
    """
    first, second = directories()
    assert format_all(first, second) == ["/a", "/b"]
    for directory, directory_id in ((first, DIRECTORY_ID), (second, OTHER_ID)):
        meta = find_meta_properties(directory)
        assert meta is not None
        assert (meta.cluster_id, meta.node_id, meta.directory_id) == (CLUSTER_ID, 1, directory_id)
    bootstrap = decode_snapshot(first.read_bytes("bootstrap.checkpoint"), source="bootstrap")
    assert bootstrap.records == (
        FeatureLevelRecord("metadata.version", 30),
        FeatureLevelRecord("eligible.leader.replicas.version", 1),
        FeatureLevelRecord("transaction.version", 2),
        FeatureLevelRecord("group.version", 1),
    )
    voters = decode_snapshot(
        first.read_bytes("__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"), source="voters"
    )
    version, record = voters.control_records
    assert version == KRaftVersionRecord(0, 1)
    assert isinstance(record, VotersRecord)
    assert [(voter.voter_id, voter.voter_directory_id) for voter in record.voters] == [(1, DIRECTORY_ID)]
    assert not second.exists("bootstrap.checkpoint")
    assert not second.exists("__cluster_metadata-0")
    assert storage_info(first).has_metadata_log
    assert storage_info(second).problem is None


def test_formatting_twice_is_refused_and_can_be_ignored() -> None:
    """Formatting again is refused.

    With `--ignore-formatted` only new directories are formatted, and directories of another node are refused.
    """
    first, second = directories()
    format_all(first)
    with pytest.raises(StorageError, match=r"/a is already formatted.*--ignore-formatted"):
        format_all(first, second)
    assert format_all(first, second, ignore_formatted=True) == ["/b"]
    assert format_all(first, second, ignore_formatted=True) == []
    with pytest.raises(StorageError, match="belongs to node 1 of cluster"):
        format_all(first, second, ignore_formatted=True, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")


def test_foreign_files_are_never_touched() -> None:
    """One directory has foreign files. It is refused, and no directory is formatted."""
    first, second = directories()
    second.open("holiday.jpg", create=True).append(b"sun")
    with pytest.raises(StorageError, match=r"/b is not empty and not formatted: it holds holiday\.jpg"):
        format_all(first, second)
    assert first.list() == []


def test_a_format_that_a_crash_interrupted_can_be_repeated() -> None:
    """Formatting crashes at any operation. Then the directory is formatted, or formatting it again succeeds."""
    probe = SimDisk()
    format_all(probe.open_dir("/a", create=True))
    for number in range(1, probe.operation_count + 1):
        disk = SimDisk()
        directory = disk.open_dir("/a", create=True)
        disk.crash_at(number)
        with pytest.raises(PowerCut):
            format_all(directory)
        disk.crash("random")
        again = disk.open_dir("/a")
        format_all(again, ignore_formatted=True)
        assert storage_info(again).meta is not None
        decode_snapshot(again.read_bytes("bootstrap.checkpoint"), source="bootstrap")


@pytest.mark.parametrize(
    "text",
    [
        "my-cluster",
        "hQaR/HGjTCKXzoMZUc21jA",
        "cDZEekk4T3hTNGVlNzB3LUtUbkxaQQo=",
        " a:b=c#d! ",
        "-1",
        "a\\b\tc\n",
        "käfka 😀",
        "x" * 32_767,
    ],
)
def test_a_cluster_id_is_any_text(text: str) -> None:
    """A cluster id may be any text, as in Kafka 4.3. It is read back unchanged, although the file has to escape it."""
    first, _ = directories()
    format_all(first, cluster_id=text)
    meta = storage_info(first).meta
    assert meta is not None
    assert meta.cluster_id == text
    assert first.read_bytes("meta.properties", 1 << 20).isascii()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the cluster id is empty"),
        ("x" * 32_768, "requests have room for 32767"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_cluster_id_that_no_request_could_name(text: str, sentence: str) -> None:
    """A cluster id that no request can contain is refused by one line that says what to do."""
    first, _ = directories()
    with pytest.raises(StorageError, match=sentence):
        format_all(first, cluster_id=text)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ("version=0\nbroker.id=1\n", "the file has version 0"),
        ("version=1\nnode.id=1\n", "cluster.id"),
        ("version=1\nnode.id=x\ncluster.id=a\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "invalid literal"),
        ("", "version missing"),
    ],
)
def test_a_damaged_identity_is_told(contents: str, problem: str) -> None:
    """`storage info` reports a damaged meta.properties with its path and the reason."""
    first, _ = directories()
    first.write_atomic("meta.properties", contents.encode())
    info = storage_info(first)
    assert info.meta is None
    assert "/a/meta.properties" in str(info.problem)
    assert problem in str(info.problem)


def test_an_unfinished_snapshot_is_told_apart() -> None:
    """A snapshot without its footer is unfinished, and is refused. A damaged snapshot gives another error."""
    first, _ = directories()
    format_all(first)
    data = first.read_bytes("bootstrap.checkpoint")
    with pytest.raises(MetadataLogCorrupt, match="has no footer"):
        decode_snapshot(data[:-75], source="half")
    with pytest.raises(MetadataLogCorrupt, match="damaged"):
        decode_snapshot(data[:-1], source="cut")
    with pytest.raises(MetadataLogCorrupt, match="has no footer"):
        decode_snapshot(b"", source="empty")


# -- several first voters -----------------------------------------------------------------------------------------------

ONE, TWO = "1@one:9093:JEXY6aqzQY-32P5TStzaFg", "2@[::1]:9094:MvDxzVmcRsaTz33bUuRU6A"
SNAPSHOT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def format_node(node_id: int, controllers: str | None) -> Dir:
    directory = SimDisk().open_dir("/a", create=True)
    voters = None if controllers is None else initial_voters(controllers, "CONTROLLER")
    format_storage(
        [directory],
        directory,
        StorageFormat(
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            directory_ids=[OTHER_ID],
            voters=voters,
            timestamp_ms=1,
        ),
    )
    return directory


def test_initial_controllers_are_equal_on_every_node_and_name_the_directory() -> None:
    """`--initial-controllers` writes the same voters on all nodes (KIP-853).

    A voter's metadata directory gets the given id.
    """
    nodes = {node_id: format_node(node_id, f"{TWO},{ONE}") for node_id in (1, 2, 3)}
    snapshots = {directory.read_bytes(SNAPSHOT) for directory in nodes.values()}
    assert len(snapshots) == 1
    version, record = decode_snapshot(snapshots.pop(), source="voters").control_records
    assert version == KRaftVersionRecord(0, 1)
    assert isinstance(record, VotersRecord)
    assert [(each.voter_id, each.endpoints[0].host, each.endpoints[0].port) for each in record.voters] == [
        (1, "one", 9093),
        (2, "::1", 9094),
    ]
    ids = {node_id: find_meta_properties(directory) for node_id, directory in nodes.items()}
    assert [meta.directory_id for meta in ids.values() if meta is not None] == [
        record.voters[0].voter_directory_id,
        record.voters[1].voter_directory_id,
        OTHER_ID,
    ]


def test_a_node_that_joins_is_told_nothing_about_voters() -> None:
    """A node is formatted with `--no-initial-controllers` or for static voters, or is only a broker.

    The first records are in `bootstrap.checkpoint`, and the directory of the metadata log is empty.
    """
    directory = format_node(4, None)
    assert directory.exists("bootstrap.checkpoint")
    assert directory.subdir("__cluster_metadata-0").list() == []
    assert storage_info(directory).problem is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty entry"),
        ("1@one:9093", "ID@HOST:PORT:DIRECTORY-ID"),
        ("1-one", "ID@HOST:PORT:DIRECTORY-ID"),
        (f"{ONE},", "an empty entry"),
        (f"{ONE},{ONE}", "Node id 1 was specified more than once"),
        (f"{ONE},3{ONE[1:]}", "the same directory id"),
        ("1@one:0:JEXY6aqzQY-32P5TStzaFg", "ID@HOST:PORT:DIRECTORY-ID"),
        ("1@one:65536:JEXY6aqzQY-32P5TStzaFg", "ID@HOST:PORT:DIRECTORY-ID"),
        ("4294967296@one:1:JEXY6aqzQY-32P5TStzaFg", "ID@HOST:PORT:DIRECTORY-ID"),
        ("1@::1:9093:JEXY6aqzQY-32P5TStzaFg", "ID@HOST:PORT:DIRECTORY-ID"),
        ("1@one:9093:AAAAAAAAAAAAAAAAAAAAAQ", "reserved"),
        ("1@one:9093:JEXY6aqzQY-32P5TStzaF1", "not a directory id"),
    ],
)
def test_initial_controllers_that_make_no_sense_are_refused(text: str, problem: str) -> None:
    """A bad `--initial-controllers` is refused by one line that names the entry, and nothing is written."""
    with pytest.raises(StorageError, match=problem):
        initial_voters(text, "CONTROLLER")


def test_features_are_chosen_among_those_of_this_version() -> None:
    """`--feature` accepts only features and levels of this version.

    kraft.version cannot be chosen, since it follows from the voters.
    """
    assert bootstrap_features({}) == BOOTSTRAP_FEATURES
    with pytest.raises(
        StorageError, match=r"Unsupported feature: a\. Supported features are: .*metadata\.version"
    ):
        bootstrap_features({"a": 1})
    with pytest.raises(StorageError, match="level 29"):
        bootstrap_features({"metadata.version": 29})
    with pytest.raises(StorageError, match="must have a level"):
        bootstrap_features({"metadata.version": 0})
    with pytest.raises(StorageError, match="cannot be chosen by itself"):
        bootstrap_features({"kraft.version": 1})
