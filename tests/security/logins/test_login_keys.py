"""The keys of logins in a node's configuration: their precedence, our plain form, and refusals that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.listener_security import ListenerSecurity
from odradek.node.configuration.node_config import NodeConfig
from tests.security.clients import PACKAGE

PLAIN = f"{PACKAGE}plain.PlainLoginModule"
SCRAM = f"{PACKAGE}scram.ScramLoginModule"
BEARER = f"{PACKAGE}oauthbearer.OAuthBearerLoginModule"
OAUTH = "sasl.oauthbearer."
OAUTH_KEYS = {
    "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{OAUTH}jwks.endpoint.url": "https://issuer/keys",
    f"{OAUTH}expected.audience": "kafka,others",
    f"{OAUTH}expected.issuer": "https://issuer",
}


def properties(**changes: str | None) -> dict[str, str]:
    """Return the configuration of a node with one SASL listener, with changes. A change to None removes a key."""
    found = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9094",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "/data",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        **changes,
    }
    return {key: value for key, value in found.items() if value is not None}


def loaded(directory: Path, **changes: str | None) -> NodeConfig:
    path = directory / "node.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties(**changes).items()))
    return NodeConfig.load(str(path))


def security(**changes: str | None) -> ListenerSecurity:
    return NodeConfig.from_properties(properties(**changes)).security["SASL"]


def test_the_most_special_key_holds() -> None:
    """As in Kafka, the key of a listener with a mechanism wins over the key of the listener, and this over the general
    key."""
    keys = {
        **OAUTH_KEYS,
        "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
        f"{OAUTH}clock.skew.seconds": "1",
        f"listener.name.sasl.{OAUTH}clock.skew.seconds": "2",
        f"listener.name.sasl.oauthbearer.{OAUTH}clock.skew.seconds": "3",
        f"listener.name.sasl.{OAUTH}sub.claim.name": "client",
        "connections.max.reauth.ms": "10",
        "listener.name.sasl.connections.max.reauth.ms": "20",
        "listener.name.sasl.oauthbearer.connections.max.reauth.ms": "30",
        "sasl.server.max.receive.size": "1000",
        "listener.name.sasl.sasl.server.max.receive.size": "2000",
    }
    found = security(**keys)
    assert found.oauth is not None
    expected = found.oauth.expectations
    assert (expected.clock_skew_seconds, expected.sub_claim_name) == (3, "client")
    assert expected.expected_audience == {"kafka", "others"}
    assert found.session_ms_max == {"OAUTHBEARER": 30, "SCRAM-SHA-256": 20}
    assert found.frame_bytes_max == 2000


def test_kafkas_own_classes_are_names() -> None:
    """Kafka's class names of handlers, retrievers and validators are accepted, and mean the built-in ones."""
    handler = "oauthbearer.OAuthBearerValidatorCallbackHandler"
    assert security(
        **OAUTH_KEYS,
        **{
            "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": PACKAGE + handler,
            "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{BEARER} required;",
            f"{OAUTH}jwt.validator.class": f"{PACKAGE}oauthbearer.BrokerJwtValidator",
            f"{OAUTH}jwt.retriever.class": f"{PACKAGE}oauthbearer.ClientCredentialsJwtRetriever",
        },
    ).oauth


def test_what_is_waived_is_not_asked_for() -> None:
    """`odradek.sasl.oauthbearer.waived` names claims that need no expected value. Other claims still need an expected
    value."""
    keys = {**OAUTH_KEYS, f"{OAUTH}expected.audience": None, f"{OAUTH}expected.issuer": None}
    found = security(**keys, **{"odradek.sasl.oauthbearer.waived": "audience, issuer"})
    assert found.oauth is not None
    assert not found.oauth.expectations.expected_audience


PREFIX = "listener.name.sasl."
REFUSED: dict[str, tuple[dict[str, str | None], str]] = {
    "gssapi by default": (
        {"sasl.enabled.mechanisms": None},
        "the value is the default, so set the key to other mechanisms",
    ),
    "gssapi": (
        {"sasl.enabled.mechanisms": "GSSAPI"},
        "this mechanism is not supported: supported are PLAIN, SCRAM-SHA-256",
    ),
    "plain without users": ({"sasl.enabled.mechanisms": "PLAIN"}, "user_NAME"),
    "a module of another mechanism": (
        {"sasl.enabled.mechanisms": "PLAIN", f"{PREFIX}plain.sasl.jaas.config": f"{SCRAM} required;"},
        f"the login module of PLAIN must be {PLAIN}",
    ),
    "a broken line": (
        {
            "sasl.enabled.mechanisms": "PLAIN",
            f"{PREFIX}plain.sasl.jaas.config": f'{PLAIN} required user_a="hunter2"',
        },
        "semicolon at its end",
    ),
    "a foreign handler": (
        {f"{PREFIX}scram-sha-512.sasl.server.callback.handler.class": "com.example.Handler"},
        "a Java class cannot run here",
    ),
    "a foreign handler of the whole listener": (
        {f"{PREFIX}sasl.server.callback.handler.class": "com.example.Handler"},
        "a Java class cannot run here",
    ),
    "a foreign handler of all": (
        {"sasl.login.class": "com.example.Login"},
        f"the built-in class is {PACKAGE}authenticator.DefaultLogin",
    ),
    "tokens that nobody signs": (
        {
            **OAUTH_KEYS,
            f"{PREFIX}oauthbearer.sasl.server.callback.handler.class": f"{PACKAGE}oauthbearer.internals.unsecured."
            "OAuthBearerUnsecuredValidatorCallbackHandler",
        },
        "a Java class cannot run here",
    ),
    "no keys": ({**OAUTH_KEYS, f"{OAUTH}jwks.endpoint.url": None}, "the issuer's keys"),
    "keys of ftp": ({**OAUTH_KEYS, f"{OAUTH}jwks.endpoint.url": "ftp://issuer/keys"}, "https://HOST/PATH"),
    "keys behind a password": (
        {**OAUTH_KEYS, f"{OAUTH}jwks.endpoint.url": "https://u:p@issuer/keys"},
        "https://HOST/PATH",
    ),
    "no audience": (
        {**OAUTH_KEYS, f"{OAUTH}expected.audience": None},
        "or odradek.sasl.oauthbearer.waived=audience",
    ),
    "no issuer": ({**OAUTH_KEYS, f"{OAUTH}expected.issuer": None}, "waived=issuer"),
    "an audience waived, but no issuer": (
        {**OAUTH_KEYS, f"{OAUTH}expected.issuer": None, "odradek.sasl.oauthbearer.waived": "audience"},
        "waived=issuer",
    ),
    "the keys waived": (
        {**OAUTH_KEYS, "odradek.sasl.oauthbearer.waived": "jwks"},
        "set the expected audience, the expected issuer, or both",
    ),
    "nodes without a login": (
        {
            "inter.broker.listener.name": "SASL",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            f"{PREFIX}scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        },
        "or set odradek.sasl.username",
    ),
    "nodes by gssapi": ({"inter.broker.listener.name": "SASL"}, "is not supported"),
    "nodes without a token": (
        {
            **OAUTH_KEYS,
            "inter.broker.listener.name": "SASL",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        },
        "token.endpoint.url is missing",
    ),
    "a keystore of java": (
        {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.location": "/keys.jks",
        },
        "keytool -importkeystore",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(name: str) -> None:
    """A configuration that cannot be fulfilled is refused in one line.

    The line has the key and what to do, but no secret.
    """
    changes, reason = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        security(**changes)
    text = str(caught.value)
    assert reason in text
    assert "\n" not in text
    assert "hunter2" not in text


def test_a_line_without_its_mechanism_is_told() -> None:
    """A JAAS line needs a mechanism in its key, as in Kafka. Otherwise a warning says that the line has no effect."""
    found = NodeConfig.from_properties(properties(**{f"{PREFIX}sasl.jaas.config": f"{SCRAM} required;"}))
    assert any(f"{PREFIX}sasl.jaas.config has no effect" in each for each in found.warnings)


def test_our_plain_form(tmp_path: Path) -> None:
    """In our plain form, passwords are in files, and users are lines of NAME=PASSWORD. A listener's own keys win."""
    (tmp_path / "password").write_text("node-secret\n")
    (tmp_path / "users").write_text("# those who come in\ncarol=carol secret\nnode=node-secret\n")
    keys = {
        "sasl.enabled.mechanisms": "PLAIN",
        "inter.broker.listener.name": "SASL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "odradek.sasl.username": "other",
        f"{PREFIX}odradek.sasl.username": "node",
        f"{PREFIX}odradek.sasl.password.file": f"{tmp_path}/password",
        f"{PREFIX}odradek.sasl.plain.users.file": f"{tmp_path}/users",
    }
    config = loaded(tmp_path, **keys)
    assert not config.warnings
    found = config.security["SASL"]
    assert found.plain_users == {"carol": "carol secret", "node": "node-secret"}
    assert found.node_login is not None
    assert (found.node_login.username, found.node_login.password) == ("node", "node-secret")
    assert "node-secret" not in repr(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"odradek.sasl.username": "node"}, "odradek.sasl.password.file is missing"),
        ({"odradek.sasl.password.file": "{}/password"}, "odradek.sasl.username is missing"),
        ({"odradek.sasl.password.file": "{}/nowhere"}, "the file cannot be read"),
        ({"odradek.sasl.plain.users.file": "{}/empty"}, "the file must have lines of NAME=PASSWORD"),
        ({"odradek.sasl.plain.users.file": "{}/nobody"}, "the file must have lines of NAME=PASSWORD"),
        (
            {"odradek.sasl.username": "node", "odradek.sasl.password.file": "{}/empty"},
            "the file must contain a password",
        ),
        (
            {
                "odradek.sasl.plain.users.file": "{}/users",
                f"{PREFIX}plain.sasl.jaas.config": f'{PLAIN} required user_a="b";',
            },
            "must not name users, because",
        ),
    ],
)
def test_our_plain_form_is_whole_or_refused(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    """Our plain form is refused if a part is missing, a file is missing or empty, or both forms are given."""
    for name, text in (("password", "x"), ("empty", ""), ("nobody", "=x\n"), ("users", "carol=x\n")):
        (tmp_path / name).write_text(text)
    keys = {
        "sasl.enabled.mechanisms": "PLAIN",
        "inter.broker.listener.name": "SASL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{PREFIX}plain.sasl.jaas.config": f"{PLAIN} required;",
        **{key: value.format(tmp_path) for key, value in changes.items()},
    }
    with pytest.raises(ConfigError, match=reason):
        loaded(tmp_path, **keys)
