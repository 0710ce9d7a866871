"""`odradek storage format`: the flags that choose the first voters, and the node roles that may use each flag.

The commands run in this process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.cli.__main__ import main
from odradek.metadata_quorum.replica.checkpoint_files import decode_snapshot
from odradek.wire.messages.control_records import VotersRecord

CLUSTER_ID = "H5nlA7uKR0-zDRxvMJS5iw"
CONTROLLERS = "1@127.0.0.1:19093:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:19094:MvDxzVmcRsaTz33bUuRU6A"
SNAPSHOT = f"__cluster_metadata-0/{0:020d}-{0:010d}.checkpoint"
LISTENERS = {
    "broker,controller": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
    "controller": "CONTROLLER://127.0.0.1:19093",
    "broker": "PLAINTEXT://127.0.0.1:19092",
}
ALONE = "controller.quorum.bootstrap.servers=127.0.0.1:19093"
TOGETHER = "controller.quorum.bootstrap.servers=127.0.0.1:19093,127.0.0.1:19094"
STATIC = "controller.quorum.voters=1@127.0.0.1:19093,2@127.0.0.1:19094"


def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], roles: str, quorum: str, *words: str
) -> tuple[int, str]:
    """Run `storage format`; return its exit code and the line that it printed on failure."""
    node_id = 1 if "controller" in roles else 3
    properties = tmp_path / "node.properties"
    properties.write_text(
        f"process.roles={roles}\nnode.id={node_id}\ncontroller.listener.names=CONTROLLER\n{quorum}\n"
        f"listeners={LISTENERS[roles]}\nlog.dirs={tmp_path}/data\n"
    )
    code = main(["storage", "format", str(properties), *words])
    return code, capsys.readouterr().err


def voters(tmp_path: Path) -> list[int] | None:
    path = tmp_path / "data" / SNAPSHOT
    if not path.exists():
        return None
    _, record = decode_snapshot(path.read_bytes(), source="snapshot").control_records
    assert isinstance(record, VotersRecord)
    return [voter.voter_id for voter in record.voters]


@pytest.mark.parametrize(
    ("roles", "quorum", "words", "expected"),
    [
        ("broker,controller", ALONE, (), [1]),
        ("broker,controller", TOGETHER, ("--standalone",), [1]),
        ("controller", TOGETHER, ("--cluster-id", CLUSTER_ID, "--initial-controllers", CONTROLLERS), [1, 2]),
        ("broker", TOGETHER, ("--cluster-id", CLUSTER_ID, "--initial-controllers", CONTROLLERS), [1, 2]),
        ("controller", TOGETHER, ("--cluster-id", CLUSTER_ID, "--no-initial-controllers"), None),
        ("controller", ALONE, ("--cluster-id", CLUSTER_ID, "--no-initial-controllers"), None),
        ("controller", STATIC, ("--cluster-id", CLUSTER_ID), None),
        ("broker", TOGETHER, ("--cluster-id", CLUSTER_ID), None),
        ("controller", ALONE, ("--feature", "metadata.version=30"), [1]),
    ],
)
def test_who_votes_first(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    roles: str,
    quorum: str,
    words: tuple[str, ...],
    expected: list[int] | None,
) -> None:
    """Kafka's three flags choose the first voters. A single configured controller is the only voter by default."""
    assert run(tmp_path, capsys, roles, quorum, *words) == (0, "")
    assert voters(tmp_path) == expected
    assert (tmp_path / "data" / "bootstrap.checkpoint").exists()


@pytest.mark.parametrize(
    ("roles", "quorum", "words", "problem"),
    [
        ("controller", TOGETHER, (), "you must specify one of the following: --standalone"),
        ("broker", TOGETHER, ("--standalone",), "You can only use --standalone on a controller."),
        ("controller", STATIC, ("--standalone",), "You cannot specify controller.quorum.voters and format"),
        (
            "controller",
            STATIC,
            ("--initial-controllers", CONTROLLERS),
            "You cannot specify controller.quorum.voters",
        ),
        ("controller", TOGETHER, ("--initial-controllers", CONTROLLERS), "--cluster-id is missing"),
        ("controller", STATIC, (), "--cluster-id is missing"),
        ("broker", TOGETHER, (), "--cluster-id is missing"),
        ("controller", ALONE, ("--initial-controllers", "1@x"), "1@x is not an initial controller"),
        ("controller", ALONE, ("--feature", "metadata.version=7"), "level 7"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    roles: str,
    quorum: str,
    words: tuple[str, ...],
    problem: str,
) -> None:
    """Invalid combinations fail with one line before a directory is created. Kafka's own wording is used where it
    exists."""
    code, error = run(tmp_path, capsys, roles, quorum, *words)
    assert code == 1
    assert problem in error
    assert len(error.splitlines()) == 1
    directory = tmp_path / "data"
    assert not directory.exists() or not list(directory.iterdir())


def test_a_random_uuid_can_be_a_directory_id(capsys: pytest.CaptureFixture[str]) -> None:
    """`storage random-uuid` prints 22 characters of base64, different at each call."""
    texts = []
    for _ in range(2):
        assert main(["storage", "random-uuid"]) == 0
        texts.append(capsys.readouterr().out.strip())
    assert {len(text) for text in texts} == {22}
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "lines",
    [
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "listener.security.protocol.map=PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
        "listener.security.protocol.map=PLAINTEXT:SSL,CONTROLLER:PLAINTEXT\nssl.keystore.location=/nowhere/k.jks",
        "listener.security.protocol.map=PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        "authorizer.class.name=com.example.Foo",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=alice",
        "log.retention.ms=-5",
        "remote.log.storage.system.enable=true",
        "replica.selector.class=com.example.Foo",
    ],
)
def test_a_node_is_formatted_before_its_secrets_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str
) -> None:
    """Like Kafka 4.3's tool, `format` accepts a file with which the node cannot start. It warns with the error of
    `server`."""
    code, err = run(tmp_path, capsys, "broker,controller", f"{ALONE}\n{lines}", "--cluster-id", CLUSTER_ID)
    assert code == 0
    assert "the node will not start with this file: " in err
    assert (tmp_path / "data" / "meta.properties").exists()
    _, found, sentence = err.strip().partition("the node will not start with this file: ")
    assert found
    assert main(["server", str(tmp_path / "node.properties")]) != 0
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("num.io.threads=x", "num.io.threads"),
        ("listener.security.protocol.map=CONTROLLER:PLAINTEXT", "No security protocol defined"),
        ("broker.id=2", "broker.id"),
        ("inter.broker.listener.name=FOO", "inter.broker.listener.name"),
    ],
)
def test_what_kafkas_tool_refuses_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, sentence: str
) -> None:
    """Invalid keys, listeners and roles are refused before a directory is created."""
    code, err = run(tmp_path, capsys, "broker,controller", f"{ALONE}\n{lines}", "--cluster-id", CLUSTER_ID)
    assert code == 1
    assert sentence in err
    assert not (tmp_path / "data").exists()
