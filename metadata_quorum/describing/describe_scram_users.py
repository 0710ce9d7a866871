"""DescribeUserScramCredentials: the credentials that each user has (KIP-554), for brokers and controllers. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.scram import MECHANISMS
from odradek.serving.contract import Context, Result
from odradek.serving.long_work import LongWork
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

__all__ = ["DescribeScramUsersHandler"]


class DescribeScramUsersHandler:
    """Handler of DescribeUserScramCredentials (API 50). The response does not contain salts and keys."""

    def __init__(self, image: Callable[[], MetadataImage], long_work: LongWork) -> None:
        self._image = image
        self._long_work = long_work

    def handle(self, context: Context, request: DescribeUserScramCredentialsRequest) -> Result:
        """Describe the credentials of users. A null or empty list means all users."""
        return in_slices(
            self._long_work, _described(self._image(), [each.name for each in request.users or ()])
        )


def _described(image: MetadataImage, wanted: list[str]) -> Work[DescribeUserScramCredentialsResponse]:
    credentials = image.access.scram_credentials
    counts = Counter(wanted)
    if not wanted:
        for user, _ in credentials:
            counts[user] = 1
            yield 1
    results = []
    for user in counts if wanted else sorted(counts):
        infos = [
            CredentialInfo(each.number, keys.iterations)
            for each in MECHANISMS.values()
            if (keys := credentials.get((user, each.number))) is not None
        ]
        if counts[user] > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            results.append(_refused(user, ErrorCode.DUPLICATE_RESOURCE, text))
        elif not infos:
            text = f"Attempt to describe a user credential that does not exist: {user}"
            results.append(_refused(user, ErrorCode.RESOURCE_NOT_FOUND, text))
        else:
            results.append(DescribeUserScramCredentialsResult(user, ErrorCode.NONE, "", infos))
        yield 1
    return DescribeUserScramCredentialsResponse(0, ErrorCode.NONE, "", results)


def _refused(user: str, code: ErrorCode, text: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user, code, text, [])
