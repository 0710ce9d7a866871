"""Lists SCRAM users, and creates and removes their credentials (KIP-554). The functions are operations. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, item_error, reachable
from odradek.security.scram import MECHANISMS, mechanism_of_number
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = [
    "ScramDeletion",
    "ScramUpsertion",
    "alter_user_scram_credentials",
    "describe_user_scram_credentials",
]


@attrs.frozen
class ScramUpsertion:
    """A SCRAM credential to create or to replace. It contains the salted password instead of the password."""

    user: str
    mechanism: str
    iterations: int
    salt: bytes = attrs.field(repr=False)
    salted_password: bytes = attrs.field(repr=False)

    @classmethod
    def of_password(
        cls, user: str, mechanism: str, password: str, *, salt: bytes, iterations: int = 4096
    ) -> ScramUpsertion:
        """Derive a credential from a password; this takes milliseconds. `salt` must have 16 or more random
        bytes, and must be new for each password. Raises `ValueError` for an unknown mechanism.
        """
        known = MECHANISMS.get(mechanism)
        if known is None:
            raise ValueError(
                f"the mechanism {mechanism!r} is unknown: expected one of {', '.join(MECHANISMS)}"
            )
        return cls(user, mechanism, iterations, salt, known.salted_password(password, salt, iterations))


@attrs.frozen
class ScramDeletion:
    """A SCRAM credential to remove."""

    user: str
    mechanism: str


def describe_user_scram_credentials(
    core: ClientCore, users: Sequence[str] | None = None, *, timeout: float | None = None
) -> Operation[dict[str, Mapping[str, int] | KafkaError]]:
    """Return the SCRAM credentials of each user (None: of all users), or the user's error. The credentials
    are given as the number of iterations, by mechanism.

    One broker answers, with the credentials that it knows. Raises `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        UserName,
    )

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    named = None if users is None else [UserName(each) for each in users]
    message = DescribeUserScramCredentialsRequest(named)
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, response.error_message, "users")
    if error is not None:
        raise error
    found: dict[str, Mapping[str, int] | KafkaError] = {}
    for each in response.results:
        found[each.user] = item_error(each.error_code, each.error_message, each.user) or {
            mechanism.name: info.iterations
            for info in each.credential_infos
            if (mechanism := mechanism_of_number(info.mechanism)) is not None
        }
    return found


def alter_user_scram_credentials(
    core: ClientCore, changes: Sequence[ScramDeletion | ScramUpsertion], *, timeout: float | None = None
) -> Operation[dict[str, KafkaError | None]]:
    """Create and remove credentials, with at most one change per user. Return each user's error, or None on
    success. Raises `ClientError`.
    """
    from odradek.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    message = AlterUserScramCredentialsRequest(
        [
            ScramCredentialDeletion(each.user, _number(each.mechanism))
            for each in changes
            if isinstance(each, ScramDeletion)
        ],
        [
            ScramCredentialUpsertion(
                each.user, _number(each.mechanism), each.iterations, each.salt, each.salted_password
            )
            for each in changes
            if isinstance(each, ScramUpsertion)
        ],
    )
    response = yield from request(core, message, timeout=deadline - core.now)
    errors = {
        each.user: item_error(each.error_code, each.error_message, each.user) for each in response.results
    }
    silent = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name this user")
    return {each.user: errors.get(each.user, silent) for each in changes}


def _number(mechanism: str) -> int:
    """Return Kafka's number of a SCRAM mechanism; 0 for an unknown mechanism, which servers refuse."""
    known = MECHANISMS.get(mechanism)
    return 0 if known is None else known.number
