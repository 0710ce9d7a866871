"""CreateAcls on a cluster without an authorizer. `tests/conformance/acls` has the cases with one."""

from __future__ import annotations

from odradek.wire.messages.create_acls import AclCreation, CreateAclsRequest
from tests.conformance.asking.talk import Talk, case

for _version in (1, 2, 3):

    @case(f"create_acls v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        talk.ask(CreateAclsRequest([AclCreation(2, "t", 3, "User:a", "*", 3, 3)]), version)
        talk.ask(CreateAclsRequest([AclCreation(2, "", 3, "a", "*", 3, 3)] * 2), version)
        talk.ask(CreateAclsRequest([]), version)


@case("create_acls of unknown things")
def _(talk: Talk) -> None:
    for numbers in ((0, 3, 3, 3), (99, 3, 3, 3), (2, 0, 3, 3), (2, 3, 0, 3), (2, 3, 3, 0), (2, 3, 99, 3)):
        kind, pattern, operation, permission = numbers
        talk.ask(
            CreateAclsRequest([AclCreation(kind, "t", pattern, "User:a", "*", operation, permission)]), 3
        )
