"""DescribeUserScramCredentials: users that do not exist."""

from __future__ import annotations

from odradek.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.conformance.asking.talk import Talk, case


@case("describe_user_scram_credentials of nobody")
def _(talk: Talk) -> None:
    name = UserName(talk.name("nobody"))
    talk.ask(DescribeUserScramCredentialsRequest([name]), 0)
    talk.ask(DescribeUserScramCredentialsRequest([name, name]), 0)
    talk.ask(DescribeUserScramCredentialsRequest([UserName("")]), 0)
