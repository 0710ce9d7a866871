"""The command line starts quickly because each command imports few modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from odradek import Admin
from odradek.cli.__main__ import GROUPS as COMMANDS
from odradek.cli.__main__ import module_of
from odradek.cli.health.judgement import UNHEALTHY
from odradek.client.admin import NewTopic
from tests.cli.running import ROOT, environment
from tests.client.fake_broker import LoopbackBroker
from tests.node_process import RunningNode

FORBIDDEN = (
    "trio",
    "cattrs",
    "structlog",
    "odradek.metadata_quorum",
    "odradek.data_plane",
    "odradek.node",
    "odradek.env.real",
    "sim",
)
GROUPS = {"join_group", "sync_group", "heartbeat", "leave_group", "data_records"}
"""The modules that every consumer loads, with or without a group."""
LOOK = """
import sys
from odradek.cli.__main__ import main
code = main(sys.argv[1:])
print("modules:", *sorted(sys.modules))
sys.exit(code)
"""


def modules_after(*words: str, bootstrap: str = "127.0.0.1:1", stdin: str = "", status: int = 0) -> set[str]:
    """List the modules that a process has imported after it ran a command."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *words],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(bootstrap) | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("modules: ").split())


def forbidden_among(modules: set[str]) -> list[str]:
    return sorted(m for m in modules if any(m == name or m.startswith(name + ".") for name in FORBIDDEN))


def messages_among(modules: set[str]) -> set[str]:
    return {
        m.removeprefix("odradek.wire.messages.") for m in modules if m.startswith("odradek.wire.messages.")
    }


@pytest.mark.parametrize(
    "words", [("--help",), ("topic", "--help"), ("produce", "--help"), ("dev", "--help")]
)
def test_help_imports_neither_the_client_nor_the_wire(words: tuple[str, ...]) -> None:
    """`--help` imports only argparse and our parsers. Importing attrs alone would double its time."""
    modules = modules_after(*words)
    assert forbidden_among(modules) == []
    assert not modules & {"attr", "odradek.wire", "odradek.client", "socket"}


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("topic", "list"), set()),
        (("topic", "create", "new"), {"create_topics"}),
        (("topic", "describe", "words"), {"describe_configs"}),
        (("topic", "delete", "words"), {"delete_topics"}),
        (
            ("cluster", "status"),
            {"describe_cluster", "describe_configs", "describe_log_dirs", "describe_quorum"},
        ),
        (("config", "get", "topic", "words"), {"describe_configs"}),
        (("produce", "words"), {"produce", "init_producer_id"}),
        (("consume", "words"), {"fetch", "list_offsets"} | GROUPS),
    ],
)
def test_commands_import_only_the_messages_that_they_send(words: tuple[str, ...], messages: set[str]) -> None:
    """A command imports only its own messages and those of every connection. It imports neither trio nor cattrs nor the
    server."""
    with LoopbackBroker() as server:
        server.broker.add_topic("words")
        # This broker of a test knows no quorum, which the status calls a problem.
        status = UNHEALTHY if words[0] == "cluster" else 0
        modules = modules_after(*words, bootstrap=server.bootstrap, stdin="a line\n", status=status)
    assert forbidden_among(modules) == []
    assert messages_among(modules) == {"headers", "api_versions", "metadata"} | messages
    other_commands = {module_of(group) for group in COMMANDS if group != words[0]}
    assert not modules & other_commands
    assert not any(module.startswith("odradek.client.admin.moves.") for module in modules)


def test_all_names_of_administration_are_found() -> None:
    """`odradek.client.admin` imports modules lazily, and all names in its `__all__` exist."""
    from odradek.client import admin

    constants = {"TO_HIGH_WATERMARK", "TIMELESS_MS"}
    assert all(callable(getattr(admin, name)) or name in constants for name in admin.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        admin.Nonsense  # noqa: B018 - the access alone must raise
    assert Admin.create_topics.__doc__ == admin.create_topics.__doc__


@pytest.mark.xdist_group("cli")
@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("group", "list"), {"list_groups"}),
        (("group", "delete", "NAME"), {"find_coordinator", "delete_groups"}),
        (("config", "set", "topic", "NAME", "retention.ms=1"), {"incremental_alter_configs"}),
        (("topic", "alter", "NAME", "--partitions", "2"), {"create_partitions"}),
        (("client", "list"), {"get_telemetry_subscriptions"}),
        (("disk", "list"), {"describe_cluster", "describe_configs", "describe_log_dirs"}),
    ],
)
def test_commands_of_administration_import_only_what_they_send(
    node: RunningNode, fresh_topic: Callable[[str], str], words: tuple[str, ...], messages: set[str]
) -> None:
    """Administrative commands also import only the messages that they send. NAME is a topic and a group."""
    name = fresh_topic("budget")
    if "NAME" in words:
        with Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1)])
            admin.alter_group_offsets(name, {(name, 0): 0})
    modules = modules_after(*(name if word == "NAME" else word for word in words), bootstrap=node.bootstrap)
    assert forbidden_among(modules) == []
    assert messages_among(modules) == {"headers", "api_versions", "metadata"} | messages


def test_import_odradek_imports_nothing_else() -> None:
    """`import odradek` loads only the standard library, because names are imported at first use (PEP 562)."""
    look = "import sys; before = set(sys.modules); import odradek; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", look],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    others = {name.partition(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert others == {"odradek"}
    assert "odradek.client" not in done.stdout


PROGRAM = """
import sys
from odradek import Consumer, Producer
with Producer(bootstrap_servers=sys.argv[1], compression_type="zstd") as producer:
    producer.send("words", b"hello", key=b"k").result()
with Consumer(bootstrap_servers=sys.argv[1], auto_offset_reset="earliest") as consumer:
    consumer.assign([("words", 0)])
    assert consumer.poll(10.0)[0].value == b"hello"
print(*sorted(sys.modules))
"""


def test_a_client_imports_none_of_the_server() -> None:
    """A program that produces and consumes imports attrs and the codecs, and no other package."""
    with LoopbackBroker() as server:
        server.broker.add_topic("words")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.bootstrap],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
            timeout=60,
            check=True,
        )
    modules = set(done.stdout.split())
    assert forbidden_among(modules) == []
    others = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    assert {name for name in others if not name.startswith("_")} == {
        "attr",
        "attrs",
        "cramjam",
        "crc32c",
        "lz4",
        "odradek",
        "zstandard",
    }


def test_public_names_are_found_where_they_live() -> None:
    """`from odradek import Client` gives the blocking client, and an unknown name raises AttributeError."""
    import odradek
    from odradek.client.shells.blocking import Client
    from odradek.wire.errors import KafkaError

    assert odradek.Client is Client
    assert odradek.KafkaError is KafkaError
    assert set(odradek.__all__) <= set(dir(odradek))
    with pytest.raises(AttributeError, match="Nonsense"):
        odradek.Nonsense  # noqa: B018 - the access alone must raise
