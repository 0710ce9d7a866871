"""Our SASL answers are Apache Kafka's in each recorded conversation, apart from deliberate differences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.processes import combined_node_properties, free_ports
from tests.conformance.sasl.cases import all_cases
from tests.conformance.sasl.deliberate import DELIBERATE
from tests.conformance.sasl.document import PATH, render
from tests.conformance.sasl.recording import RECORDING, ask_all
from tests.conformance.sasl.servers import SCRAM_USERS, Place, settings
from tests.security.logins.issuer import Issuer
from tests.security.secured_node import start


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start our node with the keys that Kafka had."""
    directory = tmp_path_factory.mktemp("sasl")
    issuer = Issuer()
    (directory / "jwks.json").write_bytes(issuer.document())
    ports = free_ports(4)
    keys = {
        **combined_node_properties(directory, ports[0], ports[3]),
        **settings(directory, ports),
        "odradek.scram.secret": "a secret",
    }
    users = [
        f'{mechanism}=[name="{user}",password={password}]'
        for user, password in SCRAM_USERS.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    server = start(directory, keys, users)
    try:
        plaintext, sasl, short = (f"127.0.0.1:{port}" for port in ports[:3])
        yield Place(plaintext, sasl, short, issuer)
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def test_the_recording_is_of_these_conversations() -> None:
    """If the questions have changed since Kafka was asked, the recording is refused until it is made again."""
    assert list(RECORDING.load()) == [case.name for case in all_cases()]
    assert RECORDING.is_sealed(), (
        "the cases have changed: `python -m tests.conformance.sasl record` asks Apache Kafka again"
    )


def test_the_page_lists_the_differences() -> None:
    """The list in docs/logins.md equals the output of `python -m tests.conformance.sasl document`."""
    assert PATH.read_text() == render()
    assert f"holds {len(RECORDING.load())} conversations" in PATH.read_text()


def test_every_answer_is_kafkas_or_deliberate(place: Place) -> None:
    """Error codes, texts, tokens and ends of connections are Kafka's, except for the listed differences."""
    found = RECORDING.compare(ask_all(place))
    unexpected = [line for line in found if line.split(": ")[0] not in DELIBERATE]
    assert not unexpected, "\n".join(unexpected)
    assert {line.split(": ")[0] for line in found} == set(DELIBERATE), "a difference that is no more"
