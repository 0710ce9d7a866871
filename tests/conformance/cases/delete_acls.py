"""DeleteAcls on a cluster without an authorizer. `tests/conformance/acls` has the cases with one."""

from __future__ import annotations

from odradek.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tests.conformance.asking.talk import Talk, case

for _version in (1, 2, 3):

    @case(f"delete_acls v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        talk.ask(DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]), version)
        talk.ask(DeleteAclsRequest([DeleteAclsFilter(2, "t", 3, "User:a", "*", 3, 3)] * 2), version)
        talk.ask(DeleteAclsRequest([]), version)


@case("delete_acls of unknown things")
def _(talk: Talk) -> None:
    for numbers in ((0, 1, 1, 1), (99, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        kind, pattern, operation, permission = numbers
        talk.ask(
            DeleteAclsRequest([DeleteAclsFilter(kind, None, pattern, None, None, operation, permission)]), 3
        )
