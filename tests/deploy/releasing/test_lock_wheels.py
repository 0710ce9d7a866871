"""An installation fetches exactly the locked wheels: each by its hash, and at the version in the constraints."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.deploy.needs import ROOT

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_wheels", ROOT / "deploy" / "lock_wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def file(name: str, sha256: str, **more: object) -> dict[str, object]:
    return {"filename": name, "hashes": {"sha256": sha256}, **more}


def test_all_wheels_of_a_version_are_locked(lock: ModuleType) -> None:
    """A version's wheels for all Pythons and platforms are locked. Source archives and withdrawn files are left out."""
    files = [
        file("a_b-1.0-cp313-cp313-win_amd64.whl", "c"),
        file("a_b-1.0-py3-none-any.whl", "a"),
        file("a_b-1.0-1-py3-none-any.whl", "b"),
        file("a_b-1.0.1-py3-none-any.whl", "x"),
        file("a_b-1.0-py2-none-any.whl", "y", yanked="broken"),
        file("a_b-1.0.tar.gz", "z"),
    ]
    assert lock.wheel_hashes({"files": files}, "1.0") == ["a", "b", "c"]
    text = lock.locked({"a-b": "1.0"}, {"a-b": {"files": files}})
    assert text.endswith("a-b==1.0 \\\n    --hash=sha256:a \\\n    --hash=sha256:b \\\n    --hash=sha256:c\n")
    with pytest.raises(ValueError, match="no wheel of a-b 2"):
        lock.locked({"a-b": "2"}, {"a-b": {"files": files}})


def test_the_lock_has_what_a_node_needs(lock: ModuleType) -> None:
    """The lock has each direct or indirect dependency, at the version of constraints.txt. Each version has hashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = lock.needed(lock.of_a_node(project))
    locked, constraints = lock.pins(ROOT / "wheels.txt"), lock.pins(ROOT / "constraints.txt")
    assert needed <= set(locked)
    assert {name: constraints[name] for name in locked} == locked
    own = lock.pins(ROOT / "deploy" / "constraints.txt")
    for path, names in ((lock.BUILD, {"setuptools"}), (lock.HOSTS, {"pip"})):
        assert lock.pins(path) == {name: own[name] for name in names}
    for path in (lock.WHEELS, lock.BUILD, lock.HOSTS):
        entries = path.read_text().replace("\\\n", " ").splitlines()[1:]
        assert all(_HASH.search(entry) for entry in entries)


def test_make_install_fetches_by_hash_alone() -> None:
    """Each call of pip that fetches packages requires their hashes. Our own code is built without fetching anything."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "install"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    calls = [
        line
        for line in done.stdout.splitlines()
        if "pip" in line and " install " in line and "apt-get" not in line
    ]
    assert len(calls) == 2, done.stdout
    assert "--require-hashes --no-deps --only-binary :all:" in calls[0]
    assert "--no-deps --no-build-isolation -e ." in calls[1]


def test_another_wheel_of_the_same_name_is_refused(tmp_path: Path, lock: ModuleType) -> None:
    """pip installs the wheel that was locked, and refuses a wheel of this name with other bytes."""
    wheel = tmp_path / "locked_thing-1.0-py3-none-any.whl"

    def write(body: str) -> str:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("locked_thing.py", body)
            archive.writestr(
                "locked_thing-1.0.dist-info/METADATA",
                "Metadata-Version: 2.1\nName: locked-thing\nVersion: 1.0\n",
            )
            archive.writestr(
                "locked_thing-1.0.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr("locked_thing-1.0.dist-info/RECORD", "")
        return hashlib.sha256(wheel.read_bytes()).hexdigest()

    listed = tmp_path / "wheels.txt"
    document = {"files": [file(wheel.name, write("good = 1\n"))]}
    listed.write_text(lock.locked({"locked-thing": "1.0"}, {"locked-thing": document}))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--no-index",
        "--find-links",
        tmp_path,
    ]
    command += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", listed, "--target"]
    assert subprocess.run([*command, tmp_path / "good"], capture_output=True, check=False).returncode == 0
    write("good = 0\n")
    done = subprocess.run([*command, tmp_path / "bad"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HASHES" in done.stderr
