"""The refusal of questions about users. PURE."""

from __future__ import annotations

from wire.errors import ErrorCode
from wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

__all__ = ["refuse_describe_users"]

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def refuse_describe_users(
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse:
    """CLUSTER_AUTHORIZATION_FAILED for the whole, and once for each user that was named, without the name."""
    told = [DescribeUserScramCredentialsResult("", _DENIED, _DENIED.message, []) for _ in request.users or ()]
    return DescribeUserScramCredentialsResponse(0, _DENIED, _DENIED.message, told)
