"""Our client logs in by OAUTHBEARER (KIP-255, KIP-768).

Tokens come from a file, from an issuer's endpoint, or from the application.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import odradek.trio
from odradek.client.core.client_keys import AdminSettings, ProducerSettings
from odradek.client.errors import AuthenticationFailed, ClientError
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from odradek.env.token_ports import DocumentAddress, TokenRequest, TokenUnavailable
from odradek.env.tokens import open_tokens
from testkit.odradek_server import ODRADEK
from tests.security.logins.issuer import Issuer
from tests.security.logins.token_endpoint import CLIENT, SECRET, Endpoint, token_endpoint
from tests.security.secured_node import SecuredNode

PREFIX = "sasl.oauthbearer."


def _keys(secured: SecuredNode, **others: object) -> dict[str, object]:
    return {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **others,
    }


def _by_endpoint(endpoint: Endpoint) -> dict[str, object]:
    return {
        f"{PREFIX}token.endpoint.url": endpoint.url,
        f"{PREFIX}client.credentials.client.id": CLIENT,
        f"{PREFIX}client.credentials.client.secret": SECRET,
        f"{PREFIX}scope": "kafka",
    }


def _request(endpoint: Endpoint, **others: object) -> TokenRequest:
    fields = {"client_id": CLIENT, "client_secret": SECRET, "retry_backoff_ms": 1, **others}
    return TokenRequest(DocumentAddress(endpoint.url), **fields)  # type: ignore[arg-type]


def test_a_token_of_an_endpoint(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """A token is requested by client credentials. One token serves all connections."""
    with token_endpoint(secured.issuer) as endpoint:
        with Producer(_keys(secured, **_by_endpoint(endpoint))) as producer:
            assert producer.send(fresh_topic("token"), b"value").result(20).offset == 0
        assert (len(endpoint.given), endpoint.scopes) == (1, ["kafka"])


def test_a_token_of_the_application(secured: SecuredNode, fresh_topic: Callable[[str], str]) -> None:
    """A function of the application returns the token, even for the async client."""
    keys = _keys(secured, **{"odradek.sasl.oauthbearer.token.callback": secured.issuer.token})

    async def talk() -> None:
        async with odradek.trio.open_producer(keys) as producer:
            future = await producer.send(fresh_topic("token"), b"value")
            assert (await future.result()).offset == 0

    trio.run(talk)


def test_commands_with_a_token_of_a_file(secured: SecuredNode, tmp_path: Path) -> None:
    """Commands accept a token file by --command-config with Kafka's keys, even with Kafka's class name of a handler."""
    (tmp_path / "token.jwt").write_text(secured.issuer.token() + "\n")
    keys = _keys(
        secured,
        **{
            f"{PREFIX}token.endpoint.url": f"file://{tmp_path}/token.jwt",
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        },
    )
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    words = ["topic", "list", "--bootstrap-server", secured.sasl, "--command-config", str(path)]
    subprocess.run([ODRADEK, *words], check=True, capture_output=True)


def test_a_refused_token_is_told_and_not_shown(secured: SecuredNode) -> None:
    """The server refuses a token. The error says invalid_token, and does not contain the token."""
    token = Issuer().token()
    keys = _keys(secured, **{"odradek.sasl.oauthbearer.token.callback": lambda: token})
    settings = AdminSettings.from_properties(keys)
    with (
        Client(secured.sasl, config=settings.client_config(fail_fast=True)) as client,
        pytest.raises(AuthenticationFailed, match="invalid_token") as caught,
    ):
        client.admin.describe_cluster()
    assert token not in str(caught.value)


def _fails() -> str:
    raise RuntimeError("a-secret-inside")


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (_fails, "raised RuntimeError"),
        (lambda: None, "returned no token"),
        (lambda: "ü", "returned no token"),
    ],
)
def test_an_application_without_a_token_is_told(
    secured: SecuredNode, callback: Callable[[], str], reason: str
) -> None:
    """The application's function fails. The login fails with the reason, and the client remains usable."""
    settings = AdminSettings.from_properties(
        _keys(secured, **{"odradek.sasl.oauthbearer.token.callback": callback})
    )
    with Client(secured.sasl, config=settings.client_config(fail_fast=True)) as client:
        for expected in (AuthenticationFailed, ClientError):
            with pytest.raises(expected, match=reason) as caught:
                client.admin.describe_cluster()
            assert "a-secret-inside" not in str(caught.value)


def test_an_endpoint_that_refuses_ends_the_login(secured: SecuredNode) -> None:
    """The token endpoint refuses the client's secret.

    The login fails at once, and the error does not contain the secret.
    """
    with token_endpoint(secured.issuer) as endpoint:
        keys = _keys(secured, **_by_endpoint(endpoint))
        keys |= {f"{PREFIX}client.credentials.client.secret": "wrong-one", "sasl.login.retry.backoff.ms": 1}
        settings = AdminSettings.from_properties(keys)
        with (
            Client(secured.sasl, config=settings.client_config(fail_fast=True)) as client,
            pytest.raises(AuthenticationFailed, match="status 401") as caught,
        ):
            client.admin.describe_cluster()
        assert "wrong-one" not in str(caught.value)


def test_a_token_is_kept_until_it_is_old() -> None:
    """A token is used for most of its lifetime, and then replaced. While the issuer is away, the old token is used."""
    issuer = Issuer()
    with token_endpoint(issuer) as endpoint:
        tokens = open_tokens(_request(endpoint))
        first = tokens()
        assert tokens() == first
        old = open_tokens(_request(endpoint))
        endpoint.claims = {"iat": 1, "jti": "old"}
        second = old()
        endpoint.claims = {"jti": "new"}
        endpoint.is_away = True
        assert old() == second
        endpoint.is_away = False
        assert old() != second


def test_no_token_is_no_login() -> None:
    """The issuer is away, or its document is no token. The error is one line without secrets."""
    with token_endpoint(Issuer()) as endpoint:
        endpoint.is_away = True
        with pytest.raises(TokenUnavailable, match="status 503") as caught:
            open_tokens(_request(endpoint))()
        assert SECRET not in str(caught.value)
    with pytest.raises(TokenUnavailable):
        open_tokens(TokenRequest(DocumentAddress("file:///proc/self/cmdline")))()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, "token.endpoint.url is missing"),
        ({f"{PREFIX}token.endpoint.url": "https://issuer/token"}, "client.id is missing"),
        ({"sasl.login.callback.handler.class": "com.example.Tokens"}, "is not supported"),
        ({"odradek.sasl.oauthbearer.token.callback": "text"}, "expected a callable"),
    ],
)
def test_keys_that_lead_to_no_token_are_refused(keys: dict[str, object], reason: str) -> None:
    """Configuration keys without a source of tokens are refused before the client is made.

    The error names the missing key.
    """
    common = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": "OAUTHBEARER",
    }
    with pytest.raises(ValueError, match=reason):
        ProducerSettings.from_properties({**common, **keys})
