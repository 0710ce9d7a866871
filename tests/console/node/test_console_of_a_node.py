"""The console of a node: its process comes with the first browser, and goes with the last one and with the node."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import attrs
import pytest

from odradek.node.configuration.node_config import ConfigError, NodeConfig
from testkit.odradek_server import launch_odradek, prepare_odradek
from testkit.processes import ServerProcess, combined_node_properties, free_ports
from tests.security.secured_node import SCRAM_USERS, make_certificates, properties, start

SECONDS = 30.0


@attrs.frozen
class Place:
    """A node with a console."""

    server: ServerProcess
    port: int

    def consoles(self) -> list[int]:
        """Return the ids of the console's processes."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, IndexError):
                    continue
                if parent == self.server.pid and b"odradek.console" in words:
                    found.append(int(path.name))
        return found

    def get(self, target: str) -> tuple[int, object]:
        """Ask the console; return status and document."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as connection:
            connection.request("GET", target)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def get_patiently(self, target: str) -> tuple[int, object]:
        """Ask until the console answers, since it turns connections away for a moment after a crash."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return self.get(target)
            except (OSError, HTTPException):
                assert time.monotonic() < deadline
                time.sleep(0.1)


def wait_for(rule: Callable[[], bool]) -> None:
    """Wait until the rule holds."""
    deadline = time.monotonic() + SECONDS
    while not rule():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """True if a process runs. A process that waits for its parent to reap it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (port,) = free_ports(1)
    settings = {"odradek.console.listener": f"127.0.0.1:{port}", "odradek.console.idle.ms": "1500"}
    server = launch_odradek(prepare_odradek(tmp_path, settings=settings))
    try:
        yield Place(server, port)
    finally:
        server.stop()


def test_nobody_looks_and_nothing_runs(place: Place) -> None:
    """No process runs until a browser connects. When all have gone, it ends, and the next one starts another."""
    assert place.consoles() == []
    status, overview = place.get("/api/overview")
    assert isinstance(overview, dict)
    assert (status, overview["judgement"]) == (200, "ok")
    first = place.consoles()
    assert len(first) == 1
    # When memory is used up, the kernel ends the console rather than the node.
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (first[0], place.server.pid)]
    assert scores[0] > scores[1]
    assert place.get("/api/session")[0] == 200
    assert place.consoles() == first
    wait_for(lambda: not is_alive(first[0]))
    assert place.get("/api/session")[0] == 200
    assert place.consoles() != first


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_console_ends_with_its_node(place: Place, number: int) -> None:
    """However the node ends, its console ends at once, even while a page listens."""
    with socket.create_connection(("127.0.0.1", place.port), SECONDS) as connection:
        connection.sendall(b"GET /api/events?view=overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        (console,) = place.consoles()
        os.kill(place.server.pid, number)
        wait_for(lambda: not is_alive(console))


def test_a_console_that_dies_is_replaced(place: Place) -> None:
    """After a crash of the console, the node goes on, and the next browser gets another console."""
    assert place.get("/api/session")[0] == 200
    (console,) = place.consoles()
    os.kill(console, signal.SIGKILL)
    wait_for(lambda: not is_alive(console))
    assert place.get_patiently("/api/session")[0] == 200
    assert place.consoles() != [console]
    assert place.server.is_running()


def test_the_settings_are_no_words_of_the_command(place: Place) -> None:
    """Settings, which may be secret, stay out of the list of processes; the node's files stay with the node."""
    assert place.get("/api/session")[0] == 200
    (console,) = place.consoles()
    words = Path(f"/proc/{console}/cmdline").read_bytes().decode().split("\0")
    assert all(word.startswith(("--socket=", "--settings=", "--in-node")) for word in words[4:] if word)
    targets = [os.readlink(each) for each in Path(f"/proc/{console}/fd").iterdir() if each.is_symlink()]
    assert not any(
        ".lock" in each or (".log" in Path(each).suffix and "server.log" not in each) for each in targets
    )


def test_a_console_on_every_interface_has_tls_and_logins(tmp_path: Path) -> None:
    """With a certificate and logins, a node opens its console to other machines; the cookie is only for TLS."""
    *ports, port = free_ports(7)
    make_certificates(tmp_path)
    settings = {
        **properties(tmp_path, ports),
        "inter.broker.listener.name": "PLAINTEXT",
        "odradek.console.listener": f":{port}",
        "odradek.console.security.protocol": "SSL",
        "odradek.console.hosts": "console.example, other.example",
    }
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    users = [f'SCRAM-SHA-512=[name="{name}",password="{word}"]' for name, word in SCRAM_USERS.items()]
    server = start(tmp_path, settings, users)
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))

        def ask(
            method: str, target: str, host: str, cookie: str = "", body: str | None = None
        ) -> tuple[int, str, str]:
            connection = HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
            with closing(connection):
                headers = {"Host": host, "Cookie": cookie, "Content-Type": "application/json"}
                if method == "POST":
                    headers["Origin"] = f"https://{host}"
                connection.request(method, target, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheader("set-cookie") or "", answer.read().decode()

        for host in ("console.example", "other.example:9644", "10.1.2.3", "127.0.0.1"):
            assert ask("GET", "/api/session", host)[0] == 200
        assert ask("GET", "/api/session", "evil.example")[0] == 421
        login = json.dumps({"user": "alice", "password": "alice-secret"})
        status, set_cookie, text = ask("POST", "/api/login", "console.example", body=login)
        assert status == 200, text
        assert "; Secure" in set_cookie
        cookie = set_cookie.partition(";")[0]
        status, _, text = ask("GET", "/api/session", "console.example", cookie)
        assert json.loads(text)["user"] == "alice"
        connection = HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
        with closing(connection):
            # Reading and sending go on at the same time over one TLS connection.
            connection.request(
                "GET", "/api/events?view=session", headers={"Host": "console.example", "Cookie": cookie}
            )
            lines = connection.getresponse()
            events = [line for line in (lines.readline() for _ in range(8)) if line.startswith(b"event:")]
            assert events == [b"event: session\n"] * 2
        with socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"odradek.console.listener": "9644"}, "host:port"),
        ({"odradek.console.listener": "127.0.0.1:99999"}, "host:port"),
        ({"odradek.console.listener": ":9644"}, "without encryption"),
        ({"odradek.console.listener": "10.0.0.1:9644"}, "without encryption"),
        (
            {"odradek.console.listener": ":9644", "odradek.console.security.protocol": "SSL"},
            "needs a certificate",
        ),
        (
            {
                "odradek.console.listener": ":9644",
                "odradek.console.security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "node.pem",
            },
            "ask for no login",
        ),
    ],
)
def test_a_console_that_would_be_open_to_everybody_is_refused(
    tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    """A node does not start with a console that strangers could read."""
    with pytest.raises(ConfigError, match=sentence):
        NodeConfig.from_properties({**combined_node_properties(tmp_path, 1, 2), **changes})
