"""RenewDelegationToken: by owners, renewers and others, for several periods, and of tokens that cannot be renewed."""

from __future__ import annotations

from typing import Any

from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.conformance.asking.talk import Line, Talk, case

HOUR_MS = 3_600_000
FAR = (1 << 63) - 1


def made(line: Line, owner: str, *renewers: str, hours: int = 50) -> Any:
    """Make a token, and wait until the controller knows it."""
    named = [CreatableRenewers("User", each) for each in renewers]
    token = line.ask(CreateDelegationTokenRequest("User", owner, named, hours * HOUR_MS), 3)
    line.ask_until(
        RenewDelegationTokenRequest(token.hmac, -1),
        2,
        lambda told: told.error_code != ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    )
    return token


def wait_until_refused(talk: Talk, token: Any, code: ErrorCode) -> None:
    """Try renewals by a user who may not renew the token, until the error shows that the controller knows its new
    state."""
    asked = RenewDelegationTokenRequest(token.hmac, -1)
    talk.line("admin").ask_until(asked, 2, lambda told: told.error_code == code)


for _version in (1, 2):

    @case(f"renew_delegation_token v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        talk.ask(RenewDelegationTokenRequest(b"secret", HOUR_MS), version)
        line = talk.line("asker")
        token = made(line, "asker")
        for period_ms in (-1, 0, HOUR_MS, 30 * HOUR_MS, 500 * HOUR_MS, FAR, -FAR):
            line.ask(RenewDelegationTokenRequest(token.hmac, period_ms), version)
        for secret in (b"", b"secret", token.hmac[:-1], bytes(64)):
            line.ask(RenewDelegationTokenRequest(secret, HOUR_MS), version)


@case("renew_delegation_token up to its end")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    token = made(line, "asker", hours=3)
    line.ask(RenewDelegationTokenRequest(token.hmac, 2 * HOUR_MS), 2)
    line.ask(RenewDelegationTokenRequest(token.hmac, 4 * HOUR_MS), 2)


@case("renew_delegation_token by others")
def _(talk: Talk) -> None:
    asker, another = talk.line("asker"), talk.line("another")
    own = made(asker, "asker", "another")
    for_another = made(asker, "another")
    for token in (own, for_another):
        for line in (asker, another):
            line.ask(RenewDelegationTokenRequest(token.hmac, 2 * HOUR_MS), 2)
    nobodys = made(asker, "nobody", "admin")
    another.ask(RenewDelegationTokenRequest(nobodys.hmac, 2 * HOUR_MS), 2)


@case("renew_delegation_token that has expired")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    token = made(line, "asker")
    line.ask(ExpireDelegationTokenRequest(token.hmac, 0), 2)
    wait_until_refused(talk, token, ErrorCode.DELEGATION_TOKEN_EXPIRED)
    line.ask(RenewDelegationTokenRequest(token.hmac, -1), 2)
