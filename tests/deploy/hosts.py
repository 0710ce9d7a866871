"""Debian hosts on this machine: systemd as process 1, sshd, an address, disks of their own.

A host is `systemd-nspawn --boot` on an overlay above one shared tree, in a network namespace of its own. Its veth ends
in a bridge inside the test's namespace, so its address stays invisible outside. All of it lives in the sandbox that
`tests.deploy.__main__` makes (`needs.SANDBOX`). Loop devices, control groups and the working directory outlive the
sandbox: `sweep` removes them, also those of a test that was killed.

A killed host (`kill`) is one whose power fails, but for the page cache: its disks keep what was written to the kernel.
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

from tests.deploy.needs import TREE

NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
_WORK = Path("/var/tmp")
_PREFIX = "odradek-deploy-"
_BOOT_SECONDS_MAX = 120
_GROUP_SECONDS_MAX = 5
_GROUPS = Path("/sys/fs/cgroup")
_SYSTEMS = "systems"
_MEMORY_BYTES_MIN = 12 << 30
"""Four hosts write 3 GB in the longest form, beside what their nodes need."""

# udev does not run in a container: this stands in for the one link of it that the mounts go by. As with udev, links of
# disks that are there at boot come before the mounts.
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

# The command of an operator's shell that asks for a switch.
_SWITCH = """#!/usr/bin/python3
import socket, sys
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect("{address}")
asking.send(" ".join(sys.argv[1:]).encode() or b"?")
print(asking.recv(65536).decode())
"""
_LOOK_SECONDS = 0.5
_REBOOTS = 133
"""The status with which systemd-nspawn ends when its host reboots: start it again."""


def run(*words: str | Path, check: bool = True) -> str:
    """Run a command, give its output; raises `CalledProcessError` with what it said."""
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
    """A block whose errors are the machine's fault: nothing of ours has been tried yet."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise CannotBoot(str(error)) from error


@attrs.define
class Host:
    """One host; `number` is the last part of its address."""

    name: str
    number: int
    directory: Path
    """The place of its disks and its console."""
    system: Path
    """The place of its system, in memory where there is enough."""
    process: subprocess.Popen[bytes] | None = None
    disks: dict[str, str] = attrs.field(factory=dict)
    """Loop device by disk name."""

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
    hosts: dict[str, Host] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def make(self, name: str, disk_names: tuple[str, ...], disk_bytes: int) -> Host:
        """A host that is not booted yet: a fresh system, empty disks."""
        number = len(self.hosts) + 1
        host = Host(name, number, self.work / name, self.work / _SYSTEMS / name)
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
            f"lowerdir={TREE},upperdir={upper},workdir={work}",
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
        # Nobody logs in at its console, and no timer of Debian's is part of a test.
        for unit in (
            "console-getty.service",
            "apt-daily.timer",
            "apt-daily-upgrade.timer",
            "e2scrub_all.timer",
        ):
            (units / unit).symlink_to("/dev/null")

    def attach_disk(self, host: Host, disk: str, size: int) -> str:
        """An empty disk, in place of one of this name that the host may have had; seen from the next boot on."""
        image = host.directory / f"disk-{disk}"
        if disk in host.disks:
            run("losetup", "--detach", host.disks[disk])
            image.unlink()
        with image.open("wb") as file:
            file.truncate(size)
        host.disks[disk] = run("losetup", "--find", "--show", image).strip()
        return host.disks[disk]

    def plug_in(self, name: str, disk: str, size: int) -> str:
        """Give a running host an empty disk, in place of a dead one of this name; returns its device."""
        device = self.attach_disk(self.hosts[name], disk, size)
        number = device.removeprefix("/dev/loop")
        self.ssh(name, f"[ -e {device} ] || mknod {device} b 7 {number}")
        return device

    def take_address(self, name: str) -> None:
        """Let a running host be without its address, as after a lease that ended."""
        self._forget_connection(name)
        run("ip", "-n", name, "address", "delete", f"{self.hosts[name].address}/24", "dev", "host0")

    def give_address(self, name: str) -> None:
        """Give a host its address back."""
        run("ip", "-n", name, "address", "add", f"{self.hosts[name].address}/24", "dev", "host0")

    def boot(self, *names: str, without: tuple[str, ...] = ()) -> None:
        """Boot and wait until sshd of each answers; `without` names disks that are dead.

        Raises `RuntimeError` with the console of a host that does not come.
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
        """Try on a host what the playbooks will need of this kernel: a file system on a disk, a service in a sandbox.

        Raises `RuntimeError` with what cannot be done.
        """
        device = self.hosts[name].disks[disk]
        sandbox = "-p ProtectSystem=strict -p PrivateDevices=yes -p SystemCallFilter=@system-service -p RestrictNamespaces=yes"
        self.ssh(
            name,
            f"mkfs.xfs -q {device} && mount {device} /mnt && umount /mnt && wipefs --all --quiet {device} "
            f"&& blkdiscard --zeroout {device} && systemd-run --quiet --wait {sandbox} -p OOMScoreAdjust=-500 true",
        )

    def ssh(self, name: str, command: str, check: bool = True) -> str | None:
        """Run a command on a host; None if it failed and nobody wants to know."""
        # The connection that Ansible keeps is used while it lasts: a handshake costs more than most commands.
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
        """Run a command on a host that SSH does not reach, as at its console; returns its output."""
        (first, *_) = _children(self.hosts[name])
        return run("nsenter", "--target", first, "--all", *words)

    def ssh_options(self) -> list[str]:
        """The options with which ssh trusts hosts that were made a moment ago."""
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
        """The host's power fails."""
        host = self.hosts[name]
        assert host.process is not None
        # The container is a namespace of processes: with its first one all of them are gone at once.
        # One that did not even boot has none left.
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
        """End Ansible's connection to a host, which would be taken for good until it is used."""
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
        """Another machine takes the name and address of a killed host: fresh system, empty disks."""
        self.renew_system(name)
        for disk in self.hosts[name].disks:
            self.attach_disk(self.hosts[name], disk, disk_bytes)


@contextlib.contextmanager
def switches(made: Hosts, disk_bytes: int) -> Iterator[Path]:
    """Stand at the switches of the hosts, for an operator's shell; gives the directory of the command `host` for it.

    A host that reboots comes back by itself.
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
    """Do as the words of the command `host` say; returns a sentence for the operator."""
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
    """Return the processes that a running host's container was started with, its process 1 first."""
    assert host.process is not None
    return Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()


def _memory_bytes_free() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    return int(line.split()[1]) << 10


def _wait_until_unused(device: str) -> None:
    """Until the kernel has let go of a file system that a killed host had mounted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.close(os.open(device, os.O_RDWR | os.O_EXCL))
            return
        time.sleep(0.05)
    raise RuntimeError(f"{device} is still in use")


def _hierarchies() -> list[Path]:
    """The mount points of control groups: one, or with the first version one for each controller."""
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounted if words[2] in ("cgroup", "cgroup2")]


def _make_groups(name: str) -> list[Path]:
    """A control group for a host in every hierarchy, so that no host's systemd sees another's processes."""
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
def hosts_in(work: Path) -> Iterator[Hosts]:
    """No hosts yet, but the network between them; inside a sandbox only. All are off on the way out."""
    # The files that name network namespaces are in a directory of the whole machine: ours are seen by us alone.
    with refused_by_the_machine():
        Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        (work / _SYSTEMS).mkdir()
        if _memory_bytes_free() >= _MEMORY_BYTES_MIN:
            # Thousands of small files of each release: on a disk their removal alone takes a minute.
            run("mount", "-t", "tmpfs", "tmpfs", work / _SYSTEMS)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hosts", "type", "bridge")
        run("ip", "address", "add", f"{OUTSIDE}/24", "dev", "hosts")
        run("ip", "link", "set", "hosts", "up")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "key")
    made = Hosts(work)
    try:
        yield made
    finally:
        for host in made.hosts.values():
            if host.process is not None:
                # A disk that the kernel holds on to for long is for the sweep.
                with contextlib.suppress(RuntimeError):
                    made.kill(host.name)
            run("umount", host.system / "root", check=False)


def work_directory() -> Path:
    """A new directory for one sandbox, named after the process that answers for it."""
    path = _WORK / f"{_PREFIX}{os.getpid()}"
    path.mkdir(mode=0o700)
    return path


def sweep() -> None:
    """Take away what sandboxes have left whose process is gone, and this process's own."""
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
    """Empty groups from the leaves on; one whose processes do not end in time is left for the next sweep."""
    for child in [each for each in group.iterdir() if each.is_dir()]:
        _remove_group(child)
    deadline = time.monotonic() + _GROUP_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
