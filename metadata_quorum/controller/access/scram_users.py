"""AlterUserScramCredentials: set and delete users' credentials (KIP-554). PURE.

A request contains the salted password, never the password itself. The controller stores only the two keys
that are derived from the salted password. As in Kafka, a request may have only one change for each user.
"""

from __future__ import annotations

from collections import Counter

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import check_batch
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, mechanism_of_number, server_keys
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from odradek.wire.messages.metadata_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from odradek.wire.structure import Message

__all__ = ["alter_user_scram_credentials"]


def alter_user_scram_credentials(
    image: MetadataImage,
    request: AlterUserScramCredentialsRequest,
    context: DecisionContext,
    basis: DecisionBasis,
) -> Decision:
    """Make all changes of credentials, except those of users with an invalid change. The response has a result for each
    user.
    """
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion]
    changes = [*request.deletions, *request.upsertions]
    counts = Counter(each.name for each in changes)
    errors: dict[str, tuple[int, str | None]] = {}
    for change in changes:
        if errors.setdefault(change.name, (ErrorCode.NONE, None))[0]:
            continue
        try:
            if isinstance(change, ScramCredentialDeletion):
                _check_deletion(image, change)
            if counts[change.name] > 1:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            if isinstance(change, ScramCredentialUpsertion):
                _check_upsertion(change)
        except KafkaError as error:
            errors[change.name] = (error.code, error.message)
    records: list[Message] = []
    records += (
        RemoveUserScramCredentialRecord(each.name, each.mechanism)
        for each in request.deletions
        if not errors[each.name][0]
    )
    sound = [each for each in request.upsertions if not errors[each.name][0]]
    check_batch([*records, *sound])
    records += map(_record, sound)
    results = [AlterUserScramCredentialsResult(name, code, text) for name, (code, text) in errors.items()]
    return Decision(records, AlterUserScramCredentialsResponse(0, results))


def _check_name(name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")


def _check_deletion(image: MetadataImage, deletion: ScramCredentialDeletion) -> None:
    _check_name(deletion.name)
    if mechanism_of_number(deletion.mechanism) is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if (deletion.name, deletion.mechanism) not in image.access.scram_credentials:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        )


def _check_upsertion(upsertion: ScramCredentialUpsertion) -> None:
    _check_name(upsertion.name)
    if mechanism_of_number(upsertion.mechanism) is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if upsertion.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _record(upsertion: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    mechanism = mechanism_of_number(upsertion.mechanism)
    assert mechanism is not None, "checked before"
    keys = server_keys(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
    return UserScramCredentialRecord(
        upsertion.name, upsertion.mechanism, keys.salt, keys.stored_key, keys.server_key, keys.iterations
    )
