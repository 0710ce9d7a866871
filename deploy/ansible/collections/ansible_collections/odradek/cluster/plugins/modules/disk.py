#!/usr/bin/python
"""Prepares disks for log directories: formats an empty disk with XFS. It changes another disk only if the operator has
named its serial number in the option C(wipe).
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: disk
short_description: Format the disks of a host for Odradek, if they are empty
description:
  - All disks are examined before the first is formatted. A disk that has a signature or data is refused by name.
  - A disk of Odradek is recognised by the label of its XFS, C(odr-NAME).
  - With C(discover) the module reports the host's disks of Odradek and then, in a fixed order, its empty disks.
options:
  disks:
    description: C(name) and C(device) of each disk.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Short name, which is also the name of the disk's mount point.
        type: str
        required: true
      device:
        description: Path of the whole disk or partition, preferably in /dev/disk/by-id.
        type: path
        required: true
  bytes_min:
    description: Refuse smaller disks.
    type: int
    default: 10000000000
  find:
    description: Only report which disks of the host are empty; format nothing.
    type: bool
    default: false
  discover:
    description: Only report which disks Odradek may use on the host; format nothing.
    type: bool
    default: false
  take_new:
    description: With C(discover), report empty disks, too. Empty disks that replace a missing disk come first.
    type: bool
    default: false
  find_prefixes:
    description: Prefixes of the kernel names of disks.
    type: list
    elements: str
    default: [sd, nvme, vd]
  root:
    description: Directory of the mount points. The module finds mounted disks there.
    type: path
    default: /srv/odradek
  wipe:
    description:
      - Serial numbers of used disks that may be emptied. A disk that is mounted, in use, or has log directories of this
        cluster is refused.
      - A loop device has no serial number. Its backing file's path is used instead.
    type: list
    elements: str
    default: []
  cluster_id:
    description: Id of the cluster, whose disks are never wiped.
    type: str
    default: ""
  missing_ok:
    description: Report disks that are missing or cannot be read, instead of failing. Meant for hosts that already serve.
    type: bool
    default: false
author:
  - The Odradek authors (@odradek)
"""
EXAMPLES = r"""
- name: Format what is new
  odradek.cluster.disk:
    disks:
      - {name: a, device: /dev/disk/by-id/nvme-SERIAL}
"""
RETURN = r"""
disks:
  description: Each existing disk with its name, device and file system UUID, and whether it was formatted now and is mounted.
  type: list
  elements: dict
  returned: always
discovered:
  description: Name and device of each disk, with C(discover). The device of a missing disk is its UUID path.
  type: list
  elements: dict
  returned: when discovering
wiped:
  description: Serial numbers of C(wipe) that this host has.
  type: list
  elements: str
  returned: always
found:
  description: Device, size, model and serial number of each empty disk, with C(find).
  type: list
  elements: dict
  returned: when looking
refused:
  description: Sentences about the contents of all other disks, with C(find) and C(discover).
  type: list
  elements: str
  returned: when looking
missing:
  description: Names of disks that are missing or cannot be read.
  type: list
  elements: str
  returned: always
"""

import glob
import itertools
import os
import re
import stat
import string
import subprocess
import tempfile
from collections.abc import Collection

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.odradek.cluster.plugins.module_utils.mounts import is_mounted

_LABEL = "odr-"
_LABEL_BYTES_MAX = 12
_UNITS = "/etc/systemd/system"
_EDGE_BYTES = 4 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10


def label_of(name: str) -> str:
    """Return the label for a disk's file system, of at most 12 bytes (XFS)."""
    return f"{_LABEL}{name}"[:_LABEL_BYTES_MAX]


def _probe(device: str) -> dict[str, str]:
    """Read a device's signatures by blkid, without its cache; empty for a device without signatures."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "export", device], capture_output=True, text=True, check=False
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _size(device: str) -> int:
    with open(device, "rb") as file:
        return file.seek(0, os.SEEK_END)


def _read_trouble(device: str) -> str | None:
    """Return the error of a device that cannot be read; None if it can be read."""
    try:
        with open(device, "rb", buffering=0) as file:
            file.read(_SAMPLE_BYTES)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _holds_data(device: str, size: int) -> bool:
    """True if a sampled byte differs from zero: a disk may have data without a known signature."""
    with open(device, "rb") as file:
        places = [(0, _EDGE_BYTES), (max(0, size - _EDGE_BYTES), _EDGE_BYTES)]
        places += [(size * index // _SAMPLES, _SAMPLE_BYTES) for index in range(1, _SAMPLES)]
        for position, count in places:
            file.seek(position)
            if any(file.read(count)):
                return True
    return False


def _children(device: str) -> list[str]:
    """Return the partitions of a disk that the kernel knows, even if the partition table was removed."""
    name = os.path.basename(os.path.realpath(device))
    directory = f"/sys/class/block/{name}"
    if not os.path.isdir(directory):
        return []
    return sorted(entry for entry in os.listdir(directory) if entry.startswith(name) and entry != name)


def serial_of(device: str, system: str = "/sys") -> str:
    """Return the serial number of a whole disk; for a loop device the path of its backing file. Empty if there is
    none.
    """
    block = f"{system}/class/block/{os.path.basename(os.path.realpath(device))}"
    for path in ("device/serial", "serial", "loop/backing_file"):
        if found := _line(f"{block}/{path}"):
            return found
    try:
        with open(f"{block}/device/vpd_pg80", "rb") as file:
            page = file.read()
    except OSError:
        return ""
    # SCSI's page 0x80: four bytes of header, the last two of which are the length.
    return page[4 : 4 + int.from_bytes(page[2:4], "big")].decode("ascii", "replace").strip("\0 ")


def _named(device: str) -> str:
    """Return a device with its serial number, in the form of the option C(wipe)."""
    serial = serial_of(device)
    return f"{device} (serial {serial})" if serial else f"{device} (without a serial number)"


def in_use(device: str) -> str | None:
    """Return how a disk or one of its partitions is used, which forbids wiping the disk; None if it is unused."""
    block = f"/sys/class/block/{os.path.basename(os.path.realpath(device))}"
    numbers = {_line(f"{block}/dev")} | {_line(f"{block}/{child}/dev") for child in _children(device)}
    for line in _line("/proc/self/mountinfo").splitlines():
        words = line.split()
        if words[2] in numbers:
            return f"is mounted at {words[4]}"
    devices = {os.path.realpath(device), *(f"/dev/{child}" for child in _children(device))}
    if any(line.split()[0] in devices for line in _line("/proc/swaps").splitlines()[1:]):
        return "is used for swapping"
    for path in (block, *(f"{block}/{child}" for child in _children(device))):
        holders = os.listdir(f"{path}/holders") if os.path.isdir(f"{path}/holders") else []
        if holders:
            return f"is part of {', '.join(sorted(holders))}"
    # Exclusive access also fails for uses that this host cannot see, such as a mount in another container.
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return f"is in use ({error.strerror})"
    return None


def clusters_in(root: str) -> list[str]:
    """Return the ids of the clusters whose log directories are below this directory."""
    found = set()
    for path in sorted(glob.glob(f"{glob.escape(root)}/*/meta.properties")):
        for line in _line(path).splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "cluster.id":
                found.add(re.sub(r"\\(.)", r"\1", value.strip()))
    return sorted(found)


def _clusters_on(device: str) -> list[str] | None:
    """Return the ids of the clusters that have data on this file system of Odradek; None if it cannot be mounted."""
    with tempfile.TemporaryDirectory() as place:
        words = ["mount", "-t", "xfs", "-o", "ro,norecovery,nouuid", device, place]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return None
        try:
            return clusters_in(place)
        finally:
            subprocess.run(["umount", place], capture_output=True, check=True)


def _unwipeable(device: str, cluster_id: str) -> str | None:
    """Return the reason why a disk must never be wiped, even if the operator requests it; None if it may be wiped."""
    use = in_use(device)
    if use is not None:
        return use
    found = _probe(device)
    if found.get("TYPE") == "xfs" and found.get("LABEL", "").startswith(_LABEL):
        clusters = _clusters_on(device)
        if clusters is None:
            return "has a file system of Odradek that cannot be read: examine the disk, then wipe it yourself with wipefs"
        if cluster_id in clusters:
            return "has log directories of this cluster: odradek.cluster.remove with odradek_remove_data empties those"
    return None


def _judged(
    disk: dict, bytes_min: int, wipe: Collection[str] = (), cluster_id: str = ""
) -> tuple[str | None, str | None]:
    """Check a disk. Return (UUID, None) for a disk that Odradek has formatted, (None, problem) for an unusable disk,
    and (None, None) for a disk that is empty or will be wiped.
    """
    name, device = disk["name"], disk["device"]
    if not stat.S_ISBLK(os.stat(device).st_mode):
        return None, f"disk {name}: {device} is not a block device"
    if serial_of(device) in wipe:
        if _size(device) < bytes_min:
            return None, f"disk {name}: {_named(device)} has less than {bytes_min // 1_000_000} MB"
        reason = _unwipeable(device, cluster_id)
        return (
            None,
            None if reason is None else f"disk {name}: {_named(device)} is not wiped, since it {reason}",
        )
    found = _probe(device)
    if found.get("TYPE") == "xfs" and found.get("LABEL") == label_of(name):
        return found["UUID"], None
    what = found.get("TYPE") or found.get("PTTYPE")
    if what is not None:
        label = f" with the label {found['LABEL']}" if "LABEL" in found else ""
        return None, f"disk {name}: {device} holds something already ({what}{label}){_wipe_hint(device)}"
    if _children(device):
        return (
            None,
            f"disk {name}: {device} has partitions ({', '.join(_children(device))}){_wipe_hint(device)}",
        )
    trouble = _read_trouble(device)
    if trouble is not None:
        return None, f"disk {name}: {device} cannot be read, so it is dead or dying ({trouble})"
    size = _size(device)
    if size < bytes_min:
        return None, f"disk {name}: {device} has {size // 1_000_000} MB, {bytes_min // 1_000_000} are needed"
    if _holds_data(device, size):
        return (
            None,
            f"disk {name}: {device} holds data, though no signature that is known{_wipe_hint(device)}",
        )
    return None, None


def _wipe_hint(device: str) -> str:
    serial = serial_of(device)
    return f"; if nobody needs that: -e odradek_wipe={serial}" if serial else "; it has no serial number"


def _wipe(module: AnsibleModule, device: str) -> None:
    """Remove all signatures from a disk and its partitions, and have the kernel read the partition table again."""
    for child in _children(device):
        module.run_command(["wipefs", "--all", "--force", "--quiet", f"/dev/{child}"], check_rc=True)
    module.run_command(["wipefs", "--all", "--force", "--quiet", device], check_rc=True)
    module.run_command(["blockdev", "--rereadpt", device])


def _is_mounted(root: str, name: str) -> bool:
    """Check that a disk is mounted, now and at the next boot."""
    unit = f"{root.strip('/').replace('/', '-')}-{name}.mount"
    return is_mounted(os.path.join(root, name)) and os.path.exists(
        f"/etc/systemd/system/multi-user.target.wants/{unit}"
    )


def _candidates(
    prefixes: list[str], bytes_min: int, wipe: Collection[str] = (), cluster_id: str = ""
) -> tuple[list[dict], dict[str, list[str]], list[str]]:
    """Return the empty disks, our own disks by name, and the reasons why all other disks are unusable. A disk keeps its
    device name in the result when it is plugged into another port.
    """
    stable: dict[str, str] = {}
    if os.path.isdir("/dev/disk/by-id"):
        for name in sorted(os.listdir("/dev/disk/by-id")):
            stable.setdefault(os.path.realpath(f"/dev/disk/by-id/{name}"), f"/dev/disk/by-id/{name}")
    empty, ours, refused = [], {}, []
    for name in sorted(os.listdir("/sys/class/block")):
        device, facts = f"/dev/{name}", f"/sys/class/block/{name}"
        is_partition = os.path.exists(f"{facts}/partition")
        if not name.startswith(tuple(prefixes)) or is_partition or not os.path.exists(device):
            continue
        found = _probe(device)
        is_ours = found.get("TYPE") == "xfs" and found.get("LABEL", "").startswith(_LABEL)
        if is_ours and serial_of(device) not in wipe:
            ours.setdefault(found["LABEL"][len(_LABEL) :], []).append(stable.get(device, device))
            continue
        trouble = _judged({"name": name, "device": device}, bytes_min, wipe, cluster_id)[1]
        if trouble is None and os.listdir(f"{facts}/holders"):
            trouble = f"disk {name}: {device} is part of another device"
        if trouble is None and _line(f"{facts}/removable") == "1":
            trouble = f"disk {name}: {device} is removable"
        if trouble is not None:
            refused.append(trouble)
            continue
        model = _line(f"{facts}/device/model")
        empty.append(
            {
                "device": stable.get(device, device),
                "bytes": _size(device),
                "model": model,
                "serial": serial_of(device),
            }
        )
    return empty, ours, refused


def _line(path: str) -> str:
    """Read the content of a small file; return "" if it does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _expected(root: str, units: str = _UNITS) -> dict[str, str]:
    """Return the disks that earlier runs have assigned to this host, as their mount units show. The result maps each
    disk's name to its device.
    """
    begin = f"{root.strip('/').replace('/', '-')}-"
    names = [each for each in os.listdir(units) if each.startswith(begin) and each.endswith(".mount")]
    found = {}
    for unit in sorted(names):
        what = re.search(r"^What=(.+)$", _line(os.path.join(units, unit)), re.MULTILINE)
        if what is not None:
            found[unit[len(begin) : -len(".mount")]] = what[1]
    return found


def assigned(ours: dict[str, str], expected: dict[str, str], empty: list[str]) -> list[dict]:
    """Return name and device of each disk: our own disks keep their names, empty disks replace missing disks, and
    further empty disks get new names.
    """
    devices = dict(ours)
    gone = [name for name in sorted(expected) if name not in devices]
    letters = list(string.ascii_lowercase)
    fresh = (
        name
        for name in itertools.chain(letters, (a + b for a in letters for b in letters))
        if name not in ours and name not in expected
    )
    for device, name in zip(empty, itertools.chain(gone, fresh), strict=False):
        devices[name] = device
    for name in gone:
        devices.setdefault(name, expected[name])
    return [
        {"name": name, "device": devices[name]}
        for name in sorted(devices, key=lambda each: (len(each), each))
    ]


def _discover(module: AnsibleModule) -> None:
    """End the module with the disks found on this host as its result."""
    params = module.params
    empty, ours, refused = _candidates(
        params["find_prefixes"], params["bytes_min"], params["wipe"], params["cluster_id"]
    )
    for name, devices in ours.items():
        if len(devices) > 1:
            module.fail_json(
                msg=f"Disk {name} is there more than once ({' and '.join(devices)}): take out the one that is not wanted, "
                "or name the disks of this host in odradek_disks."
            )
    new = [disk["device"] for disk in empty] if params["take_new"] else []
    found = assigned({name: devices[0] for name, devices in ours.items()}, _expected(params["root"]), new)
    if not found:
        module.fail_json(
            msg=f"No disk of this host is empty or ours: {'; '.join(refused) or 'there is none'}. Name those that nobody needs "
            "by -e odradek_wipe=SERIAL, or name disks in odradek_disks."
        )
    module.exit_json(changed=False, disks=[], missing=[], wiped=[], discovered=found, refused=refused)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "disks": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "device": {"type": "path", "required": True},
                },
            },
            "bytes_min": {"type": "int", "default": 10_000_000_000},
            "find": {"type": "bool", "default": False},
            "discover": {"type": "bool", "default": False},
            "take_new": {"type": "bool", "default": False},
            "find_prefixes": {"type": "list", "elements": "str", "default": ["sd", "nvme", "vd"]},
            "root": {"type": "path", "default": "/srv/odradek"},
            "missing_ok": {"type": "bool", "default": False},
            "wipe": {"type": "list", "elements": "str", "default": []},
            "cluster_id": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    if module.params["find"]:
        found, ours, refused = _candidates(module.params["find_prefixes"], module.params["bytes_min"])
        refused += [
            f"disk {name}: {device} is one of ours" for name, devices in ours.items() for device in devices
        ]
        module.exit_json(changed=False, disks=[], missing=[], wiped=[], found=found, refused=refused)
    if module.params["discover"]:
        _discover(module)
    disks = module.params["disks"]
    # A running host continues without a dead disk. Its node reports the disk, and the playbook replace_disk replaces
    # it.
    missing = [
        disk
        for disk in disks
        if not os.path.exists(disk["device"])
        or (module.params["missing_ok"] and _read_trouble(disk["device"]) is not None)
    ]
    there = [disk for disk in disks if disk not in missing]
    troubles = []
    if not module.params["missing_ok"]:
        troubles += [f"disk {disk['name']}: there is no {disk['device']}" for disk in missing]
    uuids = {}
    for disk in there:
        uuids[disk["name"]], trouble = _judged(
            disk, module.params["bytes_min"], module.params["wipe"], module.params["cluster_id"]
        )
        if trouble is not None:
            troubles.append(trouble)
    real = [os.path.realpath(disk["device"]) for disk in there]
    troubles += [
        f"{device} is named more than once" for device in sorted(set(real)) if real.count(device) > 1
    ]
    if troubles:
        module.fail_json(
            msg=f"Nothing was formatted: {'; '.join(troubles)}. Name another device in odradek_disks "
            "(odradek.cluster.find_disks shows the empty ones), or have this one emptied by -e odradek_wipe=SERIAL (docs/disks.md)."
        )
    results = []
    for disk in there:
        new = uuids[disk["name"]] is None
        if new and not module.check_mode:
            wanted = serial_of(disk["device"]) in module.params["wipe"]
            if wanted:
                _wipe(module, disk["device"])
            module.run_command(
                ["mkfs.xfs", "-q", *["-f"] * wanted, "-L", label_of(disk["name"]), disk["device"]],
                check_rc=True,
            )
            uuids[disk["name"]] = _probe(disk["device"])["UUID"]
        mounted = _is_mounted(module.params["root"], disk["name"])
        results.append({**disk, "uuid": uuids[disk["name"]], "formatted": new, "mounted": mounted})
    module.exit_json(
        changed=any(result["formatted"] for result in results),
        disks=results,
        missing=[disk["name"] for disk in missing],
        wiped=[serial for disk in there if (serial := serial_of(disk["device"])) in module.params["wipe"]],
    )


if __name__ == "__main__":
    main()
