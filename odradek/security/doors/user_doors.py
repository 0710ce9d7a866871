"""The answer to a client that asks for a description of SCRAM users without the right to do so. PURE."""

from __future__ import annotations

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

__all__ = ["refuse_describe_users"]

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def refuse_describe_users(
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse:
    """Answer CLUSTER_AUTHORIZATION_FAILED for the whole request, and once for each named user, without the user's
    name.
    """
    refused = [DescribeUserScramCredentialsResult("", _DENIED, None, []) for _ in request.users or ()]
    return DescribeUserScramCredentialsResponse(0, _DENIED, None, refused)
