"""The audit log of a running node with real clients: logins, denials, and changes of the metadata."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.wire.messages.metadata import MetadataRequest
from testkit.odradek_server import ODRADEK
from testkit.processes import free_ports
from testkit.raw_requests import RawClient
from tests.security.secured_node import make_certificates, start
from tests.security.secured_node import properties as listeners

SUPER = "User:admin;User:ANONYMOUS"


class AuditedNode:
    """A node with an authorizer and an audit log."""

    def __init__(self, directory: Path, ports: list[int], metrics_port: int) -> None:
        self.directory = directory
        self.plaintext, _, self.sasl, self.renewing, self.tls, self.sasl_tls = (
            f"127.0.0.1:{port}" for port in ports
        )
        self.metrics_port = metrics_port

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines so far."""
        paths = (self.directory / "data" / name for name in ("audit.log", "audit-refusals.log"))
        return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]

    def wait_line(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a line that is wanted, and return it."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for line in self.lines():
                if is_wanted(line):
                    return line
            time.sleep(0.05)
        raise AssertionError(f"the wanted line was not written within 30 s: {self.lines()}")

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            return str(page.read().decode())


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedNode]:
    """The node, which all tests of this file share."""
    directory = tmp_path_factory.mktemp("audited")
    *ports, metrics_port = free_ports(7)
    make_certificates(directory)
    settings = {
        **listeners(directory, ports),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": SUPER,
        "odradek.metrics.listener": f"127.0.0.1:{metrics_port}",
    }
    server = start(directory, settings, ["SCRAM-SHA-256=[name=alice,password=alice-secret]"])
    try:
        yield AuditedNode(directory, ports, metrics_port)
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def alice(address: str, password: str = "alice-secret", **keys: str) -> AdminClient:
    """Make a client that logs in as alice."""
    return AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": password,
            **keys,
        }
    )


def odradek(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the `odradek` command."""
    return subprocess.run([ODRADEK, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_a_login_is_told_with_its_mechanism_and_certificate(audited: AuditedNode) -> None:
    """A login's line has principal, address, listener and mechanism, and the name in the client's certificate."""
    alice(audited.sasl).list_topics(timeout=10)
    line = audited.wait_line(lambda line: line["event"] == "login" and line["listener"] == "SASL")
    assert (line["principal"], line["address"], line["mechanism"]) == (
        "User:alice",
        "127.0.0.1",
        "SCRAM-SHA-256",
    )
    assert (line["tls_subject"], line["renewal"]) == (None, False)
    dora = AdminClient(
        {
            "bootstrap.servers": audited.tls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(audited.directory / "authority.pem"),
            "ssl.certificate.location": str(audited.directory / "dora.pem"),
            "ssl.key.location": str(audited.directory / "dora.pem"),
        }
    )
    dora.list_topics(timeout=10)
    line = audited.wait_line(lambda line: line["event"] == "login" and line["listener"] == "TLS")
    assert line["mechanism"] == "TLS"
    assert line["principal"] == f"User:{line['tls_subject']}"
    assert "CN=dora" in line["tls_subject"]


def test_a_failed_login_names_who_was_claimed_and_no_password(audited: AuditedNode) -> None:
    """A failed login's line has the claimed name and the node's reason, and never the password."""
    with pytest.raises(KafkaException):
        alice(audited.sasl, "a-wrong-password-7391").list_topics(timeout=2)
    line = audited.wait_line(lambda line: line["event"] == "login.failed")
    assert (line["claimed"], line["listener"], line["mechanism"]) == ("alice", "SASL", "SCRAM-SHA-256")
    assert line["reason"]
    assert "7391" not in json.dumps(audited.lines())


def test_a_stranger_who_is_no_kafka_client_is_told(audited: AuditedNode) -> None:
    """A client sends bytes that are not TLS, or a request before its login. Both are failed logins, with the reason."""
    with RawClient(audited.tls) as raw, pytest.raises(ConnectionError):
        raw.request(MetadataRequest(None), 9)
    line = audited.wait_line(
        lambda line: (
            line["event"] == "login.failed" and line["reason"].startswith("the TLS handshake failed: ")
        )
    )
    assert (line["claimed"], line["mechanism"], line["listener"]) == (None, "TLS", "TLS")
    with RawClient(audited.sasl) as raw, pytest.raises(ConnectionError):
        raw.request(MetadataRequest(None), 9)
    line = audited.wait_line(
        lambda line: line["event"] == "login.failed" and "before its login" in line["reason"]
    )
    assert (line["claimed"], line["mechanism"], line["listener"]) == (None, None, "SASL")


def test_a_renewed_login_is_told(audited: AuditedNode) -> None:
    """Each renewal of a login has a line (KIP-368)."""
    client = alice(audited.renewing)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any(
        line["event"] == "login" and line["renewal"] for line in audited.lines()
    ):
        client.list_topics(timeout=10)
        time.sleep(0.2)
    line = audited.wait_line(lambda line: line["event"] == "login" and line["renewal"])
    assert (line["principal"], line["listener"]) == ("User:alice", "RENEWING")


def test_a_denial_names_the_right_and_the_rule(audited: AuditedNode) -> None:
    """A denial's line has API, operation, resource and reason, whether a broker or a controller refused.

    Equal denials are counted in one line.
    """
    root = AdminClient({"bootstrap.servers": audited.plaintext})
    root.create_topics([NewTopic("private", 1)])["private"].result()
    client = alice(audited.sasl)
    with pytest.raises(KafkaException):
        client.create_topics([NewTopic("mine", 1)])["mine"].result()
    line = audited.wait_line(lambda line: line["event"] == "denied" and line["api"] == "CreateTopics")
    assert {key: line[key] for key in ("principal", "address", "operation", "resource_type", "resource")} == {
        "principal": "User:alice",
        "address": "127.0.0.1",
        "operation": "CREATE",
        "resource_type": "TOPIC",
        "resource": "mine",
    }
    assert line["reason"] == "no rule"
    client.list_topics("private", timeout=10)
    line = audited.wait_line(lambda line: line["event"] == "denied" and line["api"] == "Metadata")
    assert (line["listener"], line["operation"], line["resource"]) == ("SASL", "DESCRIBE", "private")
    done = odradek(
        *("acl", "add", "--deny", "--user", "alice", "--operation", "describe", "--topic", "private"),
        *("--bootstrap-server", audited.plaintext),
    )
    assert done.returncode == 0, done.stderr
    client.list_topics("private", timeout=10)
    line = audited.wait_line(lambda line: line["event"] == "denied" and "DENY" in line["reason"])
    assert line["reason"] == "rule: DENY User:alice from host *: DESCRIBE on TOPIC 'private'"


def test_lists_deny_nothing(audited: AuditedNode) -> None:
    """A list that hides topics is no denial, as in Kafka. Neither is a missing right, if another right suffices."""
    client = alice(audited.sasl)
    client.list_topics(timeout=10)
    client.list_consumer_groups().result()
    for api in ("ListGroups", "ApiVersions"):
        assert not [line for line in audited.lines() if line.get("api") == api]
    named = {line["resource"] for line in audited.lines() if line.get("api") == "Metadata"}
    assert named <= {"private", "mine", "hidden"}


def test_metrics_count_logins_and_denials(audited: AuditedNode) -> None:
    """Metrics count logins by listener and mechanism, and denials by API."""
    client = alice(audited.sasl)
    client.list_topics("hidden", timeout=10)
    with pytest.raises(KafkaException):
        alice(audited.sasl, "a-wrong-password-7391").list_topics(timeout=2)
    page = audited.metrics()
    assert 'odradek_logins_total{listener="SASL",mechanism="SCRAM-SHA-256"}' in page
    assert 'odradek_logins_failed_total{listener="SASL",mechanism="SCRAM-SHA-256"}' in page
    assert 'odradek_denials_total{api="Metadata"}' in page
    assert "odradek_audit_lines_missing_total 0" in page


def test_events_tell_who_asked(audited: AuditedNode) -> None:
    """`cluster events --by` finds a user's changes by the offsets in the audit log."""
    rights = (
        "acl",
        "add",
        "--user",
        "alice",
        "--operation",
        "create",
        "--topic",
        "alices",
        "--bootstrap-server",
    )
    assert odradek(*rights, audited.plaintext).returncode == 0
    client = alice(audited.sasl, **{"client.id": "laptop"})
    client.create_topics([NewTopic("alices", 2)])["alices"].result()
    audited.wait_line(lambda line: line["event"] == "metadata.changed" and line["principal"] == "User:alice")
    audit = ("--audit", audited.directory / "data", "--bootstrap-server", audited.plaintext)
    done = odradek("cluster", "events", "--by", "alice", "--all", "--json", *audit)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["subject"], each["text"]) for each in events] == [
        ("topic alices", "was created"),
        ("topic alices", "has 2 new partitions with 1 replica"),
    ]
    assert {(each["principal"], each["api"], each["client_id"]) for each in events} == {
        ("User:alice", "CreateTopics", "laptop")
    }
    done = odradek("cluster", "events", "--all", *audit)
    assert (
        "principal User:alice now may CREATE on topic alices [User:ANONYMOUS at 127.0.0.1, CreateAcls]"
        in (done.stdout)
    )
    assert "user alice has a password for SCRAM-SHA-256 [node 1, Activate]" in done.stdout
    assert "the events do not say who caused" not in done.stderr


def test_events_say_what_nobody_can_know(audited: AuditedNode, tmp_path: Path) -> None:
    """The audit log lacks lines, or another controller wrote it. `cluster events` says so, and names no author."""
    lines = (audited.directory / "data" / "audit.log").read_text().splitlines()
    later = [line for line in lines if '"Activate"' not in line]
    (tmp_path / "audit.log").write_text("\n".join([*later, '{"event": "metadata.changed", "epo']) + "\n")
    done = odradek(
        *("cluster", "events", "--all", "--audit", tmp_path, "--bootstrap-server", audited.plaintext),
    )
    assert "were rotated away or never written" in done.stderr
    assert "1 lines of the audit logs are damaged" in done.stderr
    (tmp_path / "audit.log").write_text('{"event": "lines.missing", "count": 7}\n')
    done = odradek("cluster", "events", "--all", "--audit", tmp_path, "--bootstrap-server", audited.plaintext)
    assert "the given files have no line of controller 1" in done.stderr
    assert "7 lines, which the node counted" in done.stderr
    done = odradek("cluster", "events", "--by", "alice", "--bootstrap-server", audited.plaintext)
    assert done.returncode == 1
    assert "--by needs --audit" in done.stderr
