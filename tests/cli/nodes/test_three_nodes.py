"""Commands against three nodes of `odradek dev`: plans with timeouts and throttles, and a partition without a leader."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek import Client, KafkaError
from odradek.client.admin.admin_configs import AlterConfig, ConfigResource, ResourceType
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.admin.moves.placement import Move
from odradek.client.core.known_cluster import Partition
from odradek.client.errors import ClientError
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from testkit.processes import base_port
from testkit.raw_requests import RawClient
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import Outcome, odradek_here, words_of
from tests.docs.markdown import blocks

pytestmark = pytest.mark.xdist_group("cluster")
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=200\n"
PATIENCE_SECONDS = 40.0
CONSUMER, FOLLOWER, DEBUGGER = -1, 5, -2
LATEST, EARLIEST = -1, -2


@attrs.define
class Nodes:
    """The cluster: its addresses by node id, and the means to kill and start nodes."""

    directory: Path
    addresses: dict[int, str]
    pids: dict[int, int]
    _stack: ExitStack

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def run(self, *words: str, stdin: bytes = b"") -> Outcome:
        return odradek_here(*words, bootstrap=self.bootstrap, stdin=stdin)

    def kill(self, node: int) -> None:
        os.kill(self.pids[node], signal.SIGKILL)

    def start(self, node: int) -> None:
        server = self._stack.enter_context(running("server", self.directory / f"node-{node}.properties"))
        assert line(server.stdout) == "ready"

    def until(self, what: str, look: Callable[[], bool]) -> None:
        """Repeat `look` until it returns true. Raises `AssertionError` after `PATIENCE_SECONDS`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        last: Exception | None = None
        while time.monotonic() < deadline:
            try:
                if look():
                    return
            except (KafkaError, ClientError) as error:
                last = error
            time.sleep(0.05)
        raise AssertionError(f"gave up waiting: {what}; the last error was {last}")

    def listed(self, topic: str) -> Any:
        """Return partition 0 of a topic as `partition list` shows it."""
        return self.run("partition", "list", f"{topic}:0", "--json").json()["partitions"][0]

    def partition(self, topic: str) -> Partition:
        """Return partition 0 of a topic as a broker describes it."""
        found: list[Partition] = []

        def look() -> bool:
            # The broker that answers may not have replayed the new topic yet.
            with Client(self.bootstrap) as client:
                found[:] = [client.admin.describe_topics([topic])[0].partitions[0]]
            return bool(found)

        self.until(f"topic {topic}", look)
        return found[0]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes whose controllers notice a dead broker within two seconds."""
    directory = tmp_path_factory.mktemp("three")
    port = base_port(3)
    for node in (1, 2, 3):
        (directory / f"node-{node}.properties").write_text(QUICK)
    with ExitStack() as stack:
        words = ("dev", "--nodes", "3", "--port", str(port), "--data", directory)
        dev = stack.enter_context(running(*words, stop=signal.SIGINT))
        pids = {}
        for _ in range(3):
            told = dict(word.split("=", 1) for word in line(dev.stdout).split())
            pids[int(told["node"])] = int(told["pid"])
        assert line(dev.stdout) == "ready"
        yield Nodes(directory, {n: f"127.0.0.1:{port + n - 1}" for n in (1, 2, 3)}, pids, stack)


def test_a_plan_ends_with_its_timeout(nodes: Nodes) -> None:
    """`--timeout` bounds the whole plan. Moves already started continue, and the refusal says so."""
    assert nodes.run("topic", "create", "slow", "--partitions", "1", "--replication-factor", "1").code == 0
    assert nodes.run("produce", "slow", stdin=(b"x" * 1000 + b"\n") * 4000).code == 0
    (before,) = nodes.partition("slow").replicas
    after = str(before % 3 + 1)
    words = ("partition", "move", "slow", "--to", after, "--execute", "--throttle", "1K", "--timeout", "3")
    refusal = nodes.run(*words).refusal()
    assert "--timeout has passed, and 1 partition did not finish moving" in refusal
    assert "throttles stay" in refusal
    assert nodes.listed("slow")["adding"] == [int(after)]
    assert nodes.run("partition", "move", "--cancel", "--execute").code == 0
    assert nodes.run("partition", "move", "--unthrottle").code == 0
    # Without the option, a plan may take as long as it needs.
    assert nodes.run("partition", "move", "slow", "--to", after, "--execute").code == 0
    assert nodes.partition("slow").replicas == (int(after),)


def test_throttles_of_plans_beside_each_other(nodes: Nodes) -> None:
    """A plan removes only its own throttles (KIP-73). A broker's rate is removed with the last plan that needs it."""
    plans = [Move("beside", index, (1,), (2,), 0) for index in (0, 1)]
    every = "leader.replication.throttled.replicas"
    with Client(nodes.bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic("beside", assignments={0: [1], 1: [1]})])
        assert created.error is None

        def throttles() -> list[str]:
            resources = [
                ConfigResource(ResourceType.TOPIC, "beside"),
                ConfigResource(ResourceType.BROKER, "2"),
            ]
            found = client.admin.describe_configs(resources)
            told = [entry for each in found for entry in each.entries if "throttled" in entry.name]
            return sorted(entry.value for entry in told if entry.value)

        def wait_until(wanted: list[str]) -> None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while throttles() != wanted:
                assert time.monotonic() < deadline, throttles()

        # Like every plan, this one needs a client that already knows the topics and brokers.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "beside" not in [each.name for each in client.admin.describe_topics()]:
            assert time.monotonic() < deadline
        client.admin.throttle_moves(plans[:1], 1_000_000)
        wait_until(["0:1", "0:2", "1000000", "1000000"])
        client.admin.throttle_moves(plans[1:], 2_000_000)
        wait_until(["0:1,1:1", "0:2,1:2", "2000000", "2000000"])
        client.admin.release_throttles(plans[1:])
        wait_until(["0:1", "0:2", "2000000", "2000000"])
        client.admin.release_throttles(plans[:1])
        wait_until([])
        topic = ConfigResource(ResourceType.TOPIC, "beside")
        client.admin.incremental_alter_configs({topic: [AlterConfig(every, "*")]})
        wait_until(["*"])
        client.admin.throttle_moves(plans, 1_000_000)
        wait_until(["*", "0:2,1:2", "1000000", "1000000"])
        client.admin.release_throttles(plans)
        wait_until(["*", "1000000", "1000000"])
        client.admin.unthrottle([1, 2], ["beside"])
        wait_until([])


def replicas_of(client: Client, topic: str) -> dict[int, tuple[int, ...]]:
    """Return the replicas of each partition, as the broker that answers knows them."""
    (described,) = client.admin.describe_topics([topic])
    return {number: tuple(each.replicas) for number, each in described.partitions.items()}


def test_disks_are_balanced_over_hosts(nodes: Nodes) -> None:
    """Replicas move from the broker that has all of them to empty ones, as the dry run listed. A second run finds no
    work."""
    with Client(nodes.bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic("heavy", assignments={n: [1] for n in range(3)})])
        assert created.error is None
    for partition in range(3):
        block = (b"x" * 1000 + b"\n") * 2500
        assert nodes.run("produce", "heavy", "--partition", str(partition), stdin=block).code == 0
    plan = nodes.run("disk", "balance", "--over-hosts", "--dry-run", "--json").json()["moves"]
    assert {move["from"]["broker"] for move in plan} == {1}
    assert "copy between brokers" in nodes.run("disk", "balance", "--over-hosts", "--dry-run").out
    listed = nodes.run("disk", "balance", "--over-hosts").out
    assert listed.count("copy between brokers") == 1
    # Of two equal hosts the run may choose the other one: room on the shared file system changes meanwhile.
    moved = {int(partition): int(to) for partition, to in re.findall(r"(?m)^heavy-(\d) .* (\d):\S+$", listed)}
    assert moved.keys() == {move["partition"] for move in plan if move["topic"] == "heavy"} != set()
    assert 1 not in moved.values()
    expected = {partition: (moved.get(partition, 1),) for partition in range(3)}
    with Client(nodes.bootstrap) as client:
        # The broker that answers may learn of the last move a moment later than the controller.
        nodes.until("the replicas at their places", lambda: replicas_of(client, "heavy") == expected)
    assert len(nodes.run("consume", "heavy").out.split()) == 7_500
    assert "equal shares" in nodes.run("disk", "balance", "--over-hosts").out


def _asked(nodes: Nodes, node: int, replica_id: int, timestamp: int) -> tuple[int, int]:
    """Send ListOffsets for pair-0 to a node, with this replica id and timestamp; return the error code and the
    offset."""
    asked = ListOffsetsRequest(
        replica_id, 0, [ListOffsetsTopic("pair", [ListOffsetsPartition(0, -1, timestamp)])], 1000
    )
    with RawClient(nodes.addresses[node]) as client:
        (told,) = client.request(asked, 7).topics[0].partitions
    return told.error_code, told.offset


def test_a_partition_without_a_leader(nodes: Nodes) -> None:
    """For a partition without a leader, `partition list` shows each replica's log and a command for unclean
    election."""
    config = ("--config", "min.insync.replicas=1")
    words = ("topic", "create", "pair", "--partitions", "1", "--replication-factor", "2")
    assert nodes.run(*words, *config).code == 0
    full, short = nodes.partition("pair").replicas
    assert nodes.run("produce", "pair", stdin=b"early\n" * 10).code == 0
    nodes.until("both in sync", lambda: len(nodes.partition("pair").isr) == 2)
    # Like Apache Kafka 4.3, a follower returns its log end offset only to a client with the debugging replica id.
    not_leader = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert _asked(nodes, short, DEBUGGER, LATEST) == (0, 10)
    assert [_asked(nodes, short, other, LATEST) for other in (CONSUMER, FOLLOWER)] == [not_leader] * 2
    (stranger,) = {1, 2, 3} - {full, short}
    assert _asked(nodes, stranger, DEBUGGER, LATEST) == not_leader

    nodes.kill(short)
    nodes.until("one in sync", lambda: nodes.partition("pair").isr == (full,))
    assert nodes.run("produce", "pair", stdin=b"late\n" * 7).code == 0
    nodes.kill(full)
    nodes.start(short)
    nodes.until("no leader", lambda: nodes.partition("pair").leader < 0)
    told = nodes.listed("pair")["leaderless"]
    assert (told["complete_replicas"], told["best_candidate"]) == ([full], short)
    by_node = {each["broker"]: each for each in told["replicas"]}
    assert (by_node[full]["state"], by_node[full]["log_end_offset"]) == ("down", None)
    assert (by_node[short]["state"], by_node[short]["log_end_offset"]) == ("online", 10)
    assert _asked(nodes, short, DEBUGGER, LATEST) == (0, 10)
    assert _asked(nodes, short, DEBUGGER, EARLIEST) == (0, 0)
    assert _asked(nodes, short, CONSUMER, LATEST) == not_leader

    text = nodes.run("partition", "list", "pair", "--offline").out
    assert f"all its records are on broker {full}, which is down: start the broker" in text
    assert f"goes on from offset 10 of broker {short}" in text
    (hint,) = re.findall("`odradek (partition elect --unclean [^`]*)`", text)
    assert hint == f"partition elect --unclean pair:0 --leader {short} --execute"
    down = f"broker {full} is DOWN"
    assert down in nodes.run("partition", "elect", "pair", "--unclean", "--leader", str(full)).out
    # The commands of docs/disks.md, with this topic and this broker.
    here = {"orders": "pair", "orders:0": "pair:0", "2": str(short)}
    page = [line for block in blocks("docs/disks.md", "sh") for line in block.code.splitlines()]
    lines = [line for line in page if line.startswith("odradek partition ")][-4:]
    listed, plan, done, after = (
        nodes.run(*(here.get(word, word) for word in shlex.split(line)[1:])) for line in lines
    )
    assert listed.out == text
    assert "nothing was changed" in plan.out
    assert done.code == 0, done.err
    assert words_of(after.out)[1][:3] == ["pair", "0", str(short)]
    assert words_of(done.out)[-1] == ["pair", "0", "none", str(short), "elected"]
    assert nodes.partition("pair").replicas == (full, short)
    assert nodes.run("consume", "pair").out == "early\n" * 10

    # The preferred replica is down: the plan says so, and sends no election request.
    plan = nodes.run("partition", "elect", "pair")
    assert f"stays: broker {full} is down" in plan.out
    assert f"broker {full} is down" in nodes.run("partition", "elect", "pair", "--execute").refusal()
    nodes.start(full)
    nodes.until("both in sync", lambda: len(nodes.partition("pair").isr) == 2)
    (elected,) = nodes.run("partition", "elect", "pair", "--execute", "--json").json()["partitions"]
    assert (elected["leader_before"], elected["leader"]) == (short, full)
    assert nodes.run("consume", "pair").out == "early\n" * 10
