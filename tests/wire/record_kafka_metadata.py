"""Let Apache Kafka 4.3 write a metadata log, snapshots and coordinator logs, and keep them in `tests/wire/data`.

    python -m tests.wire.record_kafka_metadata [--jars DIRECTORY]

This needs Java. Kafka's jars are fetched by mvn, unless a directory with them is given. The node has a dynamic quorum
(voters in the log), topics, configurations, quotas, users, ACLs, transactions and groups. It is killed once in between,
so it registers twice. Logs are truncated after the last batch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from odradek.wire.batches.batch_header import iter_batches
from testkit.kafka_server import CLUSTER_ID, java_arguments, run_tool, start_kafka
from testkit.processes import ServerProcess, free_ports

DATA = Path(__file__).parent / "data"
BYTES_MAX = 100 * 1024
HEAP = ("-Xmx512m", "-XX:+UseSerialGC")


def format_dynamic_quorum(directory: Path, settings: dict[str, str]) -> None:
    """Format the node's directory as the first voter of a dynamic quorum."""
    directory.mkdir()
    properties = directory / "format.properties"
    lines = {
        **settings,
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": f"{directory}/data",
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    subprocess.run(
        [
            *java_arguments(),
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "-t",
            CLUSTER_ID,
            "-c",
            properties,
        ],
        check=True,
    )


def change_cluster(bootstrap: str) -> None:
    """Make metadata records of many types."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("events", 3, 1, config={"retention.ms": "60000", "cleanup.policy": "compact"}),
        NewTopic("placed", replica_assignment=[[1], [1]], num_partitions=2),
        NewTopic("doomed", 1, 1),
    ]
    wait(admin.create_topics(topics))
    wait(admin.create_partitions([NewPartitions("events", 5)]))
    wait(admin.delete_topics(["doomed"]))
    for type_, name, key, value in (
        (ConfigResource.Type.TOPIC, "events", "min.insync.replicas", "1"),
        (ConfigResource.Type.BROKER, "1", "log.cleaner.threads", "2"),
    ):
        for operation in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
            entry = ConfigEntry(key, value, incremental_operation=operation)
            resource = ConfigResource(type_, name, incremental_configs=[entry])
            wait(admin.incremental_alter_configs([resource]))
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    users = [UserScramCredentialUpsertion(name, scram, b"secret") for name in ("alice", "bob")]
    wait(admin.alter_user_scram_credentials(users))
    wait(admin.alter_user_scram_credentials([UserScramCredentialDeletion("bob", scram.mechanism)]))
    rules = [
        (ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.READ)
        for name in ("ev", "old")
    ]
    wait(admin.create_acls([AclBinding(*rule, AclPermissionType.ALLOW) for rule in rules]))
    wait(admin.delete_acls([AclBindingFilter(*rules[1], AclPermissionType.ALLOW)]))
    limits = "producer_byte_rate=1024,request_percentage=12.5"
    for change in (("--add-config", limits), ("--delete-config", "request_percentage")):
        entity = (
            "--entity-type",
            "users",
            "--entity-name",
            "alice",
            "--entity-type",
            "clients",
            "--entity-default",
        )
        run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--alter", *entity, *change)


def wait(futures: dict[object, object]) -> None:
    """Wait for every outcome of an admin call."""
    for future in futures.values():
        future.result()  # type: ignore[attr-defined]  # confluent_kafka has no types


def use_groups_and_transactions(bootstrap: str) -> None:
    """Make coordinator records: an aborted and a committed transaction, a classic and a consumer group."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "recorder"})
    producer.init_transactions()
    for finish in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("placed", b"value", key=b"key", partition=0)
        producer.flush()
        finish()
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"group-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe(["placed"])
        message = consumer.poll(30.0)
        if message is None or message.error():
            raise SystemExit(f"the {protocol} group read nothing: {message and message.error()}")
        consumer.commit(
            offsets=[TopicPartition("placed", 0, message.offset() + 1, "note")], asynchronous=False
        )
        consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wait(admin.delete_consumer_groups(["group-classic"]))
    run_tool(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *(
            "--bootstrap-server",
            bootstrap,
            "--topic",
            "placed",
            "--group",
            "group-share",
            "--timeout-ms",
            "5000",
        ),
    )


def keep(source: Path, name: str) -> None:
    """Copy a log or snapshot into `DATA`, up to the end of its last batch."""
    data = source.read_bytes()
    end = max((offset + header.size for offset, header in iter_batches(data)), default=0)
    (DATA / name).write_bytes(data[:end])
    print(f"{name}: {end} bytes of {source.name}")


def record(directory: Path) -> None:
    """Run the node twice in `directory`, and keep its logs and snapshots."""
    (controller_port,) = free_ports(1)
    settings = {
        "controller.quorum.voters": "",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "metadata.max.idle.interval.ms": "5000",
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    (port,) = free_ports(1)
    settings["listeners"] = settings["listeners"].replace(":0,", f":{port},")
    node = directory / "node"
    format_dynamic_quorum(node, settings)

    def start() -> ServerProcess:
        return start_kafka(node, port=port, settings=settings, heap=HEAP)

    server = start()
    try:
        change_cluster(server.bootstrap)
        server.kill()
        server = start()
        use_groups_and_transactions(server.bootstrap)
    finally:
        server.stop()
    logs = node / "data"
    quorum = logs / "__cluster_metadata-0"
    DATA.mkdir(exist_ok=True)
    keep(max(quorum.glob("*.log")), "cluster_metadata.log")
    keep(quorum / "00000000000000000000-0000000000.checkpoint", "0-0.checkpoint")
    keep(logs / "bootstrap.checkpoint", "bootstrap.checkpoint")
    keep(max(quorum.glob("*-*.checkpoint")), "snapshot.checkpoint")
    for topic in ("__consumer_offsets", "__transaction_state"):
        keep(max((logs / f"{topic}-0").glob("*.log")), f"{topic.strip('_')}.log")
    shutil.copy(quorum / "quorum-state", DATA / "quorum-state")


def main() -> int:
    """Record all files; the exit status is 1 if they are larger than `BYTES_MAX`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--jars", type=Path, help="directory with Kafka's jars (default: fetch them with mvn)"
    )
    options = parser.parse_args()
    if options.jars is not None:
        os.environ["ODRADEK_KAFKA_JARS"] = str(options.jars)
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as name:
        record(Path(name))
    size = sum(path.stat().st_size for path in DATA.iterdir())
    print(f"{size} bytes together")
    return 0 if size <= BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
