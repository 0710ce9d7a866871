"""The wheel and the source distribution: their contents, their metadata, and reproducible bytes for each commit."""

from __future__ import annotations

import email.message
import email.parser
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.build_backend import commit_of
from tests.docs.markdown import ROOT
from tests.install.distributions import build, clone

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (ROOT / ".git").exists(), reason="a distribution is built from a clone; here is no git"
    ),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("sources") / "odradek")


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (found,) = target.iterdir()
    return found


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def _metadata(wheel: Path) -> email.message.Message:
    (name,) = (each for each in _names(wheel) if each.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(_read(wheel, name))


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def test_the_wheel_has_what_runs_and_nothing_else(wheel: Path) -> None:
    """The wheel has the two top-level packages with all modules of the product, and neither READMEs nor tests."""
    names = _names(wheel)
    tops = {each.split("/")[0] for each in names if ".dist-info/" not in each and ".data/" not in each}
    assert tops == {"odradek", "pyspark_odradek"}
    assert not [each for each in names if each.endswith(".md") or "/tests/" in each or "__pycache__" in each]
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "odradek", "wire", "metadata_quorum", "data_plane", "spark"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    modules = {
        each if each.startswith("odradek/") else f"odradek/{each}" for each in tracked if each.endswith(".py")
    }
    assert {each for each in names if re.fullmatch(r"odradek/.*\.py", each)} == modules


def test_the_wheel_has_the_pages_of_the_console(wheel: Path) -> None:
    """The wheel has each file that the console serves, and names the package that the console needs."""
    asked = ["git", "-C", str(ROOT), "ls-files", "odradek/console/pages"]
    tracked = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert "odradek/console/pages/index.html" in tracked
    assert {each for each in _names(wheel) if "/console/pages/" in each} == set(tracked)
    assert 'h11>=0.16; extra == "console"' in _metadata(wheel).get_all("Requires-Dist", [])


def test_the_metadata_are_those_of_a_package_page(wheel: Path) -> None:
    """The metadata have licence, keywords and classifiers. The long description has no link into a checkout."""
    metadata = _metadata(wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Keywords"]
    assert any("Python :: 3.13" in each for each in metadata.get_all("Classifier", []))
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", page)


def test_a_wheel_knows_its_commit(wheel: Path, checkout: Path) -> None:
    """`odradek --version` prints the commit from which the wheel was built."""
    from odradek.version import origin

    assert _read(wheel, "odradek/commit.txt").split()[0] == _commit(checkout)
    noted = wheel.parent / "odradek"
    noted.mkdir()
    (noted / "commit.txt").write_text(_read(wheel, "odradek/commit.txt"))
    assert origin(noted)[0] == _commit(checkout)


def test_the_record_names_each_file(wheel: Path) -> None:
    """RECORD lists each file of the wheel with its hash, which pip checks."""
    (record,) = (each for each in _names(wheel) if each.endswith("/RECORD"))
    listed = [line.rsplit(",", 2)[0] for line in _read(wheel, record).splitlines()]
    assert listed == sorted(_names(wheel))


def test_the_same_commit_gives_the_same_bytes(
    wheel: Path, sdist: Path, unpacked: Path, tmp_path: Path
) -> None:
    """The clone and the unpacked source distribution give the same bytes, even under another umask."""
    assert build("wheel", unpacked, tmp_path / "wheel", umask=0o077).read_bytes() == wheel.read_bytes()
    assert build("sdist", unpacked, tmp_path / "sdist", umask=0o077).read_bytes() == sdist.read_bytes()


def test_files_that_are_not_committed_mark_the_commit(checkout: Path, tmp_path: Path) -> None:
    """A build from a clone with uncommitted changes says so. A build outside git names no commit."""
    changed = clone(tmp_path / "changed")
    assert commit_of(changed) == _commit(checkout)
    with (changed / "odradek" / "__init__.py").open("a") as file:
        file.write("\n")
    assert commit_of(changed) == f"{_commit(checkout)}+dirty"
    assert commit_of(tmp_path) == ""


def test_the_source_distribution_tests_itself(unpacked: Path) -> None:
    """The source distribution has all files of git, links included, and runs its tests where it is unpacked."""
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    found = {
        str(each.relative_to(unpacked)) for each in unpacked.rglob("*") if each.is_symlink() or each.is_file()
    }
    missing = {each for each in tracked if each not in found and not (unpacked / each).exists()}
    assert not missing
    assert (unpacked / "odradek" / "wire").is_symlink()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "tests/wire/framing",
            "tests/env",
        ],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
