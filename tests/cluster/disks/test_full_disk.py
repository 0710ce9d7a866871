"""A node whose disk really fills up, on a separate file system: the answers to clients and on the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odradek import KafkaError, Producer
from testkit.odradek_server import start_odradek
from tests.cli.running import odradek_here
from tests.cluster.test_real_nodes import PATIENCE_SECONDS, create, until

pytestmark = pytest.mark.xdist_group("cluster")

DISK_MIB = 48


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small separate file system on a loop device. Tests are skipped where mounting is impossible."""
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting a small disk needs root and mkfs.ext4")
    image, mounted = tmp_path / "disk", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip("this machine cannot mount a loop device")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


def fill(path: Path) -> None:
    """Fill the file system completely."""
    with path.open("wb", buffering=0) as file, suppress(OSError):  # no space left
        while file.write(bytes(1 << 16)):
            pass


def write(bootstrap: str, count: int = 1) -> str | None:
    """Write records of one kilobyte; return None if all were accepted, else the name of the error."""
    options = {"acks": "all", "delivery_timeout_ms": 3000, "request_timeout_ms": 2000, "linger_ms": 0}
    with Producer(bootstrap_servers=bootstrap, **options) as producer:
        for sent in [producer.send("t", value=b"v" * 1000) for _ in range(count)]:
            try:
                sent.result(PATIENCE_SECONDS)
            except KafkaError as error:
                return error.code.name
    return None


def test_a_disk_that_fills_up_is_told_and_forgotten(small_disk: Path, tmp_path: Path) -> None:
    """On a full disk writes are refused, and two commands show since when it is full. With room again, all returns to
    normal."""
    server = start_odradek(
        tmp_path / "node",
        settings={
            "log.dirs": str(small_disk / "data"),
            "metadata.log.dir": str(tmp_path / "metadata"),
            "odradek.disk.full.ms": "300",
        },
    )
    try:
        at = server.bootstrap
        create(at, "t", 1)
        assert until("a first record", lambda: True if write(at) is None else None)
        ballast = small_disk / "ballast"
        fill(ballast)
        assert until("a refusal", lambda: write(at, 200)) is not None

        def told() -> list[str] | None:
            (directory,) = odradek_here("disk", "list", "--json", bootstrap=at).json()["brokers"][0][
                "directories"
            ]
            return [directory["trouble"], directory["path"]] if directory["trouble"] else None

        assert until("the word of the broker", told) == ["full", str(small_disk / "data")]
        (row,) = [
            line for line in odradek_here("disk", "list", bootstrap=at).out.splitlines() if "FULL" in line
        ]
        assert str(small_disk / "data") in row
        said = f"broker 1: {small_disk / 'data'} is full since "
        assert said in odradek_here("cluster", "status", bootstrap=at).out
        (entry,) = odradek_here("cluster", "status", "--json", bootstrap=at).json(3)["troubled_directories"]
        assert (entry["broker"], entry["trouble"]) == (1, "full")
        ballast.unlink()
        assert until("another record", lambda: True if write(at) is None else None)
        until("the end of it", lambda: True if told() is None else None)
        assert odradek_here("cluster", "status", "--json", bootstrap=at).json()["troubled_directories"] == []
    finally:
        server.stop()
