#!/usr/bin/python
"""Installs releases of Odradek side by side on a host, and switches the link to the one in use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Install a release of Odradek, make it the current one
description:
  - A release is a tar of pinned wheels and a C(MANIFEST.json), made by C(deploy/build_release.py).
  - It is installed into a virtual environment of its own below C(root/versions), without any registry.
  - Each wheel must have the hash that the manifest says, and the manifest a signature where C(signers) are given.
options:
  name:
    description: Name of the release; the name of its directory.
    type: str
    required: true
  archive:
    description: Path of the tar on the target; needed where the release is not installed yet.
    type: path
  root:
    description: Directory of all releases.
    type: path
    default: /opt/odradek
  state:
    description:
      - C(installed) installs, C(active) switches C(root/current) to it.
      - C(examined) verifies the archive and returns C(identity), on the control machine.
    type: str
    choices: [installed, active, examined]
    default: installed
  identity:
    description: The C(identity) that the archive must have, as C(examined) has returned it.
    type: dict
  signers:
    description: Public keys as in the files of C(ssh-keygen); one of them must have signed the release. None by default.
    type: list
    elements: str
    default: []
  previous:
    description: The release to go back to later, with C(active); by default the one that was current.
    type: str
  bytes_free_min:
    description: Refuse to install with less room than this.
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
current:
  description: Name of the release that the link names.
  type: str
  returned: always
previous:
  description: Name of the release that was current before.
  type: str
  returned: always
identity:
  description: Digest, commit, Python and platform of the archive.
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.manifest import (
    MANIFEST,
    SIGNATURE,
    BadRelease,
    identity_of,
    read_archive,
    verify_signature,
)


def _linked(root: str, link: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(root, link)))
    except OSError:
        return None


def _switch(root: str, link: str, name: str) -> None:
    """Switch a link to another release by a rename, which is atomic."""
    new = os.path.join(root, f".{link}.new")
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(os.path.join("versions", name), new)
    os.rename(new, os.path.join(root, link))


def _refuse_too_little_room(module: AnsibleModule) -> None:
    """Fail if the release would fill the disk of the system."""
    root = place = module.params["root"]
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if free < module.params["bytes_free_min"]:
        module.fail_json(
            msg=f"{free // 1_000_000} MB are free for {root}, a release needs "
            f"{module.params['bytes_free_min'] // 1_000_000}: make room, for example remove old ones from {root}/versions."
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
    """Return a sentence if a release was built for hosts of another kind than this one; None if it fits."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if identity["python"] != here:
        return f"Release {name} is for Python {identity['python']}, this host has {here}: build the release with the Python of the hosts."
    if identity["platform"] != platform.machine():
        return (
            f"Release {name} is for {identity['platform']}, this host is {platform.machine()}: "
            "build the release on a machine of the hosts' kind."
        )
    return None


def _install(module: AnsibleModule, name: str, archive: str, directory: str) -> None:
    """Build the virtual environment at its final path, because its scripts contain the path. The manifest is
    written last, because its presence marks the environment as complete.
    """
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
    facts = json.loads(manifest)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(os.path.join(directory, "wheels"))
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None and member.name.startswith("wheels/"):
                with open(os.path.join(directory, "wheels", os.path.basename(member.name)), "wb") as file:
                    shutil.copyfileobj(content, file)
    commands = [[sys.executable, "-m", "venv", "--without-pip", directory]]
    wheels = os.path.join(directory, "wheels")
    pip = os.path.join(wheels, facts["pip"], "pip")
    install = "install --no-index --no-compile --no-warn-script-location --disable-pip-version-check --quiet --find-links"
    python = os.path.join(directory, "bin", "python")
    commands.append([sys.executable, pip, "--python", python, *install.split(), wheels, facts["requirement"]])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            module.fail_json(
                msg=f"Release {name} cannot be installed: {done.stderr.strip() or done.stdout.strip()}"
            )
    _compile(directory)
    shutil.rmtree(wheels)
    for file_name, content in ((SIGNATURE, signature), (MANIFEST, manifest)):
        if content is not None:
            _write_whole(os.path.join(directory, file_name), content)


def _compile(directory: str) -> None:
    """Compile the packages to bytecode on all cores, except their tests. Otherwise a node, which cannot write there,
    would compile at each start.
    """
    python = os.path.join(directory, "bin", "python")
    command = [python, "-m", "compileall", "-q", "-j", "0", "-x", "/tests/", os.path.join(directory, "lib")]
    # A file that does not compile fails when a program imports it.
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
            "state": {"type": "str", "choices": ["installed", "active", "examined"], "default": "installed"},
            "identity": {"type": "dict"},
            "signers": {"type": "list", "elements": "str", "default": []},
            "previous": {"type": "str"},
            "bytes_free_min": {"type": "int", "default": 300_000_000},
        },
        required_if=[("state", "examined", ["archive"])],
        supports_check_mode=True,
    )
    name, root, archive = module.params["name"], module.params["root"], module.params["archive"]
    state = module.params["state"]
    if state == "examined":
        _examine(module)
    directory = os.path.join(root, "versions", name)
    manifest = os.path.join(directory, "MANIFEST.json")
    installed = os.path.exists(manifest)
    current = _linked(root, "current")
    changed = False
    if state == "installed" and not installed:
        _refuse_too_little_room(module)
        if module.params["identity"] and (problem := misfit(module.params["identity"], name)):
            module.fail_json(msg=problem)
        if archive is None and not module.check_mode:
            module.fail_json(msg=f"Release {name} is not installed: name its archive.")
        changed = True
        if not module.check_mode:
            _install(module, name, archive, directory)
    if state == "active" and current != name:
        if not installed and not module.check_mode:
            module.fail_json(
                msg=f"Release {name} is not installed on this host: there is nothing to switch to."
            )
        changed = True
        if not module.check_mode:
            previous = module.params["previous"] or current
            if previous is not None:
                _switch(root, "previous", previous)
            _switch(root, "current", name)
    module.exit_json(
        changed=changed,
        current=_linked(root, "current"),
        previous=_linked(root, "previous"),
        diff={"before": f"release {current}\n", "after": f"release {name}\n"}
        if changed and state == "active"
        else {},
    )


if __name__ == "__main__":
    main()
