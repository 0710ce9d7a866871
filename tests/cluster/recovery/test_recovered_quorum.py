"""Three combined nodes as processes: two metadata disks are destroyed under load, and the quorum is recovered.

`make test` runs the short forms, `make test-recovery` all. Only the long form covers absent nodes and static voters
here; in `make test` the simulator covers both (`sim/runs/test_recovery.py`).
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek import Client, Producer
from odradek.client.admin.admin_configs import ConfigResource, ResourceType
from odradek.client.admin.admin_topics import NewTopic
from odradek.wire.messages.init_producer_id import InitProducerIdRequest
from testkit.processes import base_port
from testkit.raw_requests import RawClient
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import odradek, odradek_here
from tests.cluster.recovery.stopped_cluster import Cluster
from tests.cluster.test_real_nodes import create, in_sync, produce, until, values

pytestmark = pytest.mark.xdist_group("cluster")

PARTITIONS = 3
PATIENCE_SECONDS = 60.0
LONG = "the long form: make test-recovery"


def new_producer_id(bootstrap: str) -> int:
    """Ask a broker for a new producer id."""
    with RawClient(bootstrap.split(",")[0]) as client:
        return int(client.request(InitProducerIdRequest(None, 1000, -1, -1), 4).producer_id)


@contextmanager
def ending(producer: Producer) -> Iterator[Producer]:
    """Close a producer at the end of the block. After a failure it does not wait for pending records."""
    try:
        yield producer
    except BaseException:
        producer.close(0.0)
        raise
    producer.close(PATIENCE_SECONDS)


def test_two_of_three_metadata_disks_are_destroyed(tmp_path: Path) -> None:
    """An idempotent producer continues across the recovery. Acknowledged records appear once, and no producer id is
    reused."""
    cluster = Cluster.make(tmp_path)
    with cluster.ended():
        cluster.start(1, 2, 3)
        with Client(cluster.bootstrap) as client:
            (created,) = client.admin.create_topics([NewTopic("t", PARTITIONS, 3)])
            assert created.error is None, created.error
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        before = new_producer_id(cluster.bootstrap)
        with ending(
            Producer(bootstrap_servers=cluster.bootstrap, acks="all", delivery_timeout_ms=600_000)
        ) as producer:
            for value in range(100):
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS).result(
                    PATIENCE_SECONDS
                )
            under_way = [
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS)
                for value in range(100, 200)
            ]
            cluster.kill(1, 2)
            cluster.destroy_metadata(1, 2)
            cluster.kill(3)
            refusal = cluster.recover(lost=())
            assert refusal.code == 1
            assert f"--lost {cluster.key(1)}" in refusal.out
            living = cluster.controllers[1]
            with socket.create_server(("127.0.0.1", living)):
                seen = cluster.recover()
            assert seen.code == 1
            assert f"a process listens at 127.0.0.1:{living}" in seen.out
            dry = cluster.recover()
            assert dry.json()["plan"]["voters"].keys() == {"1", "2", "3"}
            assert not cluster.metadata(1).exists()
            done = cluster.recovered()
            assert done["done"] == [1, 2, 3]
            again = cluster.recover("--execute", lost=())
            assert "start them" in again.out, "a second recovery must be refused"
            cluster.start(1, 2, 3)
            until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
            for each in under_way:
                each.result(PATIENCE_SECONDS)
            for value in range(200, 300):
                producer.send("t", value=str(value).encode(), partition=value % PARTITIONS).result(
                    PATIENCE_SECONDS
                )
        assert values(cluster.bootstrap, "t") == list(range(300))
        assert new_producer_id(cluster.bootstrap) >= before + 1_000_000_000
        with Client(cluster.bootstrap) as client:
            quorum = client.admin.describe_quorum()
        assert quorum.leader_epoch > done["plan"]["epoch"]
        assert quorum.high_watermark > done["plan"]["offset"]
        assert [each.node_id for each in quorum.voters] == [1, 2, 3]


def test_old_voters_that_return_are_refused(tmp_path: Path, whole_matrix: bool) -> None:
    """Old voters that return, before or after a new node joined, exit with one log line. The quorum continues when its
    own disks are back."""
    cluster = Cluster.make(tmp_path, 4, formatted=3)
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        cluster.copy_metadata("old", 1, 2)
        cluster.destroy_metadata(1, 2)
        assert cluster.recovered(configs=cluster.configs[:3])["done"] == [1, 2, 3]
        written = 20
        for round_number in (1, 2) if whole_matrix else (2,):
            nodes = (1, 2, 3, 4)[: 2 + round_number]
            if 4 in nodes:
                cluster.format(4)
            cluster.start(*nodes)
            until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
            produce(cluster.bootstrap, "t", range(written, written + 20))
            written += 20
            cluster.stop(*nodes)
            cluster.copy_metadata(f"new-{round_number}", 1, 2)
            cluster.put_metadata("old", 1, 2)
            cluster.start(*nodes, wait=False)
            for node_id in (1, 2):
                last = cluster.end_of(node_id)
                assert "the metadata log was recovered without this node" in last
                assert "odradek quorum begin-anew" in last
                assert "Traceback" not in cluster.log(node_id)
            cluster.kill(*nodes[2:])
            old = tmp_path / "old-1" / "__cluster_metadata-0" / f"{0:020}.log"
            kept = cluster.metadata(1) / "__cluster_metadata-0" / f"{0:020}.log"
            assert kept.read_bytes().startswith(old.read_bytes())
            cluster.put_metadata(f"new-{round_number}", 1, 2)
        cluster.start(1, 2, 3, 4)
        assert values(cluster.bootstrap, "t") == list(range(written))


def test_a_node_that_was_absent_is_waited_for(tmp_path: Path, whole_matrix: bool) -> None:
    """A node absent from the recovery keeps its data. Its partition waits until its metadata is replaced by the
    plan."""
    if not whole_matrix:
        pytest.skip(LONG)
    cluster = Cluster.make(tmp_path, 4)
    with cluster.ended():
        cluster.start(1, 2, 3, 4)
        with Client(cluster.bootstrap) as client:
            (created,) = client.admin.create_topics([NewTopic("t", assignments={0: [4, 3]})])
            assert created.error is None, created.error
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3, 4)
        cluster.destroy_metadata(1, 2)
        reports: list[str | Path] = []
        for node_id in (1, 2, 3):
            report = tmp_path / f"report-{node_id}.json"
            inspected = odradek_here("quorum", "inspect", cluster.properties(node_id), "--to", report)
            assert inspected.code == 0, inspected.err
            reports += ["--report", report]
        lost = [word for each in (1, 2) for word in ("--lost", cluster.key(each))]
        plan = tmp_path / "plan.json"
        planned = odradek_here("quorum", "recover", *reports, *lost, "--absent", "4", "--plan", plan)
        assert planned.code == 0, planned.out
        for node_id in (1, 2, 3):
            applied = odradek_here(
                "quorum", "recover", "--from", plan, cluster.properties(node_id), "--execute", "--json"
            )
            assert applied.json()["done"] == [node_id]
            again = odradek_here(
                "quorum", "recover", "--from", plan, cluster.properties(node_id), "--execute", "--json"
            )
            assert again.json()["done"] == []
        refusal = odradek_here("quorum", "begin-anew", cluster.properties(1), "--execute").refusal()
        assert "node 1 is a voter by its own metadata log" in refusal
        cluster.start(1, 2, 3)
        with Client(cluster.bootstrap) as client:
            (described,) = client.admin.describe_topics(["t"])
            assert described.partitions[0].leader == -1
        cluster.start(4, wait=False)
        assert "the metadata log was recovered without this node" in cluster.end_of(4)
        anew = odradek_here("quorum", "begin-anew", cluster.properties(4), "--execute", "--json")
        set_aside = cluster.metadata(4) / anew.json()["set_aside"]
        assert (set_aside / f"{0:020}.log").exists()
        cluster.start(4)
        until("both in sync", lambda: in_sync(cluster.bootstrap, "t", 2))
        assert values(cluster.bootstrap, "t") == list(range(20))


def test_every_metadata_disk_is_gone(tmp_path: Path) -> None:
    """If all metadata disks are lost, topics, ids and records are rebuilt from the log directories, or from an old
    backup."""
    cluster = Cluster.make(tmp_path)
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        archive = tmp_path / "backup.tar.gz"
        with tarfile.open(archive, "w:gz") as backup:
            backup.add(cluster.metadata(1), ".")
        cluster.destroy_metadata(1, 2, 3)
        assert "metadata rebuild" in cluster.recover(lost=(1, 2, 3)).out
        from_backup = cluster.recover("--backup", archive, lost=(1, 2, 3)).json()
        assert from_backup["chosen"] == f"backup {archive}"
        assert not cluster.metadata(1).exists()
        topics = tmp_path / "topics.json"
        topics.write_text(json.dumps([{"name": "t", "configs": {"retention.ms": "soon"}}]))
        words = ("metadata", "rebuild", *cluster.configs, "--topics", topics, "--execute", "--json")
        assert "topic t: Invalid value soon for configuration retention.ms" in odradek_here(*words).refusal()
        topics.write_text(json.dumps([{"name": "t", "configs": {"retention.ms": 86_400_000}}]))
        rebuilt = odradek_here(*words)
        assert rebuilt.json()["done"] == [1, 2, 3]
        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        assert values(cluster.bootstrap, "t") == list(range(20))
        produce(cluster.bootstrap, "t", range(20, 40))
        assert values(cluster.bootstrap, "t") == list(range(40))
        with Client(cluster.bootstrap) as client:
            (described,) = client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")])
            assert described["retention.ms"].value == "86400000"
            assert described["retention.bytes"].value == "-1"


def test_a_backup_of_yesterday_is_restored(tmp_path: Path, whole_matrix: bool) -> None:
    """After restoring an old backup, later metadata is lost except what the log directories show: a later topic keeps
    its records."""
    if not whole_matrix:
        pytest.skip(LONG)
    cluster = Cluster.make(tmp_path)
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        archive = tmp_path / "backup.tar.gz"
        with tarfile.open(archive, "w:gz") as backup:
            backup.add(cluster.metadata(1), ".")
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "later", 3)
        produce(cluster.bootstrap, "t", range(20, 40))
        produce(cluster.bootstrap, "later", range(20))
        before = new_producer_id(cluster.bootstrap)
        cluster.stop(1, 2, 3)
        cluster.copy_metadata("kept", 3)
        cluster.destroy_metadata(1, 2)
        refused = cluster.recover("--backup", archive)
        assert "node 3 has a better copy than the backup" in refused.out
        cluster.destroy_metadata(3)
        restored = cluster.recovered("--backup", archive, lost=(1, 2, 3))
        assert restored["chosen"] == f"backup {archive}"
        assert any("topic later" in each and "keeps all records" in each for each in restored["evidence"])
        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster.bootstrap, "later", 3))
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        assert values(cluster.bootstrap, "t") == list(range(40))
        assert values(cluster.bootstrap, "later") == list(range(20))
        assert new_producer_id(cluster.bootstrap) >= before + 1_000_000_000


def test_a_cluster_of_dev_is_recovered_by_what_the_screen_says(tmp_path: Path, whole_matrix: bool) -> None:
    """`odradek dev` refuses to start if most voters have lost their directories. The error names the recovery command,
    and this command says which arguments are missing."""
    if not whole_matrix:
        pytest.skip(LONG)
    port, data = base_port(3), tmp_path / "data"
    words = ("dev", "--nodes", "3", "--port", str(port), "--data", data)
    bootstrap = f"127.0.0.1:{port}"
    with running(*words, stop=signal.SIGINT) as dev:
        until_ready(dev)
        create(bootstrap, "t", 3)
        produce(bootstrap, "t", range(20))
    for number in (2, 3):
        shutil.rmtree(data / f"node-{number}")
    refused = odradek(*words)
    assert refused.code == 1
    assert "the directories of nodes 2, 3 are gone" in refused.err
    (command,) = re.findall(r"`odradek (quorum recover [^`]*)`", refused.err)
    missing = odradek_here(*command.split())
    assert missing.code == 1
    (lost,) = re.findall(r"add to the same command: (--lost .*)", missing.out)
    done = odradek_here(*command.split(), *lost.split(), "--execute")
    assert done.code == 0, done.err
    assert "all nodes of the plan are done" in done.out
    with running(*words, stop=signal.SIGINT) as dev:
        until_ready(dev)
        until("all in sync", lambda: in_sync(bootstrap, "t", 3))
        assert values(bootstrap, "t") == list(range(20))


def until_ready(dev: subprocess.Popen[bytes]) -> None:
    """Wait until all nodes of `odradek dev` print that they serve."""
    while (said := line(dev.stdout)) != "ready":
        assert said.startswith("node="), said


def test_voters_of_the_configuration_are_recovered(tmp_path: Path, whole_matrix: bool) -> None:
    """With `controller.quorum.voters`, `--lost` takes only an id, and the recovered log contains no voters."""
    if not whole_matrix:
        pytest.skip(LONG)
    cluster = Cluster.make(tmp_path, is_static=True)
    with cluster.ended():
        cluster.start(1, 2, 3)
        create(cluster.bootstrap, "t", 3)
        produce(cluster.bootstrap, "t", range(20))
        cluster.stop(1, 2, 3)
        cluster.copy_metadata("old", 1, 2)
        cluster.destroy_metadata(1, 2)
        assert "--lost 1 if its metadata are lost" in cluster.recover(lost=()).out
        done = cluster.recovered()
        assert done["plan"]["voters"] is None
        cluster.start(1, 2, 3)
        until("all in sync", lambda: in_sync(cluster.bootstrap, "t", 3))
        assert values(cluster.bootstrap, "t") == list(range(20))
        cluster.kill(1)
        cluster.put_metadata("old", 1)
        cluster.start(1, wait=False)
        assert "the metadata log was recovered without this node" in cluster.end_of(1)
