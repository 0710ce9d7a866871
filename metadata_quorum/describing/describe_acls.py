"""DescribeAcls (API 29), for brokers and controllers: the ACLs that a filter matches, from the node's image."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odradek.security.acls.acl_requests import AclFilter
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Acl, Operation
from odradek.security.doors.door import may_on_cluster, rights_of
from odradek.serving.contract import Context, Result
from odradek.serving.long_work import LongWork
from odradek.serving.steps import Work, in_slices
from odradek.wire.api_keys import ApiKey
from odradek.wire.errors import ErrorCode, RemoteProtocolError
from odradek.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

__all__ = ["NO_AUTHORIZER", "DescribeAclsHandler"]

NO_AUTHORIZER = "No Authorizer is configured on the broker"
ACLS_PER_UNIT = 20
"""The number of ACLs that are compared with the filter in one unit of work, the time to describe a partition.
"""


class DescribeAclsHandler:
    """Handler of DescribeAcls (API 29). `authorizer` is None on a node without one."""

    def __init__(
        self, authorizer: Authorizer | None, acls: Callable[[], Mapping[bytes, Acl]], long_work: LongWork
    ) -> None:
        self._authorizer = authorizer
        self._acls = acls
        self._long_work = long_work

    def handle(self, context: Context, request: DescribeAclsRequest) -> Result:
        """Describe the ACLs that match the filter.

        An unknown number in an enum field raises `RemoteProtocolError`, which closes the connection, as in
        Kafka.
        """
        asked = AclFilter.of(request)
        if asked.has_unknown:
            raise RemoteProtocolError(
                "the client's DescribeAcls request has filter values that this version does not know"
            )
        authorizer = self._authorizer
        if authorizer is None:
            return DescribeAclsResponse(0, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        rights = rights_of(context, authorizer)
        if not may_on_cluster(rights, Operation.DESCRIBE):
            rights.log_denials(ApiKey.DESCRIBE_ACLS)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return DescribeAclsResponse(0, code, code.message)
        return in_slices(self._long_work, _described(self._acls(), asked))


def _described(acls: Mapping[bytes, Acl], asked: AclFilter) -> Work[DescribeAclsResponse]:
    matches = asked.matcher()
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for number, acl_id in enumerate(acls):
        acl = acls[acl_id]
        if number % ACLS_PER_UNIT == 0:
            yield 1
        if matches(acl):
            key = (acl.resource_type, acl.resource_name, acl.pattern_type)
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(*key, [])
            resource.acls.append(AclDescription(acl.principal, acl.host, acl.operation, acl.permission_type))
    return DescribeAclsResponse(0, ErrorCode.NONE, "", list(resources.values()))
