"""Decisions of the collection's modules: a cluster that is whole, disks that are empty, files as wanted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.plugins import plugin

MEBIBYTE = 1 << 20


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "health", monkeypatch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "disk", monkeypatch)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "files", monkeypatch)


def status(**values: Any) -> dict[str, Any]:
    """The output of `odradek cluster status --json` for a whole cluster of two brokers, but for `values`."""
    return {
        "quorum": {"leader": 1, "voters": [1, 2], "silent_voters": []},
        "brokers": [{"broker": 1, "online": True}, {"broker": 2, "online": True}],
        "offline_partitions": [],
        "under_min_isr_partitions": [],
        "under_replicated_partitions": [],
        "moving_partitions": [],
        **values,
    }


def test_whole(health: ModuleType) -> None:
    """Nothing is missing from a whole cluster, with each broker that should be there."""
    assert health.missing_of(status(), "whole", [1, 2]) == []


@pytest.mark.parametrize(
    ("values", "missing", "serving"),
    [
        ({"quorum": None}, "the quorum of controllers has no leader", False),
        ({"quorum": {"leader": 1, "silent_voters": [2]}}, "controllers that vote are silent: 2", True),
        ({"offline_partitions": ["t-0"]}, "partitions have no leader: t-0", False),
        ({"under_min_isr_partitions": ["t-0"]}, "cannot be written", False),
        ({"under_replicated_partitions": ["t-0"]}, "partitions are not fully replicated: t-0", True),
        ({"moving_partitions": ["t-0"]}, "partitions are moving: t-0", True),
        ({"moving_partitions": None}, "it is not known which partitions are moving", True),
        ({"brokers": [{"broker": 1, "online": True}, {"broker": 2, "online": False}]}, "not online: 2", True),
    ],
)
def test_not_whole(health: ModuleType, values: dict[str, Any], missing: str, serving: bool) -> None:
    """Each trouble keeps a cluster from being whole; what is not known counts as trouble."""
    assert any(missing in each for each in health.missing_of(status(**values), "whole", []))
    assert (health.missing_of(status(**values), "serving", []) == []) is serving


def test_present(health: ModuleType) -> None:
    """A node whose disk was replaced lacks replicas itself: that does not keep it from its restart, a lost broker does."""
    assert health.missing_of(status(under_replicated_partitions=["t-0"]), "present", []) == []
    gone = [{"broker": 1, "online": True}, {"broker": 2, "online": False}]
    assert health.missing_of(status(brokers=gone), "present", []) == ["brokers are not online: 2"]


def test_a_broker_that_never_came(health: ModuleType) -> None:
    """A broker of which the cluster has not heard is missing."""
    assert health.missing_of(status(), "serving", [3]) == ["brokers are not online: 3"]


@pytest.mark.parametrize("position", [0, 3 * MEBIBYTE, 64 * MEBIBYTE, 128 * MEBIBYTE - 1])
def test_data_on_a_disk(disk: ModuleType, tmp_path: Path, position: int) -> None:
    """Data without a signature is found at the edges, and at places in between."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(128 * MEBIBYTE)
        assert not disk._holds_data(str(image), 128 * MEBIBYTE)
        file.seek(position)
        file.write(b"x")
    assert disk._holds_data(str(image), 128 * MEBIBYTE)


@pytest.mark.skipif(
    shutil.which("mkfs.ext4") is None or shutil.which("blkid") is None,
    reason="mkfs.ext4 and blkid are not there",
)
def test_a_signature_on_a_disk(disk: ModuleType, tmp_path: Path) -> None:
    """A file system is known by its signature, with its label."""
    image = tmp_path / "image"
    image.write_bytes(bytes(8 * MEBIBYTE))
    assert disk._probe(str(image)) == {}
    subprocess.run(["mkfs.ext4", "-q", "-L", "photos", image], check=True)
    found = disk._probe(str(image))
    assert (found["TYPE"], found["LABEL"]) == ("ext4", "photos")


@pytest.mark.parametrize(
    ("ours", "expected", "empty", "disks"),
    [
        ({}, {}, ["/dev/x", "/dev/y"], {"a": "/dev/x", "b": "/dev/y"}),
        ({"b": "/dev/x", "a": "/dev/y"}, {"a": "uuid-a", "b": "uuid-b"}, [], {"a": "/dev/y", "b": "/dev/x"}),
        ({"a": "/dev/x"}, {"a": "uuid-a", "b": "uuid-b"}, [], {"a": "/dev/x", "b": "uuid-b"}),
        ({"a": "/dev/x"}, {"a": "uuid-a", "b": "uuid-b"}, ["/dev/z"], {"a": "/dev/x", "b": "/dev/z"}),
        ({"a": "/dev/x"}, {"a": "uuid-a"}, ["/dev/z"], {"a": "/dev/x", "b": "/dev/z"}),
    ],
    ids=[
        "bare",
        "known by their labels",
        "one is gone",
        "one takes the place of one that is gone",
        "a further one",
    ],
)
def test_discovered_disks(
    disk: ModuleType, ours: dict[str, str], expected: dict[str, str], empty: list[str], disks: dict[str, str]
) -> None:
    """A discovered disk keeps its name wherever it is plugged in; one that is gone stays named, so that it is missed."""
    found = disk.assigned(ours, expected, empty)
    assert {each["name"]: each["device"] for each in found} == disks
    assert [each["name"] for each in found] == sorted(disks)


def test_disks_of_before(disk: ModuleType, tmp_path: Path) -> None:
    """The disks that a host was given are known by their mount units, those of others do not count."""
    (tmp_path / "srv-odradek-b.mount").write_text(
        "[Mount]\nWhat=/dev/disk/by-uuid/1-2\nWhere=/srv/odradek/b\n"
    )
    (tmp_path / "srv-photos.mount").write_text("[Mount]\nWhat=/dev/sdz\n")
    assert disk._expected("/srv/odradek", str(tmp_path)) == {"b": "/dev/disk/by-uuid/1-2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to root")
def test_a_file_is_as_wanted(files: ModuleType, tmp_path: Path) -> None:
    """Content, mode and owner count: a file that is as wanted is not written again."""
    path = tmp_path / "deep" / "file"
    files._write(str(path), "content\n", 0o640, 0, 0)
    assert files._is_as_wanted(str(path), "content\n", 0o640, 0, 0)
    assert not files._is_as_wanted(str(path), "content\n", 0o644, 0, 0)
    assert not files._is_as_wanted(str(path), "content\n", 0o640, 1, 0)
    assert not files._is_as_wanted(str(path), "other\n", 0o640, 0, 0)
