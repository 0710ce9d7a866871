"""`odradek mirror` that follows its source, and between secured clusters."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.spark.pipelines.mirror import command
from testkit.processes import ServerProcess
from tests.node_process import RunningNode
from tests.security.secured_node import SecuredNode, secured
from tests.spark.mirror.test_mirror import (
    PARTITIONS,
    TIMEOUT_SECONDS,
    fill,
    records_of,
    rows_of,
    running_mirror,
    second_node,
)

__all__ = ["second_node", "secured"]


def test_follow(node: RunningNode, second_node: ServerProcess, fresh_topic: Callable[[str], str]) -> None:
    """With --follow the mirror copies new records until it is interrupted. The next run finds nothing to do."""
    topic = fresh_topic("followed")
    fill(node.bootstrap, topic)
    words = ["--topic", topic, "--name", topic, "--no-acls", "--transaction-seconds", "0.2"]
    with Admin(bootstrap_servers=second_node.bootstrap) as admin:
        # The watcher asks for end offsets from the beginning, so the topic must exist.
        [made] = admin.create_topics([NewTopic(topic, PARTITIONS)])
        assert made.error is None
    with running_mirror(node.bootstrap, second_node.bootstrap, topic, [*words, "--follow"]) as start:
        process, ends = start()

        def wait_for(records: int) -> None:
            while ends() < records:
                assert process.poll() is None
            # The transaction's marker may not be written yet.
            while len(records_of(second_node.bootstrap, topic)) < records:
                assert process.poll() is None

        wait_for(1050)
        for number in range(3):
            with Producer(bootstrap_servers=node.bootstrap) as producer:
                producer.send(topic, b"later %d" % number, partition=number).result()
            wait_for(1050 + number + 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
    both = ["--source", node.bootstrap, "--target", second_node.bootstrap]
    assert command.main([*both, *words]) == 0
    assert rows_of(records_of(second_node.bootstrap, topic)) == rows_of(records_of(node.bootstrap, topic))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_secured_cluster(
    side: str,
    node: RunningNode,
    secured: SecuredNode,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each side may require a login over TLS. A wrong password is reported in one sentence."""
    topic = fresh_topic("secured")
    config = tmp_path / "login.properties"

    def login(password: str) -> None:
        config.write_text(
            "security.protocol=SASL_SSL\n"
            "sasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="alice" password="{password}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={secured.authority}\n"
            "odradek.controller.security.protocol=SSL\n"
        )

    source, target = (
        (secured.plaintext, node.bootstrap) if side == "source" else (node.bootstrap, secured.plaintext)
    )
    fill(source, topic)
    addresses = {"source": node.bootstrap, "target": node.bootstrap, side: secured.sasl_tls}
    words = [
        "--source",
        addresses["source"],
        "--target",
        addresses["target"],
        f"--{side}-config",
        str(config),
    ]
    words += ["--topic", topic, "--name", topic, "--no-acls"]
    login("mistyped")
    assert command.main(words) == 1
    [sentence] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mirror: ")]
    assert "authentication" in sentence.lower()
    assert "mistyped" not in sentence
    login("alice-secret")
    assert command.main(words) == 0
    assert rows_of(records_of(target, topic)) == rows_of(records_of(source, topic))
