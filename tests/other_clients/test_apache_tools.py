"""Apache Kafka's command line tools against our node. Each command must work and print the same as with Kafka.

Each test was written against Apache Kafka (`ODRADEK_TEST_BOOTSTRAP`) and passes there. All calls share a JVM
(`tests/kafka_tools.py`), except those of tools that run until their process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek import Client, Consumer, Producer
from odradek.client.admin.admin_quotas import QuotaAlteration, QuotaEntity, QuotaMatch
from testkit.kafka_server import java_arguments
from testkit.odradek_server import start_odradek
from testkit.processes import command_prefix
from tests.kafka_tools import tool_here

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

TOOLS = "org.apache.kafka.tools"
SECONDS_MAX = 60


@attrs.frozen
class Tools:
    """Kafka's tools, used with one server."""

    bootstrap: str

    def words(self, name: str, *arguments: str | Path) -> list[str]:
        """Return the tool's class and its arguments."""
        class_name = name if name.startswith("kafka.") else f"{TOOLS}.{name}"
        return [class_name, "--bootstrap-server", self.bootstrap, *map(str, arguments)]

    def command(self, name: str, *arguments: str | Path) -> list[str]:
        """Return the command that runs the tool in a process of its own."""
        return [*command_prefix(), *java_arguments(), *self.words(name, *arguments)]

    def create_topic(self, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
        """Create a topic with librdkafka, which saves the start of a JVM."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
            done.result(SECONDS_MAX)

    def run(self, name: str, *arguments: str | Path, stdin: str = "") -> str:
        """Run a tool that must succeed. Return its standard output."""
        done = tool_here(*self.words(name, *arguments), stdin=stdin)
        assert done.returncode == 0, f"{name} {arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refusal(self, name: str, *arguments: str | Path) -> str:
        """Run a tool that must fail. Return all its output."""
        done = tool_here(*self.words(name, *arguments))
        assert done.returncode != 0, f"{name} {arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def run_alone(self, name: str, *arguments: str | Path) -> str:
        """Run a tool that prints its report when its JVM ends. Return its standard output."""
        return subprocess.run(
            self.command(name, *arguments), capture_output=True, text=True, timeout=SECONDS_MAX, check=True
        ).stdout

    @contextmanager
    def running(self, name: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Run a tool in the background, and end it by SIGTERM after the block."""
        command = self.command(name, *arguments)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()
                process.communicate(timeout=SECONDS_MAX)


@pytest.fixture(scope="module")
def tools(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Start a node on which groups form without a delay for further members."""
    named = os.environ.get("ODRADEK_TEST_BOOTSTRAP")
    directory = tmp_path_factory.mktemp("tools")
    if named:
        yield Tools(named)
        return
    server = start_odradek(directory, settings={"group.initial.rebalance.delay.ms": "0"})
    try:
        yield Tools(server.bootstrap)
        assert server.is_running(), server.log_tail()
        assert "Traceback" not in server.log_path.read_text(), server.log_tail()
    finally:
        server.stop()


def rows(output: str) -> list[dict[str, str]]:
    """Parse a table of ConsumerGroupCommand into rows by column name."""
    lines = [line for line in output.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if line.startswith(("GROUP ", "TOPIC ")))
    columns = lines[start].split()
    return [dict(zip(columns, line.split(), strict=False)) for line in lines[start + 1 :]]


def events(output: str, name: str) -> list[dict[str, Any]]:
    """Return the JSON lines of a verifiable client with this name."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [event for event in found if event["name"] == name]


def offsets(tools: Tools, topic: str, time: int = -1) -> dict[int, int]:
    """Return GetOffsetShell's offset of each partition. Time -1 asks for the latest, -2 for the earliest."""
    output = tools.run("GetOffsetShell", "--topic", topic, "--time", str(time))
    parts = [line.split(":") for line in output.split()]
    return {int(partition): int(offset) for name, partition, offset in parts if name == topic}


def test_topics(tools: Tools, fresh_topic: Callable[[str], str]) -> None:
    """TopicCommand creates a topic with a configuration, adds partitions, describes it, deletes it, and refuses a
    second topic of the same name."""
    topic = fresh_topic("tools-topics")
    options = ("--partitions", "2", "--replication-factor", "1", "--config", "max.message.bytes=64000")
    assert f"Created topic {topic}." in tools.run("TopicCommand", "--create", "--topic", topic, *options)
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    told = tools.run("TopicCommand", "--describe", "--topic", topic)
    head, *partitions = told.strip().splitlines()
    assert "PartitionCount: 3\tReplicationFactor: 1\t" in head
    assert "max.message.bytes=64000" in head
    assert [line.split("\t")[2:6] for line in partitions] == [
        [f"Partition: {index}", "Leader: 1", "Replicas: 1", "Isr: 1"] for index in range(3)
    ]
    again = tools.refusal("TopicCommand", "--create", "--topic", topic)
    assert f"Topic '{topic}' already exists." in again
    fewer = tools.refusal("TopicCommand", "--alter", "--topic", topic, "--partitions", "1")
    assert "The topic" in fewer
    assert "would not be an increase." in fewer
    tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools.run("TopicCommand", "--list").split()


def test_configs(tools: Tools, fresh_topic: Callable[[str], str]) -> None:
    """ConfigCommand sets, describes and removes a topic's keys and a cluster default, and reports a bad value."""
    topic = fresh_topic("tools-configs")
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    of_cluster = ("--entity-type", "brokers", "--entity-default")
    tools.create_topic(topic, 1, {"max.message.bytes": "64000"})
    values = "retention.ms=3600000,cleanup.policy=[compact,delete]"
    changes = ("--add-config", values, "--delete-config", "max.message.bytes")
    assert f"Completed updating config for topic {topic}." in tools.run(
        "kafka.admin.ConfigCommand", "--alter", *of_topic, *changes
    )
    told = tools.run("kafka.admin.ConfigCommand", "--describe", *of_topic)
    assert (
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy="
        "compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}" in told
    )
    assert "  retention.ms=3600000 sensitive=false" in told
    assert "max.message.bytes" not in told
    bad = tools.refusal(
        "kafka.admin.ConfigCommand", "--alter", *of_topic, "--add-config", "retention.ms=tomorrow"
    )
    assert "Invalid value tomorrow for configuration retention.ms: Not a number of type LONG" in bad
    tools.run("kafka.admin.ConfigCommand", "--alter", *of_cluster, "--add-config", "log.retention.ms=7200000")
    told = tools.run("kafka.admin.ConfigCommand", "--describe", *of_cluster)
    assert "log.retention.ms=7200000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:" in told
    tools.run("kafka.admin.ConfigCommand", "--alter", *of_cluster, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in tools.run("kafka.admin.ConfigCommand", "--describe", *of_cluster)


def test_records_and_disks(tools: Tools, fresh_topic: Callable[[str], str], tmp_path: Path) -> None:
    """ProducerPerformance, GetOffsetShell, DeleteRecordsCommand, LogDirsCommand and TransactionsCommand work on one
    topic."""
    topic = fresh_topic("tools-records")
    tools.create_topic(topic, 2)
    load = ("--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    assert "3000 records sent, " in tools.run("ProducerPerformance", *load)
    latest = offsets(tools, topic)
    assert set(latest) == {0, 1}
    assert sum(latest.values()) == 3000
    busy = max(latest, key=lambda index: latest[index])
    path = tmp_path / "delete.json"
    cut = {"topic": topic, "partition": busy, "offset": 5}
    path.write_text(json.dumps({"partitions": [cut], "version": 1}))
    told = tools.run("DeleteRecordsCommand", "--offset-json-file", path)
    assert f"partition: {topic}-{busy}\tlow_watermark: 5" in told
    assert offsets(tools, topic, time=-2) == {busy: 5, 1 - busy: 0}
    told = tools.run("LogDirsCommand", "--describe", "--topic-list", topic)
    (broker,) = json.loads(told.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
    assert set(sizes) == {f"{topic}-0", f"{topic}-1"}
    assert sum(sizes.values()) >= 3000 * 100
    assert directory["error"] is None
    told = tools.run("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", str(busy))
    head, line = told.strip().splitlines()
    assert head.split("\t")[3].strip() == "LastSequence"
    assert int(line.split("\t")[3]) == latest[busy] - 1


def test_groups(tools: Tools, fresh_topic: Callable[[str], str]) -> None:
    """The verifiable clients work, and ConsumerGroupCommand describes the group while a member lives and after
    it left."""
    topic = fresh_topic("tools-groups")
    group = f"of-{topic}"
    tools.create_topic(topic, 2)
    told = tools.run_alone("VerifiableProducer", "--topic", topic, "--max-messages", "100", "--acks", "-1")
    assert len(events(told, "producer_send_success")) == 100
    assert events(told, "tool_data")[0]["acked"] == 100
    ends = offsets(tools, topic)

    options = ("--topic", topic, "--group-id", group, "--reset-policy", "earliest")
    with tools.running("VerifiableConsumer", *options) as consumer:
        consumed, committed, assigned = 0, {}, []
        assert consumer.stdout is not None
        for line in consumer.stdout:
            event = json.loads(line) if line.startswith("{") else {"name": ""}
            if event["name"] == "partitions_assigned":
                assigned += event["partitions"]
            elif event["name"] == "records_consumed":
                consumed += event["count"]
            elif event["name"] == "offsets_committed":
                assert event["success"]
                committed |= {each["partition"]: each["offset"] for each in event["offsets"]}
            if consumed == 100 and committed == {index: end for index, end in ends.items() if end}:
                break
        assert sorted(each["partition"] for each in assigned) == [0, 1]
        (member,) = rows(
            tools.run("consumer.group.ConsumerGroupCommand", "--describe", "--group", group, "--members")
        )
        assert member["#PARTITIONS"] == "2"
        active = tools.run("consumer.group.ConsumerGroupCommand", "--delete", "--group", group)
        assert "GroupNotEmptyException: The group is not empty." in active, (
            "the tool's status is 0 all the same"
        )
    of_group = ("consumer.group.ConsumerGroupCommand", "--group", group)
    read = {int(row["PARTITION"]): row for row in rows(tools.run(*of_group, "--describe"))}
    assert {index: int(row["CURRENT-OFFSET"]) for index, row in read.items()} == committed
    assert {row["LAG"] for row in read.values()} == {"0"}
    moved = rows(tools.run(*of_group, "--reset-offsets", "--topic", topic, "--to-earliest", "--execute"))
    assert {row["NEW-OFFSET"] for row in moved} == {"0"}
    assert [group, "Empty"] in [
        line.split()
        for line in tools.run("consumer.group.ConsumerGroupCommand", "--list", "--state").splitlines()
    ]
    dropped = rows(tools.run(*of_group, "--delete-offsets", "--topic", topic))
    assert {row["STATUS"] for row in dropped} == {"Successful"}
    assert "was successful" in tools.run(*of_group, "--delete")
    assert "GroupIdNotFoundException" in tools.run(*of_group, "--describe"), "status 0 again"


def test_console(tools: Tools, fresh_topic: Callable[[str], str]) -> None:
    """ConsoleConsumer prints the keys and values of ConsoleProducer in order, with offsets, in a group of its own."""
    topic = fresh_topic("tools-console")
    typed = "".join(f"k{number % 3}:value {number}\n" for number in range(20))
    tools.create_topic(topic, 1)
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.run("ConsoleProducer", "--topic", topic, *keyed, stdin=typed)
    shown = ("print.key=true", "print.offset=true", "key.separator=:")
    told = tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "20"),
        *(word for each in shown for word in ("--formatter-property", each)),
    )
    expected = [f"Offset:{number}:{line}" for number, line in enumerate(typed.splitlines())]
    assert [line for line in told.splitlines() if line.startswith("Offset:")] == expected
    told = tools.run(
        "ConsumerPerformance", "--topic", topic, "--num-records", "20", "--reporting-interval", "1000"
    )
    assert [field.strip() for field in told.strip().splitlines()[-1].split(",")][4] == "20"


def test_transactions(tools: Tools, fresh_topic: Callable[[str], str]) -> None:
    """TransactionsCommand describes and aborts an open transaction (KIP-664). ConsoleConsumer reads committed
    records."""
    topic = fresh_topic("tools-transactions")
    tools.create_topic(topic, 1)
    name = ("--transactional-id", topic)
    with Producer(bootstrap_servers=tools.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, end in (
            (b"one", producer.commit_transaction),
            (b"two", producer.abort_transaction),
            (b"three", None),
        ):
            producer.begin_transaction()
            place = producer.send(topic, value, partition=0).result(SECONDS_MAX)
            if end is not None:
                end()
        row = tools.run("TransactionsCommand", "describe", *name).splitlines()[-1].split("\t")
        assert [field.strip() for field in (row[1], row[4], row[8])] == [topic, "Ongoing", f"{topic}-0"]
        start = ("--topic", topic, "--partition", "0", "--start-offset", str(place.offset))
        tools.run("TransactionsCommand", "abort", *start)
        with Consumer(bootstrap_servers=tools.bootstrap, isolation_level="read_committed") as consumer:
            (stable,) = consumer.end_offsets([(topic, 0)]).values()
        assert stable == place.offset + 2, "behind the marker that the tool wrote"
    with Producer(bootstrap_servers=tools.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"four", partition=0)
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "2")
    told = tools.run("consumer.ConsoleConsumer", *reading, "--isolation-level", "read_committed")
    assert told.split() == ["one", "four"]


def test_what_the_broker_says_of_itself(tools: Tools) -> None:
    """BrokerApiVersionsCommand of Kafka 4.3 finds a usable version of each API that we advertise."""
    told = tools.run("BrokerApiVersionsCommand")
    lines = {
        line.strip().partition("(")[0]: line.strip() for line in told.splitlines() if line.startswith("\t")
    }
    for name in (
        "Produce",
        "Fetch",
        "Metadata",
        "JoinGroup",
        "OffsetCommit",
        "DescribeConfigs",
        "DeleteRecords",
    ):
        assert "[usable: " in lines[name], lines[name]
    assert not any("[unusable" in line for line in lines.values())


def test_client_metrics(tools: Tools) -> None:
    """ClientMetricsCommand and ConfigCommand make, describe, list and remove a subscription (KIP-1000)."""
    tool = "ClientMetricsCommand"
    wanted = ("--metrics", "org.apache.kafka.consumer", "--interval", "60000", "--match", "client_id=none.*")
    tools.run(tool, "--alter", "--name", "slow-readers", *wanted)
    described = tools.run(tool, "--describe", "--name", "slow-readers")
    for line in ("interval.ms=60000", "match=client_id=none.*", "metrics=org.apache.kafka.consumer"):
        assert line in described
    assert "slow-readers" in tools.run(tool, "--list").split()
    of_it = ("--entity-type", "client-metrics", "--entity-name", "slow-readers")
    assert "interval.ms=60000" in tools.run("kafka.admin.ConfigCommand", "--describe", *of_it)
    assert "Illegal client matching pattern" in tools.refusal(
        tool, "--alter", "--name", "slow-readers", "--match", "shoe_size=44"
    )
    tools.run(tool, "--delete", "--name", "slow-readers")
    assert "slow-readers" not in tools.run(tool, "--list").split()


def test_quotas(tools: Tools) -> None:
    """ConfigCommand sets, lists and removes quotas of users, client ids, pairs of them, defaults and addresses."""
    tool = "kafka.admin.ConfigCommand"
    both = (
        "--entity-type",
        "users",
        "--entity-name",
        "ann",
        "--entity-type",
        "clients",
        "--entity-name",
        "app",
    )
    changed = tools.run(tool, "--alter", *both, "--add-config", "producer_byte_rate=1024")
    assert "Completed updating config for user ann." in changed
    of_addresses = ("--entity-type", "ips", "--entity-default")
    tools.run(tool, "--alter", *of_addresses, "--add-config", "connection_creation_rate=30000")
    with Client(tools.bootstrap) as client:
        others: list[QuotaEntity] = [
            (("client-id", None), ("user", None)),
            (("client-id", "app"), ("user", None)),
        ]
        ours = [QuotaAlteration(entity, {"consumer_byte_rate": 1e9}) for entity in others]
        assert set(client.admin.alter_client_quotas(ours).values()) == {None}
        # The tool may ask any broker. This single broker has replayed all changes.
        while not set(others) <= set(client.admin.describe_client_quotas()):
            continue
        told = tools.run(tool, "--describe", "--entity-type", "users", "--entity-type", "clients")
        for line in (
            "user-principal 'ann', client-id 'app' are producer_byte_rate=1024.0",
            "the default user-principal, the default client-id are consumer_byte_rate=1.0E9",
            "the default user-principal, client-id 'app' are consumer_byte_rate=1.0E9",
        ):
            assert f"Quota configs for {line}" in told, told
        assert client.admin.describe_client_quotas([QuotaMatch("ip")]) == {
            (("ip", None),): {"connection_creation_rate": 30_000.0}
        }
        tools.run(tool, "--alter", *both, "--delete-config", "producer_byte_rate")
        while (("client-id", "app"), ("user", "ann")) in client.admin.describe_client_quotas():
            continue
        gone = [QuotaAlteration(entity, {"consumer_byte_rate": None}) for entity in others]
        gone.append(QuotaAlteration((("ip", None),), {"connection_creation_rate": None}))
        assert set(client.admin.alter_client_quotas(gone).values()) == {None}
