"""The rules of a cluster as plain values, and an authorizer that decides by them, for commands and the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.cli.health.troubles import Asker

if TYPE_CHECKING:
    from odradek.security.acls.authorizer import Authorizer
    from odradek.security.acls.rules import Acl

__all__ = ["acl_document", "authorizer_of"]


def acl_document(acl: Acl) -> dict[str, str]:
    """Return the parts of a rule by name, in small letters."""
    from odradek.security.acls.rules import Operation, PatternType, Permission, ResourceType

    return {
        "resource_type": ResourceType(acl.resource_type).name.lower(),
        "resource_name": acl.resource_name,
        "pattern_type": PatternType(acl.pattern_type).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": Operation(acl.operation).name.lower(),
        "permission": Permission(acl.permission_type).name.lower(),
    }


def authorizer_of(client: Asker, super_users: frozenset[str], allow_everyone: bool) -> Authorizer:
    """Make an authorizer that decides by the cluster's rules. The caller gives the super users, and the decision for a
    request that no rule matches.

    Raises `KafkaError` and `ClientError`.
    """
    from odradek.security.acls.acl_index import AclIndex
    from odradek.security.acls.acl_requests import AclFilter
    from odradek.security.acls.authorizer import Authorizer, AuthorizerSettings

    acls = client.admin.describe_acls(AclFilter(1, None, 1, None, None, 1, 1))
    authorizer = Authorizer(AuthorizerSettings(super_users, allow_everyone))
    authorizer.apply(AclIndex.of({number.to_bytes(16, "big"): acl for number, acl in enumerate(acls)}))
    return authorizer
