"""AlterUserScramCredentials and DescribeUserScramCredentials: credentials that are refused, described, and removed
again.
"""

from __future__ import annotations

from odradek.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from odradek.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.conformance.asking.talk import Talk, case

SHA_256, SHA_512 = 1, 2
SALT = b"0123456789abcdef"


def _upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, SALT, bytes(32 * max(1, mechanism)))


def _alter(talk: Talk, *changes: ScramCredentialDeletion | ScramCredentialUpsertion) -> None:
    deletions = [each for each in changes if isinstance(each, ScramCredentialDeletion)]
    upsertions = [each for each in changes if isinstance(each, ScramCredentialUpsertion)]
    talk.ask(AlterUserScramCredentialsRequest(deletions, upsertions), 0)


def _wait(talk: Talk, name: str, mechanisms: int) -> None:
    """Wait until the broker's image has `mechanisms` credentials of the user."""
    request = DescribeUserScramCredentialsRequest([UserName(name)])
    talk.ask_until(request, 0, lambda answer: len(answer.results[0].credential_infos) == mechanisms)


@case("alter_user_scram_credentials makes, describes, replaces and deletes a user")
def _(talk: Talk) -> None:
    name = talk.name("user")
    describe = DescribeUserScramCredentialsRequest([UserName(name)])
    _alter(talk, _upsertion(name))
    _wait(talk, name, 1)
    talk.ask(describe, 0)
    _alter(talk, _upsertion(name, SHA_512, 16_384))
    _wait(talk, name, 2)
    talk.ask(describe, 0)
    _alter(talk, ScramCredentialDeletion(name, SHA_256), ScramCredentialDeletion(name, SHA_512))
    _alter(talk, ScramCredentialDeletion(name, SHA_256))
    _alter(talk, ScramCredentialDeletion(name, SHA_512))
    _wait(talk, name, 0)
    talk.ask(describe, 0)


@case("alter_user_scram_credentials that cannot be")
def _(talk: Talk) -> None:
    name = talk.name("user")
    _alter(talk, ScramCredentialDeletion(name, SHA_256))
    _alter(talk, _upsertion(name, 0))
    _alter(talk, _upsertion(name, 3))
    _alter(talk, _upsertion(name, -1))
    _alter(talk, ScramCredentialDeletion(name, 0))
    _alter(talk, _upsertion(name, iterations=4095))
    _alter(talk, _upsertion(name, SHA_512, 4095))
    _alter(talk, _upsertion(name, iterations=16_385))
    _alter(talk, _upsertion(name, iterations=-1))
    _alter(talk, _upsertion(""))
    _alter(talk, ScramCredentialDeletion("", SHA_256))
    _alter(talk)


@case("alter_user_scram_credentials names a credential twice")
def _(talk: Talk) -> None:
    name = talk.name("user")
    _alter(talk, _upsertion(name), _upsertion(name))
    _alter(talk, _upsertion(name), ScramCredentialDeletion(name, SHA_256))
    _alter(talk, ScramCredentialDeletion(name, SHA_256), ScramCredentialDeletion(name, SHA_256))
    _alter(talk, _upsertion(name), _upsertion(name, SHA_512, 1))
    talk.ask(DescribeUserScramCredentialsRequest([UserName(name)]), 0)
