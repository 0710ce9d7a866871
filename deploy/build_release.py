"""Build a release for `deploy/ansible`: our wheel, every wheel that it needs, by its locked hash, pip, a manifest.

    python deploy/build_release.py --out dist/releases [--version 0.1.1] [--sign KEY]

One tar, `odradek-VERSION.tar`, is all that a host needs; no host asks a registry for anything. The wheels are those
for the Python and the platform that this runs on, which must be those of the hosts.

A release is known by its digest, which is that of its wheels. Our wheel names its commit. So the same commit gives the same digest
again, and another commit another one. Files that are not committed mark its version with `+dirty`.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


UNAVAILABLE = 2
"""The exit status if the wheels of dependencies cannot be fetched."""


_VERSION = re.compile(
    r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
"""Versions in the form that wheels have in their names (PEP 440)."""
_PACKED = ("--", ".", ":(exclude)tests")
_CONTENTS = ("name", "python", "platform", "requirement", "pip", "wheels")
SIGNATURE = "MANIFEST.json.sig"
NAMESPACE = "odradek-release"
"""The purpose of a signature, by which `ssh-keygen` keeps those of releases apart from all others."""


class WheelsUnavailable(Exception):
    """pip could not fetch the pinned wheels, and has printed why."""


class BadArgument(Exception):
    """A version or a key that cannot be used; the message says why."""


def build(out: Path, name: str, key: Path | None = None) -> Path:
    """Return the path of the new archive of this version, whose manifest is signed by the key, if there is one.

    Raises `WheelsUnavailable` and `BadArgument`, and `CalledProcessError` where our own wheel cannot be built.
    """
    with tempfile.TemporaryDirectory() as directory:
        source, wheels = Path(directory, "source"), Path(directory, "wheels")
        _copy_source(source, name)
        builder = Path(directory, "builder")
        # A pip of its own would cost the environment more time than our wheel does, so the pip that is here works in it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(builder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(builder / "bin" / "python")]
        pip += ["--disable-pip-version-check", "--quiet"]
        locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
        files = ["-r", str(ROOT / "wheels.txt"), "-r", str(ROOT / "deploy" / "wheels.txt")]
        for command in (
            ["download", *locked, "--dest", str(wheels), *files],
            ["install", *locked, "-r", str(ROOT / "wheels-build.txt")],
        ):
            if subprocess.run([*pip, *command], check=False).returncode:
                raise WheelsUnavailable("pip cannot get the pinned wheels: is the index in reach?")
        own = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
        subprocess.run([*pip, "wheel", *own], check=True)
        out.mkdir(parents=True, exist_ok=True)
        return pack(out / f"odradek-{name}.tar", sorted(wheels.glob("*.whl")), name, key)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout


def version_of(version: str | None = None) -> str:
    """Return the version of a release of the tree as it is, marked if the tree has changes that are not committed.

    Raises `BadArgument`.
    """
    if version is None:
        found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert found is not None, "pyproject.toml names a version"
        version = found[1]
    if not _VERSION.fullmatch(version):
        raise BadArgument(f"{version!r} is no version: write it like 0.1.1, 0.2.0rc1 or 0.1.1.dev3")
    if not _git("status", "--porcelain", *_PACKED).strip():
        return version
    return f"{version}.dirty" if "+" in version else f"{version}+dirty"


def _copy_source(target: Path, version: str) -> None:
    """Copy the source to build from, so that no build directory appears in the tree; give it the version."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", *_PACKED)
    for name in listed.split("\0"):
        # A link to a folder (`odradek/wire`) is copied as a link; the folder's files come by themselves.
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name, follow_symlinks=False)
            if not (target / name).is_symlink():
                (target / name).chmod(0o644)
    project = target / "pyproject.toml"
    text = re.sub(
        r'^version = ".+"$', f'version = "{version}"', project.read_text(), count=1, flags=re.MULTILINE
    )
    project.write_text(text)
    # There is no git in the copy: the build backend reads the commit from this file.
    dirty = "+dirty" if version.endswith("dirty") else ""
    (target / "COMMIT").write_text(f"{_git('rev-parse', 'HEAD').strip()}{dirty}\n")


def contents_digest(manifest: dict[str, Any]) -> str:
    """Return the digest of what a release contains. Its commit is left out: equal contents are one release.

    The collection computes it in the same way (`plugins/module_utils/manifest.py`).
    """
    contents = {key: manifest[key] for key in _CONTENTS}
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pack(archive: Path, wheels: list[Path], name: str, key: Path | None = None) -> Path:
    """Write the archive. Raises `BadArgument` if the key does not sign."""
    manifest: dict[str, Any] = {
        "name": name,
        "commit": _git("rev-parse", "HEAD").strip(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
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
    # The archive appears under its name when it is whole.
    unfinished = archive.with_suffix(".tar.new")
    with tarfile.open(unfinished, "w") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    unfinished.rename(archive)
    return archive


def sign(text: bytes, key: Path) -> bytes:
    """Sign a manifest by a private key, or by a public one whose private half the agent has. Raises `BadArgument`."""
    with tempfile.TemporaryDirectory() as directory:
        signed = Path(directory, "manifest")
        signed.write_bytes(text)
        command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(signed)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise BadArgument(f"ssh-keygen cannot sign by {key}: {done.stderr.strip()}")
        return Path(directory, "manifest.sig").read_bytes()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist" / "releases", help="the directory of the archive"
    )
    parser.add_argument("--version", help="the version, in place of the version in pyproject.toml")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign by this key, as ssh-keygen makes them")
    args = parser.parse_args()
    try:
        print(build(args.out, version_of(args.version), args.sign))
    except BadArgument as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    except WheelsUnavailable as error:
        print(f"no release: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
