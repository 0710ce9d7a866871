"""Secrets are put into a node, then looked for in all that it prints, answers and writes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from testkit.odradek_server import ODRADEK
from tests.attacks.outcome import Outcome
from tests.attacks.place import PLAIN_USERS, Place
from tests.attacks.raw import Conn

WHO = "administrator"
MARK = "Zs3cret"
BROKER, SET, DELETE = 4, 0, 1
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PLANTED = {
    "listener.name.tls.ssl.keystore.password": f"{MARK}KsPw",
    "listener.name.nowhere.plain.sasl.jaas.config": f'{MODULE} user_zed="{MARK}Jaas";',
    "my.unknown.secret": f"{MARK}Unknown",
    "delegation.token.secret.key": f"{MARK}Tok",
    "num.io.threads": f"8ssl.key.password={MARK}Swallowed",
}
COMMANDS = (
    ("cluster", "status"),
    ("config", "get", "broker", "1"),
    ("user", "list"),
    ("token", "list"),
)


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Set secrets that are valid and secrets that are not, then search for them. The scale makes no difference."""
    with place.admin() as admin:
        try:
            errors = [_alter(admin, key, SET, value) for key, value in PLANTED.items()]
            told = [text for text in errors if MARK in text]
            taken = errors.count("")
            yield Outcome(
                "some secrets are taken, so that there is something to find", taken > 0, f"{taken} taken"
            )
            yield Outcome("no refusal repeats a secret", not told, "; ".join(told)[:200])
            yield from _search(place, admin)
        finally:
            for key in PLANTED:
                _alter(admin, key, DELETE, None)


def _alter(admin: Conn, key: str, operation: int, value: str | None) -> str:
    resource = AlterConfigsResource(BROKER, "1", [AlterableConfig(key, operation, value)])
    answer = admin.call(IncrementalAlterConfigsRequest([resource], False), 1)
    return answer.responses[0].error_message or ""


def _search(place: Place, admin: Conn) -> Iterator[Outcome]:
    node = place.node
    while node.metric("odradek_audit_lines_waiting"):
        time.sleep(0.05)
    described = admin.call(
        DescribeConfigsRequest([DescribeConfigsResource(BROKER, "1", None)], True, True), 4
    )
    texts = {
        "DescribeConfigs": repr(described).encode(),
        "the node's log": node.log.encode(),
        "the audit log": b"".join(
            path.read_bytes() for path in (node.directory / "data").glob("audit*.log*")
        ),
        "the metrics page": node.page().encode(),
        "the command line": Path(f"/proc/{node.process.pid}/cmdline").read_bytes(),
        "the environment": Path(f"/proc/{node.process.pid}/environ").read_bytes(),
        "log dump": _run("log", "dump", node.directory / "data" / "__cluster_metadata-0"),
    }
    keys = place.security.directory.parent / "admin.properties"
    texts |= {" ".join(words): _run(*words, "--command-config", keys) for words in COMMANDS}
    wanted = [
        MARK,
        *PLAIN_USERS.values(),
        place.password("admin"),
        place.password("client"),
        *_keys_of(node.directory),
    ]
    for where, text in texts.items():
        found = sum(each.encode() in text for each in wanted)
        yield Outcome(
            f"{where} shows no secret", not found and bool(text), f"{len(text)} bytes, {found} found"
        )


def _keys_of(directory: Path) -> Iterable[str]:
    """Yield the secrets in the node's properties file."""
    lines = (directory / "server.properties").read_text().splitlines()
    for key, _, value in (line.partition("=") for line in lines):
        if key in ("odradek.scram.secret", "delegation.token.secret.key"):
            yield value


def _run(*words: object) -> bytes:
    """Return all that a command prints. Raise `AssertionError` if it fails, since a failed command has proved
    nothing."""
    done = subprocess.run([ODRADEK, *map(str, words)], capture_output=True, check=False)
    assert done.returncode == 0, done
    return done.stdout + done.stderr
