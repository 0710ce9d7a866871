"""DescribeDelegationToken: the tokens that a client may see (KIP-48, KIP-373), for brokers and controllers. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.metadata_quorum.image.access_image import DelegationToken
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.tokens import TokenSecrets, may_renew, principal_of
from odradek.serving.contract import Context, Result
from odradek.serving.long_work import LongWork
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

__all__ = ["DescribeTokensHandler"]

TOKEN_UNITS = 6
"""The cost of checking a token and computing its secret, in units of work: to describe a partition costs 1.
"""


class DescribeTokensHandler:
    """Handler of DescribeDelegationToken (API 41).

    Owners and renewers see their tokens. Other clients need a right to the token, or to the tokens of its
    owner.
    """

    def __init__(
        self, image: Callable[[], MetadataImage], long_work: LongWork, secrets: TokenSecrets | None
    ) -> None:
        """`secrets` is None on a node without a key for delegation tokens."""
        self._image = image
        self._long_work = long_work
        self._secrets = secrets

    def handle(self, context: Context, request: DescribeDelegationTokenRequest) -> Result:
        """Describe the tokens that the client may see.

        Without a list of owners, these are the tokens of all owners.
        """
        if not context.may_ask_for_tokens:
            return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        if self._secrets is None:
            return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners = None
        if request.owners is not None:
            owners = frozenset(
                principal_of(each.principal_type, each.principal_name) for each in request.owners
            )
        allows = context.authorize if context.rights is None else context.rights.for_many().allows
        tokens = self._image().access.delegation_tokens
        return in_slices(
            self._long_work, _described(tokens, owners, context.principal, allows, self._secrets)
        )


def _described(
    tokens: Any,
    owners: frozenset[str] | None,
    principal: str,
    allows: Callable[[int, int, str], bool],
    secrets: TokenSecrets,
) -> Work[DescribeDelegationTokenResponse]:
    found: list[DescribedDelegationToken] = []
    for token_id in tokens if owners is None or owners else ():
        token: DelegationToken = tokens[token_id]
        yield TOKEN_UNITS + len(token.renewers)
        if (owners is None or token.owner in owners) and (
            may_renew(token, principal)
            or allows(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id)
            or allows(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        ):
            found.append(_shown(token_id, token, secrets))
    return DescribeDelegationTokenResponse(ErrorCode.NONE, found)


def _shown(token_id: str, token: DelegationToken, secrets: TokenSecrets) -> DescribedDelegationToken:
    kind, name = _parts(token.owner)
    requester_kind, requester_name = _parts(token.requester)
    return DescribedDelegationToken(
        kind,
        name,
        requester_kind,
        requester_name,
        token.issue_timestamp,
        token.expiration_timestamp,
        token.max_timestamp,
        token_id,
        secrets.hmac(token_id),
        [DescribedDelegationTokenRenewer(*_parts(each)) for each in token.renewers],
    )


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
