"""What booted hosts need of this machine, and the words for what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ANSIBLE = ROOT / ".cache" / "ansible"
CACHE = Path("/var/cache/odradek-deploy-test")
TREE = CACHE / "tree"
PACKAGES = ("dbus", "openssh-server", "python3", "systemd", "systemd-sysv", "xfsprogs", "procps", "iproute2")
SUITE = "bookworm"
DEBIAN_PACKAGES = "systemd-container debootstrap xfsprogs openssh-client iproute2"
_COMMANDS = (
    "systemd-nspawn",
    "mkfs.xfs",
    "ssh",
    "ssh-keygen",
    "ip",
    "unshare",
    "losetup",
    "nsenter",
    "blkid",
)
SANDBOX = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--net",
)
"""Words before a command that leaves nothing behind: its mounts, processes and network end with it."""


def what_is_missing(*, with_tree: bool) -> str | None:
    """Why hosts cannot be booted here, in words; None if they can. Takes less than a second."""
    if os.geteuid() != 0:
        return "only root can boot hosts"
    absent = [name for name in _COMMANDS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)}: not found (apt-get install {DEBIAN_PACKAGES})"
    kinds = Path("/proc/filesystems").read_text().split()
    for kind in ("overlay", "xfs"):
        if kind not in kinds:
            return f"this kernel has no {kind}"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    if not (ANSIBLE / "bin" / "ansible-playbook").exists():
        return "Ansible is not installed (make deploy-tools)"
    if with_tree and not (TREE / "etc" / "odradek-tree").exists():
        return "there is no Debian tree to boot from (make deploy-test makes it)"
    probe = ["ip", "link", "add", "odradek0", "type", "bridge"]
    try:
        tried = subprocess.run([*SANDBOX, *probe], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no namespaces here: {error}"
    if tried.returncode:
        return f"no namespaces with a bridge here: {tried.stderr.strip()}"
    return None


def make_tree() -> None:
    """Debootstrap the tree that all hosts share, read only, once; needs a Debian mirror. Raises `RuntimeError`."""
    mark = TREE / "etc" / "odradek-tree"
    wanted = f"{SUITE} {' '.join(PACKAGES)}\n"
    if mark.exists() and mark.read_text() == wanted:
        return
    if shutil.which("debootstrap") is None:
        raise RuntimeError(f"debootstrap: not found (apt-get install {DEBIAN_PACKAGES})")
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(TREE)]
    with (CACHE / "debootstrap.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"debootstrap failed: see {CACHE / 'debootstrap.log'}")
    mark.write_text(wanted)
