"""Builds the files of a release other than its archive for hosts. They are written to the archive's directory.

| file | what it is |
| --- | --- |
| `odradek-VERSION-py3-none-any.whl` | our wheel, the same as in the archive |
| `odradek-VERSION.tar.gz` | the source distribution |
| `odradek-cluster-VERSION.tar.gz` | the Ansible collection, for `ansible-galaxy collection install` |
| `odradek-VERSION.constraints.txt` | what a node needs, at exact versions with hashes, for `pip install --require-hashes` |
| `odradek-VERSION.cdx.json` | the bill of materials (`bill_of_materials.py`) |
| `odradek-VERSION.SHA256SUMS` | the hashes of all these files and of the archive, for `sha256sum -c` |

Each build of the same commit gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from deploy.bill_of_materials import bill
from deploy.build_release import ROOT, copy_source, sign
from deploy.lock_wheels import normal

__all__ = ["locked_hashes", "semantic", "write_beside"]

GALAXY = ROOT / ".cache" / "ansible" / "bin" / "ansible-galaxy"
_CLUSTER = Path("deploy/ansible/collections/ansible_collections/odradek/cluster")
_SDIST = "import sys; sys.path.insert(0, 'deploy'); import build_backend; print(build_backend.build_sdist(sys.argv[1]))"


def write_beside(archive: Path, name: str, key: Path | None = None) -> list[Path]:
    """Write the other files of the release `name` beside its archive; return their paths. If `key` is given, it signs
    the hashes.

    Raises `CalledProcessError` if the build of a part fails, and `BadArgument` for a key that cannot sign.
    """
    out = archive.parent.resolve()
    with tempfile.TemporaryDirectory() as directory:
        source, wheels = Path(directory, "source"), Path(directory, "wheels")
        copy_source(source, name)
        wheels.mkdir()
        with tarfile.open(archive) as tar:
            pythons = json.loads(_content(tar, tar.getmember("MANIFEST.json")))["python"].split()
            for member in tar:
                if member.name.startswith("wheels/"):
                    (wheels / Path(member.name).name).write_bytes(_content(tar, member))
        shipped = sorted(wheels.iterdir())
        ours = next(each for each in shipped if each.name.startswith("odradek-"))
        origin = (source / "COMMIT").read_text().split()[0]
        constraints = (source / "wheels.txt").read_text()
        hashes = locked_hashes(constraints + (source / "deploy" / "wheels.txt").read_text())
        materials = bill(shipped, hashes, origin, _time(origin), pythons)
        made = [
            _written(out / ours.name, ours.read_bytes()),
            _sdist(source, out),
            _collection(source, name, out),
            _written(out / f"odradek-{name}.constraints.txt", constraints.encode()),
            _written(out / f"odradek-{name}.cdx.json", materials.encode()),
        ]
    sums = "".join(f"{_digest(each)}  {each.name}\n" for each in sorted([archive, *made]))
    made.append(_written(out / f"odradek-{name}.SHA256SUMS", sums.encode()))
    if key is not None:
        made.append(_written(out / f"odradek-{name}.SHA256SUMS.sig", sign(sums.encode(), key)))
    return made


def locked_hashes(text: str) -> dict[str, list[str]]:
    """Return the SHA-256 of all wheels by the normalized name of their project, from the text of a lock file."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE):
        if pin := re.match(r"([A-Za-z0-9._-]+)==", entry):
            found[normal(pin[1])] = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
    return found


def semantic(version: str) -> str:
    """Return a version in the form that Ansible demands (semantic versioning): `1.2rc1` becomes `1.2.0-rc1`."""
    public, _, local = version.partition("+")
    found = re.fullmatch(r"(\d+(?:\.\d+)*)[.]?(.*)", public)
    assert found is not None, f"{version} is a version"
    numbers = [*found[1].split("."), "0", "0"][:3]
    return ".".join(numbers) + (f"-{found[2]}" if found[2] else "") + (f"+{local}" if local else "")


def _sdist(source: Path, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", _SDIST, str(out)], cwd=source, check=True, stdout=subprocess.PIPE, text=True
    )
    return out / done.stdout.splitlines()[-1]


def _collection(source: Path, name: str, out: Path) -> Path:
    """Build the collection by `ansible-galaxy`, under the release's version. Then pack its files again without their
    times, so that each build gives the same bytes.
    """
    version, folder = semantic(name), source / _CLUSTER
    about = folder / "galaxy.yml"
    about.write_text(re.sub(r"^version: .+$", f"version: {version}", about.read_text(), flags=re.MULTILINE))
    with tempfile.TemporaryDirectory() as built:
        subprocess.run(
            [str(GALAXY), "collection", "build", str(folder), "--output-path", built],
            check=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "ANSIBLE_HOME": built},
        )
        (path,) = Path(built).glob("odradek-cluster-*.tar.gz")
        with tarfile.open(path) as old:
            members = {each.name: _content(old, each) for each in old if each.isfile()}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member, content in sorted(members.items()):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return _written(out / f"odradek-cluster-{version}.tar.gz", packed.getvalue())


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, f"{member.name} is a file"
    return file.read()


def _time(origin: str) -> datetime:
    """Return the time of a commit."""
    asked = ["git", "-C", str(ROOT), "show", "--no-patch", "--format=%ct", origin.removesuffix("+dirty")]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    return datetime.fromtimestamp(int(done.stdout), UTC)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _written(path: Path, content: bytes) -> Path:
    """Write a file atomically, and return its path."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_bytes(content)
    return unfinished.replace(path)
