"""The build backend of `pyproject.toml` (PEP 517): setuptools with two additions.

* The same commit gives the same bytes: times, modes and the order of files are fixed in both kinds of distribution.
* A distribution contains the name of its commit: a wheel in `odradek/commit.txt`, a source distribution in `COMMIT`.
  The release's tag, if the commit has it, is on a second line.

A source distribution has all files of git, including links between folders. So it includes the tests and can run
them.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "commit_of",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "origin_of",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "version_of",
]

Config = Mapping[str, Any] | None
ROOT = Path(__file__).resolve().parent.parent
COMMIT = "COMMIT"
IN_WHEEL = "odradek/commit.txt"
_ZIP_TIME_MIN = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can store."""

build_editable = build_meta.build_editable
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel


def get_requires_for_build_sdist(config_settings: Config = None) -> list[str]:
    """Return the packages that a source distribution needs in addition to setuptools: none."""
    return []


def commit_of(root: Path = ROOT) -> str:
    """Return the commit of these sources; empty if it is unknown. If there are uncommitted changes, the result ends in
    `+dirty`.
    """
    return (origin_of(root).split() or [""])[0]


def origin_of(root: Path = ROOT) -> str:
    """Return the text of the file that names the commit: the commit, and on a second line the release's tag if the
    commit has it. It is empty if the commit is unknown.
    """
    noted = root / COMMIT
    if noted.is_file():
        return noted.read_text()
    if not (root / ".git").exists():
        return ""
    try:
        if _git(root, "status", "--porcelain", "--untracked-files=no").strip():
            return _git(root, "rev-parse", "HEAD").strip() + "+dirty\n"
        tag = f"v{version_of(root)}"
        tagged = tag in _git(root, "tag", "--points-at", "HEAD").split()
        return _git(root, "rev-parse", "HEAD") + (f"{tag}\n" if tagged else "")
    except (OSError, subprocess.CalledProcessError):
        return ""  # git is not installed, or it refuses a clone that belongs to another user.


def version_of(root: Path = ROOT) -> str:
    """Return the version that `pyproject.toml` states."""
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None, "pyproject.toml names a version"
    return found[1]


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel in this directory, and return its file name."""
    between, was_there = ROOT / "build", (ROOT / "build").exists()
    name = build_meta.build_wheel(wheel_directory, dict(config_settings or {}), metadata_directory)
    if not was_there:
        shutil.rmtree(between)
    path = Path(wheel_directory, name)
    with zipfile.ZipFile(path) as built:
        contents = {each.filename: (built.read(each), each.external_attr >> 16) for each in built.infolist()}
    if origin := origin_of():
        contents[IN_WHEEL] = (origin.encode(), 0o644)
    (record,) = (each for each in contents if each.endswith(".dist-info/RECORD"))
    contents[record] = (_record(contents, record).encode(), 0o644)
    # The file RECORD comes last, as PEP 427 demands.
    order = sorted(contents, key=lambda each: (each == record, ".dist-info/" in each, each))
    _replace(path, _zipped([(each, *contents[each]) for each in order]))
    return name


def _record(contents: Mapping[str, tuple[bytes, int]], record: str) -> str:
    """Return the text of RECORD: each file with its hash and its size in bytes (PEP 376). RECORD itself has neither."""
    lines = []
    for name in sorted(contents):
        content = contents[name][0]
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},," if name == record else f"{name},sha256={digest},{len(content)}")
    return "\n".join(lines) + "\n"


def _zipped(members: list[tuple[str, bytes, int]]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name, _ZIP_TIME_MIN)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if mode & 0o100 else 0o100644) << 16
            archive.writestr(info, content)
    return target.getvalue()


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    """Pack all files that git tracks, or all files of an unpacked source distribution, into an archive. Return its file
    name.
    """
    metadata = _metadata()
    name, version = (_field(metadata, each) for each in ("Name", "Version"))
    base = f"{name}-{version}"
    members = [*_sources(), ("PKG-INFO", metadata.encode(), 0o644, None)]
    if origin := origin_of():
        members.append((COMMIT, origin.encode(), 0o644, None))
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, content, mode, target in sorted(members):
            info = tarfile.TarInfo(f"{base}/{member}")
            info.mode = mode
            if target is None:
                info.size = len(content)
            else:
                info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info, io.BytesIO(content))
    path = Path(sdist_directory, f"{base}.tar.gz")
    _replace(path, packed.getvalue())
    return path.name


def _metadata() -> str:
    """Return the package's metadata file, as setuptools writes it."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        made = build_meta.prepare_metadata_for_build_wheel(directory)
        return Path(directory, made, "METADATA").read_text()


def _field(metadata: str, name: str) -> str:
    found = re.search(rf"^{name}: (.+)$", metadata, re.MULTILINE)
    assert found is not None, f"metadata name the {name}"
    return found[1]


def _sources() -> Iterator[tuple[str, bytes, int, str | None]]:
    """Yield path, content, mode and link target (None for a file) of each file of the sources."""
    for name in _names():
        path = ROOT / name
        if path.is_symlink():
            yield name, b"", 0o777, os.readlink(path)
        elif path.is_file():
            yield name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644, None


def _names() -> list[str]:
    if (ROOT / ".git").exists():
        return [each for each in _git(ROOT, "ls-files", "-z", "--cached").split("\0") if each]
    made = {COMMIT, "PKG-INFO"}
    found = []
    for directory, folders, files in os.walk(ROOT):
        links = [each for each in folders if Path(directory, each).is_symlink()]
        folders[:] = sorted(
            each
            for each in folders
            if each not in links
            and each not in ("__pycache__", "build", "dist")
            and not each.startswith(".venv")
        )
        at = Path(directory).relative_to(ROOT)
        found += [str(at / each) for each in (*links, *files) if str(at / each) not in made]
    return [each for each in found if ".egg-info/" not in each]


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    """Build both distributions in the directory that the command line names, and print their paths.

    Setuptools names each file that it copies. These lines are printed only if the build fails.
    """
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    out.mkdir(parents=True, exist_ok=True)
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            made = [build(str(out)) for build in (build_sdist, build_wheel)]
    except BaseException:
        sys.stderr.write(told.getvalue())
        raise
    for name in made:
        print(out / name)


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically: it appears under its name when it is complete."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_bytes(content)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
