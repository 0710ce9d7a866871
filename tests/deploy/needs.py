"""Requirements for booting hosts on this machine: how to check them, and how to install them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent.parent
ANSIBLE = ROOT / ".cache" / "ansible"
CACHE = Path("/var/cache/odradek-deploy-test")
PACKAGES = ("dbus", "openssh-server", "python3", "systemd", "systemd-sysv", "xfsprogs", "procps", "iproute2")
DEBIAN_PACKAGES = "systemd-container debootstrap xfsprogs openssh-client iproute2"
_INSTALL_SECONDS_MAX = 600
_MARK = Path("etc") / "odradek-tree"
"""A file in a complete tree. It names the suite and the packages."""
_COMMANDS = (
    "systemd-nspawn",
    "mkfs.xfs",
    "ssh",
    "ssh-keygen",
    "ip",
    "unshare",
    "setpriv",
    "losetup",
    "nsenter",
    "blkid",
)
_OWN_MOUNTS = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
SANDBOX = (*_OWN_MOUNTS, "--net")
"""Words to put before a command. The command's mounts, processes and network then end with it."""


@attrs.frozen
class Debian:
    """A version of Debian that the hosts can have."""

    number: int
    suite: str
    python: str
    """The version of its Python, for which a release needs wheels."""
    tree: Path
    """The directory of its files. All hosts share them, and none of them changes them."""


DEBIANS = {
    12: Debian(12, "bookworm", "3.11", CACHE / "tree"),
    13: Debian(13, "trixie", "3.13", CACHE / "tree-13"),
}
DEBIAN = DEBIANS[12]
"""The Debian of all hosts if no other is named."""


class CannotPrepare(Exception):
    """A requirement for booting hosts cannot be met here; the message says why."""


def what_it_never_has() -> str | None:
    """Return the reason why hosts can never be booted here, whatever is installed, or None if they can."""
    if os.geteuid() != 0:
        return "only root can boot hosts"
    kinds = Path("/proc/filesystems").read_text().split()
    for kind in ("overlay", "xfs"):
        if kind not in kinds:
            return f"this kernel has no {kind}"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    return None


def what_is_missing(*debians: Debian, with_tree: bool) -> str | None:
    """Return the reason why hosts of these Debians cannot be booted here now, or None if they can. Takes less than a
    second."""
    never = what_it_never_has()
    if never is not None:
        return never
    absent = [name for name in _COMMANDS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)}: not found (apt-get install {DEBIAN_PACKAGES})"
    if not (ANSIBLE / "bin" / "ansible-playbook").exists():
        return "Ansible is not installed (make deploy-tools)"
    for debian in debians:
        if with_tree and not (debian.tree / _MARK).exists():
            return f"there is no tree of Debian {debian.number} to boot from (make deploy-test makes it, with a network)"
    probe = ["ip", "link", "add", "odradek0", "type", "bridge"]
    try:
        tried = subprocess.run([*SANDBOX, *probe], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no namespaces here: {error}"
    if tried.returncode:
        return f"no namespaces with a bridge here: {tried.stderr.strip()}"
    return None


def prepare(seconds: float, *debians: Debian) -> None:
    """Install what hosts need within `seconds`: packages, Ansible, and a tree of each Debian. Raises `CannotPrepare`."""
    deadline = time.monotonic() + seconds
    never = what_it_never_has()
    if never is not None:
        raise CannotPrepare(never)
    if any(shutil.which(name) is None for name in (*_COMMANDS, "debootstrap")):
        if shutil.which("apt-get") is None:
            raise CannotPrepare(f"this is no Debian (packages there: {DEBIAN_PACKAGES})")
        print("installing what boots hosts", flush=True)
        patience = [
            "-o",
            "Acquire::http::Timeout=20",
            "-o",
            "Acquire::Retries=1",
            "-o",
            "DPkg::Lock::Timeout=30",
        ]
        _within(deadline, "apt-get update", "apt-get", *patience, "update", "-qq")
        words = ["install", "-qq", "-y", "--no-install-recommends", *DEBIAN_PACKAGES.split()]
        # apt gives up on a silent network by itself. To stop an installation halfway would be worse than a late one.
        _within(deadline + _INSTALL_SECONDS_MAX, "apt-get install", "apt-get", *patience, *words)
    if not (ANSIBLE / "bin" / "ansible-playbook").exists():
        print("installing Ansible", flush=True)
        pinned = ["--constraint", str(ROOT / "deploy" / "constraints.txt")]
        _within(deadline, "venv", sys.executable, "-m", "venv", str(ANSIBLE))
        _within(
            deadline,
            "pip install ansible-core",
            str(ANSIBLE / "bin" / "pip"),
            "install",
            "--quiet",
            "--retries=1",
            *pinned,
            "ansible-core",
        )
    missing = what_is_missing(with_tree=False)
    if missing is not None:
        raise CannotPrepare(missing)
    for debian in debians:
        make_tree(deadline, debian)


def _within(deadline: float, what: str, *command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, deadline - time.monotonic()),
            env=environment,
        )
    except OSError as error:
        raise CannotPrepare(f"{what} failed: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotPrepare(f"{what} was not done in time") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no word why"]
        raise CannotPrepare(f"{what} failed: {said[-1]}")


# The tree is made in memory if possible, since every package waits for the disk several times. A mount namespace of its
# own makes sure that an interruption leaves no mounts.
_IN_MEMORY = 'mount -t tmpfs -o size=2g tmpfs "$0"; new=$1; shift; "$@" && cp --archive "$0" "$new"'


def make_tree(deadline: float, debian: Debian) -> None:
    """Make the read-only tree that all hosts of this Debian share, unless it exists. Needs a Debian mirror. Raises
    `CannotPrepare`."""
    wanted = f"{debian.suite} {' '.join(PACKAGES)}\n"
    if (debian.tree / _MARK).exists() and (debian.tree / _MARK).read_text() == wanted:
        return
    print(f"making a tree of Debian {debian.number} for all hosts", flush=True)
    new, memory = (CACHE / f"{kind}-{os.getpid()}" for kind in ("tree", "memory"))
    memory.mkdir(parents=True, exist_ok=True)
    bootstrap = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        debian.suite,
        str(memory),
    ]
    words = [*_OWN_MOUNTS, "sh", "-c", _IN_MEMORY, str(memory), str(new), *bootstrap, *_mirror(debian.suite)]
    try:
        _within(deadline, "debootstrap", *words)
        (new / _MARK).write_text(wanted)
        shutil.rmtree(debian.tree, ignore_errors=True)
        new.rename(debian.tree)
    finally:
        for each in (new, memory):
            shutil.rmtree(each, ignore_errors=True)


def _mirror(suite: str) -> list[str]:
    """Return the Debian mirror that this machine uses for the suite, or else the one for its own suite, as mirrors have
    all suites. Without either, debootstrap uses its default."""
    for which in (f"Codename: {suite}", "Label: Debian"):
        asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", which, "Component: main"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return []
        if found := [line for line in done.stdout.split() if line.startswith("http")]:
            return found[:1]
    return []
