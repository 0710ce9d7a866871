"""Secrets never appear in any output.

Each key that can contain a secret has its own text, which no output may contain.
"""

from __future__ import annotations

import base64
import gc
import io
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from odradek.cli.__main__ import main
from odradek.cli.dev_security import DevSecurity
from odradek.client.core.client_keys import AdminSettings
from odradek.env.real import RealEnv
from odradek.env.real_tls import open_tls
from odradek.env.tls_ports import TlsRefused
from odradek.metadata_quorum.config.config_defs import ConfigError, broker_defs
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import OWN_DEFS
from odradek.node.node import HostProcess, Node
from odradek.node.real_node_env import RealNodeEnv
from odradek.node.secret_files import open_secrets
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.metadata_records import ConfigRecord, UserScramCredentialRecord
from odradek.wire.metadata_frames import decode_metadata_record
from odradek.wire.secret_fields import is_secret_key
from testkit.odradek_server import launch_odradek
from testkit.processes import ServerProcess, free_ports
from testkit.raw_requests import RawClient
from tests.cli.running import odradek_in_nursery
from tests.security.secured_node import PLAIN_MODULE

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
NODE, CAROL, ALICE = "planted-node-5512", "planted-carol-5513", "planted-alice-5514"
BOB, WRONG, KEY, SALT = "planted-bob-5515", "planted-wrong-5516", "planted-key-5517", "planted-salt-5518"
DYNAMIC, TOKENS = "planted-dynamic-5519", "planted-tokens-5520"
PLANTED = "planted-"


def node_properties(directory: Path, ports: list[int]) -> dict[str, str]:
    """Return a node's configuration with a secret in every key that can have one.

    Its private key is in the file, encrypted.
    """
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", common_name="node")
    plain_key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(KEY.encode())
    sealed = plain_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    chain = b"".join(each.bytes() for each in certificate.cert_chain_pems)
    authority.cert_pem.write_to_path(directory / "authority.pem")
    clients, plaintext, controller, metrics = ports
    jaas = (
        f'{PLAIN_MODULE} required username="node" password="{NODE}" user_node="{NODE}" user_carol="{CAROL}";'
    )
    listeners = f"CLIENTS://127.0.0.1:{clients},PLAINTEXT://127.0.0.1:{plaintext}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"CONTROLLER://127.0.0.1:{controller},{listeners}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENTS",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": _in_line(sealed),
        "ssl.keystore.certificate.chain": _in_line(chain),
        "ssl.key.password": KEY,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _in_line(authority.cert_pem.bytes()),
        "odradek.scram.secret": SALT,
        "delegation.token.secret.key": TOKENS,
        "odradek.metrics.listener": f"127.0.0.1:{metrics}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:node",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
    }


def _in_line(pem: bytes) -> str:
    return pem.decode().replace("\n", "\\n")


def write(path: Path, keys: dict[str, str], mode: int = 0o600) -> Path:
    """Write a properties file that only its owner can read."""
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    path.chmod(mode)
    return path


def odradek(*arguments: object) -> str:
    """Run a command in this process, and return all of its output, whatever its status."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        main([*map(str, arguments)])
    return shown.getvalue()


def serve(path: Path) -> str:
    """Run a node that cannot start, and return all of its output."""
    done = odradek_in_nursery("server", path)
    return done.out + done.err


class Planted:
    """A running node, and all texts that must not appear."""

    def __init__(
        self, server: ServerProcess, directory: Path, ports: list[int], keys: dict[str, str]
    ) -> None:
        self.server = server
        self.directory = directory
        self.keys = keys
        self.clients, self.plaintext = (f"127.0.0.1:{port}" for port in ports[:2])
        self.metrics_port = ports[3]
        sealed = keys["ssl.keystore.key"].split("\\n")
        self.texts = [PLANTED, sealed[1], sealed[2]]

    def hide_credentials(self) -> None:
        """Add users' SCRAM keys of the metadata log to the hidden texts, since passwords can be guessed from them."""
        (log,) = (self.directory / "data" / "__cluster_metadata-0").glob("*.log")
        from odradek.data_plane.log.dump import dump_segment

        directory = RealEnv().open_dir(str(log.parent))
        for item in dump_segment(directory, log.name, with_records=True):
            if item["kind"] == "record" and item["key"] is None:
                record = decode_metadata_record(item["value"])
                if isinstance(record, UserScramCredentialRecord):
                    for secret in (record.salt, record.stored_key, record.server_key):
                        self.texts += [secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]]
        assert len(self.texts) > 8

    def check(self, output: str, what: str) -> None:
        """Fail if a secret is in the output. The error does not repeat the output."""
        for text in self.texts:
            place = output.find(text)
            assert place < 0, f"{what} shows a secret: ...{output[max(0, place - 150) : place + 30]}"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """The node, which logs at DEBUG."""
    directory = tmp_path_factory.mktemp("planted")
    ports = free_ports(4)
    keys = node_properties(directory, ports)
    path = write(directory / "server.properties", keys)
    password = directory / "alice.password"
    password.write_text(ALICE)
    odradek("storage", "format", path, "--add-scram", f"SCRAM-SHA-256=[name=alice,passwordfile={password}]")
    server = launch_odradek(path, by_command=True)
    try:
        node = Planted(server, directory, ports, keys)
        admin = AdminClient({"bootstrap.servers": node.plaintext})
        _set_debug(node.plaintext)
        _add_user(admin, "bob", BOB)
        node.hide_credentials()
        yield node
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def _set_debug(address: str) -> None:
    """Set the log level to DEBUG (KIP-412) by a raw request, since confluent-kafka has no loggers."""
    change = AlterableConfig("root", 0, "DEBUG")
    with RawClient(address) as client:
        answer = client.request(IncrementalAlterConfigsRequest([AlterConfigsResource(8, "1", [change])]), 1)
    assert [each.error_code for each in answer.responses] == [0]


def _add_user(admin: AdminClient, name: str, password: str) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(name, info, password.encode(), os.urandom(16))
    admin.alter_user_scram_credentials([change])[name].result()


def client_keys(node: Planted, mechanism: str, user: str, password: str) -> dict[str, str]:
    """Return Kafka's client keys for a login."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        "ssl.truststore.location": str(node.directory / "authority.pem"),
        "ssl.truststore.type": "PEM",
    }


LOGINS = (
    ("PLAIN", "carol", CAROL),
    ("PLAIN", "carol", WRONG),
    ("SCRAM-SHA-256", "alice", ALICE),
    ("SCRAM-SHA-256", "bob", BOB),
    ("SCRAM-SHA-256", "alice", WRONG),
)


def test_every_secret_key_is_known_by_its_name() -> None:
    """`is_secret_key` decides by the name, as clients have no table of keys.

    It knows all secret keys of Kafka and ours.
    """
    secrets = {name for name, each in (broker_defs() | OWN_DEFS).items() if each.sensitive}
    assert len(secrets) > 8
    assert {name for name in broker_defs() | OWN_DEFS if is_secret_key(name)} == secrets
    assert is_secret_key("listener.name.x.plain.sasl.jaas.config")


def test_commands_show_no_secret(planted: Planted) -> None:
    """Commands log in with right and with wrong passwords. Neither their output nor the node's log shows a secret."""
    for number, (mechanism, user, password) in enumerate(LOGINS):
        path = write(
            planted.directory / f"client-{number}.properties", client_keys(planted, mechanism, user, password)
        )
        shown = odradek(
            *(
                "topic",
                "list",
                "--bootstrap-server",
                planted.clients,
                "--command-config",
                path,
                "--timeout",
                3,
            )
        )
        assert ("Authentication failed" in shown) == (password == WRONG), shown
        planted.check(shown, f"a login of {user} by {mechanism}")


def test_configurations_show_no_secret(planted: Planted) -> None:
    """DescribeConfigs returns null for secret keys (KIP-226), of the file and of dynamic values."""
    at = ("--bootstrap-server", planted.plaintext)
    for key in ("ssl.keystore.password", "listener.name.clients.ssl.key.password", "sasl.jaas.config"):
        for words in ((), ("--validate-only",)):
            shown = odradek("config", "set", "broker", 1, f"{key}={DYNAMIC}", *words, *at)
            planted.check(shown, f"config set {key}")
            planted.check(
                odradek("config", "set", "broker", "default", f"{key}={DYNAMIC}", *at), "config set"
            )
    for words in ((), ("--json",), ("--explain", "--json")):
        shown = odradek("config", "get", "broker", 1, *words, *at)
        assert "ssl.key.password" in shown
        planted.check(shown, "config get")
    for key in planted.keys:
        planted.check(odradek("config", "get", "broker", 1, key, *at) if is_secret_key(key) else "", key)
    admin = AdminClient({"bootstrap.servers": planted.plaintext})
    from confluent_kafka.admin import ConfigResource

    (entries,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()  # type: ignore[attr-defined]
    planted.check(str({name: entry.value for name, entry in entries.result().items()}), "DescribeConfigs")


def test_events_and_dumps_show_no_secret(planted: Planted) -> None:
    """The metadata log contains users' keys and passwords of configurations.

    `cluster events` and `log dump` hide them.
    """
    path = write(planted.directory / "node.properties", client_keys(planted, "PLAIN", "node", NODE))
    at = ("--bootstrap-server", planted.clients, "--command-config", path)
    odradek("config", "set", "broker", 1, f"ssl.keystore.password={DYNAMIC}", *at)
    for words in ((), ("--json",)):
        shown = odradek("cluster", "events", "--all", *words, *at)
        assert "has a password for SCRAM-SHA-256" in shown
        planted.check(shown, "cluster events")
    metadata = planted.directory / "data" / "__cluster_metadata-0"
    for path in (metadata, *metadata.glob("*.log")):
        for words in ((), ("--json",)):
            shown = odradek("log", "dump", path, "--records", *words)
            assert "UserScramCredential" in shown
            planted.check(shown, "log dump")
    assert "audit.log is not a file of a partition" in odradek("log", "dump", metadata.parent / "audit.log")


def test_logs_metrics_audit_and_processes_show_no_secret(planted: Planted) -> None:
    """The node's log at DEBUG, its metrics, its audit log, and the command lines of its processes show no secret."""
    from urllib.request import urlopen

    client = AdminClient(
        {
            "bootstrap.servers": planted.clients,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": WRONG,
            "ssl.ca.location": str(planted.directory / "authority.pem"),
        }
    )
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    planted.check((planted.directory / "server.log").read_text(), "the log")
    planted.check(
        "".join(path.read_text() for path in planted.directory.rglob("audit*.log*")), "the audit log"
    )
    with urlopen(f"http://127.0.0.1:{planted.metrics_port}/metrics") as page:
        planted.check(page.read().decode(), "the metrics page")
    commands = [path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_of(path, planted)]
    assert commands
    planted.check("\n".join(commands), "a command line")


def test_a_token_shows_where_it_was_asked_for_alone(planted: Planted) -> None:
    """The secret of a delegation token is only in the file that `token create` writes."""
    alice = write(
        planted.directory / "alice.properties", client_keys(planted, "SCRAM-SHA-256", "alice", ALICE)
    )
    job, place = planted.directory / "job.properties", ("--bootstrap-server", planted.clients)
    by_alice = (*place, "--command-config", alice)
    shown = odradek("token", "create", "--to", job, *by_alice)
    (secret,) = re.findall('password="([^"]+)"', job.read_text())
    planted.texts += [secret, base64.b64decode(secret).hex(), repr(base64.b64decode(secret))[2:-1]]
    shown += odradek("topic", "list", *place, "--command-config", job)
    shown += odradek("token", "list", *by_alice) + odradek("token", "list", "--json", *by_alice)
    forged = write(planted.directory / "forged.properties", {})
    forged.write_text(job.read_text().replace(secret, WRONG))
    shown += odradek("topic", "list", *place, "--command-config", forged, "--timeout", 3)
    assert "refuses the login" in shown
    planted.check(shown, "a command about tokens")
    _sweep(planted, {job: [secret]})


def test_the_files_of_a_node_show_no_secret(planted: Planted) -> None:
    """No file that a node writes contains a password. The metadata log has only what docs/security.md says."""
    at = ("--bootstrap-server", planted.plaintext)
    for words in (("add", "dave"), ("password", "dave")):
        password = write(planted.directory / "dave.password", {})
        password.write_text(f"{PLANTED}{words[0]}-5521")
        planted.check(odradek("user", *words, "--password-file", password, *at), "odradek user")
        password.unlink()
    planted.check(odradek("user", "list", *at), "odradek user list")
    _sweep(planted, {})


def _sweep(planted: Planted, allowed: dict[Path, list[str]]) -> None:
    """Search all files below the node's directory, except the inputs.

    The metadata log has salted keys, as in Kafka, and passwords of `config set`.
    """
    looked_at = 0
    for path in planted.directory.rglob("*"):
        if not path.is_file() or path.suffix in (".properties", ".password"):
            continue
        data = path.read_bytes()
        if path.is_relative_to(planted.directory / "data" / "__cluster_metadata-0"):
            data = data.replace(DYNAMIC.encode(), b"")
        for text in planted.texts:
            assert text.encode() not in data, f"{path} contains a secret"
        looked_at += 1
    assert looked_at > 5
    for path, texts in allowed.items():
        assert all(text in path.read_text() for text in texts)


def test_a_crash_leaves_no_memory_in_a_file(planted: Planted) -> None:
    """A node with secured listeners writes no core dump, since its memory contains keys and passwords."""
    limits = Path(f"/proc/{planted.server.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4] == "0"


def _is_of(path: Path, planted: Planted) -> bool:
    try:
        return str(planted.directory) in path.read_text()
    except OSError:
        return False


BROKEN = {
    "a word too many": ("listener.name.clients.plain.sasl.jaas.config", lambda value: value + " more"),
    "no module": ("listener.name.clients.plain.sasl.jaas.config", lambda value: f"required user_x={NODE};"),
    "another module": (
        "listener.name.clients.plain.sasl.jaas.config",
        lambda value: value.replace("PlainLoginModule", "OtherModule"),
    ),
    "no quote": ("listener.name.controller.plain.sasl.jaas.config", lambda value: value.replace('";', ";")),
    "no user": (
        "listener.name.clients.plain.sasl.jaas.config",
        lambda value: value.replace('username="node"', ""),
    ),
    "a wrong password of the key": ("ssl.key.password", lambda value: WRONG),
    "half a key": ("ssl.keystore.key", lambda value: value[: len(value) // 2]),
    "a key that is none": ("ssl.keystore.key", lambda value: WRONG),
    "a chain that is none": ("ssl.keystore.certificate.chain", lambda value: WRONG),
    "an authority that is none": ("ssl.truststore.certificates", lambda value: WRONG),
    "a malformed escape": ("odradek.scram.secret", lambda value: f"{WRONG}\\uzzzz"),
    "a key that is not built": ("sasl.oauthbearer.assertion.private.key.passphrase", lambda value: WRONG),
    "a password of no store": ("ssl.truststore.password", lambda value: WRONG),
    "an unknown key": ("some.password", lambda value: WRONG),
    "a broken port": ("odradek.metrics.listener", lambda value: "nowhere"),
}
HARMLESS = ("a password of no store",)
"""Mistakes that are accepted silently, since they change nothing."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_configuration_shows_no_secret(planted: Planted, tmp_path: Path, what: str) -> None:
    """A configuration has a mistake.

    The start is refused, or a warning is logged, by texts that name keys and show no values.
    """
    key, change = BROKEN[what]
    keys = {**planted.keys, "log.dirs": str(tmp_path / "data")}
    keys[key] = change(keys.get(key, ""))
    path = write(tmp_path / "server.properties", keys)
    try:
        config = NodeConfig.load(str(path))
        shown = "\n".join(config.warnings)
        for security in config.security.values():
            if security.tls is not None:
                open_tls(security.tls)
    except (ConfigError, TlsRefused) as error:
        shown = "".join(traceback.format_exception(error))
    assert shown or what in HARMLESS, what
    planted.check(shown, what)


def test_the_end_of_a_start_shows_no_secret(planted: Planted, tmp_path: Path) -> None:
    """A start is refused for a wrong configuration or a port in use. The output of the process shows no secret."""
    keys = {**planted.keys, "log.dirs": str(tmp_path / "data")}
    path = write(tmp_path / "server.properties", keys)
    odradek("storage", "format", path)
    for change in ({"ssl.key.password": WRONG}, {"some.password": WRONG}):
        shown = serve(write(path, keys | change))
        assert "odradek:" in shown
        planted.check(shown, "a start")


def test_broken_client_keys_show_no_secret(planted: Planted, tmp_path: Path) -> None:
    """Errors of a client's keys name the keys, and show no secret."""
    for key, value in (
        ("sasl.jaas.config", f"{SCRAM_MODULE} required password={WRONG}"),
        ("sasl.jaas.config", f'{SCRAM_MODULE} required username="a" password="{WRONG}'),
        ("sasl.jaas.config", WRONG),
        ("ssl.keystore.password", WRONG),
        ("ssl.key.password", WRONG),
        ("ssl.keystore.key", WRONG),
        ("ssl.truststore.password", WRONG),
        ("some.secret", WRONG),
    ):
        keys = client_keys(planted, "SCRAM-SHA-256", "alice", ALICE) | {key: value}
        path = write(tmp_path / "client.properties", keys)
        shown = odradek(
            *(
                "topic",
                "list",
                "--bootstrap-server",
                planted.clients,
                "--command-config",
                path,
                "--timeout",
                3,
            )
        )
        planted.check(shown, f"a client with a broken {key}")


def test_tracebacks_show_no_secret(planted: Planted) -> None:
    """A traceback that shows the values of local variables, as some tools print it, contains no secret."""
    config = NodeConfig.load(str(planted.directory / "server.properties"))
    client = AdminSettings.from_properties(
        {"bootstrap.servers": "a:1", **client_keys(planted, "PLAIN", "carol", CAROL)}
    )
    record = ConfigRecord(4, "1", "ssl.key.password", KEY)
    shown = []

    async def crash() -> None:
        async with trio.open_nursery() as nursery:
            node = Node(config, RealNodeEnv(), nursery, None, HostProcess())  # type: ignore[arg-type]  # it logs nothing yet
            try:
                raise AssertionError(f"a crash of {node}, {client}, {record}")
            except AssertionError as error:
                captured = traceback.TracebackException.from_exception(error, capture_locals=True)
                shown.append("".join(captured.format()))
            shown.extend(_representations())

    trio.run(crash)
    for each in shown:
        planted.check(each, "a traceback")


def _representations() -> list[str]:
    """Return the texts of all existing objects of our own classes."""
    found = []
    for each in gc.get_objects():
        kind: Any = type(each)
        if str(kind.__module__).split(".")[0] == "odradek":
            found.append(repr(each))
    return found


def test_a_secret_that_everybody_may_read_is_told(planted: Planted, tmp_path: Path) -> None:
    """A file with a secret that everybody can read gets one warning. A file for owner and group gets none."""
    keys = {**planted.keys, "log.dirs": str(tmp_path / "data")}
    private = tmp_path / "node.pem"
    private.write_text("no key")
    private.chmod(0o644)
    keys |= {"ssl.keystore.location": str(private)}
    del keys["ssl.keystore.key"], keys["ssl.keystore.certificate.chain"]
    path = write(tmp_path / "server.properties", keys, 0o640)
    config = NodeConfig.load(str(path))
    assert open_secrets(str(path), config) == [(str(private), "a private key")]
    path.chmod(0o644)
    (of_config, of_key) = open_secrets(str(path), config)
    assert of_config[0] == str(path)
    assert "odradek.scram.secret" in of_config[1]
    odradek("storage", "format", path)
    lines = [line for line in serve(path).splitlines() if "secret.readable_by_everybody" in line]
    assert len(lines) == 2
    assert f'remedy="chmod o= {private}"' in lines[1]
    assert of_key == (str(private), "a private key")
    _told_of_password_files(tmp_path, keys)
    password = tmp_path / "password"
    password.write_text(ALICE)
    password.chmod(0o644)
    shown = odradek(
        "storage", "format", path, "--add-scram", f"SCRAM-SHA-256=[name=a,passwordfile={password}]"
    )
    assert f"every user of this machine may read {password}" in shown
    planted.check(shown, "storage format")


def _told_of_password_files(directory: Path, keys: dict[str, str]) -> None:
    """Check that files of our own keys for passwords are checked as well."""
    files = {"password.file": CAROL, "plain.users.file": f"carol={CAROL}"}
    own = {f"listener.name.clients.odradek.sasl.{key}": str(directory / key) for key in files}
    for key, text in files.items():
        (directory / key).write_text(text)
        (directory / key).chmod(0o644)
    plain = "listener.name.clients.plain.sasl.jaas.config"
    others = {key: value for key, value in keys.items() if key != plain}
    path = write(
        directory / "own.properties", others | own | {"listener.name.clients.odradek.sasl.username": "node"}
    )
    told = open_secrets(str(path), NodeConfig.load(str(path)))
    assert {each for each in told if each[1] == "passwords"} == {(name, "passwords") for name in own.values()}


def test_what_dev_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    """`odradek dev --secure` writes keys, passwords and client files with mode 0600, even over existing files."""
    old = tmp_path / "client.properties"
    old.write_text("")
    old.chmod(0o644)
    DevSecurity(tmp_path).make("127.0.0.1:9092")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 10
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
