"""Build the archive of a release, which `deploy/ansible` installs on hosts. It has a manifest, our wheel, pip, and the
wheels of all dependencies, verified by locked hashes. `deploy/make_release.py` is the command that runs this module. It
also builds the other files of a release.

A host needs only the archive, `odradek-VERSION.tar`, and downloads nothing from a registry. By default the wheels are for
the Python that runs this program. Other Pythons can be named: pip chooses wheels for them without running them, and one
archive may have the wheels for several. The architecture must be the same as on the hosts. Their C library is that of Debian
12 or newer, so no wheel needs a newer one, whatever the system of the building machine.

A release is identified by its digest, which is computed from the digests of its wheels. Our wheel contains the name of
its commit. So the same commit always gives the same digest, and different commits give different digests. If there are
uncommitted changes, the version ends in `+dirty`.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


_VERSION = re.compile(
    r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
"""Matches versions in the form that they have in wheel names (PEP 440)."""
_CONTENTS = ("name", "python", "platform", "requirement", "pip", "wheels")
_PYTHON = re.compile(r"3\.(\d+)")
_MINOR_MIN = 11
"""The minor version of the oldest Python 3 that runs Odradek."""
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of the Python that runs this program."""
_GLIBC_MINOR_MAX = 36
"""The minor version of Debian 12's C library, glibc 2.36. No wheel may need a newer one."""
_GLIBC_MINOR_MIN = 5
"""The minor version of the oldest C library that a wheel can name (PEP 600)."""
_OLD_TAGS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Platform tags of the time before PEP 600, by the minor version of the C library that they mean."""
SIGNATURE = "MANIFEST.json.sig"
NAMESPACE = "odradek-release"
"""The namespace of signatures of releases, by which `ssh-keygen` distinguishes them from other signatures."""


class WheelsUnavailable(Exception):
    """Raised if pip could not fetch the pinned wheels; pip has printed the reason."""


class BadArgument(Exception):
    """Raised for a version, a Python or a key that cannot be used. The message has the reason."""


def build(out: Path, name: str, key: Path | None = None, pythons: Sequence[str] = ()) -> Path:
    """Build the archive of version `name` in the directory `out`, and return its path. If `key` is given, it signs
    the manifest. `pythons` are the versions of the hosts' Pythons, such as 3.13. The default is the version of this one.

    Raises `WheelsUnavailable` and `BadArgument`, and `CalledProcessError` if our own wheel cannot be built.
    """
    (archive,) = build_each(out, [name], key, pythons)
    return archive


def build_each(
    out: Path, names: Sequence[str], key: Path | None = None, pythons: Sequence[str] = ()
) -> Iterator[Path]:
    """Build an archive for each version in turn, and yield its path. The wheels that all of them need are fetched once.

    Raises the errors of `build`.
    """
    pythons = checked_pythons(pythons)
    with tempfile.TemporaryDirectory() as directory:
        wheels, builder = Path(directory, "wheels"), Path(directory, "builder")
        # Use the pip of this environment: to install pip into the new one would take longer than to build our wheel.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(builder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(builder / "bin" / "python")]
        pip += ["--disable-pip-version-check", "--quiet"]
        _fetch(pip, wheels, pythons)
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            source, own = Path(directory, f"source-{name}"), Path(directory, f"own-{name}")
            copy_source(source, name)
            words = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(own), str(source)]
            subprocess.run([*pip, "wheel", *words], check=True)
            # Several Pythons share the wheels that are for each Python.
            found = {wheel.name: wheel for wheel in (*wheels.glob("*/*.whl"), *own.glob("*.whl"))}
            chosen = [found[each] for each in sorted(found)]
            yield pack(out / f"odradek-{name}.tar", chosen, name, key, pythons)


def checked_pythons(pythons: Sequence[str]) -> list[str]:
    """Return the versions of the hosts' Pythons, each once and in order. Raises `BadArgument`."""
    for each in pythons:
        found = _PYTHON.fullmatch(each)
        if found is None or int(found[1]) < _MINOR_MIN:
            raise BadArgument(f"{each!r} is no Python for Odradek: write it like 3.{_MINOR_MIN} or 3.13")
    return sorted({*pythons} or {HERE}, key=lambda each: int(each.partition(".")[2]))


def platforms(machine: str) -> list[str]:
    """Return the platform tags of wheels that run on all hosts of an architecture such as x86_64, the best first (PEP 600).

    `linux_x86_64` is left out, because it names no version of the C library.
    """
    found = []
    for minor in range(_GLIBC_MINOR_MAX, _GLIBC_MINOR_MIN - 1, -1):
        names = [f"manylinux_2_{minor}", *filter(None, [_OLD_TAGS.get(minor)])]
        found += [f"{each}_{machine}" for each in names]
    return found


def _fetch(pip: list[str], wheels: Path, pythons: Sequence[str]) -> None:
    """Download the wheels of the dependencies for each Python into a directory of its own. At the same time, install the
    packages that build our own wheel. Raises `WheelsUnavailable`.
    """
    locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
    files = ["-r", str(ROOT / "wheels.txt"), "-r", str(ROOT / "deploy" / "wheels.txt")]
    commands = [["install", *locked, "-r", str(ROOT / "wheels-build.txt")]]
    fit = [word for each in platforms(platform.machine()) for word in ("--platform", each)]
    for each in pythons:
        chosen = ["--python-version", each, *fit, "--dest", str(wheels / each)]
        commands.append(["download", *locked, *chosen, *files])
    running = [subprocess.Popen([*pip, *command]) for command in commands]
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise WheelsUnavailable(
            f"pip cannot fetch the pinned wheels for Python {', '.join(pythons)}. Check that the package index can be reached."
        )


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout


def version_of(version: str | None = None) -> str:
    """Return the version of a release that is built from this tree. If there are uncommitted changes, the version is
    marked as `dirty`.

    Raises `BadArgument`.
    """
    if version is None:
        found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert found is not None, "pyproject.toml names a version"
        version = found[1]
    if not _VERSION.fullmatch(version):
        raise BadArgument(f"{version!r} is no version: write it like 0.1.1, 0.2.0rc1 or 0.1.1.dev3")
    if not _git("status", "--porcelain").strip():
        return version
    return f"{version}.dirty" if "+" in version else f"{version}+dirty"


def copy_source(target: Path, version: str) -> None:
    """Copy the sources into `target` and set their version there, so that the build leaves no files in the tree."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.split("\0"):
        # A link to a folder (`odradek/wire`) is copied as a link; git also lists the folder's own files.
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name, follow_symlinks=False)
            if not (target / name).is_symlink():
                (target / name).chmod(0o755 if (ROOT / name).stat().st_mode & 0o100 else 0o644)
    project = target / "pyproject.toml"
    text = re.sub(
        r'^version = ".+"$', f'version = "{version}"', project.read_text(), count=1, flags=re.MULTILINE
    )
    project.write_text(text)
    # The copy is no git repository. So write the commit to this file, from which the build backend reads it.
    dirty, tag = "+dirty" if version.endswith("dirty") else "", f"v{version}"
    tagged = tag in _git("tag", "--points-at", "HEAD").split()
    origin = f"{_git('rev-parse', 'HEAD').strip()}{dirty}\n" + (f"{tag}\n" if tagged else "")
    (target / "COMMIT").write_text(origin)


def contents_digest(manifest: dict[str, Any]) -> str:
    """Return the digest of a release's contents. The commit in the manifest does not count, but the digests of the
    wheels do.

    The Ansible collection computes the digest in the same way (`plugins/module_utils/manifest.py`).
    """
    contents = {key: manifest[key] for key in _CONTENTS}
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pack(
    archive: Path, wheels: list[Path], name: str, key: Path | None = None, pythons: Sequence[str] = (HERE,)
) -> Path:
    """Write the archive of these wheels and its manifest, and return its path. `pythons` are the versions that the wheels
    fit. Raises `BadArgument` if the key cannot sign.
    """
    manifest: dict[str, Any] = {
        "name": name,
        "commit": _git("rev-parse", "HEAD").strip(),
        "python": " ".join(pythons),
        "platform": platform.machine(),
        "requirement": f"odradek=={name}",
        "pip": next(wheel.name for wheel in wheels if wheel.name.startswith("pip-")),
        "wheels": {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels},
    }
    manifest["digest"] = contents_digest(manifest)
    text = (json.dumps(manifest, indent=2) + "\n").encode()
    members = {"MANIFEST.json": text}
    if key is not None:
        members[SIGNATURE] = sign(text, key)
    members |= {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels}
    # The archive appears under its name only when it is complete.
    unfinished = archive.with_suffix(".tar.new")
    with tarfile.open(unfinished, "w") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    unfinished.rename(archive)
    return archive


def sign(text: bytes, key: Path) -> bytes:
    """Sign a manifest with a private key, or with a public key whose private key the ssh agent has. Raises
    `BadArgument`.
    """
    with tempfile.TemporaryDirectory() as directory:
        signed = Path(directory, "manifest")
        signed.write_bytes(text)
        command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(signed)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise BadArgument(f"ssh-keygen cannot sign with {key}: {done.stderr.strip()}")
        return Path(directory, "manifest.sig").read_bytes()
