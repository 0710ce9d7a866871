"""The rights to make requests about delegation tokens (KIP-48, KIP-373), for brokers and controllers. PURE.

Authenticated clients may make such requests, except clients who logged in by a token. A token for another
owner needs CREATE_TOKENS on the resource USER of that name. Checks and answers are Kafka's. These doors admit
everything. The handlers check instead, because they know how the client logged in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.security.acls.rules import Operation, ResourceType
from odradek.security.doors.door import Asked
from odradek.security.tokens import principal_of
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from odradek.wire.schema.anatomy import refuse

__all__ = [
    "create_refused",
    "create_token_door",
    "describe_tokens_door",
    "own_token_door",
    "owner_of",
    "refuse_token_request",
    "token_request_refused",
]


def create_token_door(asked: Asked, request: Any) -> None:
    """Require CREATE_TOKENS on the owner (a resource of the type USER), unless that is the client itself."""


def own_token_door(asked: Asked, request: Any) -> None:
    """Let in the token's owner and its renewers. No right lets in any other client."""


def describe_tokens_door(asked: Asked, request: Any) -> None:
    """Let in every client, for the tokens that it owns or may renew. All other tokens need DESCRIBE on the
    token, or DESCRIBE_TOKENS on the token's owner.
    """


NO_TIME = -1
RENEWERS_MAX = 20
RENEWERS_BYTES_MAX = 4_096
OWNER_BYTES_MAX = 1_024
"""The maximum number of bytes of an owner's name; longer names are refused, because each node stores the name
and each renewal writes it.
"""
Allows = Callable[[Operation, ResourceType, str], bool]


def owner_of(request: CreateDelegationTokenRequest, requester: str) -> str:
    """Return the principal that will own the token."""
    if not request.owner_principal_name:
        return requester
    return principal_of(request.owner_principal_type, request.owner_principal_name)


def create_refused(
    request: CreateDelegationTokenRequest, requester: str, code: ErrorCode, no_time: int = NO_TIME
) -> CreateDelegationTokenResponse:
    """Make the answer to a refused CreateDelegationToken. It has no token."""
    kind, _, name = owner_of(request, requester).partition(":")
    requester_kind, _, requester_name = requester.partition(":")
    return CreateDelegationTokenResponse(
        code, kind, name, requester_kind, requester_name, no_time, no_time, no_time
    )


def refuse_token_request(request: Any, code: ErrorCode, requester: str = "User:ANONYMOUS") -> Any:
    """Make the answer to a refused request about tokens."""
    if isinstance(request, CreateDelegationTokenRequest):
        return create_refused(request, requester, code)
    return refuse(request, code)


def token_request_refused(request: Any, requester: str, *, may_ask: bool, allows: Allows) -> Any | None:
    """Return the refusal of a request that changes tokens; None if the client may make it.

    `may_ask` is true if the client is authenticated, but not by a token. `allows` asks the authorizer.
    """
    if not may_ask:
        return refuse_token_request(request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, requester)
    if not isinstance(request, CreateDelegationTokenRequest):
        return None
    owner, code = owner_of(request, requester), None
    if owner != requester and not allows(Operation.CREATE_TOKENS, ResourceType.USER, owner):
        code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    elif _is_too_large(request.renewers, owner, requester):
        code = ErrorCode.POLICY_VIOLATION
    return None if code is None else create_refused(request, requester, code)


def _is_too_large(renewers: list[CreatableRenewers], owner: str, requester: str) -> bool:
    """True if the renewers or the owner of a token are too long. A name with which the client has logged in is never
    too long.
    """
    if len(renewers) > RENEWERS_MAX or (owner != requester and len(owner.encode()) > OWNER_BYTES_MAX):
        return True
    size = sum(len(principal_of(each.principal_type, each.principal_name).encode()) for each in renewers)
    return size > RENEWERS_BYTES_MAX
