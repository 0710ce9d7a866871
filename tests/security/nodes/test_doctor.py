"""`odradek cluster doctor`: each mistake that a client can run into, planted on real nodes, is named with its key."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from odradek.cli.commands.storage import format_storage_of
from odradek.cli.health import doctor, probing
from odradek.cli.health.probing import Probe
from testkit.odradek_server import spawn_node
from testkit.processes import ServerProcess, combined_node_properties, free_ports, wait_until_serving
from tests.cli.running import Outcome, odradek_here
from tests.security.secured_node import PLAIN_MODULE, SecuredNode

pytestmark = pytest.mark.long
CLUSTER = "H5nlA7uKR0-zDRxvMJS5iw"


@contextmanager
def node(
    directory: Path, settings: Mapping[str, str], serving: str, cluster: str = CLUSTER
) -> Iterator[ServerProcess]:
    """Run a node with these settings until the block ends. `serving` is an address that it serves."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    format_storage_of(str(path), cluster_id=cluster, ignore_formatted=False)
    server = spawn_node(directory.name, path, bootstrap=serving, log_path=directory / "server.log")
    try:
        wait_until_serving(server, 60)
        yield server
    finally:
        server.stop()


@contextmanager
def pair(directory: Path, advertised: Mapping[int, str], ports: list[int]) -> Iterator[str]:
    """Run two nodes whose brokers advertise these addresses to clients. Yield the address of the first one.

    The brokers reach each other by a listener of their own.
    """
    with ExitStack() as stack:
        for number in (1, 2):
            clients, brokers = ports[2 * number - 1], ports[2 * number]
            settings = combined_node_properties(directory / f"{number}", clients, ports[0]) | {
                "node.id": str(number),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "listeners": f"BROKERS://127.0.0.1:{brokers},PLAINTEXT://127.0.0.1:{clients}",
                "advertised.listeners": f"BROKERS://127.0.0.1:{brokers},PLAINTEXT://{advertised[number]}",
            }
            if number == 1:
                settings["listeners"] += f",CONTROLLER://127.0.0.1:{ports[0]}"
            else:
                settings["process.roles"] = "broker"
            stack.enter_context(node(directory / f"{number}", settings, f"127.0.0.1:{clients}"))
        yield f"127.0.0.1:{ports[1]}"


def examine(bootstrap: str, *words: str | Path) -> Outcome:
    return odradek_here("cluster", "doctor", *words, bootstrap=bootstrap)


def kinds(bootstrap: str, *words: str | Path) -> list[tuple[str, str]]:
    document = examine(bootstrap, "--json", *words).json(3)
    return [(each["kind"], each["subject"].partition(" at ")[0]) for each in document["findings"]]


@pytest.mark.parametrize(
    ("first", "second", "found", "key"),
    [
        ("{1}", "{2}", [], ""),
        ("{1}", "{1}", [("same-address", "broker 2")], "advertised.listeners"),
        ("{1}", "127.0.0.1:1", [("port", "broker 2")], "advertised.listeners of broker 2"),
        ("{1}", "nowhere.invalid:9092", [("name", "broker 2")], "advertised.listeners of broker 2"),
        ("{2}", "{1}", [("identity", "broker 1"), ("identity", "broker 2")], "to its own address"),
    ],
    ids=["none", "same address", "port", "name", "swapped"],
)
def test_advertised_addresses(
    tmp_path: Path, first: str, second: str, found: list[tuple[str, str]], key: str
) -> None:
    """A broker that advertises another broker's address, a closed port or an unknown name is named."""
    ports = free_ports(5)
    names = ["", f"127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[3]}"]
    with pair(tmp_path, {1: first.format(*names), 2: second.format(*names)}, ports) as bootstrap:
        until = time.monotonic() + 60
        while len(odradek_here("broker", "list", bootstrap=bootstrap).out.splitlines()) < 3:
            assert time.monotonic() < until
            time.sleep(0.1)
        if not found:
            done = examine(bootstrap)
            assert done.code == 0, done.out
            assert "finds each broker where it should be" in done.out
            return
        assert kinds(bootstrap) == found
        assert key in examine(bootstrap).out


def test_a_broker_that_advertises_its_loopback(tmp_path: Path) -> None:
    """A broker that clients of other hosts reach, and that advertises 127.0.0.1, is named."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as finder:
        try:
            finder.connect(("192.0.2.1", 9))
            own = finder.getsockname()[0]
        except OSError:
            own = "127.0.0.1"
    if own.startswith("127."):
        pytest.skip("this machine has only its loopback address")
    clients, controller = free_ports(2)
    settings = combined_node_properties(tmp_path / "one", clients, controller)
    settings["listeners"] = f"PLAINTEXT://0.0.0.0:{clients},CONTROLLER://127.0.0.1:{controller}"
    with node(tmp_path / "one", settings, f"127.0.0.1:{clients}"):
        assert kinds(f"{own}:{clients}") == [("loopback", "broker 1")]
        assert "set advertised.listeners to a name that clients reach" in examine(f"{own}:{clients}").out


def test_bootstrap_addresses(tmp_path: Path, secured: SecuredNode) -> None:
    """Each wrong address among several is named: a closed port, an unknown name, another cluster, a controller."""
    clients, controller = free_ports(2)
    settings = combined_node_properties(tmp_path / "one", clients, controller)
    with node(tmp_path / "one", settings, f"127.0.0.1:{clients}"):
        here = f"127.0.0.1:{clients}"
        addresses = [
            here,
            "127.0.0.1:1",
            "nowhere.invalid:9092",
            secured.plaintext,
            f"127.0.0.1:{controller}",
        ]
        document = examine(",".join(addresses), "--json").json(3)
        assert {(each["kind"], each["subject"]) for each in document["findings"]} == {
            ("port", "127.0.0.1:1"),
            ("name", "nowhere.invalid:9092"),
            ("cluster", secured.plaintext),
            ("refused", f"127.0.0.1:{controller}"),
        }
        text = examine(",".join(addresses)).out
        assert "a controller listens at this address" in text
        assert "change bootstrap.servers" in text


def _file(directory: Path, **keys: str) -> Path:
    path = directory / "client.properties"
    path.write_text("".join(f"{key.replace('__', '.')}={value}\n" for key, value in keys.items()))
    return path


def test_logins_and_protocols(tmp_path: Path, secured: SecuredNode) -> None:
    """A wrong protocol, mechanism, password and authority each have a sentence with the key to change."""

    def line(bootstrap: str, **keys: str) -> str:
        done = examine(bootstrap, "--command-config", _file(tmp_path, **keys))
        assert done.code == 3, (done.out, done.err)
        return done.out.splitlines()[-1]

    jaas = f'{PLAIN_MODULE} required username="carol" password="{{}}";'
    login = {"security__protocol": "SASL_PLAINTEXT", "sasl__jaas__config": jaas.format("carol-secret")}
    assert "the listener speaks SASL_PLAINTEXT, and the client PLAINTEXT" in line(secured.sasl)
    assert "set security.protocol=SASL_SSL" in line(secured.sasl_tls)
    assert "set security.protocol=SSL" in line(secured.tls, **login, sasl__mechanism="PLAIN")
    assert "set security.protocol=PLAINTEXT" in line(secured.plaintext, security__protocol="SSL")
    wrong = login | {"sasl__jaas__config": jaas.format("wrong")}
    assert "Authentication failed" in line(secured.sasl, **wrong, sasl__mechanism="PLAIN")
    assert "does not trust the authority" in line(secured.tls, security__protocol="SSL")
    tls = {
        "security__protocol": "SSL",
        "ssl__truststore__type": "PEM",
        "ssl__truststore__location": secured.authority,
    }
    done = examine(secured.tls, "--command-config", _file(tmp_path, **tls), "--json").json()
    assert done["addresses"][0]["protocol"] == "SSL"
    done = examine(
        secured.sasl, "--command-config", _file(tmp_path, **login, sasl__mechanism="PLAIN"), "--json"
    ).json()
    assert set(done["addresses"][1]["mechanisms"]) == {
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
    }


@pytest.mark.parametrize(
    ("name", "days", "required", "kind", "key"),
    [
        ("other.example", 30, False, "certificate-name", "advertised.listeners to its name"),
        ("127.0.0.1", -1, False, "certificate-time", "ssl.keystore.location at the node"),
        ("127.0.0.1", 30, True, "certificate-client", "ssl.keystore.location in --command-config"),
        ("127.0.0.1", 30, False, "", ""),
    ],
    ids=["name", "time", "client", "none"],
)
def test_certificates(tmp_path: Path, name: str, days: int, required: bool, kind: str, key: str) -> None:
    """A certificate of another name or of the past is named; so is a listener that wants one from clients."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority.issue_cert(name, not_after=end).private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "node.pem"
    )
    clients, brokers, controller = free_ports(3)
    settings = combined_node_properties(tmp_path / "one", clients, controller) | {
        "listeners": f"TLS://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"TLS://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers}",
        "listener.security.protocol.map": "TLS:SSL,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "authority.pem"),
        "ssl.client.auth": "required" if required else "none",
    }
    tls = {
        "security__protocol": "SSL",
        "ssl__truststore__type": "PEM",
        "ssl__truststore__location": str(tmp_path / "authority.pem"),
    }
    with node(tmp_path / "one", settings, f"127.0.0.1:{brokers}"):
        words = ("--command-config", _file(tmp_path, **tls))
        if not kind:
            assert examine(f"127.0.0.1:{clients}", *words).code == 0
            return
        assert [each for each, _ in kinds(f"127.0.0.1:{clients}", *words)] == [kind]
        assert key in examine(f"127.0.0.1:{clients}", *words).out


@pytest.mark.parametrize("answers", [False, True], ids=["hangs", "another service"])
def test_a_port_where_nothing_is_kafka(answers: bool) -> None:
    """A node that hangs, and another service, are named with what was seen there. The protocol is not blamed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        if answers:
            threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert kinds(address, "--timeout", "0.5") == [("silent", address)]
        text = examine(address, "--timeout", "0.5").out
        assert "the port is open, but nothing there answers as Kafka (" in text
        assert ("timed out" in text) is not answers
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("error", "has_tls", "kind"),
    [
        ("Authentication failed: the token has expired", False, "refused"),
        ("Authentication failed: the token has expired", True, "refused"),
        ("certificate verify failed: certificate has expired", True, "certificate-time"),
    ],
)
def test_only_a_certificate_expires_for_tls(error: str, has_tls: bool, kind: str) -> None:
    """An error is read as one of certificates only if the listener has TLS and the error names a certificate."""
    spoken = "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
    looked = Probe("a", 1, ("192.0.2.1",), is_open=True, protocol=spoken, has_tls=has_tls)
    assert doctor._why(looked, {"security.protocol": spoken}, error, "advertised.listeners").kind == kind


def test_a_host_that_knows_its_own_name_by_a_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to 127.0.1.1 here, as on Debian, was a local way to the broker: no mistake is named."""
    known = {"own-name": ["127.0.1.1"], "other": ["192.0.2.1"]}
    monkeypatch.setattr(probing, "addresses_of", lambda host, port: known[host])
    looked = Probe("own-name", 9092, ("127.0.1.1",), is_open=True)
    assert list(doctor._loopback("broker 1", looked, "own-name:9092")) == []
    (found,) = doctor._loopback("broker 1", looked, "other:9092")
    assert found.kind == "loopback"


def test_a_clock_that_is_wrong(secured: SecuredNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that differs from the controller's by more than five seconds is named, with the direction."""
    late = SimpleNamespace(time_ns=lambda: time.time_ns() + 60_000_000_000)
    monkeypatch.setattr(doctor, "time", late)
    assert kinds(secured.plaintext) == [("clock", "controller 1")]
    assert "its clock is 60 s behind the clock of this host" in examine(secured.plaintext).out


def test_versions_that_differ() -> None:
    """A broker that serves other versions of APIs than the others is named."""
    usual = Probe("a", 1, apis={0: (3, 13), 1: (4, 17)})
    older = Probe("b", 1, apis={0: (3, 12), 1: (4, 17)})
    assert list(doctor.versions_of({1: usual, 2: usual})) == []
    (found,) = doctor.versions_of({1: older, 2: usual, 3: usual})
    assert (found.kind, found.subject) == ("version", "broker 1")
    assert found.text == "it serves other versions of 1 API than broker 2 does"
