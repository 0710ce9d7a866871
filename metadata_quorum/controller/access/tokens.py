"""Decisions about delegation tokens (KIP-48): create, renew and expire. PURE.

The metadata log has the tokens without their secrets. A token's secret is computed from its id and a key that
all nodes have (`odradek/security/tokens.py`). A decision depends on the client, so a `TokenRequest` has the
client's request together with its principal. The checks and their order are Kafka's. The client's rights are
not checked here, since the doors (`doors.py`) have already checked them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from odradek.env.agreed_clock import Moment
from odradek.metadata_quorum.controller.decision_basis import DecisionBasis, TokenIds
from odradek.metadata_quorum.image.access_image import DelegationToken
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.security.doors.token_doors import create_refused, owner_of
from odradek.security.tokens import TokenSecrets, is_expired, may_renew, principal_of
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from odradek.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from odradek.wire.messages.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from odradek.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from odradek.wire.primitives import INT64_MAX
from odradek.wire.structure import Message

__all__ = ["ExpireTokens", "TokenRequest", "decide_token_request", "expire_tokens"]

EXPIRED_PER_TURN_MAX = 1_000
"""The most tokens that one turn of the timer removes. Between two turns the controller handles other
requests.
"""
PRINCIPAL_BYTES_MAX = 32_767
"""The largest size of a principal in a record, in bytes. (A request has the principal's type and name in two
fields. Each field alone may have this size.)
"""
Asked: TypeAlias = CreateDelegationTokenRequest | RenewDelegationTokenRequest | ExpireDelegationTokenRequest


@attrs.frozen
class TokenRequest:
    """A client's request about tokens, with the client's principal and the present time.

    The clock is not exact, so the time is an interval. A token is refused if it has expired at the end of
    this interval. It is deleted only if it has expired at the beginning of the interval.
    """

    message: Any
    requester: str
    now: Moment

    VALID_VERSIONS: ClassVar[tuple[int, int]] = (1, 3)

    @property
    def API_KEY(self) -> int:  # noqa: N802  # named like the field of messages
        key: int = self.message.API_KEY
        return key


@attrs.frozen
class ExpireTokens:
    """A request of the controller to itself: remove tokens that have expired by this time.

    The response is the number of removed tokens.
    """

    earliest_ms: int


def decide_token_request(
    image: MetadataImage, request: TokenRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Decide a request to create, renew or expire a token."""
    message: Asked = request.message
    secrets = basis.settings.token_secrets
    if isinstance(message, CreateDelegationTokenRequest):
        return _create(image, message, request, context, basis)
    response = (
        RenewDelegationTokenResponse()
        if isinstance(message, RenewDelegationTokenRequest)
        else ExpireDelegationTokenResponse()
    )
    records: list[Message] = []
    try:
        if secrets is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        token_id, token = _found(image, message.hmac, secrets, basis.token_ids)
        if isinstance(message, RenewDelegationTokenRequest):
            expires_at = _renewed(token, message, request, basis)
        else:
            expires_at = _expiring(token, message, request)
        if isinstance(message, ExpireDelegationTokenRequest) and message.expiry_time_period_ms < 0:
            basis.token_ids.forget(bytes(message.hmac), token.owner)
            records.append(RemoveDelegationTokenRecord(token_id))
        elif expires_at != token.expiration_timestamp:
            records.append(_record(token_id, attrs.evolve(token, expiration_timestamp=expires_at)))
        response.expiry_timestamp_ms = expires_at
    except KafkaError as error:
        response.error_code = error.code
    return Decision(records, response)


def expire_tokens(
    image: MetadataImage, request: ExpireTokens, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Remove expired tokens, at most `EXPIRED_PER_TURN_MAX`."""
    tokens = image.access.delegation_tokens
    gone = [token_id for token_id in tokens if is_expired(tokens[token_id], request.earliest_ms)]
    gone = sorted(gone)[:EXPIRED_PER_TURN_MAX]
    secrets = basis.settings.token_secrets
    if secrets is not None:
        for token_id in gone:
            basis.token_ids.forget(secrets.hmac(token_id), tokens[token_id].owner)
    return Decision([RemoveDelegationTokenRecord(each) for each in gone], len(gone))


def _create(
    image: MetadataImage,
    message: CreateDelegationTokenRequest,
    request: TokenRequest,
    context: DecisionContext,
    basis: DecisionBasis,
) -> Decision:
    settings, requester, now = basis.settings, request.requester, request.now.wall_ms
    owner = owner_of(message, requester)
    secrets = settings.token_secrets
    refusal = None
    renewers = tuple(principal_of(each.principal_type, each.principal_name) for each in message.renewers)
    if any(each.principal_type != "User" for each in message.renewers):
        refusal = ErrorCode.INVALID_PRINCIPAL_TYPE
    elif any(len(each.encode()) > PRINCIPAL_BYTES_MAX for each in (owner, requester, *renewers)):
        refusal = ErrorCode.INVALID_REQUEST
    elif secrets is None:
        refusal = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if refusal is not None or secrets is None:
        return Decision((), create_refused(message, requester, refusal or ErrorCode.NONE, no_time=0))
    records = _room(image, owner, request.now.earliest_ms, basis, secrets)
    if records is None:
        return Decision((), create_refused(message, requester, ErrorCode.POLICY_VIOLATION))
    lifetime_ms = settings.token_max_lifetime_ms
    if message.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, message.max_lifetime_ms)
    token_id = base64.urlsafe_b64encode(context.new_uuid()).decode().rstrip("=")
    max_timestamp = min(now + lifetime_ms, INT64_MAX)
    token = DelegationToken(
        owner,
        requester,
        renewers,
        now,
        max_timestamp,
        min(max_timestamp, now + settings.token_expiry_ms),
    )
    secret = secrets.hmac(token_id)
    basis.token_ids.add(secret, token_id, owner)
    response: CreateDelegationTokenResponse = create_refused(message, requester, ErrorCode.NONE)
    response.issue_timestamp_ms = now
    response.expiry_timestamp_ms = token.expiration_timestamp
    response.max_timestamp_ms = max_timestamp
    response.token_id = token_id
    response.hmac = secret
    return Decision([*records, _record(token_id, token)], response)


def _room(
    image: MetadataImage, owner: str, earliest_ms: int, basis: DecisionBasis, secrets: TokenSecrets
) -> list[Message] | None:
    """Make the records that remove expired tokens of `owner`, so that the owner may get a new token.

    The list is empty if the owner has fewer tokens than the limit. Returns None if the new token must be
    refused, because the limit is reached by tokens that have not expired.
    """
    tokens, most = image.access.delegation_tokens, basis.settings.tokens_per_owner_max
    held = basis.token_ids.held(owner, most, tokens, secrets)
    expired = [each for each in held if is_expired(tokens[each], earliest_ms)][:EXPIRED_PER_TURN_MAX]
    if len(held) - len(expired) >= most:
        return None
    for token_id in expired:
        basis.token_ids.forget(secrets.hmac(token_id), owner)
    return [RemoveDelegationTokenRecord(each) for each in expired]


def _found(
    image: MetadataImage, secret: bytes, secrets: TokenSecrets, token_ids: TokenIds
) -> tuple[str, DelegationToken]:
    tokens: Mapping[str, DelegationToken] = image.access.delegation_tokens
    token_id = token_ids.find(bytes(secret), tokens, secrets)
    if token_id is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token_id, tokens[token_id]


def _renewed(
    token: DelegationToken, message: RenewDelegationTokenRequest, request: TokenRequest, basis: DecisionBasis
) -> int:
    """Return the new expiration time of a token, in milliseconds since 1970.

    Raises `KafkaError` if the token may not be renewed.
    """
    if is_expired(token, request.now.latest_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not may_renew(token, request.requester):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    period_ms = basis.settings.token_expiry_ms
    if message.renew_period_ms > 0:
        period_ms = min(period_ms, message.renew_period_ms)
    return min(token.max_timestamp, request.now.wall_ms + period_ms)


def _expiring(token: DelegationToken, message: ExpireDelegationTokenRequest, request: TokenRequest) -> int:
    """Return the time at which a token is to expire, in milliseconds since 1970.

    Raises `KafkaError` if the requester may not change it.
    """
    if not may_renew(token, request.requester):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if message.expiry_time_period_ms < 0:
        return request.now.wall_ms
    if is_expired(token, request.now.latest_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return min(token.max_timestamp, request.now.wall_ms + message.expiry_time_period_ms)


def _record(token_id: str, token: DelegationToken) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        token.owner,
        token.requester,
        list(token.renewers),
        token.issue_timestamp,
        token.max_timestamp,
        token.expiration_timestamp,
        token_id,
    )
