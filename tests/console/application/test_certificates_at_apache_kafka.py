"""Logins by a client's certificate beside Apache Kafka: its brokers decide by the same kind of token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from odradek import Admin
from odradek.client.admin.admin_users import ScramUpsertion
from odradek.console import process
from odradek.console.sessions.token_maker import TokenMaker
from testkit.kafka_server import start_kafka
from testkit.processes import free_ports
from tests.console.application.console_here import console_for
from tests.console.application.test_certificates import OURS, Place, furnish, refused, topics_of, until
from tests.security.secured_node import make_certificates

pytestmark = [pytest.mark.java, pytest.mark.long]
BRIEF_SECONDS = 6.0


@pytest.fixture(scope="module")
def place(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node of Apache Kafka with an authorizer, SCRAM and delegation tokens."""
    directory = tmp_path_factory.mktemp("kafka")
    make_certificates(directory)
    plaintext, controller, sasl = free_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{plaintext},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    server = start_kafka(
        directory,
        port=plaintext,
        settings={
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "delegation.token.secret.key": "a secret of all nodes",
        },
    )
    try:
        place = Place(
            directory, f"127.0.0.1:{plaintext}", f"127.0.0.1:{sasl}", {"security.protocol": "SASL_PLAINTEXT"}
        )
        with Admin(bootstrap_servers=place.plaintext) as admin:
            user = ScramUpsertion.of_password(
                "console", "SCRAM-SHA-256", "console-secret", salt=b"sixteen bytes xx"
            )
            assert admin.alter_user_scram_credentials([user]) == {"console": None}
        furnish(place)
        yield place
    finally:
        server.kill()


def test_kafka_takes_the_tokens_of_the_console(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user sees his topic alone. The token is renewed by the console, and gone after the logout."""
    monkeypatch.setattr(process, "TokenMaker", partial(TokenMaker, seconds=BRIEF_SECONDS))
    with console_for(place.settings()) as console:
        assert refused(place.person(console, "eve"))[:2] == (403, "CREATE_TOKENS_NEEDED")
        dora = place.person(console, "dora")
        status, document = dora.log_in(certificate=True)
        assert status == 200, str(document)
        assert topics_of(dora) == [OURS]
        (first,) = place.tokens("User:dora")
        until(lambda: time.time() * 1000 > first.expires_at_ms + 500, "time stands still")
        assert topics_of(dora) == [OURS]
        (same,) = place.tokens("User:dora")
        assert (same.token_id, same.expires_at_ms > first.expires_at_ms) == (first.token_id, True)
        assert dora.send("POST", "/api/logout")[0] == 200
        until(lambda: not place.tokens("User:dora"), "the token is left")
