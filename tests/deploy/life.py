"""The life of a cluster on booted hosts, step by step, while clients outside of the hosts write and read.

The whole form goes through everything that the playbooks are for, on four hosts. The short form deploys two hosts,
deploys them again, and changes the configuration host by host. After every step the cluster must be whole and
acknowledge a new record. After the last step, the test checks that each acknowledged record is there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import confluent_kafka.admin as admins

from tests.deploy.hosts import Hosts
from tests.deploy.load import TOPIC, Load
from tests.deploy.playbooks import Outcome, Playbooks
from tests.deploy.releases import BROKEN, KEY, NEW, OLD, wait_for_releases

DISK_BYTES = 1 << 30
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
FIRST = ("stork", "heron", "crane")
FOURTH = "ibis"
_ODRADEK = "/opt/odradek/current/bin/odradek"
_WHOLE_SECONDS = 240


@attrs.define
class Step:
    """One line of the report."""

    name: str
    seconds: float
    p99_ms: float | None
    worst_ms: float | None
    note: str = ""


@attrs.define
class Life:
    """Hosts, operator and clients of one run."""

    hosts: Hosts
    playbooks: Playbooks
    load: Load
    loaded: bool = False
    secured: bool = False
    """True once commands on the hosts log in to the cluster with the host's certificate."""
    steps: list[Step] = attrs.field(factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Measure the time of a step, and check at its end that records are still acknowledged."""
        begun = time.monotonic()
        step = Step(name, 0.0, None, None)
        yield step
        ended = time.monotonic()
        step.seconds = round(ended - begun, 1)
        if self.loaded:
            assert self.load.acknowledged_since(ended), f"{name}: nothing is acknowledged any more"
            step.p99_ms, step.worst_ms = self.load.p99_ms(begun, ended), self.load.worst_ms(begun, ended)
        self.steps.append(step)
        print(
            f"{step.name}: {step.seconds} s, p99 {step.p99_ms} ms, worst {step.worst_ms} ms {step.note}",
            flush=True,
        )

    @property
    def told(self) -> dict[str, Any]:
        """The hosts of the inventory, which a step may edit as an operator does."""
        found: dict[str, Any] = self.playbooks.inventory["hosts"]
        return found

    @property
    def bootstrap(self) -> str:
        port = 9096 if self.secured else 9092
        return ",".join(f"{self.hosts[name].address}:{port}" for name in self.told)

    def started(self, name: str) -> str:
        """Return the moment at which the first node of a host was started."""
        asked = f"systemctl show --property=ExecMainStartTimestampMonotonic odradek@{self.hosts[name].number}"
        return self.hosts.ssh(name, asked) or ""

    def status(self) -> dict[str, Any]:
        """Return the output of `odradek cluster status --json` on a host that answers."""
        found = self.status_or_none()
        assert found is not None, "no host answers"
        return found

    def status_or_none(self) -> dict[str, Any] | None:
        """Return the cluster's status, or None if no host answers in time, for example during an election."""
        for name in self.told:
            if self.hosts[name].process is None:
                continue
            # Each host asks its own node, since with several addresses the first choice may be a node that hangs.
            own = f"{self.hosts[name].address}:{9096 if self.secured else 9092}"
            command = f"{_ODRADEK} cluster status --json --timeout 10 --bootstrap-server {own}"
            if self.secured:
                command += " --command-config /etc/odradek/operator.properties"
            # Status 3 is an answer: the cluster has a problem.
            command += " || [ $? = 3 ]"
            answer = self.hosts.ssh(name, command, check=False)
            if answer is not None:
                found: dict[str, Any] = json.loads(answer)
                return found
        return None

    def wait_until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Ask for the cluster's status until `holds` is true of it. `what` names the condition in the error."""
        deadline = time.monotonic() + _WHOLE_SECONDS
        status = self.status_or_none()
        while status is None or not holds(status):
            assert time.monotonic() < deadline, f"{what} does not come true: {status}"
            time.sleep(0.3)
            status = self.status_or_none()

    def versions(self) -> set[str]:
        """Return the versions that the metrics pages of the nodes report."""
        asked = "import urllib.request as r; print(r.urlopen('http://{}:9094/metrics').read().decode())"
        found = set()
        for name in self.told:
            page = self.hosts.ssh(name, f'python3 -c "{asked.format(self.hosts[name].address)}"') or ""
            line = next(line for line in page.splitlines() if line.startswith("odradek_info"))
            found.add(line.split('version="')[1].split('"')[0])
        return found

    def phases(self, begun: float) -> str:
        """Return the p99 of the produce latency in the phases of a rolling restart that started at `begun`.

        The first phase ends when the first node stops. Each further phase lasts from the stop of one node to that of
        the next.
        """
        stops = [(begun, "before")]
        for name in self.told:
            asked = f"systemctl show --property=ActiveExitTimestampMonotonic --value odradek@{self.hosts[name].number}"
            # The hosts' monotonic clock is this machine's.
            stops.append((int(self.hosts.ssh(name, asked) or 0) / 1e6, name))
        stops.sort()
        ends = [moment for moment, _ in stops[1:]] + [time.monotonic()]
        spans = zip(stops, ends, strict=True)
        return "p99 ms: " + ", ".join(
            f"{name} {self.load.p99_ms(begin, end)}" for (begin, name), end in spans
        )


def is_whole(status: dict[str, Any]) -> bool:
    """True if the cluster is whole, by the same rules as in the playbooks' gates."""
    quorum = status["quorum"]
    keys = (
        "offline_partitions",
        "under_min_isr_partitions",
        "under_replicated_partitions",
        "moving_partitions",
    )
    return (
        quorum is not None
        and not quorum["silent_voters"]
        and all(status[key] == [] for key in keys)
        and all(broker["online"] for broker in status["brokers"])
    )


def host_entry(hosts: Hosts, name: str, *, voter: bool) -> dict[str, Any]:
    """Return the inventory entry that an operator writes for a host."""
    host = hosts[name]
    return {
        "ansible_host": host.address,
        "odradek_node_id": host.number,
        "odradek_voter": voter,
        "odradek_rack": f"r{host.number}",
        "odradek_disks": [{"name": disk, "device": device} for disk, device in host.disks.items()],
    }


def inventory_of(hosts: Hosts, *, discovers: bool = True) -> dict[str, Any]:
    """Return an inventory of the first hosts. If there are three, all of them vote. If there are two, only the first
    votes.

    With `discovers`, the first host finds its disks itself.
    """
    there = [name for name in FIRST if name in hosts.hosts]
    # The number of voters must be odd: the first host alone, or all three.
    voters = there if len(there) == len(FIRST) else there[:1]
    told = {name: host_entry(hosts, name, voter=name in voters) for name in there}
    if discovers:
        told["stork"]["odradek_disks"] = "discover"
    return {
        "vars": {
            "odradek_cluster_id": CLUSTER_ID,
            "odradek_release": OLD,
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            # Each disk is a small file, and the hosts have the clock of this machine.
            "disks_bytes_min": 300_000_000,
            "host_clock_synchronized": False,
            "odradek_releases": str(hosts.work / "releases"),
            "odradek_release_signers": [(hosts.work / "releases" / f"{KEY}.pub").read_text().strip()],
            "odradek_settings": {},
            "odradek_find_prefixes": ["loop"],
        },
        "hosts": told,
    }


def report(steps: list[Step]) -> str:
    """Return the steps as a table in Markdown."""
    lines = ["", "| step | seconds | p99 produce ms | worst ms | |", "| --- | ---: | ---: | ---: | --- |"]
    for step in steps:
        lines.append(
            f"| {step.name} | {step.seconds} | {step.p99_ms or ''} | {step.worst_ms or ''} | {step.note} |"
        )
    return "\n".join(lines)


def refused(outcome: Outcome, *words: str) -> None:
    """Check that a playbook stopped with a message that contains `words`, before it changed anything."""
    said = " ".join(outcome.output.split())
    for word in words:
        assert word in said, f"{word!r} is not in: {outcome.output[-3000:]}"
    assert outcome.changed == 0, outcome.output[-3000:]


def bad_input(life: Life) -> None:
    """See that bad input stops a deployment before anything is changed. Two playbooks run at a time, since they only
    look."""
    play, told = life.playbooks, life.told
    with life.step("bad input refused"):
        told["crane"]["odradek_node_id"] = 1
        twice = play.run_beside("deploy", fails=True)
        told["crane"] = host_entry(life.hosts, "crane", voter=False)
        two_voters = play.run_beside("deploy", fails=True)
        told["crane"] = host_entry(life.hosts, "crane", voter=True)
        told["crane"]["odradek_disks"][1]["device"] = "/dev/nosuch"
        told["heron"]["ansible_host"] = "10.77.0.99"
        unreached = play.run_beside("deploy", fails=True)
        told["heron"] = host_entry(life.hosts, "heron", voter=True)
        found = play.run_beside("find_disks")
        refused(twice.result(), "Node id 1 is given 2 times (stork and crane)")
        refused(two_voters.result(), "2 nodes vote")
        refused(unreached.result(), "heron cannot be reached over SSH")
        empty = found.result().output
        for host in life.told:
            for device in life.hosts[host].disks.values():
                assert f"device: {device}" in empty, empty
        device = life.hosts["heron"].disks["b"]
        life.hosts.ssh("heron", f"mkfs.xfs -q -L photos {device}")
        kept = play.run_beside("deploy", fails=True)
        told["crane"] = host_entry(life.hosts, "crane", voter=True)
        told["heron"]["odradek_disks"] = "discover"
        left = play.run_beside("deploy", fails=True, odradek_release="9.9.9")
        holds = f"disk b: {device} holds something already (xfs with the label photos)"
        missing = "disk b: there is no /dev/nosuch"
        refused(kept.result(), holds, missing, "Nothing was formatted")
        refused(
            left.result(),
            "Left alone:",
            f"{device} holds something already",
            "build it with `make release`",
        )
        life.hosts.ssh("crane", "mount -t tmpfs -o size=100m tmpfs /opt")
        too_small = play.run_beside("deploy", "-e", '{"disks_bytes_min": 2000000000}', fails=True)
        told["heron"] = host_entry(life.hosts, "heron", voter=True)
        no_room = play.run_beside("deploy", fails=True)
        small = ("No disk of this host is empty or ours", "has 1073 MB, 2000 are needed")
        refused(too_small.result(), *small)
        refused(no_room.result(), "MB are free for /opt/odradek, a release needs 300: make room")
        life.hosts.ssh("crane", "umount /opt")
        life.hosts.ssh("heron", f"wipefs --all --quiet {device}; blkdiscard --zeroout {device}")


def look_first(life: Life) -> None:
    """Check mode shows what a deployment would do to bare hosts, and leaves them bare."""
    with life.step("deploy --check --diff on bare hosts"):
        shown = life.playbooks.run("deploy", "--check", "--diff").output
        assert "+vm.swappiness = 1" in shown, shown[-3000:]
        for name in life.told:
            left = "ls -d /opt/odradek /etc/odradek /etc/sysctl.d/60-odradek.conf /srv/odradek 2>/dev/null; blkid -p /dev/loop*; true"
            assert life.hosts.ssh(name, left) == "", name


def birth(life: Life) -> None:
    """Run `deploy` on bare hosts, then start the load."""
    with life.step(f"deploy {len(life.told)} bare hosts"):
        life.playbooks.run("deploy")
    life.load.start()
    life.loaded = True


def again(life: Life) -> None:
    """Run `deploy` again. A cluster that already matches the inventory stays unchanged."""
    with life.step("deploy again: no change"):
        outcome = life.playbooks.run("deploy", "--diff")
        assert outcome.changed == 0, outcome.output[-3000:]


def look_at_the_change(life: Life) -> None:
    """Check mode shows the lines that `reconfigure` would change, and changes none."""
    life.playbooks.inventory["vars"]["odradek_settings"] = {"log.retention.hours": 100}
    with life.step("reconfigure --check --diff"):
        shown = life.playbooks.run("reconfigure", "--check", "--diff")
        assert "+log.retention.hours=100" in shown.output
        for name in life.told:
            path = f"/etc/odradek/node-{life.hosts[name].number}.properties"
            assert "hours" not in (life.hosts.ssh(name, f"cat {path}") or "")


def reconfigure(life: Life) -> None:
    """Change a property of all nodes. They restart host by host, and the active controller's host is the last."""
    life.playbooks.inventory["vars"]["odradek_settings"] = {"log.retention.hours": 100}
    with life.step("configuration, host by host") as step:
        begun = time.monotonic()
        outcome = life.playbooks.run("reconfigure")
        step.note = life.phases(begun)
        lines = outcome.output.splitlines()
        restarted = [line.split(" for ")[1].split()[0] for line in lines if "restart.yml for" in line]
        assert sorted(restarted) == sorted(life.told), outcome.output[-3000:]
        (leading,) = re.findall(r"Controller (\d+) leads", outcome.output)
        assert life.hosts[restarted[-1]].number == int(leading), (leading, restarted)
        for name in life.told:
            found = life.hosts.ssh(name, f"grep hours /etc/odradek/node-{life.hosts[name].number}.properties")
            assert found == "log.retention.hours=100\n"


def kill_and_return(life: Life) -> None:
    """Cut the power of a host, and boot it again. The two other hosts serve meanwhile."""
    with life.step("a host loses power, and comes back"):
        life.hosts.kill("heron")
        number = life.hosts["heron"].number
        life.wait_until(
            lambda status: any(b["broker"] == number and not b["online"] for b in status["brokers"]),
            "heron is missed",
        )
        assert life.load.acknowledged_since(time.monotonic()), "two hosts of three do not serve"
        life.hosts.boot("heron")
        life.wait_until(is_whole, "a whole cluster")


def lose_a_disk(life: Life) -> None:
    """Boot a host without one of its two disks. The node serves with the other disk, and then the lost disk is
    replaced."""
    with life.step("a disk dies, and is replaced"):
        life.hosts.kill("stork")
        number = life.hosts["stork"].number
        life.hosts.boot("stork", without=("b",))
        life.wait_until(
            lambda status: any(b["broker"] == number and b["online"] for b in status["brokers"]),
            "stork serves with one disk",
        )
        mounts = life.hosts.ssh("stork", "findmnt --noheadings --types xfs --output TARGET") or ""
        assert mounts.split() == ["/srv/odradek/a"]
        life.hosts.kill("stork")
        life.hosts.attach_disk(life.hosts["stork"], "b", DISK_BYTES)
        life.hosts.boot("stork")
        life.playbooks.run("deploy")
        life.wait_until(is_whole, "a whole cluster")


def disks_of(life: Life, name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of `odradek disk list` for a host with one node, by the names of its disks."""
    number = life.hosts[name].number
    asked = f"{_ODRADEK} disk list --json --broker {number} --bootstrap-server {life.bootstrap}"
    (broker,) = json.loads(life.hosts.ssh("crane", asked) or "")["brokers"]
    return {each["path"].split("/")[3]: each for each in broker["directories"]}


def change_disks(life: Life) -> None:
    """Add a third disk to a host, retire and replace it, and in the end retire it for good. The cluster is under
    load."""
    play = life.playbooks
    with life.step("a disk is added") as step:
        life.hosts.kill("heron")
        life.hosts.attach_disk(life.hosts["heron"], "c", DISK_BYTES)
        life.hosts.boot("heron")
        life.wait_until(is_whole, "a whole cluster")
        life.told["heron"] = host_entry(life.hosts, "heron", voter=True)
        play.run("add_disk", odradek_host="heron")
        found = disks_of(life, "heron")
        assert sorted(found) == ["a", "b", "c"]
        assert all(each["online"] for each in found.values())
        step.note = f"replicas {[len(each['replicas']) for each in found.values()]}"
    with life.step("a disk is retired"):
        first = play.run_beside("retire_disk", fails=True, odradek_host="heron", odradek_disk="a")
        in_use = play.run_beside("replace_disk", fails=True, odradek_host="heron", odradek_disk="c")
        refused(first.result(), "metadata log")
        refused(in_use.result(), "is in service: empty it first, with odradek.cluster.retire_disk")
        play.run("retire_disk", odradek_host="heron", odradek_disk="c")
        assert disks_of(life, "heron")["c"]["released"]
        mounts = life.hosts.ssh("heron", "findmnt --noheadings --types xfs --output TARGET") or ""
        assert sorted(mounts.split()) == ["/srv/odradek/a", "/srv/odradek/b"]
        assert is_whole(life.status())
    with life.step("a blank disk takes its place"):
        device = life.hosts["heron"].disks["c"]
        life.hosts.ssh("heron", f"wipefs --all --quiet {device}; blkdiscard --zeroout {device}")
        play.run("replace_disk", odradek_host="heron", odradek_disk="c")
        assert disks_of(life, "heron")["c"]["online"]
    with life.step("a disk is retired for good"):
        play.run("retire_disk", odradek_host="heron", odradek_disk="c")
        life.told["heron"]["odradek_disks"] = [
            each for each in life.told["heron"]["odradek_disks"] if each["name"] != "c"
        ]
        play.run("reconfigure")
        assert sorted(disks_of(life, "heron")) == ["a", "b"]
        assert is_whole(life.status())


def upgrade(life: Life) -> None:
    """Roll out another release, host by host, with a pause before each further host."""
    wait_for_releases(life.hosts.work / "releases", NEW)
    life.playbooks.inventory["vars"]["odradek_release"] = NEW
    with life.step("upgrade, host by host") as step:
        _, pauses = life.playbooks.run_at_a_terminal("upgrade", "Press Enter to go on", odradek_pause="true")
        assert pauses == len(life.told) - 1, f"{pauses} pauses"
        assert life.versions() == {NEW}
        step.note = f"{pauses} pauses"


def broken_release(life: Life) -> None:
    """Roll out a release that does not start. The roll-out ends with the first host, which gets its old release
    back."""
    wait_for_releases(life.hosts.work / "releases", BROKEN)
    with life.step("a release that does not start: stopped and put back"):
        outcome = life.playbooks.run("upgrade", fails=True, odradek_release=BROKEN)
        said = " ".join(outcome.output.split())
        assert f"was put back to release {NEW}" in said, outcome.output[-3000:]
        assert "no other host was touched" in said
        assert life.versions() == {NEW}
        for name in life.told:
            assert life.hosts.ssh(name, "readlink /opt/odradek/previous") == f"versions/{OLD}\n"
        life.wait_until(is_whole, "a whole cluster")


def replace(life: Life) -> None:
    """Lose a machine with its disks, and put another machine in its place."""
    with life.step("a host is replaced, its disks are gone"):
        life.hosts.kill("crane")
        number = life.hosts["crane"].number
        life.wait_until(
            lambda status: any(b["broker"] == number and not b["online"] for b in status["brokers"]),
            "crane is missed",
        )
        looked = life.playbooks.run_beside("status")
        refused(life.playbooks.run("deploy", fails=True), "crane cannot be reached over SSH")
        shown = looked.result().output
        assert "cannot be reached" in shown, shown[-3000:]
        assert "2 of 3 online" in shown, shown[-3000:]
        life.hosts.blank("crane", DISK_BYTES)
        life.told["crane"] = host_entry(life.hosts, "crane", voter=True)
        life.hosts.boot("crane")
        careless = life.playbooks.run("deploy", fails=True)
        assert "replace_host -e odradek_host=crane" in " ".join(careless.output.split()), careless.output[
            -3000:
        ]
        life.playbooks.run("replace_host", odradek_host="crane")
        status = life.status()
        assert is_whole(status)
        assert number in status["quorum"]["voters"]


def grow(life: Life) -> None:
    """Add a fourth host with a node for each disk, and balance. Replicas of one partition never share a host."""
    with life.step("grow by a host of two nodes, and balance") as step:
        entry = host_entry(life.hosts, FOURTH, voter=False)
        entry["odradek_nodes"] = [{"id": 4, "disks": ["a"]}, {"id": 14, "disks": ["b"]}]
        # The new host later takes heron's place, also in its rack.
        entry["odradek_rack"] = life.told["heron"]["odradek_rack"]
        life.told[FOURTH] = entry
        life.playbooks.run("add_host", odradek_host=FOURTH)
        status = life.status()
        assert is_whole(status)
        replicas = {broker["broker"]: broker["replicas"] for broker in status["brokers"]}
        assert sorted(replicas) == [1, 2, 3, 4, 14]
        assert min(replicas.values()) > 0, replicas
        listed = life.hosts.ssh(
            "stork", f"{_ODRADEK} partition list --json --bootstrap-server {life.bootstrap}"
        )
        sets = [set(partition["replicas"]) for partition in json.loads(listed or "")["partitions"]]
        assert not any({4, 14} <= each for each in sets), sets
        step.note = f"replicas {list(replicas.values())}"


def drain(life: Life) -> None:
    """Move the vote and the partitions of a host to other hosts, then remove this host."""
    with life.step("drain a host, give its vote to another, remove it"):
        kept = life.playbooks.run("drain_host", fails=True, odradek_host="heron")
        refused(kept, "A node of heron votes")
        life.told["heron"]["odradek_voter"] = False
        life.told[FOURTH]["odradek_voter"] = True
        life.playbooks.run("drain_host", odradek_host="heron")
        life.playbooks.run(
            "remove", odradek_host="heron", odradek_confirm=CLUSTER_ID, odradek_remove_data="true"
        )
        del life.told["heron"]
        status = life.status()
        assert is_whole(status)
        assert sorted(broker["broker"] for broker in status["brokers"]) == [1, 3, 4, 14]
        assert sorted(status["quorum"]["voters"]) == [1, 3, 4]
        life.hosts.kill("heron")


def rollback(life: Life) -> None:
    """Roll back to the previous release, one rack at a time.

    The new host is in heron's rack. So its nodes restart together with heron, unless heron has the active controller.
    """
    leads = life.status()["controller"] == life.hosts["heron"].number
    with life.step("roll back, rack by rack"):
        outcome = life.playbooks.run("rollback", odradek_by_rack="true")
        steps = [line for line in outcome.output.splitlines() if "/roll_out/restart.yml for " in line]
        together = [set(line.split(" for ")[1].split(" => ")[0].split(", ")) for line in steps]
        assert ({"heron", FOURTH} in together) is not leads, together
        assert all(len(each & set(FIRST)) <= 1 for each in together), together
        assert life.versions() == {OLD}
        life.playbooks.inventory["vars"]["odradek_release"] = OLD
        outcome = life.playbooks.run("deploy")
        assert outcome.changed == 0, outcome.output[-3000:]


def look_and_keep(life: Life) -> None:
    """Run the playbooks `status` and `backup`, and check that the backup contains data."""
    with life.step("status and backup"):
        brokers = len(life.status()["brokers"])
        assert f"{brokers} of {brokers} online" in life.playbooks.run("status").output
        backups = life.hosts.work / "backups"
        life.playbooks.run("backup", odradek_backups=str(backups))
        (archive,) = backups.glob("*.tar.gz")
        assert archive.stat().st_size > 1000


def secure(life: Life) -> None:
    """Move a plaintext cluster to SASL_SSL, listener by listener. Then renew its certificates."""
    variables = life.playbooks.inventory["vars"]
    secrets = life.hosts.work / "secrets"
    variables["odradek_secrets"] = str(secrets)
    with life.step("secured listeners beside the others"):
        variables["odradek_security"] = "beside"
        shown = life.playbooks.run("reconfigure", "--diff", "-vvvv").output
        secret = (secrets / "scram.secret").read_text().strip()
        keys = {name: (secrets / f"{name}.pem").read_text().splitlines()[1] for name in life.told}
        for name, key in keys.items():
            journal = life.hosts.ssh(name, "journalctl --all --output=export --no-pager") or ""
            for text in (shown, journal):
                assert secret not in text
                assert key not in text
        assert life.playbooks.run("reconfigure").changed == 0
        for name in life.told:
            number = life.hosts[name].number
            asked = f"stat -c %a /etc/odradek/tls/node.pem /etc/odradek/node-{number}.properties"
            assert (life.hosts.ssh(name, asked) or "").split() == ["600", "600"]
    with life.step("clients move to SASL_SSL"):
        password = "secret of the load"
        scram = admins.ScramCredentialInfo(admins.ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = admins.UserScramCredentialUpsertion("load", scram, password.encode())
        admin = admins.AdminClient({"bootstrap.servers": life.bootstrap})
        admin.alter_user_scram_credentials([wanted])["load"].result(30)
        variables["odradek_acls"] = [
            {"user": "load", "operation": "write", "topic": TOPIC},
            {"user": "load", "operation": "read", "topic": TOPIC},
            {"user": "load", "operation": "read", "group": "*"},
            {"user": "gone", "operation": "read", "topic": TOPIC, "state": "absent"},
        ]
        assert life.playbooks.run("access").changed == 1
        assert life.playbooks.run("access").changed == 0
        secured = ",".join(f"{life.hosts[name].address}:9095" for name in life.told)
        keys = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "load",
            "sasl.password": password,
            "ssl.ca.location": str(secrets / "authority.pem"),
        }
        life.load.move(secured, keys)
    with life.step("nodes reach each other by the secured listeners"):
        variables["odradek_security"] = "within"
        life.secured = True
        life.playbooks.run("reconfigure")
    with life.step("the plaintext listeners are gone"):
        variables["odradek_security"] = "only"
        life.playbooks.run("reconfigure")
        for name in life.told:
            asked = "python3 -c 'import socket; socket.create_connection((\"{}\", {}), 5)' 2>&1 | tail -1"
            for port in (9092, 9093):
                refused_there = life.hosts.ssh(name, asked.format(life.hosts[name].address, port))
                assert "refused" in (refused_there or ""), (name, port, refused_there)
    with life.step("certificates made anew, without a restart"):
        before = {name: life.started(name) for name in life.told}
        life.playbooks.run("rotate_certificates")
        assert {name: life.started(name) for name in life.told} == before
