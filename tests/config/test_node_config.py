"""A node's properties file: what the node reads from it, and the one-line error that refuses a start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.metadata_quorum.config.java_properties import MalformedProperties, escape_value, parse_properties
from odradek.metadata_quorum.replica.storage_format import VoterEndpoint
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.quorum_config import StaticVoter
from odradek.node.configuration.start_rules import AUTHORIZERS

MINIMAL = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/data/1",
}


def config(**changes: str | None) -> NodeConfig:
    """Make a configuration with some keys changed or, by None, left out. '_' in a name stands for '.'."""
    properties: dict[str, str] = dict(MINIMAL)
    for name, value in changes.items():
        key = name.replace("_", ".")
        properties.pop(key, None)
        if value is not None:
            properties[key] = value
    return NodeConfig.from_properties(properties)


def test_a_minimal_node() -> None:
    """The file that `odradek dev` writes is enough. All other keys have Kafka's defaults."""
    node = config()
    assert (node.node_id, node.process_roles) == (1, ("broker", "controller"))
    assert [(each.name, each.host, each.port) for each in node.listeners] == [
        ("PLAINTEXT", "127.0.0.1", 9092),
        ("CONTROLLER", "127.0.0.1", 9093),
    ]
    assert [each.name for each in node.broker_listeners] == ["PLAINTEXT"]
    assert node.advertised_listeners == node.broker_listeners
    assert node.voter is not None
    assert (node.voter.listener, node.voter.host, node.voter.port) == ("CONTROLLER", "127.0.0.1", 9093)
    assert node.inter_broker_listener_name == "PLAINTEXT"
    assert (node.log_dirs, node.metadata_log_dir) == (("/data/1",), "/data/1")
    assert node.warnings == ()
    assert node.get_int("num.partitions") == 1
    assert node.get_bool("auto.create.topics.enable") is True
    assert node.rack is None
    assert node.controller_settings().broker_session_timeout_ms == 9000


def test_several_directories_and_listeners() -> None:
    """Lists are separated by commas; the first directory holds the metadata log unless another is named."""
    node = config(
        log_dirs="/a, /b",
        listeners="PLAINTEXT://:9092,INTERNAL://[::1]:9094,CONTROLLER://:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        advertised_listeners="PLAINTEXT://public.example:19092,INTERNAL://inside:9094",
        inter_broker_listener_name="INTERNAL",
        broker_rack="r1",
    )
    assert node.log_dirs == ("/a", "/b")
    assert node.metadata_log_dir == "/a"
    assert node.listeners[1].host == "::1"
    assert [(each.name, each.host, each.port) for each in node.advertised_listeners] == [
        ("PLAINTEXT", "public.example", 19092),
        ("INTERNAL", "inside", 9094),
    ]
    assert node.inter_broker_listener_name == "INTERNAL"
    assert node.voter is not None
    assert node.voter.host == "localhost"
    assert config(metadata_log_dir="/m").metadata_log_dir == "/m"
    assert config(log_dirs=None).log_dirs == ("/tmp/kafka-logs",)


def test_every_interface_needs_an_address_to_advertise() -> None:
    """A listener on 0.0.0.0 needs an advertised address; one with an empty host, or a controller's, does not."""
    everywhere = "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"
    told = config(listeners=everywhere, advertised_listeners="PLAINTEXT://public.example:9092")
    assert [each.host for each in told.listeners] == ["0.0.0.0", "0.0.0.0"]
    assert [each.host for each in told.advertised_listeners] == ["public.example"]
    empty = config(listeners="PLAINTEXT://:9092,CONTROLLER://0.0.0.0:9093")
    assert [each.host for each in empty.advertised_listeners] == [""]


def test_static_voters_with_this_node_alone() -> None:
    """`controller.quorum.voters`, as in older files, makes this node a static voter."""
    changes = {"controller_quorum_bootstrap_servers": None}
    assert config(**changes, controller_quorum_voters="1@127.0.0.1:9093").static_voters == (
        StaticVoter(1, "127.0.0.1", 9093),
    )


def test_a_node_that_is_only_a_broker() -> None:
    """A broker has no controller listener of its own, but must name those of the controllers."""
    node = config(process_roles="broker", listeners="PLAINTEXT://127.0.0.1:9092", node_id="4")
    assert (node.is_broker, node.is_controller, node.voter) == (True, False, None)
    assert node.bootstrap_servers == (("localhost", 9093),)
    assert node.controller_listeners == ()


def test_a_node_that_is_only_a_controller() -> None:
    """A controller has no listener for clients, and advertises its controller listener (KIP-853)."""
    node = config(
        process_roles="controller",
        listeners="CONTROLLER://:9093",
        advertised_listeners="CONTROLLER://c1:19093",
    )
    assert (node.is_broker, node.is_controller, node.advertised_listeners) == (False, True, ())
    assert node.voter == VoterEndpoint("CONTROLLER", "c1", 19093)


@pytest.mark.parametrize(
    ("text", "address"),
    [("", None), ("127.0.0.1:9592", ("127.0.0.1", 9592)), (":9592", ("", 9592)), ("[::1]:0", ("::1", 0))],
)
def test_where_the_metrics_are(text: str, address: tuple[str, int] | None) -> None:
    """`odradek.metrics.listener` is a known key. Metrics are off unless it names a port."""
    node = config(odradek_metrics_listener=text)
    assert ((node.metrics and (node.metrics.host, node.metrics.port)), node.warnings) == (address, ())


def test_when_a_disk_gives_up_its_leaderships() -> None:
    """`odradek.disk.*` keys are read in milliseconds. A value that is no time is refused with the key's name."""
    config = NodeConfig.from_properties(MINIMAL)
    assert (config.disk_hung_seconds, config.disk_full_seconds) == (15.0, 5.0)
    assert config.disk_write_wait_seconds == 1.0
    told = NodeConfig.from_properties(
        MINIMAL | {"odradek.disk.hung.ms": "2500", "odradek.disk.full.ms": " 100 "}
    )
    assert (told.disk_hung_seconds, told.disk_full_seconds, told.warnings) == (2.5, 0.1, ())
    for text in ("", "0", "-1", "1.5", "soon", "9" * 11):
        with pytest.raises(ConfigError, match=r"odradek\.disk\.full\.ms"):
            NodeConfig.from_properties(MINIMAL | {"odradek.disk.full.ms": text})


def test_unknown_keys_warn() -> None:
    """A misspelt key causes a warning, and the node starts all the same, as in Kafka."""
    node = config(log_retention_hour="1", listener_name_other_ssl_keystore_type="PEM")
    assert node.warnings == (
        "unknown key log.retention.hour is ignored",
        "listener.name.other.ssl.keystore.type has no effect: the node has no such listener, or a listener has no such setting",
    )


BAD: list[tuple[dict[str, str | None], str]] = [
    ({"odradek_metrics_listener": "9592"}, "odradek.metrics.listener: the value must be host:port, or :port"),
    ({"odradek_metrics_listener": "here:99999"}, "odradek.metrics.listener: the value must be host:port"),
    ({"process_roles": None}, 'Missing required configuration "process.roles"'),
    ({"node_id": None}, 'Missing required configuration "node.id"'),
    ({"node_id": "-1"}, "Invalid value -1 for configuration node.id: Value must be at least 0"),
    ({"node_id": "one"}, "Invalid value one for configuration node.id: Not a number of type INT"),
    ({"broker_id": "2"}, "Invalid value 2 for configuration broker.id"),
    ({"process_roles": ""}, "at least one of broker, controller"),
    ({"process_roles": "broker,controller,king"}, "Invalid value king for configuration process.roles"),
    ({"process_roles": "broker,broker"}, "Duplicate role names are not allowed"),
    (
        {"process_roles": "broker"},
        "Invalid value CONTROLLER for configuration controller.listener.names: listeners of a node that is only a "
        "broker must not contain a listener for controllers",
    ),
    (
        {"process_roles": "controller"},
        "Invalid value PLAINTEXT for configuration listeners: a node that is only a controller",
    ),
    ({"num_partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
    ({"log_cleanup_policy": "shred"}, "String must be one of: compact, delete"),
    (
        {"listeners": "localhost:9092"},
        "Invalid value localhost:9092 for configuration listeners: the value must be NAME://host:port",
    ),
    ({"listeners": "PLAINTEXT://:99999,CONTROLLER://:1"}, "a port must be between 0 and 65535"),
    ({"listeners": "A B://:1"}, "a listener's name may have letters, digits"),
    ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2,CONTROLLER://:3"}, "must have a different name"),
    ({"listeners": "PLAINTEXT://:1,CONTROLLER://:1"}, "must have a different port"),
    (
        {"listeners": "PLAINTEXT://:1,EXTRA://:2,CONTROLLER://:3"},
        "No security protocol defined for listener EXTRA",
    ),
    (
        {"listeners": "SSL://:9092,CONTROLLER://:9093"},
        "Invalid value PLAINTEXT for configuration security.inter.broker.protocol: no advertised listener has "
        "this name, by which brokers would reach each other: name one of SSL in inter.broker.listener.name",
    ),
    (
        {"listeners": "SSL://:9092,CONTROLLER://:9093", "inter_broker_listener_name": "SSL"},
        "listener SSL needs a certificate: set ssl.keystore.location and ssl.keystore.type=PEM",
    ),
    (
        {
            "listeners": "SASL_PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter_broker_listener_name": "SASL_PLAINTEXT",
        },
        "Invalid value GSSAPI for configuration sasl.enabled.mechanisms: this mechanism is not supported: supported are "
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER; the value is the default, so set the key to other mechanisms",
    ),
    ({"listeners": "CONTROLLER://:9093"}, "a broker must have a listener for clients"),
    ({"listeners": ""}, "configuration listeners: the value must be NAME://host:port"),
    ({"controller_listener_names": None}, 'Missing required configuration "controller.listener.names"'),
    (
        {"controller_listener_names": "OTHER"},
        "the name must be one of the listeners: PLAINTEXT, CONTROLLER",
    ),
    ({"controller_listener_names": ""}, "must contain at least one"),
    (
        {"controller_quorum_bootstrap_servers": None},
        "either controller.quorum.bootstrap.servers must contain",
    ),
    ({"controller_quorum_voters": "1@a:1,1@b:2"}, "Each voter must have a different id"),
    ({"controller_quorum_voters": "1@a:99999"}, "ID@host:port"),
    ({"controller_quorum_bootstrap_servers": "a"}, "host:port, or several of these, separated by commas"),
    (
        {
            "process_roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "controller_quorum_voters": "1@a:1",
        },
        "the node id 1 must not be included in the set of voters",
    ),
    ({"controller_quorum_voters": "localhost:1"}, "ID@host:port"),
    (
        {"node_id": "2", "controller_quorum_voters": "1@a:9093"},
        "Invalid value 1@a:9093 for configuration controller.quorum.voters: "
        "If process.roles contains the 'controller' role, the node id 2 must be included in the set of voters",
    ),
    (
        {"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"},
        "Invalid value PLAINTEXT://0.0.0.0:9092 for configuration advertised.listeners: "
        "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
    ),
    (
        {"listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093"},
        "Invalid value PLAINTEXT://0.0.0.0:9092 for configuration listeners: "
        "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
    ),
    ({"advertised_listeners": "CONTROLLER://a:9093"}, "name at least one of the listeners: PLAINTEXT"),
    (
        {"inter_broker_listener_name": "CONTROLLER"},
        "the name must be one of the advertised listeners: PLAINTEXT",
    ),
    ({"security_inter_broker_protocol": "SSL"}, "name one of PLAINTEXT in inter.broker.listener.name"),
    (
        {"inter_broker_listener_name": "PLAINTEXT", "security_inter_broker_protocol": "PLAINTEXT"},
        "Only one of inter.broker.listener.name and security.inter.broker.protocol",
    ),
    ({"listener_security_protocol_map": "PLAINTEXT"}, "NAME:PROTOCOL"),
    ({"log_dirs": ""}, "At least one log directory must be defined via log.dirs or log.dir"),
    ({"log_dirs": "/a,/a"}, "Each log directory must be named once"),
    ({"broker_heartbeat_interval_ms": "9000"}, "less than broker.session.timeout.ms (9000)"),
    ({"log_retention_ms": "0"}, "must be unlimited (-1) or, greater than or equal to 1"),
    ({"log_retention_hours": "-2"}, "must be unlimited (-1) or, greater than or equal to 1"),
    ({"log_roll_ms": "0"}, "Invalid value 0 for configuration log.roll.ms"),
    ({"queued_max_request_bytes": "10"}, "at least socket.request.max.bytes, or -1"),
    ({"replica_fetch_wait_max_ms": "40000", "replica_lag_time_max_ms": "50000"}, "replica.socket.timeout.ms"),
    ({"replica_fetch_wait_max_ms": "20000", "replica_lag_time_max_ms": "10000"}, "frequent changes in ISR"),
    (
        {"authorizer_class_name": "x.Y"},
        "Invalid value x.Y for configuration authorizer.class.name: this node runs no Java classes",
    ),
    (
        {"client_quota_callback_class": "x.Y"},
        "x.Y for configuration client.quota.callback.class: this version does not support",
    ),
    (
        {"remote_log_storage_system_enable": "true"},
        "this version does not support the feature: the value must be false",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), BAD, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_a_bad_value_stops_the_start_with_one_line(changes: dict[str, str | None], message: str) -> None:
    """A bad value stops the start with one line that names the key, the value and the allowed values."""
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_load_reads_a_file(tmp_path: Path) -> None:
    """A file is read by Kafka's syntax: comments, blanks around the equals sign, continued lines."""
    path = tmp_path / "node.properties"
    lines = [
        "# a node",
        *(f"{key} = {value}" for key, value in MINIMAL.items()),
        "num.partitions: \\",
        "   3",
    ]
    path.write_text("\n".join(lines))
    node = NodeConfig.load(str(path))
    assert node.get_int("num.partitions") == 3
    assert node.explicit["node.id"] == "1"
    path.write_text("a=\\u12")
    with pytest.raises(ConfigError, match="line 1"):
        NodeConfig.load(str(path))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb:2\nc 3\nd\n", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("  a  =  1  \n", {"a": "1  "}),
        ("! no\n# no\n\n a=#yes", {"a": "#yes"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a\\ b\\=c=1", {"a b=c": "1"}),
        ("path=C\\:\\\\dir\\n\\u00e9", {"path": "C:\\dir\né"}),
        ("a=\\ud83d\\uDE00\\u20ac", {"a": "😀€"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a = = b", {"a": "= b"}),
        ("", {}),
    ],
)
def test_properties_are_javas(text: str, values: dict[str, str]) -> None:
    """Properties are read as by java.util.Properties: separators, comments, continued lines, escapes."""
    assert parse_properties(text) == values


@given(st.text())
def test_an_escaped_value_is_read_back(text: str) -> None:
    """Any text is escaped to ASCII and read back unchanged between two keys."""
    escaped = escape_value(text)
    assert escaped.isascii()
    assert parse_properties(f"a={escaped}\nb=1\n") == {"a": text, "b": "1"}


@given(st.text())
def test_any_text_is_properties_or_malformed(text: str) -> None:
    """Any text is read as keys and values, or refused with the number of the line."""
    try:
        values = parse_properties(text)
    except MalformedProperties as error:
        values = {"refused": str(error)}
        assert "\\u" in text
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in values.items())


PLAIN_USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";'
)
SECURED = {
    "ssl.keystore.location": "/k.pem",
    "ssl.keystore.type": "PEM",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": PLAIN_USERS,
}


@pytest.mark.parametrize(
    ("keys", "directory"),
    [
        ({}, None),
        ({"odradek.audit.enabled": "true"}, "/d"),
        ({"authorizer.class.name": AUTHORIZERS[0]}, "/d"),
        ({"authorizer.class.name": AUTHORIZERS[0], "odradek.audit.enabled": "false"}, None),
        ({"authorizer.class.name": AUTHORIZERS[0], "metadata.log.dir": "/m"}, "/m"),
        ({"odradek.audit.enabled": "true", "odradek.audit.directory": "/var/log/o"}, "/var/log/o"),
        ({**SECURED, "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"}, None),
        (
            {
                **SECURED,
                "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
                "ssl.client.auth": "requested",
            },
            "/d",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT", **SECURED},
            "/d",
        ),
    ],
)
def test_where_the_audit_log_is(keys: dict[str, str], directory: str | None) -> None:
    """The audit log is on by default if clients are authenticated (SASL or certificates) or an authorizer is set."""
    found = config(**{"log.dirs": "/d", **keys}).audit
    assert (None if found is None else found.directory) == directory


@pytest.mark.parametrize("key", ["odradek.audit.files", "odradek.audit.refusals.files"])
@pytest.mark.parametrize("text", ["1", "1001", "some"])
def test_too_few_or_many_audit_files_are_refused(key: str, text: str) -> None:
    """Fewer than two audit files are refused, since the newest and the one before are needed. So are more than 1000."""
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        config(**{key: text})
