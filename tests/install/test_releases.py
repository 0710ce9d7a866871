"""Releases: the commit of each release, its bill of materials, and the files that `make release` writes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy.bill_of_materials import bill
from deploy.lock_wheels import pins
from deploy.release_files import GALAXY, locked_hashes, semantic
from deploy.released import UnknownRelease, commit_named, releases
from odradek.client.core import broker_connection
from odradek.version import origin
from tests.docs.markdown import ROOT
from tests.install.distributions import build, clone

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
GALAXY_YML = ROOT / "deploy/ansible/collections/ansible_collections/odradek/cluster/galaxy.yml"
WHEN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="here is no git")


def _git(root: Path, *words: str) -> str:
    named = ("-c", "user.name=t", "-c", "user.email=t")
    command = ["git", *named, "-C", str(root), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_newest_release_is_that_of_the_sources() -> None:
    """The newest release in the changelog has the version of the package and the Ansible collection. Each older
    release names its commit."""
    newest, *others = releases(CHANGELOG)
    assert newest.version == broker_connection._SOFTWARE_VERSION, "clients name it to servers"
    assert newest.version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {newest.version}\n" in GALAXY_YML.read_text()
    assert all(each.commit for each in others)
    assert [each.date for each in (newest, *others)] == sorted(
        (each.date for each in (newest, *others)), reverse=True
    )


@needs_git
def test_each_commit_that_the_changelog_names_is_there() -> None:
    """Each commit that the changelog names is in the history of this clone. A shallow clone may lack some, so it skips
    the test."""
    if _git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this clone is shallow")
    for each in releases(CHANGELOG):
        if each.commit:
            assert commit_named(each.version, ROOT) == (each.commit, each.version)
            _git(ROOT, "merge-base", "--is-ancestor", each.commit, "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Make a repository of two commits. Its changelog names the first commit for release 1.0.0, and no commit for
    1.1.0."""
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    first = _git(tmp_path, "rev-parse", "HEAD")
    text = f"## Unreleased\n\n## 1.1.0 (2026-02-02)\n\n- b\n\n## 1.0.0 (2026-01-01)\n\nCommit `{first}`.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "two")
    return tmp_path


def test_a_release_is_found_by_the_changelog_or_its_tag(history: Path) -> None:
    """A release is found by the changelog, or by its tag. If both name a commit and the two differ, the release is
    refused."""
    first, second = _git(history, "rev-parse", "HEAD~"), _git(history, "rev-parse", "HEAD")
    assert commit_named("1.0.0", history) == commit_named("v1.0.0", history) == (first, "1.0.0")
    assert commit_named(second[:9], history) == (second, None)
    with pytest.raises(
        UnknownRelease, match=r"names no commit for 1\.1\.0 yet, and there is no tag v1\.1\.0"
    ):
        commit_named("1.1.0", history)
    _git(history, "tag", "-a", "-m", "a tag with a text", "v1.1.0")
    assert commit_named("1.1.0", history) == (second, "1.1.0")
    with pytest.raises(UnknownRelease, match=r"'2\.0\.0' is no version"):
        commit_named("2.0.0", history)
    _git(history, "tag", "v1.0.0")
    with pytest.raises(
        UnknownRelease, match=rf"the tag v1\.0\.0 is at {second}, CHANGELOG\.md names {first}"
    ):
        commit_named("1.0.0", history)


def test_a_commit_of_another_history_is_refused(history: Path) -> None:
    """The changelog names a commit that the clone lacks, for example a shallow clone. The release is refused."""
    page = history / "CHANGELOG.md"
    page.write_text(page.read_text().replace(_git(history, "rev-parse", "HEAD~"), "1" * 40))
    with pytest.raises(UnknownRelease, match="is not in this clone"):
        commit_named("1.0.0", history)


def test_versions_of_the_collection() -> None:
    """Versions of releases are converted to semantic versions, which Ansible requires."""
    assert [semantic(each) for each in ("0.3.0", "1.2rc1", "0.1.1.dev3", "0.3.0+dirty", "1.2.3.4")] == [
        "0.3.0",
        "1.2.0-rc1",
        "0.1.1-dev3",
        "0.3.0+dirty",
        "1.2.3",
    ]


def test_hashes_of_lock_files() -> None:
    """Each project in the lock file of a node is found with all of its hashes."""
    text = (ROOT / "wheels.txt").read_text()
    found = locked_hashes(text)
    assert found.keys() == pins(ROOT / "wheels.txt").keys()
    assert sum(map(len, found.values())) == text.count("--hash=sha256:")


def _wheel(directory: Path, name: str, *fields: str, fits: str = "py3-none-any") -> Path:
    path = directory / f"{name}-1.0-{fits}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        about = f"{name}-1.0.dist-info/METADATA"
        archive.writestr(
            about, "\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields))
        )
    return path


def test_the_bill_of_materials(tmp_path: Path) -> None:
    """The bill of materials is valid CycloneDX. Each wheel has its hash, licence and dependencies, but not the
    dependencies of its extras."""
    ours = _wheel(
        tmp_path,
        "odradek",
        "License-Expression: Apache-2.0",
        "Requires-Dist: Some.Codec>=1",
        'Requires-Dist: pyspark; extra == "spark"',
    )
    codec = _wheel(tmp_path, "some_codec", "Classifier: License :: OSI Approved :: BSD License")
    pip = _wheel(tmp_path, "pip", "License: MIT")
    digest = hashlib.sha256(codec.read_bytes()).hexdigest()
    facts = {"some-codec": [digest, "f" * 64]}, "1" * 40, WHEN, ["3.11"]
    text = bill([ours, codec, pip], *facts)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bill([pip, codec, ours], *facts) == text
    found = json.loads(text)
    about = found["metadata"]["component"]
    assert (about["name"], about["version"], about["type"]) == ("odradek", "1.0", "application")
    assert {"name": "odradek:commit", "value": "1" * 40} in about["properties"]
    assert about["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    components = {each["name"]: each for each in found["components"]}
    assert components["some-codec"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert components["some-codec"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert {"name": "odradek:locked:sha256", "value": "f" * 64} in components["some-codec"]["properties"]
    assert components["pip"]["scope"] == "excluded"
    needs = {each["ref"]: each.get("dependsOn") for each in found["dependencies"]}
    assert needs[_purl(ours)] == [_purl(codec)]


def _purl(wheel: Path) -> str:
    """Return the package URL of a wheel, as the specification of package URLs demands for PyPI."""
    name = wheel.name.split("-")[0].replace("_", "-")
    return f"pkg:pypi/{name}@1.0?file_name={wheel.name}"


def test_the_bill_of_materials_for_several_pythons(tmp_path: Path) -> None:
    """The bill lists each wheel of a project with its hash and Pythons. A wheel depends on what its Pythons install."""
    ours = _wheel(tmp_path, "odradek", "Requires-Dist: fast", "Requires-Dist: stable")
    needs = "Requires-Dist: backport; python_version < '3.13'", "Requires-Dist: stable"
    old, new = (
        _wheel(tmp_path, "fast", *needs, fits=f"{fits}-{fits}-manylinux_2_17_x86_64")
        for fits in ("cp311", "cp313")
    )
    # Python 3.13 could install either wheel, and pip takes the newer one.
    stable, newer = (
        _wheel(tmp_path, "stable", fits=f"{fits}-abi3-manylinux_2_17_x86_64") for fits in ("cp39", "cp312")
    )
    backport = _wheel(tmp_path, "backport")
    wheels = [ours, old, new, stable, newer, backport]
    text = bill(wheels, {}, "1" * 40, WHEN, ["3.11", "3.13"])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    listed = {each["purl"]: each for each in (found["metadata"]["component"], *found["components"])}
    assert {*listed} == {each["bom-ref"] for each in listed.values()} == {*map(_purl, wheels)}
    for each in wheels:
        digest = hashlib.sha256(each.read_bytes()).hexdigest()
        assert listed[_purl(each)]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    properties = {
        each: [one["value"] for one in listed[_purl(each)]["properties"] if one["name"] == "odradek:python"]
        for each in wheels
    }
    assert properties == {
        ours: ["3.11", "3.13"],
        old: ["3.11"],
        new: ["3.13"],
        stable: ["3.11"],
        newer: ["3.13"],
        backport: ["3.11", "3.13"],
    }
    edges = {each["ref"]: {*each.get("dependsOn", ())} for each in found["dependencies"]}
    expected = {ours: {old, new, stable, newer}, old: {backport, stable}, new: {newer}}
    assert edges == {_purl(each): {*map(_purl, expected.get(each, ()))} for each in wheels}


@needs_git
@pytest.mark.long
def test_pythons_for_which_an_older_program_chooses_no_wheels(tmp_path: Path) -> None:
    """A release whose program lacks `--python` is refused for another Python, with the command that builds it."""
    if _git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this clone is shallow")
    build_it = "make release FROM=0.3.0 PYTHON=/path/to/python3.99."
    several = f"{build_it} An archive for several Pythons needs a newer release."
    for pythons, expected in (["3.99"], build_it), (["3.98", "3.99"], several):
        command = [sys.executable, "-m", "deploy.make_release", "--from", "0.3.0", "--out", tmp_path]
        command += [word for each in pythons for word in ("--python", each)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == (
            f"no release: the program of 0.3.0 takes no --python. It chooses wheels for the Python that runs it: {expected}\n"
        )
    assert not [*tmp_path.iterdir()]


@needs_git
@pytest.mark.long
def test_a_tagged_commit_is_named_with_its_tag(tmp_path: Path) -> None:
    """A commit has the tag of its own version and the tag of another version. Wheel and source distribution keep only
    the former."""
    sources = clone(tmp_path / "sources")
    version = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["version"]
    _git(sources, "tag", "--force", "v99.0")
    _git(sources, "tag", "--force", f"v{version}")
    with zipfile.ZipFile(build("wheel", sources, tmp_path / "wheel")) as archive:
        noted = archive.read("odradek/commit.txt").decode()
    assert noted == f"{_git(sources, 'rev-parse', 'HEAD')}\nv{version}\n"
    (tmp_path / "commit.txt").write_text(noted)
    assert origin(tmp_path) == (_git(sources, "rev-parse", "HEAD"), f"v{version}")
    with tarfile.open(build("sdist", sources, tmp_path / "sdist")) as tar:
        member = tar.extractfile(f"odradek-{version}/COMMIT")
        assert member is not None
        assert member.read().decode() == noted


@needs_git
@pytest.mark.install
@pytest.mark.skipif(not GALAXY.exists(), reason="make deploy-tools installs Ansible")
def test_a_release_of_a_commit(tmp_path: Path) -> None:
    """`make release FROM=COMMIT` writes files and their correct checksums. The archive and the source distribution give
    the same wheel, and the bill of materials lists each pinned project."""
    command = [sys.executable, "-m", "deploy.make_release", "--from", "HEAD", "--version", "9.8.7"]
    done = subprocess.run([*command, "--out", tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == [
        "odradek-9.8.7.tar",
        "odradek-9.8.7-py3-none-any.whl",
        "odradek-9.8.7.tar.gz",
        "odradek-cluster-9.8.7.tar.gz",
        "odradek-9.8.7.constraints.txt",
        "odradek-9.8.7.cdx.json",
        "odradek-9.8.7.SHA256SUMS",
    ]
    subprocess.run(["sha256sum", "--check", "--strict", names[-1]], cwd=tmp_path, check=True)
    wheel = (tmp_path / names[1]).read_bytes()
    with tarfile.open(tmp_path / names[0]) as tar:
        shipped = tar.extractfile(f"wheels/{names[1]}")
        assert shipped is not None
        assert shipped.read() == wheel
    with tarfile.open(tmp_path / names[2]) as tar:
        tar.extractall(tmp_path, filter="data")
    assert build("wheel", tmp_path / "odradek-9.8.7", tmp_path / "again").read_bytes() == wheel
    text = (tmp_path / names[5]).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["name"]: each["version"] for each in json.loads(text)["components"]}
    assert listed == pins(ROOT / "wheels.txt") | pins(ROOT / "deploy" / "wheels.txt")
