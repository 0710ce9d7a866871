#!/usr/bin/python
"""Installs releases of Odradek side by side on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Install a release of Odradek
description:
  - A release is a tar of pinned wheels and a C(MANIFEST.json), made by C(deploy/build_release.py).
  - It is installed into a virtual environment of its own below C(root/versions), without any registry.
  - Each wheel must have its hash in the manifest. If C(signers) are given, the manifest must have a signature.
options:
  name:
    description: Name of the release; the name of its directory.
    type: str
    required: true
  archive:
    description: Path of the tar on the target; needed if the release is not installed yet.
    type: path
  root:
    description: Directory of all releases.
    type: path
    default: /opt/odradek
  state:
    description:
      - C(installed) installs; M(odradek.cluster.files) switches to it.
      - C(examined) verifies the archive and returns C(identity), on the control machine.
    type: str
    choices: [installed, examined]
    default: installed
  identity:
    description: The C(identity) that the archive must have, as C(examined) has returned it.
    type: dict
  signers:
    description: Public keys as in the files of C(ssh-keygen); one of them must have signed the release. None by default.
    type: list
    elements: str
    default: []
  extras:
    description: Extras of the package that the nodes of the host need. They are added to a release that is installed.
    type: list
    elements: str
    choices: [console]
    default: []
  bytes_free_min:
    description: Refuse to install with fewer free bytes than this.
    type: int
    default: 300000000
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Install a release
  odradek.cluster.release:
    name: "0.3.0"
    archive: /var/tmp/odradek-0.3.0.tar
"""
RETURN = r"""
identity:
  description: Digest, commit, Pythons and platform of the archive.
  type: dict
  returned: examined
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.links import (
    EXTRAS,
    extras_of,
    is_installed,
    room_problem,
)
from ansible_collections.odradek.cluster.plugins.module_utils.manifest import (
    MANIFEST,
    SIGNATURE,
    BadRelease,
    identity_of,
    read_archive,
    verify_signature,
)


def examined(archive: str, name: str, signers: list) -> tuple[dict, bytes, bytes | None]:
    """Verify an archive. Return its identity, its manifest, and the manifest's signature. Raises `BadRelease`."""
    manifest, signature = read_archive(archive)
    if signers:
        verify_signature(manifest, signature, signers)
    facts = json.loads(manifest)
    if facts["name"] != name:
        raise BadRelease(
            f"{archive} has the release {facts['name']}, not {name}: give the file its own name back."
        )
    identity = {**identity_of(facts), "python": facts["python"], "platform": facts["platform"]}
    return identity, manifest, signature


def misfit(identity: dict, name: str) -> str | None:
    """Return a sentence if a release was built for another Python or platform than this host has; None if it fits."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = identity["python"].split()
    if here not in pythons:
        return (
            f"Release {name} is for Python {' and '.join(pythons)}, but this host has {here}: build the release again, "
            f"with --python {here} among the arguments of `make release`."
        )
    if identity["platform"] != platform.machine():
        return (
            f"Release {name} is for {identity['platform']}, but this host is {platform.machine()}: "
            "build the release on a machine of the hosts' kind."
        )
    return None


def _read(module: AnsibleModule, name: str, archive: str) -> tuple[dict, bytes, bytes | None]:
    """Verify the archive on this host. Return the facts of its manifest, the manifest, and its signature."""
    try:
        identity, manifest, signature = examined(archive, name, module.params["signers"])
    except BadRelease as error:
        module.fail_json(msg=str(error))
    expected = module.params["identity"] or identity
    if expected["digest"] != identity["digest"]:
        module.fail_json(
            msg=f"Release {name} came to this host with the digest {identity['digest'][:12]}, and {expected['digest'][:12]} was sent."
        )
    problem = misfit(identity, name)
    if problem is not None:
        module.fail_json(msg=problem)
    return json.loads(manifest), manifest, signature


def requirement_of(facts: dict, extras: list) -> str:
    """Return what pip must install, such as C(odradek[console]==0.3.0)."""
    chosen = f"[{','.join(extras)}]==" if extras else "=="
    return facts["requirement"].replace("==", chosen, 1)


def _install(module: AnsibleModule, name: str, archive: str, directory: str) -> None:
    """Build the virtual environment at its final path, because its scripts contain the path. The manifest is
    written last, because its presence marks the environment as complete.
    """
    facts, manifest, signature = _read(module, name, archive)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    wheels = os.path.join(directory, "wheels")
    _run(module, name, [sys.executable, "-m", "venv", "--without-pip", directory])
    _install_wheels(module, facts, archive, directory, wheels)
    shutil.rmtree(wheels)
    for file_name, content in ((SIGNATURE, signature), (MANIFEST, manifest)):
        if content is not None:
            _write_whole(os.path.join(directory, file_name), content)


def _add_extras(module: AnsibleModule, name: str, archive: str, directory: str) -> None:
    """Add packages of the archive to an installed release, from which nodes may run. Nothing that is there changes."""
    facts, manifest, _ = _read(module, name, archive)
    with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
        there = identity_of(json.load(file))["digest"]
    if there != identity_of(json.loads(manifest))["digest"]:
        module.fail_json(
            msg=f"Release {name} is installed with the digest {there[:12]}, and the archive is another release: restore the archive."
        )
    with tempfile.TemporaryDirectory(dir=os.path.dirname(directory), prefix=".wheels-") as wheels:
        _install_wheels(module, facts, archive, directory, wheels)


def _install_wheels(module: AnsibleModule, facts: dict, archive: str, directory: str, wheels: str) -> None:
    """Unpack the wheels of an archive into a directory, and install the release with its extras from them."""
    name, extras = facts["name"], module.params["extras"]
    os.makedirs(wheels, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None and member.name.startswith("wheels/"):
                with open(os.path.join(wheels, os.path.basename(member.name)), "wb") as file:
                    shutil.copyfileobj(content, file)
    pip = os.path.join(wheels, facts["pip"], "pip")
    install = "install --no-index --no-compile --no-warn-script-location --disable-pip-version-check --quiet --find-links"
    python = os.path.join(directory, "bin", "python")
    # Run pip with the new environment's Python. With the option --python, pip would start a second process of itself.
    _run(module, name, [python, pip, *install.split(), wheels, requirement_of(facts, extras)])
    missing = [each for each in extras if each not in extras_of(module.params["root"], name)]
    if missing:
        module.fail_json(
            msg=f"Release {name} has no {', '.join(missing)}: set odradek_console to none, or install a newer release."
        )
    _compile(directory)


def _run(module: AnsibleModule, name: str, command: list) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        module.fail_json(
            msg=f"Release {name} cannot be installed: {done.stderr.strip() or done.stdout.strip()}"
        )


def _compile(directory: str) -> None:
    """Compile the packages to bytecode on all cores, except their tests. Otherwise a node, which cannot write there,
    would compile at each start.
    """
    python = os.path.join(directory, "bin", "python")
    command = [python, "-m", "compileall", "-q", "-j", "0", "-x", "/tests/", os.path.join(directory, "lib")]
    # Ignore files that cannot be compiled: they fail only if a program imports them.
    subprocess.run(command, capture_output=True, check=False)


def _write_whole(path: str, content: bytes) -> None:
    """Write a file atomically: it exists completely or not at all."""
    with open(f"{path}.new", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)


def _examine(module: AnsibleModule) -> None:
    """End the module with the archive's identity as its result, or fail with the reason why the archive is refused."""
    try:
        identity, _, _ = examined(module.params["archive"], module.params["name"], module.params["signers"])
    except BadRelease as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, identity=identity)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "root": {"type": "path", "default": "/opt/odradek"},
            "state": {"type": "str", "choices": ["installed", "examined"], "default": "installed"},
            "identity": {"type": "dict"},
            "signers": {"type": "list", "elements": "str", "default": []},
            "extras": {"type": "list", "elements": "str", "choices": sorted(EXTRAS), "default": []},
            "bytes_free_min": {"type": "int", "default": 300_000_000},
        },
        required_if=[("state", "examined", ["archive"])],
        supports_check_mode=True,
    )
    name, root, archive = module.params["name"], module.params["root"], module.params["archive"]
    if module.params["state"] == "examined":
        _examine(module)
    is_there = is_installed(root, name)
    missing = [each for each in module.params["extras"] if not is_there or each not in extras_of(root, name)]
    changed = not is_there or bool(missing)
    if changed:
        if not is_there and (problem := room_problem(root, module.params["bytes_free_min"])):
            module.fail_json(msg=problem)
        if module.params["identity"] and (problem := misfit(module.params["identity"], name)):
            module.fail_json(msg=problem)
        if archive is None and not module.check_mode:
            lacks = f"installed without {', '.join(missing)}" if is_there else "not installed"
            module.fail_json(msg=f"Release {name} is {lacks}: name its archive.")
        if not module.check_mode:
            install = _add_extras if is_there else _install
            install(module, name, archive, os.path.join(root, "versions", name))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
