"""All attacks of strangers and clients in turns, against three nodes that serve three ordinary clients.

Attacks that need all leaders and coordinators on one node run against a separate single node, whose stalls count, too.

Each attack is a process group of its own that gets half a core: the group is paused whenever it has used more. The
nodes measure how long their loops stood still, and the ordinary clients count the records that they have lost. Both
figures are read after each attack. So the last lines can name the attack during which the longest stall was seen.

    python -m tests.attacks.siege NAME PLACE    # one attack, in a process that a siege has started
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from odradek import Admin
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.admin.admin_users import ScramUpsertion
from odradek.security.acls.rules import Acl, Operation, PatternType, Permission, ResourceType
from testkit.processes import command_prefix
from tests.attacks.known import Attack, attacks
from tests.attacks.ordinary import KINDS, READ_TO_THE_END_SECONDS
from tests.attacks.place import PLAIN_USERS, AttackedNode, Place, attacked
from tests.attacks.raw import HOST

SHARE = 0.5
"""The share of one core that all attackers together may use."""
TURN_SECONDS = 300.0
"""The longest time that one attack may take. It is cut off then."""
STALL_SECONDS_MAX = 0.5
RATE = 40.0
"""How many records each ordinary client writes in a second."""
TICK_SECONDS = 0.01
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@attrs.define
class Turn:
    """How one turn of an attack went."""

    name: str
    lines: list[str]
    stall_seconds: float
    was_cut_off: bool

    @property
    def holes(self) -> list[str]:
        return [line for line in self.lines if not line.startswith("HELD")]


def lay_siege(known: Sequence[Attack], directory: Path, seconds: float) -> int:
    """Run the attacks in turns for `seconds`. Return the exit status."""
    outsiders = [each for each in known if each.who != "administrator" and not each.settings]
    with attacked(directory / "three", 3) as place, attacked(directory / "one") as alone:
        make_ordinary_users(place)
        with ordinary_clients(place, directory) as clients:
            turns = list(_turns(outsiders, place, alone, time.monotonic() + seconds))
            reports = [_report(client) for client in clients]
        place.check_alive()
        return _verdict(turns, reports)


def _turns(outsiders: Sequence[Attack], place: Place, alone: Place, deadline: float) -> Iterator[Turn]:
    nodes = [*place.nodes, *alone.nodes]
    meters = [StallMeter(node) for node in nodes]
    while time.monotonic() < deadline:
        for attack in outsiders:
            if time.monotonic() >= deadline:
                return
            lines, was_cut_off = _attack_at_half_a_core(
                attack.name, alone if attack.is_for_one_node else place
            )
            place.check_alive()
            alone.check_alive()
            stall = max(meter.longest_since_last() for meter in meters)
            turn = Turn(attack.name, lines, stall, was_cut_off)
            print(
                f"{attack.name:20} {len(turn.holes)} holes, longest stall <= {stall:g} s"
                + (", cut off" if was_cut_off else ""),
                *turn.holes,
                sep="\n  ",
                flush=True,
            )
            yield turn


@attrs.define
class StallMeter:
    """Reads a node's own measurements of its loop, and compares each reading with the one before."""

    node: AttackedNode
    _before: dict[float, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._before = self.node.stalls()

    def longest_since_last(self) -> float:
        """Return an upper bound of the longest stall since the last reading, in seconds."""
        now = self.node.stalls()
        longest = max(
            (bound for bound, count in now.items() if count > self._before.get(bound, 0)), default=0.0
        )
        self._before = now
        return longest


def _attack_at_half_a_core(name: str, place: Place) -> tuple[list[str], bool]:
    """Run one attack. Return its lines, and whether it was cut off."""
    file = place.security.data / "place"
    file.write_bytes(pickle.dumps(place))
    command = [*command_prefix(), sys.executable, "-m", "tests.attacks.siege", name, str(file)]
    output = file.with_name("attack.out")
    with output.open("w") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    was_cut_off = not _hold_to_share(process)
    status = process.wait()
    lines = output.read_text().splitlines()
    if status and not was_cut_off:
        lines.append(f"the attack itself failed: exit status {status}")
    return lines, was_cut_off


def _hold_to_share(process: subprocess.Popen[bytes]) -> bool:
    """Pause the process group whenever it has used more CPU time than its share. If its turn is over, kill it and
    return False."""
    began = time.monotonic()
    stopped = False
    while process.poll() is None:
        time.sleep(TICK_SECONDS)
        elapsed = time.monotonic() - began
        if elapsed > TURN_SECONDS:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return False
        is_ahead = _group_cpu_seconds(process.pid) > SHARE * elapsed
        if is_ahead != stopped:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGSTOP if is_ahead else signal.SIGCONT)
            stopped = is_ahead
    return True


def _group_cpu_seconds(group: int) -> float:
    """Return user and system time of all processes of a group, with those of their children that have ended."""
    ticks = 0
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def make_ordinary_users(place: Place) -> None:
    """Create a SCRAM user, and give all ordinary users their rights and topics."""
    keys = {
        "bootstrap.servers": ",".join(f"{HOST}:{node.ports.SASL}" for node in place.nodes),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="admin" password="{place.password("admin")}";',
    }
    users = ("ordinary", *PLAIN_USERS)
    salt = os.urandom(16)
    user = ScramUpsertion.of_password("ordinary", "SCRAM-SHA-512", "ordinary-secret", salt=salt)
    rules = [
        Acl(resource, "ordinary-", PatternType.PREFIXED, f"User:{name}", "*", Operation.ALL, Permission.ALLOW)
        for name in users
        for resource in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    with Admin(keys) as admin:
        done: list[Any] = [
            *admin.alter_user_scram_credentials([user]).values(),
            *admin.create_acls(rules).values(),
            *(
                each.error
                for each in admin.create_topics([NewTopic(f"ordinary-{kind}", 3) for kind in KINDS])
            ),
        ]
    assert not any(done), done


@contextmanager
def ordinary_clients(place: Place, directory: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Run one client of each kind; those that still run at the end of the block are killed."""
    clients = []
    try:
        for kind in KINDS:
            listener = "SASL_SSL" if kind == "confluent" else "SASL"
            bootstrap = ",".join(f"{HOST}:{getattr(node.ports, listener)}" for node in place.nodes)
            authority = str(place.security.directory / "authority.pem")
            command = [sys.executable, "-m", "tests.attacks.ordinary", kind, bootstrap, authority]
            log = (directory / f"ordinary-{kind}.log").open("w")
            clients.append(
                subprocess.Popen(
                    [*command_prefix(), *command, f"ordinary-{kind}", str(RATE)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )
            log.close()
        yield clients
    finally:
        for client in clients:
            client.kill()
            client.wait()


def _report(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Make a client stop sending, and return its final report."""
    output, _ = client.communicate(timeout=3 * READ_TO_THE_END_SECONDS)
    if client.returncode or not output:
        return {"failed": f"the client ended with status {client.returncode}"}
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _verdict(turns: Sequence[Turn], reports: Sequence[dict[str, Any]]) -> int:
    for kind, report in zip(KINDS, reports, strict=True):
        print(f"{kind}: {report}")
    worst = max(turns, key=lambda turn: turn.stall_seconds)
    holes = sum(len(turn.holes) for turn in turns)
    lost = [each for each in reports if each["failed"] or each["missing"] or each["twice"]]
    print(
        f"{len(turns)} turns, {holes} holes; longest stall <= {worst.stall_seconds:g} s, during {worst.name}"
    )
    held = not holes and not lost and worst.stall_seconds <= STALL_SECONDS_MAX
    print(f"verdict: {'held' if held else 'hole'}")
    return 0 if held else 1


def main() -> int:
    name, file = sys.argv[1:]
    place: Place = pickle.loads(Path(file).read_bytes())
    for outcome in attacks()[name].run(place, 1.0):
        print(outcome, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
