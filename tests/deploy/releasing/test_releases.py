"""A release is identified by its contents. Archives have digests and signatures, and a name has one content on all
hosts."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from deploy import build_release
from tests.deploy.needs import ROOT
from tests.deploy.plugins import PLUGINS, loaded, plugin

manifests = loaded(PLUGINS / "module_utils" / "manifest.py")
releases = plugin("filter", "releases")
needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed"
)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return plugin("modules", "release", monkeypatch)


def wheel(directory: Path, name: str, body: str = "x = 1\n") -> Path:
    """Make a wheel with one module."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.py"), body)
    return path


def archive_of(tmp_path: Path, body: str = "x = 1\n", name: str = "1.0", key: Path | None = None) -> Path:
    """Make an archive of two wheels."""
    wheels = [wheel(tmp_path / "wheels", "odradek", body), wheel(tmp_path / "wheels", "pip")]
    return build_release.pack(tmp_path / f"odradek-{name}.tar", wheels, name, key)


def changed(archive: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Change the members of an archive, and return its path."""
    with tarfile.open(archive) as old:
        members = {member.name: old.extractfile(member).read() for member in old}  # type: ignore[union-attr]
    change(members)
    with tarfile.open(archive, "w") as new:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return archive


def key_of(tmp_path: Path, name: str) -> tuple[Path, str]:
    """Make a pair of keys. Return the path of the private key and the line of the public key."""
    path = tmp_path / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path, path.with_suffix(".pub").read_text()


def test_equal_contents_are_one_release(tmp_path: Path) -> None:
    """Equal wheels give equal digests, and other wheels another digest. Builder and collection compute the same
    digest."""
    found = []
    for body in ("x = 1\n", "x = 1\n", "x = 2\n"):
        manifest = json.loads(manifests.read_archive(str(archive_of(tmp_path, body)))[0])
        assert (
            manifest["digest"]
            == manifests.contents_digest(manifest)
            == build_release.contents_digest(manifest)
        )
        assert len(manifest["commit"]) == 40
        found.append(manifest["digest"])
    assert found[0] == found[1] != found[2]
    assert manifests.contents_digest({**manifest, "commit": "another"}) == found[2]


WHEEL = "wheels/odradek-1.0-py3-none-any.whl"


def _edit_manifest(members: dict[str, bytes]) -> None:
    members["MANIFEST.json"] = members["MANIFEST.json"].replace(b'"platform": "', b'"platform": "z')


CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a wheel has other bytes": (
        lambda m: m.update({WHEEL: m[WHEEL] + b" "}),
        "is not what its manifest says",
    ),
    "a wheel is gone": (lambda m: m.pop(WHEEL), "is not what its manifest says"),
    "a wheel was added": (
        lambda m: m.update({"wheels/a.whl": b""}),
        "wheels/a.whl is not what its manifest says",
    ),
    "a file was added": (lambda m: m.update({"setup.sh": b""}), "setup.sh is not what its manifest says"),
    "a path leads out": (lambda m: m.update({"wheels/../../a": b""}), "is not what its manifest says"),
    "the manifest was changed": (_edit_manifest, "another digest than its contents"),
    "the manifest is gone": (lambda m: m.pop("MANIFEST.json"), "it has no MANIFEST.json"),
    "the manifest is no JSON": (lambda m: m.update({"MANIFEST.json": b"{"}), "is no release"),
    "the manifest has no wheels": (lambda m: m.update({"MANIFEST.json": b"[]"}), "is no release"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_archive_is_refused(tmp_path: Path, name: str) -> None:
    """An archive in which anything was changed is refused with a sentence that names the fault."""
    change, sentence = CHANGES[name]
    archive = changed(archive_of(tmp_path), change)
    with pytest.raises(manifests.BadRelease, match=sentence):
        manifests.read_archive(str(archive))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """A truncated archive, a directory and a missing file are refused as releases."""
    archive = archive_of(tmp_path)
    archive.write_bytes(archive.read_bytes()[:3000])
    for path in (archive, tmp_path, tmp_path / "absent"):
        with pytest.raises(manifests.BadRelease, match=r"is no release|is not what its manifest says"):
            manifests.read_archive(str(path))


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    """An archive with a link, or with any other member that is no plain file, is refused."""
    archive = archive_of(tmp_path)
    with tarfile.open(archive, "a") as tar:
        link = tarfile.TarInfo("wheels/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(manifests.BadRelease, match="a member that no release has: wheels/link"):
        manifests.read_archive(str(archive))


@needs_ssh_keygen
def test_signatures(tmp_path: Path, release: ModuleType) -> None:
    """One of the given signers must have signed the manifest. Unsigned, changed and foreign releases are refused."""
    (key, public), (_, other) = key_of(tmp_path, "key"), key_of(tmp_path, "other")
    bad = sys.modules["ansible_collections.odradek.cluster.plugins.module_utils.manifest"].BadRelease
    unsigned = str(archive_of(tmp_path))
    release.examined(unsigned, "1.0", [])
    with pytest.raises(bad, match=r"1\.0 is not signed, and odradek_release_signers is set"):
        release.examined(unsigned, "1.0", [public])
    signed = archive_of(tmp_path, key=key)
    identity, _, signature = release.examined(str(signed), "1.0", [other, public])
    assert identity["platform"]
    with pytest.raises(bad, match="signed by nobody in odradek_release_signers"):
        release.examined(str(signed), "1.0", [other])
    with pytest.raises(bad, match=r"has the release 1\.0, not 2\.0"):
        release.examined(str(signed), "2.0", [public])
    # This is another release with the signature of the first.
    another = archive_of(tmp_path, "x = 2\n")
    changed(another, lambda members: members.update({"MANIFEST.json.sig": signature}))
    with pytest.raises(bad, match="was changed after it was signed"):
        release.examined(str(another), "1.0", [public])


@needs_ssh_keygen
def test_a_key_that_cannot_sign(tmp_path: Path) -> None:
    """If the signing key is missing, the build fails with a sentence and leaves no archive."""
    with pytest.raises(build_release.BadArgument, match="cannot sign"):
        archive_of(tmp_path, key=tmp_path / "absent")
    assert not list(tmp_path.glob("*.tar*"))


def test_a_release_for_other_hosts(release: ModuleType) -> None:
    """A host must have the Python version and the platform of the release."""
    here = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": release.platform.machine(),
    }
    assert release.misfit(here, "1.0") is None
    assert "is for Python 3.9, but" in release.misfit({**here, "python": "3.9"}, "1.0")
    assert "is for Python 3.9 and 3.8, but" in release.misfit({**here, "python": "3.9 3.8"}, "1.0")
    assert release.misfit({**here, "python": f"3.9 {here['python']}"}, "1.0") is None
    assert "is for s390x, but this host is" in release.misfit({**here, "platform": "s390x"}, "1.0")


def test_an_archive_for_several_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive has the wheels for each Python that is named, and those for any Python once."""

    def pip(command: list[str], **_: object) -> object:
        """Write the wheels that pip would download or build."""
        if "download" in command:
            version, into = (
                Path(command[command.index(each) + 1]) for each in ("--python-version", "--dest")
            )
            into.mkdir(parents=True)
            for name in (f"fast-1-{version}", "pip-1-any"):
                (into / f"{name}.whl").write_text(name)
        elif "wheel" in command:
            own = Path(command[command.index("--wheel-dir") + 1])
            own.mkdir()
            (own / "odradek-1.0.whl").write_text("ours")
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(build_release.subprocess, "Popen", pip)
    monkeypatch.setattr(build_release.subprocess, "run", pip)
    monkeypatch.setattr(build_release, "copy_source", lambda *_: None)
    monkeypatch.setattr(build_release, "_git", lambda *_: "a" * 40)
    archive = build_release.build(tmp_path, "1.0", None, ["3.13", "3.11", "3.13"])
    manifest = json.loads(manifests.read_archive(str(archive))[0])
    assert manifest["python"] == "3.11 3.13"
    assert [*manifest["wheels"]] == ["fast-1-3.11.whl", "fast-1-3.13.whl", "odradek-1.0.whl", "pip-1-any.whl"]
    (alone,) = build_release.build_each(tmp_path, ["1.1"])
    assert json.loads(manifests.read_archive(str(alone))[0])["python"] == build_release.HERE
    for bad in ("3.10", "4.0", "313", "3.13.1", "cp313"):
        with pytest.raises(build_release.BadArgument, match="is no Python for Odradek"):
            build_release.build(tmp_path, "1.2", None, [bad])


NEW_C_LIBRARY = 'import os\nos.confstr = lambda name: "glibc 2.45"\n'


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [("x86_64", "manylinux_2_36_x86_64"), ("aarch64", "manylinux2014_aarch64")],
)
def test_wheels_fit_the_c_library_of_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, chosen: str
) -> None:
    """A newer building machine chooses wheels that run on Debian 12, and those for the architecture of the archive."""
    tags = ("manylinux_2_37_x86_64", "manylinux_2_36_x86_64", "manylinux2014_x86_64", "linux_x86_64")
    for tag in (*tags, "manylinux_2_37_aarch64", "manylinux2014_aarch64"):
        (tmp_path / "index").mkdir(exist_ok=True)
        with zipfile.ZipFile(tmp_path / "index" / f"fast-1.0-cp313-cp313-{tag}.whl", "w") as archive:
            about = f"Metadata-Version: 2.1\nName: fast\nVersion: 1.0\nSummary: {tag}\n"
            archive.writestr("fast-1.0.dist-info/METADATA", about)
            archive.writestr("fast-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: cp313-cp313-{tag}\n")
    digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in (tmp_path / "index").iterdir()]
    (tmp_path / "wheels.txt").write_text("fast==1.0" + "".join(f" --hash=sha256:{each}" for each in digests))
    (tmp_path / "deploy").mkdir()
    for empty in ("deploy/wheels.txt", "wheels-build.txt", "pip.conf"):
        (tmp_path / empty).touch()
    (tmp_path / "sitecustomize.py").write_text(NEW_C_LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(build_release, "ROOT", tmp_path)
    monkeypatch.setattr(build_release.platform, "machine", lambda: machine)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build_release._fetch(pip, tmp_path / "wheels", ["3.13"])
    (wheel,) = (tmp_path / "wheels" / "3.13").iterdir()
    assert wheel.name == f"fast-1.0-cp313-cp313-{chosen}.whl"


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncommitted files add a mark to the version. A text that is no version is refused."""
    answers = {"": "1.2", " M odradek/__init__.py\n": "1.2+dirty", "?? new.py\n": "1.2+dirty"}
    for answer, expected in answers.items():
        monkeypatch.setattr(build_release, "_git", lambda *words, answer=answer: answer)
        assert build_release.version_of("1.2") == expected
    assert build_release.version_of("1.2+ours") == "1.2+ours.dirty"
    for bad in ("", "one", "1.2/../3", "1.2 ", "v1.2", "1.2-rc1"):
        with pytest.raises(build_release.BadArgument, match="is no version"):
            build_release.version_of(bad)


def identity(digest: str) -> dict[str, str]:
    return {"digest": digest * 64, "commit": digest * 40}


def state(**digests: str) -> dict[str, object]:
    """Return the state that `node_facts` reports of a host with these releases."""
    return {"identities": {name.removeprefix("v"): identity(digest) for name, digest in digests.items()}}


def test_one_name_is_one_content() -> None:
    """If one name stands for different releases on hosts or in the archive, the problem lists these with their digests.

    Hosts without this release, and unreachable hosts, are left out.
    """
    states = {
        "stork": state(v1="a"),
        "heron": state(v1="a", v2="c"),
        "crane": {},
        "ibis": {"unreachable": True},
    }
    assert releases.release_problem("1", states) == ""
    assert releases.release_problem("1", states, identity("a")) == ""
    found = releases.release_problem("1", states, identity("b"))
    assert (
        "stork, heron: digest aaaaaaaaaaaa (commit aaaaaaaaaaaa); the archive: digest bbbbbbbbbbbb" in found
    )
    assert "make release ARGS='--version VERSION'" in found
    states["crane"] = state(v1="d")
    assert "crane: digest dddddddddddd" in releases.release_problem("1", states)
    assert releases.release_needing("2", states, ["stork", "heron", "ibis"]) == ["stork", "ibis"]


def test_what_a_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed releases are identified by their manifests, even by old ones without a digest. Broken manifests are
    skipped."""
    facts = plugin("modules", "node_facts", monkeypatch)
    old = {
        "name": "0.9",
        "python": "3.11",
        "platform": "x86_64",
        "requirement": "o",
        "pip": "p",
        "wheels": {},
    }
    for name, text in (("0.9", json.dumps(old)), ("1.0", '{"name": ')):
        (tmp_path / "versions" / name).mkdir(parents=True)
        (tmp_path / "versions" / name / "MANIFEST.json").write_text(text)
    (tmp_path / "versions" / "1.1").mkdir()
    assert facts.identities(str(tmp_path)) == {
        "0.9": {"digest": manifests.contents_digest(old), "commit": "unknown"}
    }
    assert facts.identities(str(tmp_path / "absent")) == {}


def test_the_builder_says_what_is_wrong() -> None:
    """An invalid version ends the command with status 1 and one line."""
    command = [sys.executable, "-m", "deploy.make_release", "--version", "one"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "no release: 'one' is no version: write it like 0.1.1, 0.2.0rc1 or 0.1.1.dev3\n"
