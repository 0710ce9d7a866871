"""Creates, renews, expires and lists delegation tokens (KIP-48, KIP-373). The functions are operations. PURE.

A client that logs in with a token acts as the token's owner. It logs in by SCRAM with the token's id and
HMAC. The HMAC gives all rights of the owner, so `repr` of a token leaves it out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, item_error, reachable, within_quota

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.wire.errors import KafkaError

__all__ = [
    "DelegationToken",
    "create_delegation_token",
    "describe_delegation_tokens",
    "expire_delegation_token",
    "renew_delegation_token",
]
SERVERS_CHOICE = -1


@attrs.frozen
class DelegationToken:
    """A token and its secret. Principals have the form `User:NAME`; times are in milliseconds since 1970."""

    token_id: str
    owner: str
    requester: str
    """The principal that requested the token; empty if an old broker does not report it."""
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    """The time at which the token expires unless it is renewed."""
    max_at_ms: int
    """The time up to which the token can be renewed."""
    hmac: bytes = attrs.field(repr=False)

    @property
    def password(self) -> str:
        """The password for a SCRAM login with this token; the user name is `token_id`."""
        return base64.b64encode(self.hmac).decode()


def create_delegation_token(
    core: ClientCore,
    *,
    owner: str | None = None,
    renewers: Sequence[str] = (),
    max_lifetime_ms: int = SERVERS_CHOICE,
    timeout: float | None = None,
) -> Operation[DelegationToken]:
    """Create a token for the client's own principal, or for `owner`. All principals have the form
    `User:NAME`.

    With `max_lifetime_ms` -1, the cluster's maximum applies. It takes a moment until all brokers accept the
    new token. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest

    kind, name = ("", "") if owner is None else _parts(owner)
    message = CreateDelegationTokenRequest(
        kind, name, [CreatableRenewers(*_parts(each)) for each in renewers], max_lifetime_ms
    )
    response = yield from _asked(core, message, timeout)
    return DelegationToken(
        response.token_id,
        _principal(response.principal_type, response.principal_name),
        _principal(response.token_requester_principal_type, response.token_requester_principal_name),
        tuple(renewers),
        response.issue_timestamp_ms,
        response.expiry_timestamp_ms,
        response.max_timestamp_ms,
        response.hmac,
    )


def renew_delegation_token(
    core: ClientCore, hmac: bytes, *, period_ms: int = SERVERS_CHOICE, timeout: float | None = None
) -> Operation[int]:
    """Extend a token to `period_ms` from now (-1: the cluster's period). Return its new expiry time, in
    milliseconds since 1970.

    `hmac` is the token's secret. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

    response = yield from _asked(core, RenewDelegationTokenRequest(hmac, period_ms), timeout)
    return int(response.expiry_timestamp_ms)


def expire_delegation_token(
    core: ClientCore, hmac: bytes, *, period_ms: int = SERVERS_CHOICE, timeout: float | None = None
) -> Operation[int]:
    """Make a token expire `period_ms` from now (-1: now). Return its new expiry time, in milliseconds since
    1970.

    `hmac` is the token's secret. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest

    response = yield from _asked(core, ExpireDelegationTokenRequest(hmac, period_ms), timeout)
    return int(response.expiry_timestamp_ms)


def describe_delegation_tokens(
    core: ClientCore, owners: Sequence[str] | None = None, *, timeout: float | None = None
) -> Operation[list[DelegationToken]]:
    """List the tokens that the client may see, sorted by token id. With `owners`, only the tokens of these
    owners are listed.

    Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.describe_delegation_token import (
        DescribeDelegationTokenOwner,
        DescribeDelegationTokenRequest,
    )

    named = None if owners is None else [DescribeDelegationTokenOwner(*_parts(each)) for each in owners]
    response = yield from _asked(core, DescribeDelegationTokenRequest(named), timeout)
    found = [
        DelegationToken(
            each.token_id,
            _principal(each.principal_type, each.principal_name),
            _principal(each.token_requester_principal_type, each.token_requester_principal_name),
            tuple(_principal(one.principal_type, one.principal_name) for one in each.renewers),
            each.issue_timestamp,
            each.expiry_timestamp,
            each.max_timestamp,
            each.hmac,
        )
        for each in response.tokens
    ]
    return sorted(found, key=lambda token: token.token_id)


def _asked(core: ClientCore, message: Any, timeout: float | None) -> Operation[Any]:
    """Send a request and return the answer. While the quota for controller changes refuses the request, send
    it again.
    """
    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    answers: list[Any] = []

    def ask(_: set[str]) -> Operation[Any]:
        return request(core, message, timeout=deadline - core.now)

    def error_of(response: Any) -> KafkaError | None:
        return item_error(response.error_code, None, "the delegation token")

    def take(response: Any) -> Iterator[tuple[str, KafkaError | None]]:
        answers.append(response)
        yield "token", error_of(response)

    yield from within_quota(core, ["token"], ask, take, deadline)
    error = error_of(answers[-1])
    if error is not None:
        raise error
    return answers[-1]


def _parts(principal: str) -> tuple[str, str]:
    kind, colon, name = principal.partition(":")
    return (kind, name) if colon else ("User", principal)


def _principal(kind: str, name: str) -> str:
    return f"{kind}:{name}" if kind or name else ""
