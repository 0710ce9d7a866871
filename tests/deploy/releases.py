"""Releases for the test: published ones from their commits, and some of this tree. Of these, two are good, one is broken,
and one has fewer features. Good ones are built as an operator builds them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.build_release import HERE, ROOT, SIGNATURE, WheelsUnavailable, build_each, contents_digest, sign
from deploy.make_release import UNAVAILABLE, release_from
from deploy.released import UnknownRelease, releases

OLD, NEW, BROKEN, NARROW = "0.1.0", "0.1.1", "0.1.2", "0.1.3"
THIS = "99.0"
"""The version of this tree beside published releases."""
PUBLISHED = tuple(
    each.version for each in reversed(releases((ROOT / "CHANGELOG.md").read_text())) if each.commit
)
"""The releases that CHANGELOG.md names with their commits, the oldest first."""
KEY = "signing-key"
_ENTRY = "odradek/node/main.py"
_FEATURES = "odradek/metadata_quorum/features.py"


_UNAVAILABLE, _FAILED = "unavailable", "failed"
"""Names of files beside the archives. They have the reason why no more archives come: missing wheels, or a failed
build."""
_LOOK_SECONDS = 0.1
_OF_THIS_TREE = {"short": (OLD,), "faces": (OLD,), "upgrades": (THIS,)}
"""The releases of this tree for forms that need only good ones. All other forms have the bad ones, too."""


class CannotBuild(Exception):
    """The wheels that a release needs cannot be had."""


def make_key(out: Path) -> None:
    """Make the directory for the archives, and in it the key that signs them."""
    out.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", out / KEY], check=True)


def build_releases(out: Path, form: str, pythons: Sequence[str]) -> None:
    """Write the archives that a form of the test needs one after another, signed by the key beside them. `pythons` are
    the versions of the hosts' Pythons."""
    os.environ |= {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "10"}
    try:
        if form == "upgrades":
            for name in PUBLISHED:
                _published(out, name, pythons)
        for _ in build_each(out, _OF_THIS_TREE.get(form, (OLD, NEW)), out / KEY, pythons):
            pass
        if form not in _OF_THIS_TREE:
            _other(out, BROKEN, _ENTRY, lambda _: b"raise ImportError('made to fail')\n")
            _other(out, NARROW, _FEATURES, _narrowed)
    except (WheelsUnavailable, UnknownRelease) as error:
        (out / _UNAVAILABLE).write_text(f"no release can be built: {error}")
    except BaseException as error:
        (out / _FAILED).write_text(repr(error))
        raise


def _published(out: Path, name: str, pythons: Sequence[str]) -> None:
    """Build a published release by the program of its commit, and sign it here. Programs before 0.3.0 cannot sign.

    Raises `WheelsUnavailable` and `UnknownRelease`.
    """
    if {*pythons} != {HERE}:
        raise UnknownRelease(
            f"{name} is built by its own program, which takes wheels for Python {HERE}, and the hosts have {', '.join(pythons)}"
        )
    built = out / "published"
    status = release_from(name, None, built)
    if status == UNAVAILABLE:
        raise WheelsUnavailable(f"pip cannot fetch the wheels of {name}")
    assert status == 0, f"the program of {name} ended with status {status}"
    _write_signed(out / f"odradek-{name}.tar", _contents(built / f"odradek-{name}.tar"))


def wait_for_releases(out: Path, *names: str) -> None:
    """Wait until the archives of these releases are built. They are built while the first steps run.

    Raises `CannotBuild` if wheels are missing, and `RuntimeError` if a build failed for another reason.
    """
    while not all((out / f"odradek-{name}.tar").exists() for name in names):
        if (out / _UNAVAILABLE).exists():
            raise CannotBuild((out / _UNAVAILABLE).read_text())
        if (out / _FAILED).exists():
            raise RuntimeError(f"building releases failed: {(out / _FAILED).read_text()}")
        time.sleep(_LOOK_SECONDS)


def _narrowed(source: bytes) -> bytes:
    """Lower the highest transaction level in the source of the features, as in a release that lacks the newest
    level."""
    narrow = source.replace(b"TRANSACTION_VERSION: (0, 2)", b"TRANSACTION_VERSION: (0, 1)")
    assert narrow != source
    return narrow


def _other(out: Path, name: str, changed: str, change: Callable[[bytes], bytes]) -> None:
    """Write a copy of the newer release under another name, with one module changed."""
    contents = _contents(out / f"odradek-{NEW}.tar")
    for member, content in contents.items():
        if Path(member).name.startswith("odradek-"):
            contents[member] = _changed(content, changed, change)
    _write_signed(out / f"odradek-{name}.tar", _with_manifest(contents, name))


def changed_release(archive: Path, *, manifest: bool) -> None:
    """Change the bytes of our wheel in an archive. With `manifest`, add a new manifest that fits, but no signature."""
    contents = _contents(archive)
    wheel = next(name for name in contents if Path(name).name.startswith("odradek-"))
    contents[wheel] += b"# changed"
    if manifest:
        contents = _with_manifest(contents, json.loads(contents["MANIFEST.json"])["name"])
    _write(archive, contents)


def signed_again(archive: Path) -> None:
    """Sign the archive as it is now."""
    _write_signed(archive, _contents(archive))


def _write_signed(archive: Path, contents: dict[str, bytes]) -> None:
    _write(archive, contents | {SIGNATURE: sign(contents["MANIFEST.json"], archive.parent / KEY)})


def _with_manifest(contents: dict[str, bytes], name: str) -> dict[str, bytes]:
    manifest = json.loads(contents["MANIFEST.json"]) | {"name": name}
    wheels = {each: content for each, content in contents.items() if each.startswith("wheels/")}
    manifest["wheels"] = {
        Path(each).name: hashlib.sha256(content).hexdigest() for each, content in wheels.items()
    }
    manifest["digest"] = contents_digest(manifest)
    return {"MANIFEST.json": json.dumps(manifest).encode(), **wheels}


def _contents(archive: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


def _write(archive: Path, contents: dict[str, bytes]) -> None:
    # The archive gets its name only when it is complete, since others wait for this name.
    unfinished = archive.with_suffix(".tar.new")
    with tarfile.open(unfinished, "w") as new:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    unfinished.rename(archive)


def _changed(wheel: bytes, changed: str, change: Callable[[bytes], bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)) if name == changed else old.read(name))
    return out.getvalue()
