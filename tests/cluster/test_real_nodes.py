"""Nodes as processes: `odradek dev --nodes 3` with a killed controller, and nodes with one role each."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from odradek import Client, KafkaError, Producer
from odradek.client.admin.admin_quotas import QuotaAlteration, QuotaEntity
from odradek.client.admin.admin_topics import NewTopic
from odradek.client.errors import ClientError
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest
from testkit.processes import base_port, free_ports
from testkit.raw_requests import RawClient, frame
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import odradek

pytestmark = pytest.mark.xdist_group("cluster")

PATIENCE_SECONDS = 60.0
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=200\n"
"""A dead broker's leaderships move after two seconds instead of nine."""
T = TypeVar("T")


def until(what: str, look: Callable[[], T | None]) -> T:
    """Poll until `ask` returns a result other than None; return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    last: object = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (KafkaError, ClientError) as error:
            found, last = None, error
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"gave up waiting: {what}; the last error was {last}")


def create(bootstrap: str, name: str, replicas: int) -> None:
    with Client(bootstrap) as client:
        (created,) = client.admin.create_topics([NewTopic(name, 2, replicas)])
        assert created.error is None, created.error


def produce(bootstrap: str, topic: str, values: range) -> None:
    with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        sent = [producer.send(topic, value=str(value).encode()) for value in values]
        for each in sent:
            each.result(PATIENCE_SECONDS)


def values(bootstrap: str, topic: str) -> list[int]:
    """Return all values of a topic, sorted."""
    outcome = odradek("consume", topic, bootstrap=bootstrap)
    assert outcome.code == 0, outcome.err
    return sorted(int(text) for text in outcome.out.split())


def in_sync(bootstrap: str, topic: str, count: int) -> bool | None:
    with Client(bootstrap) as client:
        (described,) = client.admin.describe_topics([topic])
        return all(len(each.isr) == count for each in described.partitions.values()) or None


def leader_of_quorum(bootstrap: str) -> int:
    with Client(bootstrap) as client:
        return client.admin.describe_quorum().leader_id


def test_three_nodes_of_dev_with_a_death(tmp_path: Path) -> None:
    """Topics are created through every node. When the active controller is killed, no record is lost, and all nodes
    recover."""
    port = base_port(3)
    addresses = [f"127.0.0.1:{port + number}" for number in range(3)]
    bootstrap = ",".join(addresses)
    for node_id in (1, 2, 3):
        (tmp_path / f"node-{node_id}.properties").write_text(QUICK)
    with running("dev", "--nodes", "3", "--port", str(port), "--data", tmp_path, stop=signal.SIGINT) as dev:
        pids = {}
        for node_id in (1, 2, 3):
            told = dict(word.split("=", 1) for word in line(dev.stdout).split())
            assert told["address"] == addresses[node_id - 1]
            pids[int(told["node"])] = int(told["pid"])
        assert line(dev.stdout) == "ready"
        assert "look at the cluster in a browser" in line(dev.stdout)
        for node_id, address in enumerate(addresses, 1):
            create(address, f"by-{node_id}", 3)
        produce(bootstrap, "by-1", range(100))

        victim = leader_of_quorum(bootstrap)
        os.kill(pids[victim], signal.SIGKILL)
        ended, _, hint = line(dev.stdout).partition("; to bring it back: ")
        assert ended == f"node={victim} pid={pids[victim]} ended: killed by SIGKILL"
        alive = ",".join(address for number, address in enumerate(addresses, 1) if number != victim)
        assert until("another leader", lambda: leader_of_quorum(alive)) != victim
        produce(alive, "by-1", range(100, 200))
        create(alive, "after", 2)

        command, *words = shlex.split(hint)
        with running(*words, command=command) as server:
            assert line(server.stdout) == "ready"
            for topic in ("by-1", "by-2", "by-3"):
                until(f"{topic} in sync", partial(in_sync, bootstrap, topic, 3))
            assert values(addresses[victim - 1], "by-1") == list(range(200))


@contextmanager
def server(
    directory: Path, settings: Mapping[str, str], cluster_id: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Format a node's directory and run it until the block ends."""
    path = directory / f"node-{settings['node.id']}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    formatted = odradek("storage", "format", path, "--cluster-id", cluster_id, "--ignore-formatted")
    assert formatted.code == 0, formatted.err
    with running("server", path) as process:
        yield process


def exceed_a_quota(bootstrap: str) -> None:
    """Use more than a mutation quota through a broker that is no controller, with new and old request versions.

    The controller decides. Its throttle time comes back in the envelope, and the broker mutes the connection.
    """
    limited: QuotaEntity = (("client-id", "limited"),)
    with Client(bootstrap) as client:

        def limit(rate: float | None) -> None:
            asked = [QuotaAlteration(limited, {"controller_mutation_rate": rate})]
            assert client.admin.alter_client_quotas(asked) == {limited: None}

        def create(version: int, name: str, partitions: int) -> tuple[RawClient, Any]:
            raw = stack.enter_context(RawClient(bootstrap))
            asked = CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 10_000, False)
            raw.send(frame(asked, version, client_id=b"limited"))
            return raw, raw.receive(asked.API_KEY, version)

        with ExitStack() as stack:
            limit(0.1)
            for version, code in ((7, ErrorCode.THROTTLING_QUOTA_EXCEEDED), (5, ErrorCode.NONE)):
                create(version, f"burst-{version}", 4)
                raw, answer = create(version, f"beyond-{version}", 2)
                assert answer.topics[0].error_code == code
                assert answer.throttle_time_ms > 20_000
            raw.send(frame(MetadataRequest([]), 9, client_id=b"limited"))
            limit(None)
            assert raw.receive(ApiKey.METADATA, 9).brokers, "the broker muted the connection for too long"


def test_nodes_of_one_role_each(tmp_path: Path) -> None:
    """With static voters, a controller and two brokers run as separate nodes. Each serves only its own role."""
    controller, first, second = free_ports(3)
    common = {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"9@127.0.0.1:{controller}",
        "offsets.topic.replication.factor": "2",
    }
    cluster_id = "H5nlA7uKR0-zDRxvMJS5iw"
    with ExitStack() as stack:
        nodes = [
            common
            | {
                "node.id": "9",
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{controller}",
                "log.dirs": str(tmp_path / "9"),
            }
        ]
        for node_id, port in ((1, first), (2, second)):
            nodes.append(
                common
                | {
                    "node.id": str(node_id),
                    "process.roles": "broker",
                    "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                    "log.dirs": str(tmp_path / str(node_id)),
                }
            )
        processes = [stack.enter_context(server(tmp_path, each, cluster_id)) for each in nodes]
        for process in processes:
            assert line(process.stdout) == "ready"
        create(f"127.0.0.1:{second}", "shared", 2)
        produce(f"127.0.0.1:{first}", "shared", range(50))
        assert values(f"127.0.0.1:{second}", "shared") == list(range(50))
        assert leader_of_quorum(f"127.0.0.1:{first}") == 9
        exceed_a_quota(f"127.0.0.1:{first}")
