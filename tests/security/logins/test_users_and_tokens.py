"""Users and delegation tokens on a running node: by our commands, our client, and Kafka's tools."""

from __future__ import annotations

import fcntl
import os
import pty
import stat
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from odradek.client.admin import ScramDeletion, ScramUpsertion
from odradek.client.errors import AuthenticationFailed
from odradek.client.shells.admin_client import Admin
from odradek.client.shells.consumer import Consumer
from odradek.client.shells.producer import Producer
from odradek.trio import open_admin
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from odradek.wire.messages.envelope import EnvelopeRequest
from odradek.wire.principal import encode_principal
from testkit.raw_requests import RawClient
from tests.cli.running import Outcome, command, environment, odradek_here
from tests.kafka_tools import run_tool_here
from tests.security.secured_node import PLAIN_MODULE, SecuredNode

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def keys_of(secured: SecuredNode, user: str, password: str, *, is_token: bool = False) -> dict[str, str]:
    module, more = (SCRAM_MODULE, ' tokenauth="true"') if is_token else (PLAIN_MODULE, "")
    return {
        "bootstrap.servers": secured.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256" if is_token else "PLAIN",
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}"{more};',
    }


@pytest.fixture(scope="module")
def carol(secured: SecuredNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of client keys for the user carol."""
    path = tmp_path_factory.mktemp("keys") / "carol.properties"
    keys = keys_of(secured, "carol", "carol-secret")
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


@pytest.fixture
def admin(secured: SecuredNode) -> Iterator[Admin]:
    with Admin(keys_of(secured, "carol", "carol-secret")) as client:
        yield client


def run(carol: Path, *words: str, stdin: bytes = b"") -> Outcome:
    return odradek_here(*words, "--command-config", carol, stdin=stdin)


def as_eve(secured: SecuredNode) -> Admin:
    return Admin(
        {
            **keys_of(secured, "carol", "carol-secret"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM_MODULE} required username="eve" password="eve-secret";',
        }
    )


# -- users --------------------------------------------------------------------------------------------------------


def test_a_user_comes_changes_the_password_and_goes(secured: SecuredNode, carol: Path) -> None:
    """`odradek user` adds a user, changes the password, and removes the user.

    With --disconnect open connections end.
    """
    added = run(carol, "user", "add", "eve", "--password-file", "-", "--json", stdin=b"old-secret\n")
    assert added.json()["users"] == [{"user": "eve", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert "eve has SCRAM-SHA-512 already" in run(carol, "user", "add", "eve").refusal()
    dry = run(carol, "user", "password", "eve", "--dry-run")
    assert "nothing was changed" in dry.out
    password = secured.directory / "eve.password"
    password.write_text("eve-secret\n")
    changed = run(
        carol, "user", "password", "eve", "--password-file", str(password), "--iterations", "8192", "--json"
    )
    assert changed.json()["users"] == [{"user": "eve", "mechanism": "SCRAM-SHA-512", "iterations": 8192}]
    with as_eve(secured) as live:
        live.describe_cluster()
        (shown,) = run(carol, "user", "remove", "eve", "--dry-run", "--json").json()["users"]
        assert shown["user"] == "eve"
        removed = run(carol, "user", "remove", "eve", "--disconnect", "--json").json()
        assert (removed["executed"], removed["disconnected_by_brokers"]) == (True, [1])
        with pytest.raises(AuthenticationFailed):
            live.describe_cluster()
    assert "the user eve" in run(carol, "user", "remove", "eve").refusal()
    assert "eve" not in {each["user"] for each in run(carol, "user", "list", "--json").json()["users"]}
    assert "eve-secret" not in secured.log


def test_without_disconnect_a_live_connection_stays(secured: SecuredNode, carol: Path) -> None:
    """Without --disconnect, a removed user's open connection stays, as in Kafka. The command says so."""
    assert run(carol, "user", "add", "eve", "--password-file", "-", stdin=b"eve-secret").code == 0
    with as_eve(secured) as live:
        live.describe_cluster()
        removed = run(carol, "user", "remove", "eve")
        assert "live connections stay until they authenticate again" in removed.out
        live.describe_cluster()
    with as_eve(secured) as late, pytest.raises(AuthenticationFailed):
        late.describe_cluster()


def test_a_password_is_asked_for_twice_without_echo(carol: Path) -> None:
    """On a terminal, a password is asked for twice without echo. If the two differ, nothing is changed."""

    def typed(*words: bytes) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            command("user", "add", "frank", "--command-config", str(carol)),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        shown = b""
        for word, prompt in zip(words, (b"password: ", b"again: "), strict=True):
            while prompt not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, word + b"\n")
        out, _ = child.communicate(timeout=60)
        os.set_blocking(ours, False)
        with suppress(OSError):  # the child has closed its end, so there may be no more output
            shown += os.read(ours, 1000)
        os.close(ours)
        return child.returncode, (shown + out).decode()

    code, text = typed(b"secret-a", b"secret-b")
    assert (code, "the two passwords that were typed differ" in text) == (1, True)
    code, text = typed(b"secret-a", b"secret-a")
    assert code == 0, text
    assert "secret-a" not in text
    assert run(carol, "user", "remove", "frank").code == 0


def test_the_async_administrator_has_the_same_calls(secured: SecuredNode) -> None:
    """The async administrator adds, describes and removes a user. Errors are returned for each user."""

    async def work() -> None:
        async with open_admin(keys_of(secured, "carol", "carol-secret")) as admin:
            made = ScramUpsertion.of_password("grete", "SCRAM-SHA-256", "secret", salt=bytes(16))
            assert "secret" not in repr(made)
            assert await admin.alter_user_scram_credentials([made]) == {"grete": None}
            assert await admin.describe_user_scram_credentials(["grete"]) == {
                "grete": {"SCRAM-SHA-256": 4096}
            }
            gone = ScramDeletion("grete", "SCRAM-SHA-256")
            assert await admin.alter_user_scram_credentials([gone]) == {"grete": None}
            again = (await admin.alter_user_scram_credentials([gone]))["grete"]
            assert again is not None
            assert again.code is ErrorCode.RESOURCE_NOT_FOUND
            token = await admin.create_delegation_token(owner="grete", max_lifetime_ms=60_000)
            assert (token.owner, token.requester) == ("User:grete", "User:carol")

    trio.run(work)


# -- tokens -------------------------------------------------------------------------------------------------------


def test_a_token_writes_and_reads_as_its_owner(
    secured: SecuredNode, admin: Admin, fresh_topic: Callable[[str], str]
) -> None:
    """Our producer and consumer log in by a token, as its owner. After the token has ended, logins are refused."""
    token = admin.create_delegation_token(renewers=["User:alice"], max_lifetime_ms=600_000)
    assert token.password not in repr(token)
    keys = keys_of(secured, token.token_id, token.password, is_token=True)
    topic = fresh_topic("token")
    with Producer(keys) as producer:
        producer.send(topic, value=b"by token").result(20)
    with Consumer({**keys, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        assert next(iter(consumer)).value == b"by token"
    assert token.token_id in {each.token_id for each in admin.describe_delegation_tokens(["User:carol"])}
    assert admin.renew_delegation_token(token.hmac, period_ms=60_000) < token.expires_at_ms
    admin.expire_delegation_token(token.hmac)
    with pytest.raises(AuthenticationFailed), Producer(keys) as producer:
        producer.send(topic, value=b"too late").result(20)


def test_no_token_makes_a_token(secured: SecuredNode, admin: Admin) -> None:
    """A client that has logged in by a token may not manage tokens, on a broker or through an envelope.

    It gets DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
    """
    token = admin.create_delegation_token(max_lifetime_ms=600_000)
    keys = keys_of(secured, token.token_id, token.password, is_token=True)
    with Admin(keys) as by_token:
        by_token.describe_cluster()
        for call in (
            by_token.create_delegation_token,
            by_token.describe_delegation_tokens,
            lambda: by_token.renew_delegation_token(token.hmac),
            lambda: by_token.expire_delegation_token(token.hmac),
        ):
            with pytest.raises(KafkaError) as refused:
                call()
            assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    inner = b"\0\x26\0\3\0\0\0\0\0\0\0" + b"\1\1\1" + bytes(7) + b"\1\0"
    with RawClient(secured.controller) as controller:
        for by_token, expected in ((True, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), (False, 0)):
            principal = encode_principal("User:carol", by_token=by_token)
            answer = controller.request(EnvelopeRequest(inner, principal, bytes([127, 0, 0, 1])), 0)
            assert int.from_bytes(answer.response_data[5:7], "big") == expected
        direct = controller.request(CreateDelegationTokenRequest(), 3)
        assert direct.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_tokens_by_command(secured: SecuredNode, carol: Path, tmp_path: Path) -> None:
    """`odradek token` writes client keys to a file that only its owner can read. It shows a secret only on request."""
    keys = tmp_path / "token.properties"
    made = run(
        carol, "token", "create", "--renewer", "alice", "--max-lifetime", "1h", "--to", str(keys), "--json"
    )
    token_id = made.json()["token_id"]
    assert "hmac" not in made.json()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert odradek_here("topic", "list", "--command-config", keys).code == 0
    assert run(carol, "token", "create", "--to", str(keys)).code == 2
    assert token_id in {each["token_id"] for each in run(carol, "token", "list", "--json").json()["tokens"]}
    assert "nothing was changed" in run(carol, "token", "renew", token_id, "--dry-run").out
    before = made.json()["expires_at_ms"]
    assert run(carol, "token", "renew", token_id, "--for", "10m", "--json").json()["expires_at_ms"] < before
    assert "not allowed" in odradek_here("token", "list", "--command-config", keys).refusal()
    assert run(carol, "token", "expire", token_id).code == 0
    others = run(carol, "token", "create", "--owner", "zoe", "--json").json()["token_id"]
    assert "only the token's owner User:zoe" in run(carol, "token", "expire", others).refusal()
    assert "no token" in run(carol, "token", "renew", token_id).refusal()
    refused = odradek_here("topic", "list", "--command-config", keys)
    assert "refuses the login" in refused.refusal()
    printed = run(carol, "token", "create", "--json").json()
    assert len(printed["hmac"]) == 88
    assert run(carol, "token", "expire", printed["token_id"], "--in", "1s").code == 0
    for secret in (printed["hmac"], "a secret of all nodes"):
        assert secret not in secured.log
        events = run(carol, "cluster", "events", "--since", "@0", "--json").out
        assert secret not in events


@pytest.mark.java
def test_kafkas_own_tools_work(secured: SecuredNode, carol: Path, kafka_jars: object, tmp_path: Path) -> None:
    """Kafka's tools create, show, renew and end tokens, and change users. Kafka's Java client logs in by a token."""
    tool = ("org.apache.kafka.tools.DelegationTokenCommand", "--bootstrap-server", secured.sasl)
    by_carol = ("--command-config", str(carol))
    made = run_tool_here(
        *tool, *by_carol, "--create", "--max-life-time-period", "600000", "--renewer-principal", "User:bob"
    )
    token_id, secret = made.split("\n")[-2 if made.endswith("\n") else -1].split()[:2]
    shown = run_tool_here(*tool, *by_carol, "--describe", "--owner-principal", "User:carol")
    assert token_id in shown
    renewed = run_tool_here(*tool, *by_carol, "--renew", "--renew-time-period", "60000", "--hmac", secret)
    assert "Completed renew operation" in renewed
    keys = tmp_path / "token.properties"
    keys.write_text(
        "".join(
            f"{key}={value}\n" for key, value in keys_of(secured, token_id, secret, is_token=True).items()
        )
    )
    topics = ("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", secured.sasl)
    run_tool_here(*topics, "--command-config", str(keys), "--list")
    ended = run_tool_here(*tool, *by_carol, "--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert "Completed expire operation" in ended
    with pytest.raises(subprocess.CalledProcessError):
        run_tool_here(*topics, "--command-config", str(keys), "--list")
    configs = ("kafka.admin.ConfigCommand", "--bootstrap-server", secured.sasl, *by_carol)
    heidi = ("--entity-type", "users", "--entity-name", "heidi")
    run_tool_here(
        *configs, "--alter", *heidi, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=heidi-secret]"
    )
    (listed,) = run(carol, "user", "list", "heidi", "--json").json()["users"]
    assert (listed["mechanism"], listed["iterations"]) == ("SCRAM-SHA-256", 8192)
    run_tool_here(*configs, "--alter", *heidi, "--delete-config", "SCRAM-SHA-256")
    assert "the user heidi" in run(carol, "user", "list", "heidi").err
