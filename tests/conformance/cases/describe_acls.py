"""DescribeAcls on a broker without an authorizer. `tests/conformance/acls` has the cases with one."""

from __future__ import annotations

from odradek.wire.messages.describe_acls import DescribeAclsRequest
from tests.conformance.asking.talk import Talk, case

for _version in (1, 2, 3):

    @case(f"describe_acls v{_version}")
    def _(talk: Talk, *, version: int = _version) -> None:
        talk.ask(DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
        talk.ask(DescribeAclsRequest(2, "t", 3, "User:a", "*", 3, 3), version)


@case("describe_acls of unknown things")
def _(talk: Talk) -> None:
    for part in range(4):
        numbers = [1, 1, 1, 1]
        for number in (0, 99, -1):
            numbers[part] = number
            kind, pattern, operation, permission = numbers
            talk.ask(DescribeAclsRequest(kind, None, pattern, None, None, operation, permission), 3)


@case("describe_acls of tokens and users")
def _(talk: Talk) -> None:
    talk.ask(DescribeAclsRequest(6, "token", 3, None, None, 8, 3), 3)
    talk.ask(DescribeAclsRequest(7, "User:a", 3, None, None, 13, 3), 3)
