"""What a question about a right is: one request, and the rights that Kafka looks at for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from odradek.security.acls.rules import Operation, ResourceType
from odradek.wire.api import ApiKey

NOBODYS = bytes(range(16))
TOPIC = int(ResourceType.TOPIC)


@attrs.frozen
class Names:
    """The things that one case asks about."""

    known: str
    known_id: bytes
    other: str
    other_id: bytes
    absent: str
    group: str
    transactional_id: str
    owner: str
    """Owns the token `token`, as does `User:another`."""
    token: str
    hmac: bytes


@attrs.frozen
class Right:
    """An operation on one of the things of a question; `on` names a field of `Names`, or is "cluster" or "*"."""

    operation: Operation
    on: str

    @property
    def resource_type(self) -> ResourceType:
        kinds = {
            "group": ResourceType.GROUP,
            "transactional_id": ResourceType.TRANSACTIONAL_ID,
            "cluster": ResourceType.CLUSTER,
            "owner": ResourceType.USER,
            "token": ResourceType.DELEGATION_TOKEN,
        }
        return kinds.get(self.on, ResourceType.TOPIC)


@attrs.frozen
class Question:
    """One request in one version, and the rights that Kafka looks at for it."""

    name: str
    version: int
    build: Callable[[Names], Any]
    rights: tuple[Right, ...]
    changes: bool = False
    """True if a case needs a topic of its own."""
    on_controller: bool = False
    """True if the controller's listener is asked."""
    logs_in: bool = False
    """True if the asker logs in: tokens are not for the anonymous."""


def _rights(*pairs: str) -> tuple[Right, ...]:
    found = []
    for pair in pairs:
        operation, _, on = pair.partition(" ")
        found.append(Right(Operation[operation], on))
    return tuple(found)


QUESTIONS: list[Question] = []


def ask(
    name: str,
    versions: tuple[int, ...],
    build: Callable[[Names], Any],
    *rights: str,
    changes: bool = False,
    on_controller: bool = False,
    logs_in: bool = False,
) -> None:
    """Enter a question, once for each version."""
    for version in versions:
        QUESTIONS.append(
            Question(f"{name} v{version}", version, build, _rights(*rights), changes, on_controller, logs_in)
        )


def api_of(question: Question) -> ApiKey:
    """Return the API that a question asks."""
    return ApiKey[question.name.split(" ")[0].upper()]
