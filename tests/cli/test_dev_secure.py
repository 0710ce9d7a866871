"""`odradek dev --secure`: a new user's way from no right to some, by the files that it writes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bench.processes import base_port
from tests.cli.running import Outcome, odradek
from tests.cli.test_dev import line, running

pytestmark = pytest.mark.xdist_group("cli")

PORTS = (0, 500, 1000, 1500)


def test_from_no_right_to_some(tmp_path: Path) -> None:
    """The client may do nothing until it is given a right, the administrator everything, also after a restart elsewhere."""
    data, port = tmp_path / "data", base_port(1, PORTS)
    dev = ("dev", "--secure", "--port", str(port), "--data", data)

    def by(user: str, *words: str, stdin: bytes = b"") -> Outcome:
        return odradek(*words, "--command-config", data / f"{user}.properties", stdin=stdin)

    with running(*dev) as node:
        assert line(node.stdout).startswith("node=1")
        assert line(node.stdout) == "ready"
        files = [data / f"{user}.properties" for user in ("admin", "client")]
        assert line(node.stdout) == f"--command-config takes {files[0]} or {files[1]}"
        for words, hint in (
            (("--bootstrap-server", f"127.0.0.1:{port}"), "if it is a listener with TLS, the client needs"),
            (
                ("--command-config", _without_login(files[1])),
                "if it is a listener with logins, the client needs",
            ),
        ):
            assert hint in odradek("topic", "list", *words, "--timeout", "3").refusal()
        secrets = [*data.glob("*.properties"), *(data / "security").iterdir()]
        assert {stat.S_IMODE(each.stat().st_mode) for each in secrets} == {0o600}
        assert by("admin", "topic", "create", "t").code == 0
        assert "TOPIC_AUTHORIZATION_FAILED" in by("client", "produce", "t", stdin=b"early\n").refusal()
        assert "CLUSTER_AUTHORIZATION_FAILED" in by("client", "cluster", "status").refusal()
        given = by("admin", "acl", "add", "--user", "client", "--operation", "write", "--topic", "t")
        assert given.code == 0, given.err
        assert by("client", "produce", "t", stdin=b"late\n").code == 0
    other = base_port(1, PORTS)
    with running("dev", "--secure", "--port", str(other), "--data", data) as node:
        assert line(node.stdout).startswith("node=1")
        assert line(node.stdout) == "ready"
        assert by("client", "produce", "t", stdin=b"later\n").code == 0
        read = by("admin", "consume", "t")
        assert read.out.split() == ["late", "later"]
        # The controllers' listener asks the administrator for a certificate, which the file names.
        events = by("admin", "cluster", "events")
        assert events.code == 0, events.err
        assert "t-0 is led again" in events.out
        log = (data / "node-1.log").read_text()
        assert (data / "security" / "client.password").read_text() not in log + events.out


def _without_login(path: Path) -> Path:
    """The same client keys, but with TLS alone."""
    kept = [each for each in path.read_text().splitlines() if not each.startswith(("sasl.", "security."))]
    other = path.with_name("tls.properties")
    other.write_text("\n".join([*kept, "security.protocol=SSL"]))
    other.chmod(0o600)
    return other
