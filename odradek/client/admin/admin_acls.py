"""Lists, creates and removes ACLs (KIP-140, KIP-290). The functions are operations. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.requests import request
from odradek.client.core.scatter import deadline_of, item_error, reachable
from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.rules import Acl
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Acl", "AclFilter", "create_acls", "delete_acls", "describe_acls"]


def describe_acls(
    core: ClientCore, wanted: AclFilter, *, timeout: float | None = None
) -> Operation[list[Acl]]:
    """List the ACLs that a filter matches. One broker answers, with the ACLs that it knows. Raises
    `KafkaError` and `ClientError`.
    """
    from odradek.wire.messages.describe_acls import DescribeAclsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    message = DescribeAclsRequest(*attrs.astuple(wanted))
    response = yield from request(core, message, timeout=deadline - core.now)
    error = item_error(response.error_code, response.error_message, "ACLs")
    if error is not None:
        raise error
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for resource in response.resources
        for each in resource.acls
    ]


def create_acls(
    core: ClientCore, acls: Sequence[Acl], *, timeout: float | None = None
) -> Operation[dict[Acl, KafkaError | None]]:
    """Create ACLs; return for each its error, or None on success. Creating an ACL that already exists is not
    an error. Raises `ClientError`.
    """
    from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    message = CreateAclsRequest([AclCreation(*attrs.astuple(each)) for each in acls])
    response = yield from request(core, message, timeout=deadline - core.now)
    return {
        acl: item_error(result.error_code, result.error_message, str(acl))
        for acl, result in zip(acls, response.results, strict=True)
    }


def delete_acls(
    core: ClientCore, filters: Sequence[AclFilter], *, timeout: float | None = None
) -> Operation[list[Acl]]:
    """Remove the ACLs that the filters match, and return the removed ACLs. Raises `ClientError`, or the
    `KafkaError` of the first filter that failed.
    """
    from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)
    message = DeleteAclsRequest([DeleteAclsFilter(*attrs.astuple(each)) for each in filters])
    response = yield from request(core, message, timeout=deadline - core.now)
    gone = []
    for result in response.filter_results:
        error = item_error(result.error_code, result.error_message, "ACLs")
        if error is not None:
            raise error
        gone += [
            Acl(
                each.resource_type,
                each.resource_name,
                each.pattern_type,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            for each in result.matching_acls
        ]
    return gone
