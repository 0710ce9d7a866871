"""Decisions of the collection's modules: the health of a cluster, disks and their contents, files, and waits."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

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
    """Return the output of `odradek cluster status --json` for a whole cluster of two brokers, changed by `values`."""
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
    """A whole cluster that has every expected broker lacks nothing."""
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
    """A cluster with any of these troubles is not whole. An unknown figure counts as trouble."""
    assert any(missing in each for each in health.missing_of(status(**values), "whole", []))
    assert (health.missing_of(status(**values), "serving", []) == []) is serving


def test_votes_need_a_quorum_alone(health: ModuleType) -> None:
    """A change of votes waits until the controllers have a leader. Leaders of partitions do not matter."""
    offline = {"offline_partitions": ["t-0"], "under_min_isr_partitions": ["t-0"]}
    assert health.missing_of(status(**offline), "quorum", []) == []
    headless = status(quorum={"leader": None, "voters": [1, 2], "silent_voters": []})
    assert health.missing_of(headless, "quorum", []) == ["the quorum of controllers has no leader"]


def test_present(health: ModuleType) -> None:
    """A node whose disk was replaced lacks replicas itself, so such a lack is accepted. A broker that is down is
    not."""
    assert health.missing_of(status(under_replicated_partitions=["t-0"]), "present", []) == []
    gone = [{"broker": 1, "online": True}, {"broker": 2, "online": False}]
    assert health.missing_of(status(brokers=gone), "present", []) == ["brokers are not online: 2"]


def test_a_broker_that_never_came(health: ModuleType) -> None:
    """An expected broker that the cluster has never seen is reported as missing."""
    assert health.missing_of(status(), "serving", [3]) == ["brokers are not online: 3"]


@pytest.mark.parametrize("position", [0, 3 * MEBIBYTE, 64 * MEBIBYTE, 128 * MEBIBYTE - 1])
def test_data_on_a_disk(disk: ModuleType, tmp_path: Path, position: int) -> None:
    """Data without a signature is found at both ends of a disk, and at places in between."""
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
    """A file system is recognized by its signature, and its label is reported."""
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
    """A discovered disk keeps its name wherever it is plugged in. A lost disk stays in the list, so the loss is
    noticed."""
    found = disk.assigned(ours, expected, empty)
    assert {each["name"]: each["device"] for each in found} == disks
    assert [each["name"] for each in found] == sorted(disks)


def test_disks_of_before(disk: ModuleType, tmp_path: Path) -> None:
    """The disks of a host are found by the collection's mount units. Other mount units do not count."""
    (tmp_path / "srv-odradek-b.mount").write_text(
        "[Mount]\nWhat=/dev/disk/by-uuid/1-2\nWhere=/srv/odradek/b\n"
    )
    (tmp_path / "srv-photos.mount").write_text("[Mount]\nWhat=/dev/sdz\n")
    assert disk._expected("/srv/odradek", str(tmp_path)) == {"b": "/dev/disk/by-uuid/1-2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to root")
def test_a_file_is_as_wanted(files: ModuleType, tmp_path: Path) -> None:
    """A file with the wanted content, mode and owner counts as unchanged. A file that differs in one of them does
    not."""
    path = tmp_path / "deep" / "file"
    files._write(str(path), "content\n", 0o640, 0, 0)
    assert files._is_as_wanted(str(path), "content\n", 0o640, 0, 0)
    assert not files._is_as_wanted(str(path), "content\n", 0o644, 0, 0)
    assert not files._is_as_wanted(str(path), "content\n", 0o640, 1, 0)
    assert not files._is_as_wanted(str(path), "other\n", 0o640, 0, 0)


def test_besides(health: ModuleType) -> None:
    """Named brokers may be down, and replicas may lack because of them. The gate still reports every other trouble."""
    gone = [{"broker": 1, "online": True}, {"broker": 2, "online": False}]
    away = status(
        brokers=gone,
        quorum={"leader": 1, "voters": [1, 2], "silent_voters": [2]},
        under_replicated_partitions=["t-0"],
        under_min_isr_partitions=["t-1"],
    )
    assert health.missing_of(away, "whole", [1], [2]) == []
    assert health.missing_of(away, "whole", [3], [2]) == ["brokers are not online: 3"]
    headless = status(quorum=None, brokers=gone)
    assert health.missing_of(headless, "whole", [], [2]) == ["the quorum of controllers has no leader"]


@pytest.mark.parametrize(
    ("path", "content", "serial"),
    [
        ("sdx/device/vpd_pg80", b"\0\x80\0\x08WD-W4567", "WD-W4567"),
        ("sdx/device/vpd_pg80", b"\0\x80\0\x0c  W4567     ", "W4567"),
        ("sdx/device/serial", b"S3Z8NB0K\n", "S3Z8NB0K"),
        ("sdx/serial", b"virtio-1\n", "virtio-1"),
        ("sdx/loop/backing_file", b"/images/disk-a\n", "/images/disk-a"),
        ("sdx/size", b"1\n", ""),
    ],
    ids=["scsi", "scsi with blanks", "nvme", "virtio", "loop", "none"],
)
def test_serial_numbers(disk: ModuleType, tmp_path: Path, path: str, content: bytes, serial: str) -> None:
    """The serial number of a disk is found for each kind of device. It is empty if the device reports none."""
    file = tmp_path / "class" / "block" / path
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert disk.serial_of("/dev/sdx", str(tmp_path)) == serial


def test_clusters_on_a_disk(disk: ModuleType, tmp_path: Path) -> None:
    """The cluster ids of a disk are read from its log directories, whatever characters an id has."""
    assert disk.clusters_in(str(tmp_path)) == []
    for name, text in (("node-1", "cluster.id=4L6g3nShT\nnode.id=1\n"), ("node-2", "cluster.id = a\\:b\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(f"version=1\n{text}")
    assert disk.clusters_in(str(tmp_path)) == ["4L6g3nShT", "a:b"]


class Judged:
    """A disk whose properties a test can change, and the module's judgement of it."""

    def __init__(self, disk: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._disk = disk
        self.serial, self.use, self.clusters = "S1", None, ["other"]
        image = tmp_path / "disk"
        with image.open("wb") as file:
            file.truncate(64 * MEBIBYTE)
            file.write(b"x")
        self._image = str(image)
        stands_in = {
            "serial_of": lambda device: self.serial,
            "in_use": lambda device: self.use,
            "_probe": lambda device: {"TYPE": "xfs", "LABEL": "odr-z", "UUID": "u"},
            "_clusters_on": lambda device: self.clusters,
        }
        for name, function in stands_in.items():
            monkeypatch.setattr(disk, name, function)
        monkeypatch.setattr(disk.stat, "S_ISBLK", lambda mode: True)

    def said(self, *wipe: str) -> str:
        """Return the problem with the disk, or an empty text if the disk would be formatted."""
        uuid, problem = self._disk._judged({"name": "a", "device": self._image}, MEBIBYTE, wipe, "mine")
        assert uuid is None
        return problem or ""


def test_a_wipe_is_refused(disk: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A used disk is wiped only by its serial number, and never while it is mounted or has data of this cluster."""
    judged = Judged(disk, monkeypatch, tmp_path)
    assert "holds something already" in judged.said()
    assert "-e odradek_wipe=S1" in judged.said("S2")
    assert judged.said("S1") == ""
    judged.clusters = ["other", "mine"]
    assert "log directories of this cluster" in judged.said("S1")
    judged.clusters = None  # type: ignore[assignment]
    assert "cannot be read" in judged.said("S1")
    judged.clusters = []
    judged.use = "is mounted at /mnt"  # type: ignore[assignment]
    assert "is not wiped, since it is mounted at /mnt" in judged.said("S1")
    judged.use, judged.serial = None, ""
    assert "it has no serial number" in judged.said("S1")


LATE = (
    "odradek: --timeout has passed: 28 partitions not moved yet (12 of 40 partitions, 3.0 GiB of 9.0 GiB, 50.0 MiB/s, "
    "about 2m left); moves that have begun go on (`odradek partition list --moving`), repeat the command\n"
)


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stands_in: dict[str, Any] = {
        "ansible": {},
        "ansible.errors": {"AnsibleConnectionFailure": ConnectionError},
        "ansible.plugins": {},
        "ansible.plugins.action": {"ActionBase": Base},
        "ansible.utils": {},
        "ansible.utils.display": {"Display": Shown},
    }
    for name, values in stands_in.items():
        monkeypatch.setitem(sys.modules, name, cast(ModuleType, SimpleNamespace(**values)))
    Shown.lines.clear()
    return plugin("action", "awaited")


class Shown:
    """A stand-in for Ansible's display, which keeps the lines that an operator would see."""

    lines: list[str] = []  # noqa: RUF012

    def display(self, line: str) -> None:
        self.lines.append(line)


class Base:
    """A stand-in for Ansible's base class of actions. Its host gives prepared answers."""

    def __init__(self, answers: list[Any], check_mode: bool = False) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []
        args = {"argv": ["odradek", "broker", "drain", 3], "seconds": "3600"}
        self._task = SimpleNamespace(args=args, check_mode=check_mode, get_name=lambda: "Partitions move")

    def run(self, tmp: Any, task_vars: Any) -> dict[str, Any]:
        return {}

    def _execute_module(self, *, module_name: str, module_args: Any, task_vars: Any) -> Any:
        self.asked.append(module_args["argv"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answered(status: int, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return {"rc": status, "stdout": stdout, "stderr": stderr}


def test_a_wait_says_what_is_left(awaited: ModuleType) -> None:
    """A command is repeated until its work is done. After each unfinished call a line reports the remaining work."""
    action = awaited.ActionModule([answered(1, "{}", LATE), answered(0, '{"partitions":[]}')])
    result = action.run(None, {})
    assert (result["rc"], result["changed"]) == (0, True)
    assert action.asked[0] == ["odradek", "broker", "drain", "3", "--json", "--timeout", "60"]
    (line,) = Shown.lines
    assert "Partitions move: 28 partitions not moved yet (12 of 40 partitions" in line
    assert "about 2m left)" in line
    assert "repeat" not in line


def test_a_lost_connection_costs_a_piece(awaited: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that has begun goes on without a connection. So the command is repeated after the connection is lost."""
    monkeypatch.setattr(awaited.time, "sleep", lambda seconds: None)
    action = awaited.ActionModule([ConnectionError("reset"), answered(0, '{"partitions":[{"topic":"t"}]}')])
    result = action.run(None, {})
    assert (result["rc"], result["changed"], len(action.asked)) == (0, True, 2)
    assert "no connection (reset), trying again" in Shown.lines[0]


def test_a_refusal_is_the_failure(awaited: ModuleType) -> None:
    """If the command fails for another reason, the task fails with the command's sentence and keeps its JSON output."""
    refused = answered(1, '{"partitions":[],"kept":[1]}', "odradek: broker 3 still holds 1 partition\n")
    result = awaited.ActionModule([refused]).run(None, {})
    assert result["failed"] is True
    assert result["msg"] == "broker 3 still holds 1 partition"
    assert result["document"]["kept"] == [1]


def test_nothing_to_move_is_no_change(awaited: ModuleType) -> None:
    """If all moves are done already, the task reports no change. In check mode the command is not run."""
    assert awaited.ActionModule([answered(0, '{"partitions":[]}')]).run(None, {})["changed"] is False
    assert awaited.ActionModule([answered(0, '{"brokers":[{"moves":[]}]}')]).run(None, {})["changed"] is False
    assert awaited.ActionModule([], check_mode=True).run(None, {})["changed"] is False


def test_questions_are_asked_together(tmp_path: Path) -> None:
    """Two questions are asked at the same time. The answers come in the order of the questions."""
    asking = plugin("module_utils", "asking")
    command = tmp_path / "odradek"
    command.write_text(
        f"""#!/bin/sh
touch {tmp_path}/asked-$2
until [ -e {tmp_path}/asked-status ] && [ -e {tmp_path}/asked-list ]; do sleep 0.02; done
echo "{{\\"of\\": \\"$2\\"}}"
"""
    )
    command.chmod(0o755)
    questions = [("cluster", "status"), ("partition", "list")]
    assert asking.ask_together(str(command), "a:1", questions) == [
        ({"of": "status"}, ""),
        ({"of": "list"}, ""),
    ]


def test_a_node_that_starts_is_knocked_at(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of a starting node is tried until it accepts or some time has passed. A list of addresses is not
    tried."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(health, "_POLL_SECONDS", 0.1)
        assert health._refusal(address) == "Connection refused"
        assert health._refusal(f"{address},{address}") == ""
        tried = threading.Event()
        sleep = health.time.sleep
        monkeypatch.setattr(health, "_POLL_SECONDS", 60)
        monkeypatch.setattr(health.time, "sleep", lambda seconds: (tried.set(), sleep(seconds)))
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(health._refusal(address)))
        thread.start()
        tried.wait()
        listening.listen()
        thread.join()
        assert found == [""]


@pytest.mark.parametrize(
    ("answers", "fallen", "again"),
    [
        ([["not online: 1"], []], None, True),
        ([["not online: 1"]], "it does not stay up", False),
        ([["not online: 1"]] * 9, None, False),
    ],
    ids=["it comes", "the service falls", "time is up"],
)
def test_the_wait_goes_on_until_all_is_as_before(
    health: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[list[str]],
    fallen: str | None,
    again: bool,
) -> None:
    """The wait ends when everything is there, when the service has failed, or after its time. It raises no error."""
    left, clock = list(answers), [0.0]
    monkeypatch.setattr(health, "_look", lambda params: ({}, left.pop(0), 0))
    monkeypatch.setattr(health, "_fallen", lambda service: fallen)
    monkeypatch.setattr(health.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(health.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    params = {"want": "back", "service": "odradek@1.service"}
    assert health._awaits_again(params, until=3.0) == ({}, again)


def test_directories_and_their_owners(files: ModuleType, tmp_path: Path) -> None:
    """A missing directory is made, and a wrong mode is corrected. Check mode only reports the directory."""
    path = tmp_path / "etc" / "tls"
    me, mine = tmp_path.owner(), tmp_path.group()
    entry = {"path": str(path), "mode": "0750", "owner": me, "group": mine}
    module = SimpleNamespace(params={"directories": [entry]}, check_mode=True)
    assert files._directories(module) == [str(path)]
    assert not path.exists()
    module.check_mode = False
    assert files._directories(module) == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o750
    assert files._directories(module) == []
    path.chmod(0o755)
    assert files._directories(module) == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o750


def test_files_switch_the_release(files: ModuleType, tmp_path: Path) -> None:
    """`current` becomes a link to an installed release. `previous` keeps the former release, unless another one is
    named."""
    for name in ("1", "2", "3"):
        (tmp_path / "versions" / name).mkdir(parents=True)
        (tmp_path / "versions" / name / "MANIFEST.json").write_text("{}")

    def refuse(msg: str) -> None:
        raise ValueError(msg)

    def switched(name: str, previous: str | None = None) -> list[dict[str, str]]:
        release = {"name": name, "previous": previous, "root": str(tmp_path)}
        module = SimpleNamespace(params={"release": release}, check_mode=False, fail_json=refuse)
        return cast(list[dict[str, str]], files._switched(module))

    assert switched("1") == [{"before": "release None\n", "after": "release 1\n"}]
    assert not (tmp_path / "previous").is_symlink()
    assert switched("1") == []
    assert switched("2") == [{"before": "release 1\n", "after": "release 2\n"}]
    assert os.readlink(tmp_path / "previous") == "versions/1"
    switched("3", previous="1")
    assert os.readlink(tmp_path / "current") == "versions/3"
    assert os.readlink(tmp_path / "previous") == "versions/1"
    with pytest.raises(ValueError, match="Release 4 is not installed"):
        switched("4")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_restart(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """Before a restart, systemd's count of failed starts is reset, and a disabled service is enabled."""
    restart = plugin("modules", "restart", monkeypatch)
    ran: list[list[str]] = []

    class Module:
        check_mode = False

        def __init__(self, **_: Any) -> None:
            self.params = {"service": "odradek@1.service", "forget": "odradek@*.service"}

        def run_command(self, command: list[str]) -> tuple[int, str, str]:
            ran.append(command[1:])
            return int(command[1] == "is-enabled" and not enabled), "", ""

        def exit_json(self, **result: Any) -> None:
            assert result == {"changed": True}

    monkeypatch.setattr(restart, "AnsibleModule", Module)
    restart.main()
    assert ran == [
        ["is-enabled", "--quiet", "odradek@1.service"],
        ["reset-failed", "odradek@*.service"],
        *([] if enabled else [["enable", "odradek@1.service"]]),
        ["restart", "odradek@1.service"],
    ]
