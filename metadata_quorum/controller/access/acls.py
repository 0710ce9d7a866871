"""CreateAcls and DeleteAcls: add and remove ACLs (KIP-140, KIP-290). PURE.

If a new ACL already exists, no record is written for it. A request is refused as a whole only if it is too
large.
"""

from __future__ import annotations

from collections.abc import Collection

from odradek.metadata_quorum.controller.decision_basis import DecisionBasis
from odradek.metadata_quorum.controller.limits import batch_too_large, check_batch
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.state_machine import Decision, DecisionContext
from odradek.security.acls.acl_requests import AclFilter, checked_acl
from odradek.security.acls.rules import Acl
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from odradek.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from odradek.wire.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from odradek.wire.schema.anatomy import refuse

__all__ = ["acl_record", "create_acls", "delete_acls"]

NO_AUTHORIZER = "No Authorizer is configured."
COMPARED_PER_REQUEST_MAX = 100_000
"""The most pairs of a filter and an ACL that are compared for one request."""
COMPARED_PER_FILTER = 8
"""The cost of reading a filter and finding the ACLs that it may match. The unit is one comparison."""


def create_acls(
    image: MetadataImage, request: CreateAclsRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Create the requested ACLs. The response has a result for each."""
    if not basis.settings.has_authorizer:
        return Decision((), refuse(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    known = image.access.acl_ids
    added: dict[Acl, bytes] = {}
    results = []
    for creation in request.creations:
        try:
            acl = checked_acl(creation)
        except KafkaError as error:
            results.append(AclCreationResult(error.code, error.message))
            continue
        if acl not in known and acl not in added:
            added[acl] = context.new_uuid()
        results.append(AclCreationResult(ErrorCode.NONE, ""))
    records = [acl_record(acl_id, acl) for acl, acl_id in added.items()]
    try:
        check_batch(records)
    except KafkaError as error:
        return Decision((), refuse(request, error.code, error.message))
    return Decision(records, CreateAclsResponse(0, results))


def acl_record(acl_id: bytes, acl: Acl) -> AccessControlEntryRecord:
    """Make the record that adds an ACL under this id."""
    return AccessControlEntryRecord(
        acl_id,
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def delete_acls(
    image: MetadataImage, request: DeleteAclsRequest, context: DecisionContext, basis: DecisionBasis
) -> Decision:
    """Delete the ACLs that the filters match, with a result for each filter.

    An ACL that several filters match is only in the result of the first.
    """
    if not basis.settings.has_authorizer:
        return Decision((), refuse(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    acls = image.access.acls
    gone: dict[bytes, None] = {}
    results = []
    compared = 0
    for each in request.filters:
        asked = AclFilter.of(each)
        try:
            asked.check()
        except KafkaError as error:
            results.append(DeleteAclsFilterResult(error.code, error.message, []))
            continue
        candidates = _candidates(image, asked)
        compared += COMPARED_PER_FILTER + len(candidates)
        if compared > max(COMPARED_PER_REQUEST_MAX, COMPARED_PER_FILTER + len(acls)):
            large = batch_too_large()
            return Decision((), refuse(request, large.code, large.message))
        matches = asked.matcher()
        matching = sorted(acl_id for acl_id, acl in candidates if matches(acl) and acl_id not in gone)
        gone.update(dict.fromkeys(matching))
        results.append(
            DeleteAclsFilterResult(ErrorCode.NONE, None, [_deleted(acls[acl_id]) for acl_id in matching])
        )
    records = [RemoveAccessControlEntryRecord(acl_id) for acl_id in gone]
    try:
        check_batch(records)
    except KafkaError as error:
        return Decision((), refuse(request, error.code, error.message))
    return Decision(records, DeleteAclsResponse(0, results))


def _candidates(image: MetadataImage, asked: AclFilter) -> Collection[tuple[bytes, Acl]]:
    """Return the ACLs that a filter may match, with their ids. Depending on the filter, these are one ACL,
    the ACLs of one resource name, or all ACLs.
    """
    acls, ids = image.access.acls, image.access.acl_ids
    if len(ids) < len(acls):
        return acls.items()  # A log that another program wrote may have an ACL twice.
    exact = _as_acl(asked)
    if exact in ids:
        return [(ids[exact], exact)]
    named = image.access.acl_index.candidates(asked)
    return acls.items() if named is None else [(ids[acl], acl) for acl in named]


def _as_acl(asked: AclFilter) -> Acl:
    """Make the ACL that an exact filter matches. If the filter leaves some field open, the result is an ACL that cannot
    exist.
    """
    return Acl(
        asked.resource_type,
        asked.resource_name or "",
        asked.pattern_type,
        asked.principal or "",
        asked.host or "",
        asked.operation,
        asked.permission_type,
    )


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        ErrorCode.NONE,
        None,
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
