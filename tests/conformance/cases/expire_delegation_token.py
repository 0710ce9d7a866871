"""ExpireDelegationToken: at once, later, by other users, and of tokens that no longer exist."""

from __future__ import annotations

from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tests.conformance.asking.talk import Talk, case
from tests.conformance.cases.renew_delegation_token import FAR, HOUR_MS, made, wait_until_refused

for _version in (1, 2):

    @case(f"expire_delegation_token v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        talk.ask(ExpireDelegationTokenRequest(b"secret", HOUR_MS), version)
        line = talk.line("asker")
        token = made(line, "asker")
        for period_ms in (2 * HOUR_MS, 500 * HOUR_MS, FAR, HOUR_MS):
            line.ask(ExpireDelegationTokenRequest(token.hmac, period_ms), version)
        for secret in (b"", b"secret", token.hmac[:-1]):
            line.ask(ExpireDelegationTokenRequest(secret, -1), version)
        line.ask(ExpireDelegationTokenRequest(token.hmac, -5), version)
        wait_until_refused(talk, token, ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        line.ask(ExpireDelegationTokenRequest(token.hmac, HOUR_MS), version)


@case("expire_delegation_token by others")
def _(talk: Talk) -> None:
    asker, another = talk.line("asker"), talk.line("another")
    own = made(asker, "asker", "another")
    for_another = made(asker, "another")
    for token in (own, for_another):
        for line in (asker, another):
            line.ask(ExpireDelegationTokenRequest(token.hmac, 2 * HOUR_MS), 2)
    nobodys = made(asker, "nobody")
    another.ask(ExpireDelegationTokenRequest(nobodys.hmac, -1), 2)
    asker.ask(ExpireDelegationTokenRequest(nobodys.hmac, -1), 2)


@case("expire_delegation_token that has expired")
def _(talk: Talk) -> None:
    line = talk.line("asker")
    token = made(line, "asker")
    line.ask(ExpireDelegationTokenRequest(token.hmac, 0), 2)
    wait_until_refused(talk, token, ErrorCode.DELEGATION_TOKEN_EXPIRED)
    line.ask(ExpireDelegationTokenRequest(token.hmac, HOUR_MS), 2)
    line.ask(ExpireDelegationTokenRequest(token.hmac, -1), 2)
