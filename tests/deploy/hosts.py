"""Debian hosts on this machine, each with systemd as process 1, sshd, an address and disks.

A host is `systemd-nspawn --boot` on an overlay above one shared tree, in a network namespace of its own. Its veth ends
in a bridge inside the test's namespace, so its address stays invisible outside. All of it lives in the sandbox that
`tests.deploy.__main__` makes (`needs.SANDBOX`). Loop devices, control groups and the working directory outlive the
sandbox. `sweep` removes them, also after a test that was killed.

`kill` resembles a power failure. Unlike after a real one, the disks still get the data in the kernel's page cache.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.deploy.needs import Debian

NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
_WORK = Path("/var/tmp")
_PREFIX = "odradek-deploy-"
_BOOT_SECONDS_MAX = 120
_GROUP_SECONDS_MAX = 5
_GROUPS = Path("/sys/fs/cgroup")
_SYSTEMS = "systems"
_MEMORY_BYTES_MIN = 12 << 30
"""Free memory needed to keep the hosts' systems in memory. Four hosts write 3 GB there, and their nodes need memory,
too."""

# udev does not run in a container. This script makes the links by UUID that mounts need. As with udev, links of disks
# that are there at boot are made before the mounts.
_LINKS = r"""#!/bin/sh
mkdir -p /dev/disk/by-uuid
for device in /dev/loop[0-9]*; do
  uuid=$(blkid -p -s UUID -o value $device) && [ -n "$uuid" ] || continue
  [ /dev/disk/by-uuid/$uuid -ef $device ] || ln -sfn $device /dev/disk/by-uuid/$uuid
done
exit 0
"""
_BY_UUID = """[Unit]
DefaultDependencies=no
Before=local-fs-pre.target
Wants=local-fs-pre.target
[Service]
Type=exec
ExecStartPre=/usr/local/sbin/by-uuid
ExecStart=/bin/sh -c 'while sleep 0.5; do /usr/local/sbin/by-uuid; done'
[Install]
WantedBy=sysinit.target
"""

# The command `host` of an operator's shell, which switches hosts on and off.
_SWITCH = """#!/usr/bin/python3
import socket, sys
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect("{address}")
asking.send(" ".join(sys.argv[1:]).encode() or b"?")
print(asking.recv(65536).decode())
"""
_LOOK_SECONDS = 0.5
_REBOOTS = 133
"""The exit status of systemd-nspawn if its host reboots and must be started again."""


def run(*words: str | Path, check: bool = True) -> str:
    """Run a command and return its output. Raises `RuntimeError` with its error message if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class CannotBoot(Exception):
    """No host boots on this machine; the message says why."""


@contextlib.contextmanager
def refused_by_the_machine() -> Iterator[None]:
    """Turn errors of the block into `CannotBoot`. They are the machine's fault, since nothing of ours has run yet."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise CannotBoot(str(error)) from error


@attrs.define
class Host:
    """One host; `number` is the last part of its address."""

    name: str
    number: int
    debian: Debian
    directory: Path
    """The directory with the images of its disks and the output of its console."""
    system: Path
    """The directory of its file system, in memory if there is enough."""
    process: subprocess.Popen[bytes] | None = None
    disks: dict[str, str] = attrs.field(factory=dict)
    """The loop device of each disk, by the disk's name."""

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def console(self) -> Path:
        return self.directory / "console"


@attrs.define
class Hosts:
    """All hosts of a test, by name."""

    work: Path
    debians: tuple[Debian, ...]
    """The Debians that the hosts have, in turns."""
    hosts: dict[str, Host] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def make(self, name: str, disk_names: tuple[str, ...], disk_bytes: int) -> Host:
        """Make a host with a fresh system and empty disks. It is not booted yet."""
        number = len(self.hosts) + 1
        debian = self.debians[(number - 1) % len(self.debians)]
        host = Host(name, number, debian, self.work / name, self.work / _SYSTEMS / name)
        host.directory.mkdir()
        host.system.mkdir()
        self.hosts[name] = host
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "host0", "netns", name)
        run("ip", "link", "set", f"v{number}", "master", "hosts", "up")
        run("ip", "-n", name, "address", "add", f"{host.address}/24", "dev", "host0")
        run("ip", "-n", name, "link", "set", "host0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        self._fresh_system(host)
        for disk in disk_names:
            self.attach_disk(host, disk, disk_bytes)
        return host

    def _fresh_system(self, host: Host) -> None:
        upper, work, root = (host.system / each for each in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir()
        run(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir={host.debian.tree},upperdir={upper},workdir={work}",
            root,
        )
        key = (self.work / "key.pub").read_text()
        (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        (root / "root/.ssh/authorized_keys").write_text(key)
        (root / "etc/hostname").write_text(f"{host.name}\n")
        (root / "etc/machine-id").write_text("")
        units = root / "etc/systemd/system"
        (units / "by-uuid.service").write_text(_BY_UUID)
        (root / "usr/local/sbin/by-uuid").write_text(_LINKS)
        (root / "usr/local/sbin/by-uuid").chmod(0o755)
        (units / "sysinit.target.wants").mkdir(exist_ok=True)
        (units / "sysinit.target.wants/by-uuid.service").symlink_to("../by-uuid.service")
        # Nobody logs in at the console, and Debian's timers have no part in the test.
        for unit in (
            "console-getty.service",
            "apt-daily.timer",
            "apt-daily-upgrade.timer",
            "e2scrub_all.timer",
        ):
            (units / unit).symlink_to("/dev/null")

    def attach_disk(self, host: Host, disk: str, size: int) -> str:
        """Give a host an empty disk, in place of any older disk of this name. Return its device.

        The host sees the disk from its next boot on.
        """
        image = host.directory / f"disk-{disk}"
        if disk in host.disks:
            run("losetup", "--detach", host.disks[disk])
            image.unlink()
        with image.open("wb") as file:
            file.truncate(size)
        host.disks[disk] = run("losetup", "--find", "--show", image).strip()
        return host.disks[disk]

    def plug_in(self, name: str, disk: str, size: int) -> str:
        """Give a running host an empty disk, in place of a dead disk of this name. Return its device."""
        device = self.attach_disk(self.hosts[name], disk, size)
        number = device.removeprefix("/dev/loop")
        self.ssh(name, f"[ -e {device} ] || mknod {device} b 7 {number}")
        return device

    def take_address(self, name: str) -> None:
        """Take the address of a running host away, as when its lease has ended."""
        self._forget_connection(name)
        run("ip", "-n", name, "address", "delete", f"{self.hosts[name].address}/24", "dev", "host0")

    def give_address(self, name: str) -> None:
        """Give a host its address back."""
        run("ip", "-n", name, "address", "add", f"{self.hosts[name].address}/24", "dev", "host0")

    def boot(self, *names: str, without: tuple[str, ...] = ()) -> None:
        """Boot hosts, and wait until each answers over SSH. The disks in `without` are dead and left out.

        Raises `RuntimeError` with the console output of a host that does not come up.
        """
        for name in names:
            host = self.hosts[name]
            binds = [f"--bind={device}" for disk, device in host.disks.items() if disk not in without]
            words = [
                "systemd-nspawn",
                "--quiet",
                "--boot",
                "--register=no",
                "--keep-unit",
                "--console=read-only",
            ]
            words += [f"--network-namespace-path=/run/netns/{name}", f"--machine={name}", *binds]
            words += ["--directory", str(host.system / "root")]
            groups = [str(path) for path in _make_groups(f"{self.work.name}-{name}")]
            join = 'for g in "$@"; do [ "$g" = -- ] && shift && break; echo $$ >"$g/cgroup.procs"; shift; done; exec "$@"'
            with host.console.open("ab") as console:
                host.process = subprocess.Popen(
                    ["sh", "-c", join, "sh", *groups, "--", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                )
        for name in names:
            self._wait_for_ssh(self.hosts[name])

    def _wait_for_ssh(self, host: Host) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS_MAX
        while self.ssh(host.name, "systemctl is-system-running --wait || true", check=False) is None:
            assert host.process is not None
            if host.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{host.name} did not boot:\n{host.console.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.1)

    def probe(self, name: str, disk: str) -> None:
        """Try on a host what the playbooks need from the kernel: a file system on a disk, and a service in a sandbox.

        Raises `RuntimeError` with the error if something fails.
        """
        device = self.hosts[name].disks[disk]
        sandbox = "-p ProtectSystem=strict -p PrivateDevices=yes -p SystemCallFilter=@system-service -p RestrictNamespaces=yes"
        self.ssh(
            name,
            f"mkfs.xfs -q {device} && mount {device} /mnt && umount /mnt && wipefs --all --quiet {device} "
            f"&& blkdiscard --zeroout {device} && systemd-run --quiet --wait {sandbox} -p OOMScoreAdjust=-500 true",
        )

    def ssh(self, name: str, command: str, check: bool = True) -> str | None:
        """Run a command on a host and return its output. If it fails, raise `RuntimeError`, or return None without
        `check`."""
        # Ansible's open connection is used while it lasts, since a handshake costs more than most commands.
        shared = ["-o", "ControlMaster=no", "-o", f"ControlPath={self.control_path}"]
        done = subprocess.run(
            ["ssh", *self.ssh_options(), *shared, f"root@{self.hosts[name].address}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # A journal may have any bytes.
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return done.stdout
        if check:
            raise RuntimeError(f"{name}: {command}: {done.stderr.strip()}")
        return None

    def inside(self, name: str, *words: str) -> str:
        """Run a command on a host without SSH, as at its console, and return its output."""
        (first, *_) = _children(self.hosts[name])
        return run("nsenter", "--target", first, "--all", *words)

    def ssh_options(self) -> list[str]:
        """Return the options with which ssh trusts hosts that were made a moment ago."""
        options = [
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ]
        return [*options, "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=30", "-i", str(self.work / "key")]

    @property
    def control_path(self) -> str:
        """The path at which ssh keeps connections for the next command, by address."""
        return f"{self.work}/ssh-%h"

    def kill(self, name: str) -> None:
        """Let a host lose its power."""
        host = self.hosts[name]
        assert host.process is not None
        # A container is a PID namespace, so all its processes end when the first is killed. A host that failed to boot
        # has none left.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in _children(host):
                os.kill(int(child), signal.SIGKILL)
        host.process.kill()
        host.process.wait()
        host.process = None
        self._forget_connection(name)
        for device in host.disks.values():
            _wait_until_unused(device)

    def _forget_connection(self, name: str) -> None:
        """End Ansible's connection to a host. Otherwise ssh would take it for a working connection until a command
        fails."""
        address = f"root@{self.hosts[name].address}"
        leave = ["ssh", "-O", "exit", "-o", f"ControlPath={self.control_path}", address]
        subprocess.run(leave, capture_output=True, check=False)

    def renew_system(self, name: str) -> None:
        """Give a killed host a fresh system; its disks stay."""
        host = self.hosts[name]
        run("umount", host.system / "root")
        for each in ("upper", "work", "root"):
            shutil.rmtree(host.system / each)
        self._fresh_system(host)

    def blank(self, name: str, disk_bytes: int) -> None:
        """Put another machine in the place of a killed host: the same name and address, a fresh system, and empty
        disks."""
        self.renew_system(name)
        for disk in self.hosts[name].disks:
            self.attach_disk(self.hosts[name], disk, disk_bytes)


@contextlib.contextmanager
def switches(made: Hosts, disk_bytes: int) -> Iterator[Path]:
    """Serve the command `host` of an operator's shell, which switches hosts. Yield the directory that contains it.

    A host that reboots is started again.
    """
    directory = made.work / "bin"
    directory.mkdir()
    command = directory / "host"
    command.write_text(_SWITCH.format(address=made.work / "switches"))
    command.chmod(0o755)
    over = threading.Event()

    def stand() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(made.work / "switches"))
            listening.listen()
            listening.settimeout(_LOOK_SECONDS)
            while not over.is_set():
                for host in made.hosts.values():
                    if host.process is not None and (status := host.process.poll()) is not None:
                        made.kill(host.name)
                        if status == _REBOOTS:
                            _switched(made, ["boot", host.name], disk_bytes)
                with contextlib.suppress(TimeoutError):
                    asking, _ = listening.accept()
                    with asking:
                        asking.send(_switched(made, asking.recv(1024).decode().split(), disk_bytes).encode())

    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    yield directory
    over.set()
    thread.join()


def _switched(made: Hosts, words: list[str], disk_bytes: int) -> str:
    """Carry out the words of the command `host`. Return a sentence for the operator."""
    what, name = words if len(words) == 2 else ("", "")
    host = made.hosts.get(name)
    if host is None or what not in ("kill", "boot", "blank"):
        return f"host kill|boot|blank NAME; the hosts are {', '.join(made.hosts)}"
    if (what == "kill") is (host.process is None):
        return f"{name} is {'off' if host.process is None else 'on'}"
    try:
        if what == "kill":
            made.kill(name)
        elif what == "boot":
            made.boot(name)
        else:
            made.blank(name, disk_bytes)
    except RuntimeError as error:
        return str(error)
    done = {"kill": "has no power", "boot": "is up", "blank": "has an empty system and empty disks; boot it"}
    return f"{name} {done[what]}"


def _children(host: Host) -> list[str]:
    """Return the child processes of a running host's systemd-nspawn. The first is process 1 of the host."""
    assert host.process is not None
    return Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()


def _memory_bytes_free() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    return int(line.split()[1]) << 10


def _wait_until_unused(device: str) -> None:
    """Wait until the kernel has released a file system that a killed host had mounted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.close(os.open(device, os.O_RDWR | os.O_EXCL))
            return
        time.sleep(0.05)
    raise RuntimeError(f"{device} is still in use")


def _hierarchies() -> list[Path]:
    """Return the mount points of control groups: a single one, or one for each controller with cgroups version 1."""
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounted if words[2] in ("cgroup", "cgroup2")]


def _make_groups(name: str) -> list[Path]:
    """Make a control group for a host in every hierarchy, so that its systemd sees no processes of other hosts."""
    groups = []
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (group / key).exists() and not (group / key).read_text().strip():
                (group / key).write_text((hierarchy / key).read_text())
        groups.append(group)
    return groups


@contextlib.contextmanager
def hosts_in(work: Path, debians: tuple[Debian, ...]) -> Iterator[Hosts]:
    """Set up the network between hosts of these Debians, and yield an empty `Hosts`. In the end switch all hosts off.

    This works only inside a sandbox.
    """
    # Names of network namespaces are files in /run/netns. A mount of our own there hides ours from the machine.
    with refused_by_the_machine():
        Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        (work / _SYSTEMS).mkdir()
        if _memory_bytes_free() >= _MEMORY_BYTES_MIN:
            # Each release has thousands of small files. On a disk, their removal alone would take a minute.
            run("mount", "-t", "tmpfs", "tmpfs", work / _SYSTEMS)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hosts", "type", "bridge")
        run("ip", "address", "add", f"{OUTSIDE}/24", "dev", "hosts")
        run("ip", "link", "set", "hosts", "up")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "key")
    made = Hosts(work, debians)
    try:
        yield made
    finally:
        for host in made.hosts.values():
            if host.process is not None:
                # If the kernel does not release a disk in time, `sweep` removes it later.
                with contextlib.suppress(RuntimeError):
                    made.kill(host.name)
            run("umount", host.system / "root", check=False)


def work_directory() -> Path:
    """Make a directory for one sandbox, named after the process that is responsible for it."""
    path = _WORK / f"{_PREFIX}{os.getpid()}"
    path.mkdir(mode=0o700)
    return path


def sweep() -> None:
    """Remove the remains of this process's sandbox, and of sandboxes whose process has ended."""
    for directory in _WORK.glob(f"{_PREFIX}*"):
        pid = int(re.sub(r"\D", "", directory.name) or 0)
        if pid != os.getpid() and Path(f"/proc/{pid}").exists():
            continue
        for line in run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
            device, _, file = line.partition(" ")
            if file.strip().startswith(f"{directory}/"):
                run("losetup", "--detach", device, check=False)
        for hierarchy in _hierarchies():
            for group in hierarchy.glob(f"{directory.name}-*"):
                _remove_group(group)
        shutil.rmtree(directory, ignore_errors=True)


def _remove_group(group: Path) -> None:
    """Remove a control group and its children. A group whose processes do not end in time is left for the next
    sweep."""
    for child in [each for each in group.iterdir() if each.is_dir()]:
        _remove_group(child)
    deadline = time.monotonic() + _GROUP_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
