"""The audit log is on a real disk that is full, hangs, or fails. The node serves, and missing lines are counted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import attrs
import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from testkit.processes import ServerProcess, free_ports
from testkit.raw_requests import RawClient
from tests.cli.running import odradek
from tests.cluster.disks.real_disks import RealDisk, real_disk
from tests.security.logins.issuer import Issuer
from tests.security.secured_node import make_certificates, properties, start

LOGINS = 60
WAIT_SECONDS = 60


@attrs.frozen
class Audited:
    """A node whose audit log is on its own disk."""

    disk: RealDisk
    server: ServerProcess
    sasl: str
    plaintext: str
    metrics: str

    def fail_logins(self, prefix: str) -> None:
        """Fail a number of logins with different names. Each is answered."""
        for number in range(LOGINS):
            assert (
                self._log_in(f"{prefix}-{number}-{'x' * 200}", "wrong")
                == ErrorCode.SASL_AUTHENTICATION_FAILED
            )

    def log_in(self) -> None:
        assert self._log_in("carol", "carol-secret") == ErrorCode.NONE

    def _log_in(self, user: str, password: str) -> int:
        with RawClient(self.sasl) as client:
            assert client.request(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
            answer = client.request(SaslAuthenticateRequest(f"\0{user}\0{password}".encode()), 2)
        code: int = answer.error_code
        return code

    def told(self, prefix: str) -> int:
        """Return the number of failed logins with this prefix in the file."""
        return sum(
            line.get("count", 1) for line in self.lines() if (line.get("claimed") or "").startswith(prefix)
        )

    def told_missing(self) -> int:
        """Return the number of missing lines that the file reports."""
        return sum(line["count"] for line in self.lines() if line["event"] == "lines.missing")

    def lines(self) -> list[dict[str, str | int]]:
        paths = sorted((self.disk.path / "audit").glob("audit*.log"))
        # The last line may be incomplete yet.
        return [json.loads(line) for path in paths for line in path.read_bytes().split(b"\n")[:-1]]

    def missing(self) -> int:
        """Return the number of missing lines that the metric reports."""
        with urlopen(self.metrics) as page:
            found = re.search(
                r"^odradek_audit_lines_missing_total(?:\{.*\})? (\d+)", page.read().decode(), re.M
            )
        assert found
        return int(found[1])

    def knows(self, prefix: str, count: int) -> bool:
        """True if the file and the metric together have exactly this number of failed logins."""
        return self.told(prefix) + self.missing() == count

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, (self.missing(), self.server.log_tail())
            time.sleep(0.1)


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    with real_disk(tmp_path / "disk", "ext4") as disk:
        *ports, metrics = free_ports(7)
        make_certificates(tmp_path)
        (tmp_path / "jwks.json").write_bytes(Issuer().document())
        settings = {
            **properties(tmp_path, ports),
            "odradek.audit.directory": str(disk.path / "audit"),
            "odradek.metrics.listener": f"127.0.0.1:{metrics}",
        }
        server = start(tmp_path, settings, [])
        try:
            address = "127.0.0.1:{}".format
            yield Audited(
                disk, server, address(ports[2]), address(ports[0]), f"http://127.0.0.1:{metrics}/metrics"
            )
            assert server.is_running(), server.log_tail()
        finally:
            server.stop()


def test_no_line_is_missing_silently(audited: Audited) -> None:
    """The disk hangs, is full, and fails.

    Each login is in the file or counted as missing, and the node serves all the time.
    """
    audited.log_in()
    audited.wait(lambda: bool(audited.lines()))

    audited.disk.freeze()
    try:
        audited.fail_logins("hung")
        assert odradek("topic", "create", "hung", bootstrap=audited.plaintext).code == 0
    finally:
        audited.disk.thaw()
    audited.wait(lambda: audited.told("hung") == LOGINS)
    assert audited.missing() == 0

    audited.disk.fill()
    # A full disk may have some blocks that are reserved for this file.
    tried = 0
    while not audited.missing():
        assert tried < 100 * LOGINS
        audited.fail_logins("full")
        tried += LOGINS
        audited.wait(partial(audited.knows, "full", tried))
    audited.wait(lambda: "event=audit.not_written" in audited.server.log_path.read_text())
    assert odradek("topic", "create", "full", bootstrap=audited.plaintext).code == 0
    audited.disk.empty()
    audited.fail_logins("room")
    audited.wait(lambda: audited.told("room") == LOGINS)
    audited.wait(lambda: audited.told_missing() == audited.missing())

    audited.disk.kill()
    before = audited.missing()
    audited.fail_logins("dead")
    audited.wait(lambda: audited.missing() == before + LOGINS)
    audited.log_in()
    assert odradek("topic", "create", "dead", bootstrap=audited.plaintext).code == 0
