"""The rights listed in docs/spark.md suffice for each delivery mode. If one is missing, the error names it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from odradek import Admin
from odradek.client.admin import NewTopic
from odradek.client.admin.admin_acls import Acl, AclFilter
from odradek.security.acls.rules import (
    ANY_HOST,
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek.spark import sink
from odradek.spark.delivery.decisions_topic import DECISIONS_TOPIC
from odradek.spark.delivery.pool import PREFIX
from testkit.processes import ServerProcess, free_ports
from tests.docs.markdown import prose
from tests.security.secured_node import make_certificates, properties, start

MODES = {"exactly-once": "exactly once", "two-phase": "two-phase", "at-least-once": "at least once"}
"""Each value of `delivery`, and its name in the page's table."""
_ROW = re.compile(r"^\| ([A-Z_, ]+) \| (the .*|transactional ids .*) \| (.*) \|$", re.MULTILINE)
_NOT_ALWAYS = ("the same topic, or the cluster", "the cluster")
"""Rights that only the first query needs, or that have a default."""
_SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A node with an authorizer, whose plaintext listener is for the administrator; and the SASL address for alice."""
    directory = tmp_path_factory.mktemp("guarded")
    ports = free_ports(6)
    make_certificates(directory)
    settings = {
        **properties(directory, ports),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.two.phase.commit.enable": "true",
        "auto.create.topics.enable": "false",
    }
    Path(directory, "jwks.json").write_text('{"keys": []}')
    server = start(directory, settings, ['SCRAM-SHA-512=[name="alice",password="alice-secret"]'])
    try:
        yield server, f"127.0.0.1:{ports[2]}"
    finally:
        server.stop()


def rights(mode: str, topic: str) -> dict[str, list[Acl]]:
    """Return the page's ACLs for a mode, by resource."""
    found: dict[str, list[Acl]] = {}
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    decisions = (ResourceType.TOPIC, DECISIONS_TOPIC, literal)
    ids = (ResourceType.TRANSACTIONAL_ID, PREFIX.removesuffix("2pc-"), prefixed)
    resources = {
        "the topic": (ResourceType.TOPIC, topic, literal),
        f"the topic `{DECISIONS_TOPIC}`": decisions,
        "the same topic, or the cluster": decisions,
        f"transactional ids with the prefix `{ids[1]}`": ids,
        "the same ids": ids,
        "the cluster": (ResourceType.CLUSTER, CLUSTER_NAME, literal),
    }
    for operations, where, modes in _ROW.findall(prose("docs/spark.md")):
        if where not in resources or not any(each in modes for each in (MODES[mode], "all", "first query")):
            continue
        if modes.startswith("the first query") and mode == "at-least-once":
            continue
        found[where] = [
            Acl(*resources[where], "User:alice", ANY_HOST, Operation[each], Permission.ALLOW)
            for each in operations.split(", ")
        ]
    return found


def write(bootstrap: str, mode: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a batch query of one task as alice, by Spark's calls; return the number of rows."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="alice" password="alice-secret";',
        "kafka.max.block.ms": "5000",
        "topic": topic,
        "delivery": mode,
    }
    task = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: task))
    writer = sink.batch_writer(options, _SCHEMA, overwrite=False)
    report = writer.write(iter([pa.record_batch({"value": [b"a", b"b"]})]))
    writer.commit([report])
    assert isinstance(report, sink.TaskReport)
    return report.rows


@pytest.mark.parametrize("mode", MODES)
def test_each_row_of_the_table_is_needed_and_all_are_enough(
    mode: str, guarded: tuple[ServerProcess, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all rights a mode writes. Without any one of them, the driver or the task names the missing right."""
    server, bootstrap = guarded
    topic = f"for-{mode}"
    given = rights(mode, topic)
    assert len(given) == {"exactly-once": 5, "two-phase": 5, "at-least-once": 1}[mode]
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([NewTopic(topic)])
        every = [acl for acls in given.values() for acl in acls]
        assert not any(admin.create_acls(every).values())
        assert write(bootstrap, mode, topic, monkeypatch) == 2
        for where, acls in given.items():
            admin.delete_acls([AclFilter(*attrs.astuple(each)) for each in acls])
            if where in _NOT_ALWAYS:
                assert write(bootstrap, mode, topic, monkeypatch) == 2, where
            else:
                with pytest.raises(
                    (ValueError, RuntimeError), match=r"_AUTHORIZATION_FAILED: .*|: grant WRITE"
                ):
                    write(bootstrap, mode, topic, monkeypatch)
            admin.create_acls(acls)
