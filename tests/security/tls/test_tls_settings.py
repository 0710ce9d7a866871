"""Keys and certificates in every form of Kafka's `ssl.*` keys, and forms that are refused."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)

from odradek.env.real_tls import RealTls
from odradek.env.tls_ports import TlsFailed, TlsRefused, TlsSettings
from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.listener_security import tls_settings
from tests.security.certificates import Authority, Issued, named, self_signed

AUTHORITY = Authority()
OWN = AUTHORITY.issue("node", ("localhost", "127.0.0.1"), with_rsa=True)
CLIENT = AUTHORITY.issue("client")
PASSWORD = "a password"
BASE = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}


def shake(server: RealTls, client: RealTls, host: str = "localhost") -> bytes | None:
    """Make a handshake in memory. Return the client's certificate as the server sees it. Raises `TlsFailed`."""
    ends = [client.client_session(host), server.server_session()]
    done = [False, False]
    for _ in range(10):
        for index, end in enumerate(ends):
            done[index] = done[index] or end.handshake()
            ends[1 - index].feed(data) if (data := end.take()) else None
        if all(done):
            return ends[1].peer_certificate()
    raise AssertionError("the handshake has not ended after 10 rounds")


def settings(changes: Mapping[str, str]) -> TlsSettings:
    """Return the settings of a listener with these keys. Raises `ConfigError`."""
    return tls_settings("TLS", "SSL", {**BASE, **changes}, serves=True)


def opened(changes: Mapping[str, str]) -> RealTls:
    """Open TLS with these keys. Raises `ConfigError`, `TlsRefused`."""
    return RealTls(settings({"ssl.truststore.certificates": AUTHORITY.pem, **changes}))


def inline(issued: Issued = OWN, password: str | None = None) -> dict[str, str]:
    """Return key and certificates as text for the configuration."""
    return {
        "ssl.keystore.key": issued.key_pem(password),
        "ssl.keystore.certificate.chain": issued.chain_pem,
        **({} if password is None else {"ssl.key.password": password}),
    }


def pkcs12(issued: Issued, path: Path) -> dict[str, str]:
    """Return key and certificates as a PKCS #12 file."""
    encryption = BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(
        serialize_key_and_certificates(b"node", issued.key, issued.certificate, issued.above, encryption)
    )
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": PASSWORD,
    }


def forms(directory: Path) -> dict[str, dict[str, str]]:
    """Return the node's key in each form."""
    encrypted = directory / "encrypted.pem"
    encrypted.write_text(OWN.key_pem(PASSWORD) + OWN.chain_pem)
    old = directory / "old.pem"
    traditional = OWN.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    old.write_text(traditional.decode() + OWN.chain_pem)
    one_line = {key: " ".join(text.split("\n")) for key, text in inline().items()}
    return {
        "PEM file": {"ssl.keystore.location": OWN.write(directory / "node.pem")},
        "encrypted PEM file": {"ssl.keystore.location": str(encrypted), "ssl.key.password": PASSWORD},
        "PEM file of OpenSSL's old kind": {"ssl.keystore.location": str(old)},
        "text": inline(),
        "text on one line": one_line,
        "encrypted text": inline(password=PASSWORD),
        "PKCS12": pkcs12(OWN, directory / "node.p12"),
    }


def client_settings(**changes: Any) -> TlsSettings:
    return attrs.evolve(TlsSettings(truststore_certificates=AUTHORITY.pem), **changes)


def test_keys_in_every_form(tmp_path: Path) -> None:
    """A server with its key in each form is accepted by an honest client."""
    client = RealTls(client_settings())
    for name, keys in forms(tmp_path).items():
        assert shake(opened(keys), client) is None, name


def test_a_client_may_have_its_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    """A client has its certificates in one PEM file and its key in another, encrypted or not.

    The server sees the certificate.
    """
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    own.write_text(CLIENT.chain_pem)
    server = RealTls(
        settings({**inline(), "ssl.truststore.certificates": AUTHORITY.pem, "ssl.client.auth": "required"})
    )
    with_key = client_settings(keystore_location=str(own), keystore_key_location=str(key))
    for password in (None, PASSWORD):
        key.write_text(CLIENT.key_pem(password))
        client = RealTls(attrs.evolve(with_key, key_password=password))
        assert shake(server, client) == CLIENT.certificate.public_bytes(Encoding.DER)
    key.write_text(OWN.key_pem())
    with pytest.raises(TlsRefused, match=r"key\.pem with .*own\.pem"):
        RealTls(with_key)
    key.unlink()
    with pytest.raises(TlsRefused, match=r"key\.pem"):
        RealTls(with_key)


def test_truststores_in_every_form(tmp_path: Path) -> None:
    """A truststore in each form makes the server accept the client's certificate."""
    file, java, plain = tmp_path / "trust.pem", tmp_path / "java.p12", tmp_path / "plain.p12"
    AUTHORITY.write(file)
    entries = [PKCS12Certificate(AUTHORITY.own.certificate, b"authority")]
    java.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode())))
    plain.write_bytes(
        serialize_key_and_certificates(
            b"x", None, None, [AUTHORITY.own.certificate], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    client = RealTls(client_settings(keystore_key=CLIENT.key_pem(), keystore_chain=CLIENT.chain_pem))
    for trust in (
        {"ssl.truststore.location": str(file)},
        {"ssl.truststore.certificates": AUTHORITY.pem},
        *(
            {
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(path),
                "ssl.truststore.password": PASSWORD,
            }
            for path in (java, plain)
        ),
    ):
        server = RealTls(settings({**inline(), **trust, "ssl.client.auth": "required"}))
        assert shake(server, client) == CLIENT.certificate.public_bytes(Encoding.DER)


def test_a_certificate_of_the_truststore_is_an_anchor() -> None:
    """A single certificate in the truststore, without its authority, is trusted, as in Java."""
    server = RealTls(
        settings(
            {
                **inline(),
                "ssl.truststore.certificates": CLIENT.chain_pem.split("-----END")[0]
                + "-----END CERTIFICATE-----\n",
                "ssl.client.auth": "required",
            }
        )
    )
    client = client_settings(keystore_key=CLIENT.key_pem(), keystore_chain=CLIENT.chain_pem)
    assert shake(server, RealTls(client)) is not None


@pytest.mark.parametrize(
    ("asked", "certificate", "is_taken"),
    [
        ("none", None, True),
        ("none", CLIENT, True),
        ("requested", None, True),
        ("requested", CLIENT, True),
        ("requested", self_signed("stranger"), False),
        ("required", None, False),
        ("required", CLIENT, True),
        ("required", self_signed("stranger"), False),
    ],
)
def test_client_authentication(asked: str, certificate: Issued | None, is_taken: bool) -> None:
    """With `ssl.client.auth=requested`, a client may omit its certificate, but a wrong one is refused, as in Java."""
    server = opened({**inline(), "ssl.client.auth": asked})
    client = client_settings()
    if certificate is not None:
        client = attrs.evolve(
            client, keystore_key=certificate.key_pem(), keystore_chain=certificate.chain_pem
        )
    if is_taken:
        shown = shake(server, RealTls(client))
        assert (shown is not None) == (certificate is not None and asked != "none")
    else:
        with pytest.raises(TlsFailed):
            shake(server, RealTls(client))


def test_a_client_checks_the_name_of_the_server() -> None:
    """With `ssl.endpoint.identification.algorithm=https` a client checks the server's name.

    With an empty value it does not.
    """
    server = opened(inline())
    with pytest.raises(TlsFailed, match="certificate refused"):
        shake(server, RealTls(client_settings()), "example.org")
    shake(server, RealTls(client_settings(check_host=False)), "example.org")
    shake(server, RealTls(client_settings()), "127.0.0.1")


@pytest.mark.parametrize(
    "certificate",
    [
        self_signed("node", ("localhost",)),
        Authority().issue("node", ("localhost",)),
        AUTHORITY.issue("node", ("localhost",), days=(-9, -1)),
    ],
    ids=["self-signed", "another authority", "expired"],
)
def test_a_client_refuses_a_wrong_server(certificate: Issued) -> None:
    with pytest.raises(TlsFailed, match="certificate refused"):
        shake(opened(inline(certificate)), RealTls(client_settings()))


def _spoken(server: RealTls, **changes: Any) -> tuple[str, str]:
    """Return the version and cipher that a client and the server negotiate."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    for name, value in changes.items():
        setattr(context, name, value)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    session = server.server_session()
    while True:
        try:
            client.do_handshake()
            cipher = client.cipher()
            assert cipher is not None
            return str(client.version()), cipher[0]
        except ssl.SSLWantReadError:
            session.feed(outgoing.read())
            session.handshake()
            incoming.write(session.take())


def test_versions_are_those_that_are_enabled() -> None:
    """`ssl.enabled.protocols` limits the versions of TLS."""
    assert _spoken(opened(inline()))[0] == "TLSv1.3"
    assert _spoken(opened({**inline(), "ssl.enabled.protocols": "TLSv1.2"}))[0] == "TLSv1.2"
    only = opened({**inline(), "ssl.enabled.protocols": "TLSv1.3"})
    with pytest.raises(TlsFailed):
        _spoken(only, maximum_version=ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ciphers_have_javas_names(java: str, openssl: str) -> None:
    """`ssl.cipher.suites` names one cipher of TLS 1.2, by Java's name.

    Only this cipher is used, and TLS 1.3 is off, as in Java.
    """
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.set_ciphers("ALL:@SECLEVEL=0")
    server = opened({**inline(), "ssl.cipher.suites": java})
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    session = server.server_session()
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            session.feed(outgoing.read())
            session.handshake()
            incoming.write(session.take())
    cipher = client.cipher()
    assert cipher is not None
    assert (cipher[0], client.version()) == (openssl, "TLSv1.2")


ALL_OF_1_3 = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no certificate": ({}, "needs a certificate"),
    "JKS": ({"ssl.keystore.location": "node.jks", "ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
    "JKS, the default": ({"ssl.keystore.location": "node.jks", "ssl.keystore.type": "jks"}, "keytool"),
    "a truststore of JKS": (
        {**inline(), "ssl.truststore.type": "JKS", "ssl.truststore.location": "x"},
        "keytool",
    ),
    "a file and a text": ({**inline(), "ssl.keystore.location": "x"}, "Both ssl.keystore.location and"),
    "a key alone": ({"ssl.keystore.key": OWN.key_pem()}, "go together"),
    "certificates alone": (
        {"ssl.keystore.certificate.chain": OWN.chain_pem, "ssl.keystore.location": "x"},
        "go together",
    ),
    "text in PKCS12": ({**inline(), "ssl.keystore.type": "PKCS12"}, "is PEM"),
    "a password of a PEM store": ({**inline(), "ssl.keystore.password": "secret"}, "ssl.key.password"),
    "no such file": ({"ssl.keystore.location": "/nowhere/at/all"}, "/nowhere/at/all"),
    "a device": ({"ssl.keystore.location": "/dev/zero"}, "/dev/zero"),
    "no key in it": ({"ssl.keystore.location": __file__}, "does not contain a key that matches"),
    "a wrong password": (
        {**inline(password=PASSWORD), "ssl.key.password": "secret"},
        "does not contain a key that matches",
    ),
    "no password": (
        {key: text for key, text in inline(password=PASSWORD).items() if key != "ssl.key.password"},
        "does not contain a key that matches",
    ),
    "a key of another certificate": (
        {"ssl.keystore.key": CLIENT.key_pem(), "ssl.keystore.certificate.chain": OWN.chain_pem},
        "does not contain a key that matches",
    ),
    "an empty truststore": (
        {**inline(), "ssl.truststore.certificates": "nothing", "ssl.client.auth": "required"},
        "no certificates",
    ),
    "an old version": ({**inline(), "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "TLSv1.1"),
    "an old protocol": ({**inline(), "ssl.protocol": "SSLv3"}, "one of TLS, TLSv1.2, TLSv1.3"),
    "a provider": ({**inline(), "ssl.provider": "BCFIPS"}, "remove this value"),
    "an engine of Java": ({**inline(), "ssl.provider": "x"}, "Java"),
    "another check of names": ({**inline(), "ssl.endpoint.identification.algorithm": "LDAPS"}, "https"),
    "a cipher of nobody": ({**inline(), "ssl.cipher.suites": "TLS_X_WITH_Y"}, "TLS_X_WITH_Y"),
    "one unknown among known": (
        {**inline(), "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA"},
        "TLS_RSA_WITH_RC4_128_SHA",
    ),
    "without curves": (
        {**inline(), "ssl.cipher.suites": "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"},
        "name the corresponding suite with ECDHE",
    ),
    "OpenSSL's name": ({**inline(), "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256"}, "not a Java name"),
    "some of TLS 1.3": ({**inline(), "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "all of"),
    "ciphers of no version": (
        {**inline(), "ssl.cipher.suites": ALL_OF_1_3, "ssl.enabled.protocols": "TLSv1.2"},
        "no suite for the versions in ssl.enabled.protocols",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    """An unusable store is refused in one line, which names the key or the file and shows no secret."""
    changes, reason = REFUSED[name]
    with pytest.raises((ConfigError, TlsRefused)) as refused:
        opened(changes) if "ssl.truststore.location" not in changes else settings(changes)
    text = str(refused.value)
    assert reason in text
    assert "\n" not in text
    for secret in ("PRIVATE", PASSWORD, "secret"):
        assert secret not in text


def test_a_pipe_is_no_store(tmp_path: Path) -> None:
    """A pipe as a store is refused at once, since reading it could block forever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for keys in (
        {"ssl.keystore.location": str(path)},
        pkcs12(OWN, tmp_path / "x") | {"ssl.keystore.location": str(path)},
    ):
        with pytest.raises(TlsRefused, match="the path does not name a regular file"):
            opened(keys)


def test_ciphers_of_tls_1_3_are_all_or_none() -> None:
    """A list of all ciphers of TLS 1.3 is accepted. Python's `ssl` cannot choose a part of them."""
    assert _spoken(opened({**inline(), "ssl.cipher.suites": ALL_OF_1_3}))[0] == "TLSv1.3"


def test_a_listener_has_keys_of_its_own() -> None:
    """`listener.name.NAME.ssl.*` wins over the general key."""
    found = settings(
        {
            **inline(),
            "ssl.client.auth": "none",
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.other.ssl.client.auth": "requested",
        }
    )
    assert found.client_auth == "required"


def test_sasl_asks_for_certificates_by_a_key_of_the_listener() -> None:
    """A general `ssl.client.auth` does not apply to SASL listeners. A listener's own key does (KIP-684)."""
    keys = {**BASE, **inline(), "ssl.client.auth": "required"}
    assert tls_settings("TLS", "SASL_SSL", keys, serves=True).client_auth == "none"
    keys["listener.name.tls.ssl.client.auth"] = "requested"
    assert tls_settings("TLS", "SASL_SSL", keys, serves=True).client_auth == "requested"


def test_no_resumption_where_clients_show_certificates() -> None:
    """A listener that requests certificates does not resume sessions. A resumed session could outlive a certificate."""
    server = opened({**inline(), "ssl.client.auth": "requested"})
    assert server._ends.server is not None
    assert server._ends.server.num_tickets == 0
    assert server._ends.server.options & ssl.OP_NO_TICKET


def test_secrets_do_not_show() -> None:
    """The texts of settings and keys show no secret."""
    tls = opened(inline(password=PASSWORD))
    shown = repr(settings(inline(password=PASSWORD))) + repr(tls._ends)
    assert "PRIVATE" not in shown
    assert PASSWORD not in shown


# -- other files, other settings --------------------------------------------------------------------------------


def test_a_changed_file_is_used_for_new_sessions(tmp_path: Path) -> None:
    """A changed certificate file is used for new sessions, even if only a symbolic link changed.

    A broken file is logged once, and changes nothing.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        AUTHORITY.issue(directory.name, ("localhost",)).write(directory / "node.pem")
    link = tmp_path / "current"
    link.symlink_to(first)
    server = opened({"ssl.keystore.location": str(link / "node.pem")})
    assert not server.reload()
    assert _common_name(server) == "first"
    link.unlink()
    link.symlink_to(second)
    assert server.reload()
    assert _common_name(server) == "second"
    (second / "node.pem").write_text("broken")
    with pytest.raises(TlsRefused):
        server.reload()
    assert not server.reload()
    assert _common_name(server) == "second"
    AUTHORITY.issue("third", ("localhost",)).write(second / "node.pem")
    assert server.reload()
    assert _common_name(server) == "third"


def _common_name(server: RealTls) -> str:
    key = server._ends.key
    assert key is not None
    return str(key.chain[0].subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def test_a_change_keeps_the_names_of_the_certificate() -> None:
    """A new certificate must keep the distinguished name and all alternative names, unless keys allow a change.

    Kafka has this rule, too.
    """
    server = opened(inline())
    base = settings({"ssl.truststore.certificates": AUTHORITY.pem, **inline()})

    def changed(issued: Issued, **others: bool) -> TlsSettings:
        return attrs.evolve(base, keystore_key=issued.key_pem(), keystore_chain=issued.chain_pem, **others)

    server.check(changed(AUTHORITY.issue("node", ("localhost", "127.0.0.1", "more"))))
    other = AUTHORITY.issue("other", ("localhost", "127.0.0.1"))
    with pytest.raises(TlsRefused, match=r"distinguished name.*ssl\.allow\.dn\.changes"):
        server.check(changed(other))
    server.check(changed(other, allow_dn_changes=True))
    fewer = AUTHORITY.issue("node", ("localhost",))
    with pytest.raises(TlsRefused, match=r"lacks the former certificate's names 127\.0\.0\.1"):
        server.check(changed(fewer))
    server.check(changed(fewer, allow_san_changes=True))


def test_the_end_of_a_certificate_is_known() -> None:
    """`expires_at` is the end of the certificate in the chain that ends first."""
    short = AUTHORITY.issue(named("node"), ("localhost",), days=(-1, 3))
    ends_at = opened(inline(short)).expires_at
    assert ends_at == short.certificate.not_valid_after_utc.timestamp()
    assert RealTls(client_settings()).expires_at is None
