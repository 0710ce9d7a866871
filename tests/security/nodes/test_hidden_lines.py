"""Malformed lines in configuration files.

A missing or extra backslash joins or splits settings, and secrets stay hidden.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from odradek.client.core.client_keys import AdminSettings
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.node_config import NodeConfig
from odradek.wire.secret_fields import is_key_name
from testkit.odradek_server import ODRADEK

SECRET = "Open-5esame"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LINES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
}
FILE = "".join(f"{key}={value}\n" for key, value in LINES.items())
SWALLOWED = [
    f"broker.rack=r1\\\nssl.key.password={SECRET}",
    f"num.io.threads=8\\\nssl.key.password={SECRET}",
    f"num.io.threads=8\\\n  ssl.key.password: {SECRET}",
    f"num.io.threads=8\\\n  ssl.key.password {SECRET}",
    f"log.dirs=/d\\\nssl.keystore.key={SECRET}",
    f"log.dirs=/d\\\nodradek.scram.secret={SECRET}",
    f'broker.rack=r1 \\\nlistener.name.x.plain.sasl.jaas.config={MODULE} user_a="{SECRET}";',
    f"auto.create.topics.enable=\\\n-----BEGIN PRIVATE KEY-----{SECRET}",
    f'ssl.client.auth=required \\\n username="node" password="{SECRET}";',
]
TORN = [
    f'listener.name.x.plain.sasl.jaas.config={MODULE}\n  username="node" password="{SECRET}";',
    f'listener.name.x.plain.sasl.jaas.config={MODULE} \\ \n  password="{SECRET}";',
    f'listener.name.x.plain.sasl.jaas.config={MODULE} password="\n{SECRET}";',
    f"ssl.keystore.key=-----BEGIN\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC{SECRET}\n",
    f"ssl.key.password=\n{SECRET}",
    f"\\u0073sl.key.password\n{SECRET}",
]


@pytest.mark.parametrize("text", SWALLOWED)
def test_a_setting_in_the_value_of_another_stops_the_start(text: str) -> None:
    """A line ends in a backslash, so the next setting becomes part of its value.

    The start is refused; the error names the key and shows no value.
    """
    with pytest.raises(ConfigError) as refused:
        NodeConfig.from_text(FILE + text)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value.value)
    assert text.partition("=")[0] in str(refused.value)


@pytest.mark.parametrize("text", TORN)
def test_a_line_that_lost_its_beginning_is_not_shown(text: str) -> None:
    """A line has lost its beginning, so a piece of a value is where a key should be.

    The warning does not show the piece.
    """
    try:
        shown = "\n".join(NodeConfig.from_text(FILE + text).warnings)
    except ConfigError as error:
        shown = str(error)
    assert SECRET not in shown
    assert shown


def test_a_key_that_is_misspelt_is_still_named() -> None:
    """A misspelt key that looks like a key is named in the warning."""
    warnings = NodeConfig.from_text(FILE + "num.oi.threads=3\nlistenrs=x\nmy_own.key-1=2\n").warnings
    for key in ("num.oi.threads", "listenrs", "my_own.key-1"):
        assert any(f"unknown key {key} " in warning for warning in warnings), warnings
        assert is_key_name(key)


def test_values_that_only_look_so_are_taken() -> None:
    """Values that resemble settings are accepted: an endpoint with a parameter, and a principal with such a name."""
    config = NodeConfig.from_text(
        FILE
        + "super.users=User:CN=secret,O=password;User:secret\nbroker.rack=secret-rack\nlog.dirs=/srv/secret/password\n"
    )
    assert config.get("broker.rack") == "secret-rack"


@pytest.mark.parametrize("text", [SWALLOWED[0], SWALLOWED[1], TORN[0], TORN[2]])
def test_commands_show_nothing_of_it(tmp_path: Path, text: str) -> None:
    """The output of `storage format`, `server`, and a command with `--command-config` shows none of the secrets."""
    path = tmp_path / "server.properties"
    path.write_text(f"{FILE}log.dirs={tmp_path}/d\nlistener.name.x.sasl.enabled.mechanisms=PLAIN\n{text}\n")
    for words in (
        ("storage", "format", path, "--standalone"),
        ("storage", "info", path),
        ("topic", "list", "--command-config", path, "--timeout", "0.1"),
    ):
        done = subprocess.run([ODRADEK, *map(str, words)], capture_output=True, text=True, check=False)
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "properties",
    [
        {"client.id": "a", "request.timeout.ms": f"5ssl.key.password={SECRET}"},
        {f'password="{SECRET}";': "x"},
        {"security.protocol": f'SASL_SSL sasl.jaas.config={MODULE} password="{SECRET}";'},
    ],
)
def test_a_client_shows_nothing_of_it(properties: dict[str, str]) -> None:
    """A client's keys are malformed in the same ways. The error shows none of the secrets."""
    with pytest.raises(ValueError, match=r"\[hidden\]") as refused:
        AdminSettings.from_properties({"bootstrap.servers": "h:1", **properties})
    assert SECRET not in str(refused.value)
