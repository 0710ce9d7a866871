"""`odradek dev --secure`: the files that it writes let an administrator grant rights to a new client."""

from __future__ import annotations

import json
import stat
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.processes import base_port
from tests.cli.nodes.test_dev import line, running
from tests.cli.running import Outcome, odradek_here
from tests.console.application.console_here import Browser

pytestmark = pytest.mark.xdist_group("cli")

PORTS = (0, 500, 552, 1000, 1500)


def test_from_no_right_to_some(tmp_path: Path) -> None:
    """The client may write only after a grant, and the administrator may do everything. Both still hold after a
    restart."""
    data, port = tmp_path / "data", base_port(1, PORTS)
    dev = ("dev", "--secure", "--port", str(port), "--data", data)

    def by(user: str, *words: str, stdin: bytes = b"") -> Outcome:
        return odradek_here(*words, "--command-config", data / f"{user}.properties", stdin=stdin)

    with running(*dev) as node:
        assert line(node.stdout).startswith("node=1")
        assert line(node.stdout) == "ready"
        files = [data / f"{user}.properties" for user in ("admin", "client")]
        assert line(node.stdout) == f"for clients, --command-config may be {files[0]} or {files[1]}"
        link = f"http://127.0.0.1:{port + 552}/"
        where = f"(users admin and client; the passwords are in {data / 'security'})"
        assert line(node.stdout) == f"look at the cluster in a browser: {link} {where}"
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 552}/api/session") as answer:
            assert json.load(answer)["mechanisms"] == ["SCRAM-SHA-512"]
        _check_hints(data, port)
        secrets = [*data.glob("*.properties"), *(data / "security").iterdir()]
        assert {stat.S_IMODE(each.stat().st_mode) for each in secrets} == {0o600}
        assert by("admin", "topic", "create", "t").code == 0
        assert "TOPIC_AUTHORIZATION_FAILED" in by("client", "produce", "t", stdin=b"early\n").refusal()
        assert "CLUSTER_AUTHORIZATION_FAILED" in by("client", "cluster", "status").refusal()
        given = by("admin", "acl", "add", "--user", "client", "--operation", "write", "--topic", "t")
        assert given.code == 0, given.err
        assert by("client", "produce", "t", stdin=b"late\n").code == 0
        _check_history(data, port + 552)
        given = by("admin", "acl", "add", "--user", "client", "--operation", "describe", "--cluster")
        assert given.code == 0, given.err
        _check_hidden_troubles(by)
    other = base_port(1, PORTS)
    with running("dev", "--secure", "--port", str(other), "--data", data) as node:
        assert line(node.stdout).startswith("node=1")
        assert line(node.stdout) == "ready"
        assert by("client", "produce", "t", stdin=b"later\n").code == 0
        read = by("admin", "consume", "t")
        assert read.out.split() == ["late", "later"]
        # The listener of the controllers demands a client certificate; the administrator's file names it.
        events = by("admin", "cluster", "events")
        assert events.code == 0, events.err
        assert "t-0 is led again" in events.out
        log = (data / "node-1.log").read_text()
        assert (data / "security" / "client.password").read_text() not in log + events.out


def _check_hidden_troubles(by: Callable[..., Outcome]) -> None:
    """Check that a user who may see disks, and not their troubles, is not shown sound ones."""
    listed = by("client", "disk", "list")
    assert listed.code != 0
    assert "the troubles of the disks of broker 1 were not seen" in listed.out
    assert "DESCRIBE_CONFIGS" in listed.err or "CLUSTER_AUTHORIZATION_FAILED" in listed.err, listed.err
    (broker,) = by("client", "disk", "list", "--json").json(1)["brokers"]
    assert broker["troubles_unknown"]
    assert by("client", "disk", "list", "--topics").code == 0
    (broker,) = by("admin", "disk", "list", "--json").json()["brokers"]
    assert broker["troubles_unknown"] is None


def _check_history(data: Path, port: int) -> None:
    """Check that the console shows the administrator the history with names, and the client none of it."""
    for user, status in (("admin", 200), ("client", 403)):
        browser = Browser(port)
        password = (data / "security" / f"{user}.password").read_text()
        assert browser.log_in(user=user, password=password) == (200, {})
        found, document = browser.get("/api/history")
        assert found == status, document
        assert isinstance(document, dict)
        if status == 200:
            who = {row["what"]: row["who"] for row in document["rows"]}
            assert "User:admin" in {
                name for what, name in who.items() if "topic t" in what and "created" in what
            }, who
            assert None not in [row["who"] for row in document["rows"] if row["kind"] == "acl"]
            events = browser.ok("/api/overview")["events"]
            assert [each["who"] for each in events][:1] == ["User:admin"], events


def _check_hints(data: Path, port: int) -> None:
    """Check the hint for a client that lacks TLS, a login, or the certificate for the controllers' listener."""
    cases = (
        (("topic", "list", "--bootstrap-server", f"127.0.0.1:{port}"), "if the listener speaks TLS"),
        (
            ("topic", "list", "--command-config", _keys_without(data, "client", "tls", "sasl.", "security.")),
            "if the listener requires a login",
        ),
        (
            (
                "cluster",
                "events",
                "--command-config",
                _keys_without(data, "admin", "bare", "odradek.controller.ssl"),
            ),
            "This listener accepts clients by certificate",
        ),
    )
    for words, hint in cases:
        assert hint in odradek_here(*words, "--timeout", "3").refusal()


def _keys_without(data: Path, user: str, name: str, *prefixes: str) -> Path:
    """Write a copy of the user's client properties without the keys that begin with `prefixes`. The copy uses TLS."""
    kept = [
        each
        for each in (data / f"{user}.properties").read_text().splitlines()
        if not each.startswith(prefixes)
    ]
    if "security." in prefixes:
        kept.append("security.protocol=SSL")
    other = data / f"{name}.properties"
    other.write_text("\n".join(kept))
    other.chmod(0o600)
    return other
