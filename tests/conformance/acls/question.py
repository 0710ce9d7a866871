"""A question about rights: one request, and the rights that Kafka checks for it."""

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
    """The names of the resources in one case."""

    known: str
    known_id: bytes
    other: str
    other_id: bytes
    absent: str
    group: str
    transactional_id: str
    owner: str
    """The owner of the token `token`. `User:another` owns it, too."""
    token: str
    hmac: bytes


@attrs.frozen
class Right:
    """An operation on one of the resources of a question. `on` is a field of `Names`, or "cluster" or "*"."""

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
    """One request in one version, and the rights that Kafka checks for it."""

    name: str
    version: int
    build: Callable[[Names], Any]
    rights: tuple[Right, ...]
    changes: bool = False
    """True if each case needs a topic of its own, since the request changes it."""
    on_controller: bool = False
    """True if the request goes to the controller's listener."""
    logs_in: bool = False
    """True if the client logs in, since anonymous clients may not have tokens."""


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
    """Register a question, once for each version."""
    for version in versions:
        QUESTIONS.append(
            Question(f"{name} v{version}", version, build, _rights(*rights), changes, on_controller, logs_in)
        )


def api_of(question: Question) -> ApiKey:
    """Return the API of a question."""
    return ApiKey[question.name.split(" ")[0].upper()]
