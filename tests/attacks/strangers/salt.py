"""A stranger asks for the SCRAM challenges of names. From salts and iterations it guesses which users exist."""

from __future__ import annotations

import base64
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

from odradek.security.scram import MECHANISMS
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from odradek.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place
from tests.attacks.raw import Conn

WHO = "stranger"
GUESSES = 300
MECHANISM = MECHANISMS["SCRAM-SHA-512"]
USERS = {"kafka": 4, "librdkafka": 3, "ours": 3}
"""How many users each tool creates. Each tool makes salts in its own way, and other users of `place` have Odradek's
salts."""
WAIT_TRIES = 200


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Create users as different tools do, then compare their challenges with those of unknown names."""
    run = uuid4().hex[:8]
    users = [f"{run}-{tool}-{number}" for tool, count in USERS.items() for number in range(count)]
    with place.admin() as admin:
        _change(admin, AlterUserScramCredentialsRequest([], [_upsertion(each) for each in users]))
        try:
            _wait_until_known(place, users[0])
            shown = Counter(_challenge(place, each) for each in users)
            guesses = max(40, round(GUESSES * scale))
            unknown = Counter(_challenge(place, f"{run}-nobody-{number}") for number in range(guesses))
        finally:
            deletions = [ScramCredentialDeletion(each, MECHANISM.number) for each in users]
            _change(admin, AlterUserScramCredentialsRequest(deletions, []))
    note = f"users {dict(shown)}, {guesses} others {dict(unknown)}"
    alone = [form for form in shown if form not in unknown]
    yield Outcome("no user is known by the form of its challenge", not alone, note)
    only = [form for form in unknown if form not in shown]
    yield Outcome("no name is known to be free by the form of its challenge", not only, note)


def _upsertion(user: str) -> ScramCredentialUpsertion:
    tool, iterations = user.split("-")[1], 4096
    if tool == "kafka":
        # Java prints a random number of 130 bits in base 36 like this.
        salt = b"z" + bytes(secrets.choice(b"0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(24))
    elif tool == "librdkafka":
        salt, iterations = os.urandom(64), 8192
    else:
        salt = os.urandom(16)
    password = MECHANISM.salted_password(secrets.token_hex(), salt, iterations)
    return ScramCredentialUpsertion(user, MECHANISM.number, iterations, salt, password)


def _change(admin: Conn, request: AlterUserScramCredentialsRequest) -> None:
    answer = admin.call(request)
    assert not any(each.error_code for each in answer.results), answer


def _challenge(place: Place, user: str) -> tuple[str, int, bool]:
    """Return what a stranger sees: the length of the salt, the iterations, and whether the salt is text."""
    with place.stranger() as stranger:
        stranger.call(SaslHandshakeRequest(MECHANISM.name), 1)
        told = stranger.authenticate(f"n,,n={user},r=abc".encode()).auth_bytes.decode()
    salt = base64.b64decode(told.split(",s=")[1].split(",")[0])
    is_text = salt.isalnum() and salt.isascii()
    # Kafka's tools write a random number of 130 bits as text, nearly always with 26 letters.
    length = "20 to 26" if is_text and 20 <= len(salt) <= 26 else str(len(salt))
    return length, int(told.rpartition("i=")[2]), is_text


def _wait_until_known(place: Place, user: str) -> None:
    """Wait until the broker has replayed the first user. Its salt is text, unlike that of an unknown name."""
    for _ in range(WAIT_TRIES):
        if _challenge(place, user)[2]:
            return
    raise AssertionError(f"the broker has not replayed the user {user} in time")
