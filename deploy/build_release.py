"""Build a release for `deploy/ansible`: our wheel, every wheel that it needs, by its locked hash, pip, a manifest.

    python deploy/build_release.py --out dist/releases [--version 0.1.1]

One tar, `odradek-VERSION.tar`, is all that a host needs; no host asks a registry for anything. The wheels are those
for the Python and the platform that this runs on, which must be those of the hosts.
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

ROOT = Path(__file__).resolve().parent.parent


UNAVAILABLE = 2
"""The exit status where the wheels of others cannot be had."""


class WheelsUnavailable(Exception):
    """pip has not got the pinned wheels; it has said why."""


def build(out: Path, version: str | None = None) -> Path:
    """Return the path of the new archive.

    Raises `WheelsUnavailable`, and `CalledProcessError` where our own wheel cannot be built.
    """
    with tempfile.TemporaryDirectory() as directory:
        source, wheels = Path(directory, "source"), Path(directory, "wheels")
        found = _copy_source(source, version)
        builder = Path(directory, "builder")
        subprocess.run([sys.executable, "-m", "venv", str(builder)], check=True)
        pip = [str(builder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
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
        return _pack(out / f"odradek-{found}.tar", sorted(wheels.glob("*.whl")), found)


def _copy_source(target: Path, version: str | None) -> str:
    """Copy the source to build from, so that no build directory appears in the tree; return the version."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        # A link to a folder (`odradek/wire`) is copied as a link; the folder's files come by themselves.
        if name and not name.startswith("tests/") and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name, follow_symlinks=False)
    project = target / "pyproject.toml"
    text = project.read_text()
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found is not None, "pyproject.toml names a version"
    if version is None:
        return found[1]
    project.write_text(text.replace(found[0], f'version = "{version}"', 1))
    return version


def _pack(archive: Path, wheels: list[Path], version: str) -> Path:
    manifest = {
        "name": version,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": platform.machine(),
        "requirement": f"odradek=={version}",
        "pip": next(wheel.name for wheel in wheels if wheel.name.startswith("pip-")),
        "wheels": {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels},
    }
    members = {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels}
    members["MANIFEST.json"] = (json.dumps(manifest, indent=2) + "\n").encode()
    with tarfile.open(archive, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "releases", help="where the archive goes")
    parser.add_argument("--version", help="in place of the one in pyproject.toml")
    args = parser.parse_args()
    try:
        print(build(args.out, args.version))
    except WheelsUnavailable as error:
        print(f"no release: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
