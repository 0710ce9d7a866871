"""Modes of a node's directories and files.

Only the node's user may use new files. Old files with wider modes are reported.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.secret_files import chmod_remedy, open_to_everybody
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from testkit.odradek_server import launch_odradek
from testkit.processes import combined_node_properties, free_ports
from testkit.raw_requests import RawClient
from tests.cli.running import odradek


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory with mode 0755, which everybody can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_nothing_of_a_node_is_for_others(public: Path) -> None:
    """Directories of logs, metadata and audit log get mode 0700, and their files 0600, whatever the umask is."""
    client, controller = free_ports(2)
    settings = {
        **combined_node_properties(public, client, controller),
        "log.dirs": f"{public}/a,{public}/deep/b",
        "metadata.log.dir": f"{public}/meta",
        "odradek.audit.enabled": "true",
        "odradek.audit.directory": f"{public}/audit",
    }
    path = public / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    before = os.umask(0o022)
    try:
        scram = "SCRAM-SHA-256=[name=alice,password=alice-secret]"
        done = odradek("storage", "format", str(path), "--add-scram", scram)
        assert (done.code, "everybody" in done.err) == (0, False), done
        server = launch_odradek(path)
    finally:
        os.umask(before)
    try:
        with RawClient(f"127.0.0.1:{client}") as raw:
            topic = CreatableTopic("t", 2, 1, [], [])
            assert raw.request(CreateTopicsRequest([topic], 30_000, False), 5).topics[0].error_code == 0
        roots = [public / "a", public / "deep" / "b", public / "meta", public / "audit"]
        assert {mode(root) for root in roots} == {0o700}
        found = [each for root in roots for each in root.rglob("*")]
        assert {mode(each) for each in found if each.is_dir()} == {0o700}
        assert [each for each in found if each.is_file() and mode(each) != 0o600] == []
        assert {"bootstrap.checkpoint", "audit.log", "00000000000000000000.log"} <= {
            each.name for each in found
        }
        assert "open_to_everybody" not in server.log_path.read_text()
    finally:
        server.stop()


def test_an_old_directory_that_is_open_is_told_of(public: Path) -> None:
    """An old directory is open to everybody.

    The start and the format log one line with the directories and a command that closes them.
    """
    client, controller = free_ports(2)
    directories = [public / "a b", public / "c"]
    for each in directories:
        each.mkdir(mode=0o755)
    settings = {
        **combined_node_properties(public, client, controller),
        "log.dirs": ",".join(map(str, directories)),
    }
    path = public / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    done = odradek("storage", "format", str(path))
    assert done.code == 0
    remedy = f"chmod o= '{directories[0]}' {directories[1]}"
    assert remedy in done.err
    server = launch_odradek(path)
    try:
        lines = [
            line for line in server.log_path.read_text().splitlines() if "directory.open_to_everybody" in line
        ]
        assert len(lines) == 1
        assert f'remedy="{remedy}"' in lines[0]
    finally:
        server.stop()
    assert (
        os.system(chmod_remedy(map(str, directories))) == 0
    )  # the command that the line tells an operator to run
    assert open_to_everybody(map(str, directories)) == []


@pytest.mark.parametrize(
    ("given", "is_open"), [(0o755, True), (0o711, True), (0o704, True), (0o750, False), (0o770, False)]
)
def test_the_group_may_read(public: Path, given: int, is_open: bool) -> None:
    """A directory that only the owner and the group can enter is accepted. The same rule applies to files with
    secrets."""
    (public / "d").mkdir()
    (public / "d").chmod(given)
    assert bool(open_to_everybody([str(public / "d")])) is is_open


def test_what_stands_in_a_closed_directory_is_closed(public: Path) -> None:
    """A directory within a closed directory counts as closed. A missing one is ignored."""
    (public / "home" / "data").mkdir(parents=True)
    (public / "home").chmod(0o700)
    assert open_to_everybody([str(public / "home" / "data"), str(public / "missing")]) == []
